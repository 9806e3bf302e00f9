//! Who runs where: the ranks' claims put together.

use std::collections::BTreeMap;

/// What one rank says of its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) host: String,
    pub(crate) node: Option<usize>,
    pub(crate) local_rank: Option<usize>,
    pub(crate) local_size: Option<usize>,
}

/// Where one rank is, agreed among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
}

/// Places all ranks, or says which claims contradict each other.
///
/// Nodes are told apart by their index where every rank knows it, else by host name; they are numbered
/// without gaps, in order of index or of their lowest rank. Within a node ranks go by local rank where
/// all of them know it, else by rank.
pub(crate) fn resolve(claims: &[Claim]) -> Result<Vec<Place>, String> {
    let mut nodes: Vec<Vec<usize>> = Vec::new();
    if claims.iter().all(|claim| claim.node.is_some()) {
        let mut by_index: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for (rank, claim) in claims.iter().enumerate() {
            by_index.entry(claim.node).or_default().push(rank);
        }
        nodes.extend(by_index.into_values());
    } else {
        let mut by_host: BTreeMap<&str, usize> = BTreeMap::new();
        for (rank, claim) in claims.iter().enumerate() {
            let node = *by_host.entry(&claim.host).or_insert(nodes.len());
            if node == nodes.len() {
                nodes.push(Vec::new());
            }
            nodes[node].push(rank);
        }
    }
    let mut places = vec![Place { node: 0, local_rank: 0, local_size: 0 }; claims.len()];
    for (node, ranks) in nodes.iter_mut().enumerate() {
        order_node(claims, ranks)?;
        for (local_rank, rank) in ranks.iter().enumerate() {
            places[*rank] = Place { node, local_rank, local_size: ranks.len() };
        }
    }
    Ok(places)
}

/// Sorts the ranks of one node by local rank and checks what they claim.
fn order_node(claims: &[Claim], ranks: &mut [usize]) -> Result<(), String> {
    let advice = "set EXPERTRAIL_NODE, EXPERTRAIL_LOCAL_RANK and EXPERTRAIL_LOCAL_SIZE on every rank";
    let count = ranks.len();
    let place = |rank: usize| {
        let claim = &claims[rank];
        match claim.node {
            Some(node) => format!("node {node} (host {})", claim.host),
            None => format!("host {}", claim.host),
        }
    };
    for rank in ranks.iter().copied() {
        if let Some(size) = claims[rank].local_size
            && size != count
        {
            let place = place(rank);
            return Err(format!(
                "rank {rank} says {size} ranks run on {place}, but {count} joined from there; {advice}"
            ));
        }
    }
    if ranks.iter().any(|rank| claims[*rank].local_rank.is_none()) {
        return Ok(());
    }
    ranks.sort_by_key(|rank| claims[*rank].local_rank);
    for (wanted, rank) in ranks.iter().copied().enumerate() {
        if claims[rank].local_rank != Some(wanted) {
            let given: Vec<usize> = ranks.iter().filter_map(|rank| claims[*rank].local_rank).collect();
            let place = place(rank);
            return Err(format!("local ranks {given:?} on {place} should be 0 to {}; {advice}", count - 1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(host: &str, node: Option<usize>, local_rank: Option<usize>, local_size: Option<usize>) -> Claim {
        Claim { host: host.into(), node, local_rank, local_size }
    }

    fn triples(claims: &[Claim]) -> Vec<(usize, usize, usize)> {
        let places = resolve(claims).unwrap();
        places.iter().map(|place| (place.node, place.local_rank, place.local_size)).collect()
    }

    #[test]
    fn hosts_tell_nodes_apart_when_nobody_counts_them() {
        let claims = ["b", "a", "b", "b"].map(|host| claim(host, None, None, None));
        assert_eq!(triples(&claims), [(0, 0, 3), (1, 0, 1), (0, 1, 3), (0, 2, 3)]);
    }

    #[test]
    fn declared_nodes_win_over_hosts() {
        let claims = [1, 1, 0, 0].map(|node| claim("same", Some(node), None, Some(2)));
        assert_eq!(triples(&claims), [(1, 0, 2), (1, 1, 2), (0, 0, 2), (0, 1, 2)]);
    }

    #[test]
    fn local_ranks_are_kept() {
        let claims = [1, 0].map(|local| claim("h", Some(7), Some(local), Some(2)));
        assert_eq!(triples(&claims), [(0, 1, 2), (0, 0, 2)]);
    }

    #[test]
    fn contradictions_are_named() {
        let short = [claim("h", Some(0), Some(0), Some(4)), claim("h", Some(0), Some(1), Some(4))];
        assert!(
            resolve(&short).unwrap_err().contains("rank 0 says 4 ranks run on node 0 (host h), but 2 joined")
        );
        let twice = [claim("h", None, Some(0), None), claim("h", None, Some(0), None)];
        assert!(resolve(&twice).unwrap_err().contains("local ranks [0, 0] on host h should be 0 to 1"));
    }
}
