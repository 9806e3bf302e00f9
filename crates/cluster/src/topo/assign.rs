//! Which rail serves which GPU: the assignment with the least sum of distances.

/// Columns for rows such that the sum of `cost(row, column)` is least, each column used once. There must be as many columns as rows
/// or more; entry i is the column of row i.
///
/// The method is the one of Kuhn and Munkres with potentials, rows times columns squared.
pub(super) fn least_cost(rows: usize, columns: usize, cost: impl Fn(usize, usize) -> i64) -> Vec<usize> {
    if rows == 0 || columns < rows {
        return Vec::new();
    }
    // Row and column 0 are the method's own; `owner[c]` is the row that has column c.
    let mut row_potential = vec![0_i64; rows + 1];
    let mut column_potential = vec![0_i64; columns + 1];
    let mut owner = vec![0_usize; columns + 1];
    let mut previous = vec![0_usize; columns + 1];
    for row in 1..=rows {
        owner[0] = row;
        let mut column = 0;
        let mut least = vec![i64::MAX; columns + 1];
        let mut used = vec![false; columns + 1];
        while owner[column] != 0 {
            used[column] = true;
            let current = owner[column];
            let (mut delta, mut next) = (i64::MAX, 0);
            for candidate in 1..=columns {
                if used[candidate] {
                    continue;
                }
                let reduced =
                    cost(current - 1, candidate - 1) - row_potential[current] - column_potential[candidate];
                if reduced < least[candidate] {
                    least[candidate] = reduced;
                    previous[candidate] = column;
                }
                if least[candidate] < delta {
                    delta = least[candidate];
                    next = candidate;
                }
            }
            for candidate in 0..=columns {
                if used[candidate] {
                    row_potential[owner[candidate]] += delta;
                    column_potential[candidate] -= delta;
                } else if least[candidate] != i64::MAX {
                    least[candidate] -= delta;
                }
            }
            column = next;
        }
        while column != 0 {
            owner[column] = owner[previous[column]];
            column = previous[column];
        }
    }
    let mut columns_of = vec![0; rows];
    for (column, &row) in owner.iter().enumerate().skip(1) {
        if row != 0 {
            columns_of[row - 1] = column - 1;
        }
    }
    columns_of
}

#[cfg(test)]
mod tests {
    use super::least_cost;

    #[test]
    fn the_nearest_pair_first_would_strand_the_other_gpu() {
        // GPU 0 is near both rails, GPU 1 near rail 0 only.
        let cost = [[0, 1], [0, 100]];
        assert_eq!(least_cost(2, 2, |r, c| cost[r][c]), [1, 0]);
        assert_eq!(least_cost(0, 3, |_, _| 0), [0; 0]);
        assert_eq!(least_cost(2, 3, |r, c| if r + 1 == c { 0 } else { 5 }), [1, 2]);
    }

    #[test]
    fn as_cheap_as_every_order_tried() {
        // All orders of five columns for four rows, with costs of a small generator.
        let mut state = 7_u64;
        for _ in 0..200 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as i64 % 20
            };
            let cost: Vec<Vec<i64>> = (0..4).map(|_| (0..5).map(|_| next()).collect()).collect();
            let found: i64 =
                least_cost(4, 5, |r, c| cost[r][c]).iter().enumerate().map(|(r, &c)| cost[r][c]).sum();
            let mut best = i64::MAX;
            for a in 0..5 {
                for b in (0..5).filter(|&b| b != a) {
                    for c in (0..5).filter(|&c| c != a && c != b) {
                        for d in (0..5).filter(|&d| d != a && d != b && d != c) {
                            best = best.min(cost[0][a] + cost[1][b] + cost[2][c] + cost[3][d]);
                        }
                    }
                }
            }
            assert_eq!(found, best);
        }
    }
}
