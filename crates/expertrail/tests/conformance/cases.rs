//! The cases.

use super::core::{Dtype, Layout, Shape};

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routes {
    /// Any experts, repeats and -1 included.
    Any,
    /// Distinct experts.
    Distinct,
    /// All tokens to expert 0 first.
    OneExpert,
    /// Every choice is -1.
    Nowhere,
    /// Only the first rank's experts.
    FirstRank,
}

/// Where the rows that combine takes lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Inputs {
    Private,
    Shared,
    InPlace,
    Mixed,
}

/// Whether combine multiplies rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Experts {
    PlainRows,
    WeightedRows,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub ranks: usize,
    pub ranks_per_node: usize,
    /// Tokens of rank `r`: entry `r % len`.
    pub tokens: &'static [usize],
    pub hidden: usize,
    pub top_k: usize,
    pub experts: usize,
    pub dtype: Dtype,
    pub layout: Layout,
    pub routes: Routes,
    pub weights: bool,
    pub experts_do: Experts,
    pub biases: usize,
    pub worst_case_spare: Option<usize>,
    pub inputs: &'static [Inputs],
    pub live_outputs: usize,
    pub rounds: u64,
}

impl Case {
    pub fn shape(&self) -> Shape {
        let max_tokens = self.tokens.iter().copied().max().unwrap_or(0);
        Shape { max_tokens, hidden: self.hidden, top_k: self.top_k, experts: self.experts }
    }
}

const ALL_INPUTS: &[Inputs] = &[Inputs::Private, Inputs::Shared, Inputs::InPlace, Inputs::Mixed];

/// The case that others differ from.
pub fn base() -> Case {
    Case {
        name: "base",
        ranks: 2,
        ranks_per_node: 2,
        tokens: &[37],
        hidden: 136,
        top_k: 3,
        experts: 8,
        dtype: Dtype::Bf16,
        layout: Layout::BySource,
        routes: Routes::Any,
        weights: true,
        experts_do: Experts::PlainRows,
        biases: 0,
        worst_case_spare: None,
        inputs: ALL_INPUTS,
        live_outputs: 2,
        rounds: 3,
    }
}

/// Every case, each for all backends.
pub fn cases() -> Vec<Case> {
    let expert_major = |alignment| Layout::ExpertMajor { alignment };
    let (fp8, weighted) = (Dtype::Fp8E4m3, Experts::WeightedRows);
    let mut cases = vec![
        base(),
        Case { name: "one rank", ranks: 1, ranks_per_node: 1, biases: 1, ..base() },
        Case { name: "no weights", weights: false, ..base() },
        Case {
            name: "three ranks, seven experts",
            ranks: 3,
            ranks_per_node: 3,
            experts: 7,
            tokens: &[19, 0, 40],
            ..base()
        },
        Case {
            name: "five ranks, two biases",
            ranks: 5,
            ranks_per_node: 5,
            experts: 23,
            biases: 2,
            ..base()
        },
        Case { name: "seven ranks, top-1", ranks: 7, ranks_per_node: 7, top_k: 1, experts: 16, ..base() },
        Case {
            name: "eight ranks, top-8",
            ranks: 8,
            ranks_per_node: 8,
            top_k: 8,
            experts: 64,
            routes: Routes::Distinct,
            ..base()
        },
        Case {
            name: "top-32",
            ranks: 8,
            ranks_per_node: 8,
            top_k: 32,
            experts: 40,
            tokens: &[11],
            hidden: 64,
            ..base()
        },
        Case { name: "more ranks than experts", ranks: 8, ranks_per_node: 8, experts: 3, top_k: 2, ..base() },
        Case { name: "no tokens anywhere", ranks: 3, ranks_per_node: 3, tokens: &[0], ..base() },
        Case {
            name: "no tokens on some",
            ranks: 4,
            ranks_per_node: 4,
            tokens: &[0, 50],
            biases: 1,
            ..base()
        },
        Case {
            name: "nowhere to go",
            ranks: 3,
            ranks_per_node: 3,
            routes: Routes::Nowhere,
            biases: 1,
            ..base()
        },
        Case {
            name: "one hot expert",
            ranks: 4,
            ranks_per_node: 4,
            routes: Routes::OneExpert,
            tokens: &[200],
            ..base()
        },
        Case {
            name: "one hot rank",
            ranks: 5,
            ranks_per_node: 5,
            routes: Routes::FirstRank,
            tokens: &[150],
            ..base()
        },
        Case { name: "smallest hidden", hidden: 8, ranks: 3, ranks_per_node: 3, ..base() },
        Case {
            name: "two nodes of two",
            ranks: 4,
            ranks_per_node: 2,
            top_k: 6,
            experts: 16,
            biases: 1,
            ..base()
        },
        Case { name: "four nodes of two", ranks: 8, ranks_per_node: 2, top_k: 8, experts: 32, ..base() },
        Case { name: "three nodes of one", ranks: 3, ranks_per_node: 1, top_k: 4, ..base() },
        Case { name: "worst-case rows", ranks: 3, ranks_per_node: 3, worst_case_spare: Some(13), ..base() },
        Case { name: "worst-case rows, none spare", worst_case_spare: Some(0), ..base() },
        Case { name: "fp8", dtype: fp8, hidden: 384, ranks: 3, ranks_per_node: 3, ..base() },
        Case { name: "fp8, worst case", dtype: fp8, hidden: 128, worst_case_spare: Some(5), ..base() },
        Case { name: "expert-major", layout: expert_major(1), ranks: 3, ranks_per_node: 3, ..base() },
        Case {
            name: "expert-major, padded",
            layout: expert_major(16),
            ranks: 4,
            ranks_per_node: 4,
            top_k: 4,
            experts: 11,
            ..base()
        },
        Case {
            name: "expert-major, weighted",
            layout: expert_major(8),
            experts_do: weighted,
            ranks: 3,
            ranks_per_node: 3,
            top_k: 5,
            ..base()
        },
        Case {
            name: "expert-major, weighted, two nodes",
            layout: expert_major(4),
            experts_do: weighted,
            ranks: 4,
            ranks_per_node: 2,
            biases: 2,
            top_k: 7,
            ..base()
        },
        Case { name: "expert-major, fp8", layout: expert_major(128), dtype: fp8, hidden: 256, ..base() },
        Case {
            name: "expert-major, more ranks than experts",
            layout: expert_major(2),
            ranks: 5,
            ranks_per_node: 5,
            experts: 3,
            ..base()
        },
        Case {
            name: "expert-major, worst case",
            layout: expert_major(4),
            worst_case_spare: Some(9),
            ..base()
        },
        Case { name: "expert-major, empty", layout: expert_major(8), tokens: &[0], ..base() },
        Case {
            name: "expert-major, top-32",
            layout: expert_major(8),
            experts_do: weighted,
            top_k: 32,
            experts: 33,
            tokens: &[17],
            ..base()
        },
    ];
    // Wide enough for several staging windows and for non-temporal stores (4 MiB and more in one call).
    cases.push(Case {
        name: "large rows",
        ranks: 4,
        ranks_per_node: 4,
        tokens: &[130],
        hidden: 7168,
        top_k: 8,
        experts: 64,
        rounds: 1,
        routes: Routes::Distinct,
        ..base()
    });
    // Rows that no single chunk of a copy holds, on any backend.
    cases.push(Case {
        name: "widest rows",
        hidden: 16_384,
        tokens: &[9, 14],
        rounds: 2,
        biases: 1,
        ..base()
    });
    cases.push(Case {
        name: "widest rows, fp8",
        hidden: 16_384,
        tokens: &[14, 9],
        dtype: fp8,
        rounds: 2,
        ..base()
    });
    cases.push(Case {
        name: "top-32, two ranks",
        top_k: 32,
        experts: 45,
        tokens: &[23, 70],
        hidden: 64,
        ..base()
    });
    cases.push(Case { name: "one expert", experts: 1, top_k: 1, tokens: &[33, 12], ..base() });
    cases.push(Case { name: "two nodes of one", ranks_per_node: 1, top_k: 4, biases: 2, ..base() });
    cases.push(Case {
        name: "no tokens on one of two",
        tokens: &[0, 41],
        worst_case_spare: Some(3),
        ..base()
    });
    cases.push(Case {
        name: "large rows, fp8, expert-major",
        ranks: 2,
        tokens: &[400],
        hidden: 7168,
        dtype: fp8,
        layout: expert_major(64),
        top_k: 8,
        experts: 16,
        rounds: 1,
        inputs: &[Inputs::Private],
        ..base()
    });
    cases
}
