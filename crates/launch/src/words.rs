//! Words of messages.

use std::fmt::Display;

/// A count with its word: `1 node`, `2 nodes`.
pub(crate) fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, what: &str) -> String {
    let many = if number == N::from(1) { "" } else { "s" };
    format!("{number} {what}{many}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_many() {
        assert_eq!([count(1, "node"), count(0, "node")], ["1 node", "0 nodes"]);
    }
}
