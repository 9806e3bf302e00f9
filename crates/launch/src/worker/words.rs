//! Words in arguments that stand for the place of a rank: `{rank}`, `{node}` and so on.

/// The place that words are replaced with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// `{run}`.
    pub run: &'a str,
    /// `{node}`: index of the node.
    pub node: usize,
    /// `{rank}`: what `RANK` is.
    pub rank: usize,
    /// `{local_rank}`.
    pub local_rank: usize,
    /// `{nodes}`.
    pub nodes: usize,
    /// `{ranks}`: ranks in all, whoever starts them.
    pub ranks: usize,
    /// `{ranks_per_node}`.
    pub ranks_per_node: usize,
}

impl Place<'_> {
    /// `text` with its words replaced. Other braces stay: they are JSON, or a shell's.
    pub fn fill(&self, text: &str) -> String {
        let numbers = [
            ("{node}", self.node),
            ("{rank}", self.rank),
            ("{local_rank}", self.local_rank),
            ("{nodes}", self.nodes),
            ("{ranks}", self.ranks),
            ("{ranks_per_node}", self.ranks_per_node),
        ];
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, word) = rest.split_at(at);
            out.push_str(before);
            let number = numbers.iter().find(|(name, _)| word.starts_with(name));
            rest = if let Some((name, number)) = number {
                out.push_str(&number.to_string());
                &word[name.len()..]
            } else if let Some(after) = word.strip_prefix("{run}") {
                // In one pass: a run id with braces is not looked at again.
                out.push_str(self.run);
                after
            } else {
                out.push('{');
                &word[1..]
            };
        }
        out.push_str(rest);
        out
    }
}

/// Whether `text` differs from rank to rank.
pub fn is_of_rank(text: &str) -> bool {
    text.contains("{rank}") || text.contains("{local_rank}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_and_other_braces_stay() {
        let place = Place {
            run: "a-{node}",
            node: 1,
            rank: 9,
            local_rank: 1,
            nodes: 2,
            ranks: 16,
            ranks_per_node: 8,
        };
        assert_eq!(
            place.fill("{run}/{rank}.{local_rank}.{node}.{nodes}.{ranks}.{ranks_per_node} {\"a\":{rank}} ${X} {ranky} {"),
            "a-{node}/9.1.1.2.16.8 {\"a\":9} ${X} {ranky} {"
        );
        assert!(is_of_rank("x{local_rank}") && is_of_rank("{rank}") && !is_of_rank("{ranks}{node}"));
    }
}
