//! Which cases run on the GPUs that there are.

use expertrail_core::Layout;

use crate::shared::{Case, base, cases};

/// A case under the name it is reported by.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) case: Case,
    /// Why it is not run, if it is not.
    pub(crate) not_run: Option<String>,
}

/// Every case of the shared list, cut to the number of GPUs where it needs more, and those for GPUs alone.
pub(crate) fn listed(gpus: usize) -> Vec<Listed> {
    let mut list = Vec::new();
    for case in cases() {
        let (name, ranks) = (case.name.to_owned(), case.ranks);
        if case.layout != Layout::BySource {
            let not_run = Some("the expert-major kernel is not built".to_owned());
            list.push(Listed { name, case, not_run });
        } else if ranks > gpus {
            let smaller = cut(&case, gpus);
            let not_run = Some(format!("it needs {ranks} GPUs, there are {gpus}"));
            list.push(Listed { name: name.clone(), case, not_run });
            let cut_name = format!("{name} ({gpus} rank{})", if gpus == 1 { "" } else { "s" });
            list.push(Listed { name: cut_name, case: smaller, not_run: None });
        } else {
            list.push(Listed { name, case, not_run: None });
        }
    }
    list.extend(for_gpus(gpus).into_iter().map(|case| Listed {
        name: case.name.to_owned(),
        case,
        not_run: None,
    }));
    list
}

/// The case with fewer ranks. Several declared nodes stay several where they can.
fn cut(case: &Case, ranks: usize) -> Case {
    let several = case.ranks > case.ranks_per_node;
    let most = if several { (ranks / 2).max(1) } else { ranks };
    let ranks_per_node = (1..=most).rev().find(|&per_node| ranks.is_multiple_of(per_node)).unwrap_or(1);
    Case { ranks, ranks_per_node, ..case.clone() }
}

/// What only the GPU backend has: SMs. And all the GPUs at once, if there are more than cases use.
fn for_gpus(gpus: usize) -> Vec<Case> {
    let all = Case { ranks: gpus, ranks_per_node: gpus, ..base() };
    vec![
        Case {
            name: "SM counts 1 to 24",
            rounds: 24,
            tokens: &[61, 200],
            hidden: 1024,
            top_k: 8,
            ..all.clone()
        },
        Case {
            name: "SM counts 1 to 24, worst case",
            rounds: 24,
            tokens: &[200, 3],
            hidden: 512,
            biases: 1,
            worst_case_spare: Some(40),
            ..all.clone()
        },
        Case { name: "fewer tokens than SMs", rounds: 4, tokens: &[1, 2], ..all.clone() },
        // Decimal, so that no power of two hides a remainder.
        Case { name: "a thousand tokens", tokens: &[1000, 999], hidden: 1000, top_k: 6, experts: 60, ..all },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_cut_to_the_gpus_and_nothing_is_lost() {
        let list = listed(2);
        assert!(list.iter().all(|l| l.not_run.is_some() || l.case.ranks <= 2));
        for case in cases() {
            let of_case: Vec<_> = list
                .iter()
                .filter(|l| l.name == case.name || l.name == format!("{} (2 ranks)", case.name))
                .collect();
            let runs = of_case.iter().filter(|l| l.not_run.is_none()).count();
            assert_eq!(runs, usize::from(case.layout == Layout::BySource), "{}", case.name);
        }
        let find = |name: &str| list.iter().find(|l| l.name == name).unwrap();
        assert_eq!(find("seven ranks, top-1").not_run.as_deref(), Some("it needs 7 GPUs, there are 2"));
        assert_eq!(
            find("expert-major, fp8").not_run.as_deref(),
            Some("the expert-major kernel is not built")
        );
        // Two nodes of two become two of one, one node of five one of two.
        let nodes = |name: &str| (find(name).case.ranks, find(name).case.ranks_per_node);
        assert_eq!(nodes("two nodes of two (2 ranks)"), (2, 1));
        assert_eq!(nodes("one hot rank (2 ranks)"), (2, 2));
        assert_eq!(find("one rank").not_run, None);
    }

    #[test]
    fn nodes_divide_at_any_number_of_gpus() {
        for gpus in 1..=8 {
            for listed in listed(gpus).iter().filter(|l| l.not_run.is_none()) {
                let Case { ranks, ranks_per_node, .. } = listed.case;
                assert!(
                    ranks >= 1 && ranks <= gpus && ranks.is_multiple_of(ranks_per_node),
                    "{}",
                    listed.name
                );
            }
        }
    }
}
