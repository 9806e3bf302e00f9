//! Which pairs are measured when.

/// With more ranks than this, disjoint pairs are measured at once: one by one their number would take too long.
pub(super) const ONE_BY_ONE: usize = 8;

/// Rounds of disjoint pairs (a < b) in which every pair of `ranks` comes once.
///
/// The circle method: rank 0 stays, the others turn by one place a round, and opposite places meet.
pub(super) fn rounds(ranks: usize) -> Vec<Vec<(usize, usize)>> {
    let places = ranks + ranks % 2;
    let mut rounds = Vec::new();
    for turn in 0..places.saturating_sub(1) {
        let at = |place: usize| if place == 0 { 0 } else { 1 + (place - 1 + turn) % (places - 1) };
        let mut pairs: Vec<(usize, usize)> = (0..places / 2)
            .map(|place| (at(place), at(places - 1 - place)))
            .map(|(a, b)| (a.min(b), a.max(b)))
            // The place too many of an odd number.
            .filter(|(_, b)| *b < ranks)
            .collect();
        pairs.sort_unstable();
        if ranks <= ONE_BY_ONE {
            rounds.extend(pairs.into_iter().map(|pair| vec![pair]));
        } else {
            rounds.push(pairs);
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_comes_once_and_no_rank_twice_in_a_round() {
        for ranks in 0..40 {
            let mut seen = BTreeSet::new();
            for round in rounds(ranks) {
                let busy: BTreeSet<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(busy.len(), 2 * round.len(), "{ranks}: {round:?}");
                for (a, b) in round {
                    assert!(a < b && b < ranks && seen.insert((a, b)), "{ranks}: {a} {b}");
                }
            }
            assert_eq!(seen.len(), ranks * ranks.saturating_sub(1) / 2, "{ranks}");
        }
        assert_eq!(rounds(40).len(), 39);
        assert_eq!(rounds(8).len(), 28);
    }
}
