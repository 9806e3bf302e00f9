//! Smaller groups within a group.

use crate::error::{GroupError, Result};
use crate::group::Group;
use crate::identity::{Endpoint, Identity};
use crate::join::{JoinOptions, sub_identity};
use crate::layout::Place;
use crate::listen;
use crate::token::JobToken;
use crate::wire::Entry;

/// What each rank tells the others: its list, and where it listens if it leads one.
struct Plan {
    ranks: Vec<usize>,
    job: JobToken,
    leader: Option<Endpoint>,
}

impl Group {
    /// Forms smaller groups, any number of them at once: every rank of this group calls it with the list of
    /// the smaller group that it will be in (itself alone is a list too). The place in the list is the rank
    /// there; all members of one smaller group give the same list.
    ///
    /// # Errors
    /// On every rank alike: lists that overlap without being equal, name a rank twice or one that does not
    /// exist, or leave out their own rank. Also as [`all_gather`](Self::all_gather) and [`join`](Self::join).
    pub fn subset(&self, phase: &'static str, ranks: &[usize]) -> Result<Group> {
        let leads = ranks.len() > 1 && ranks.first() == Some(&self.rank());
        let mut plan = Plan { ranks: ranks.to_vec(), job: JobToken::random(), leader: None };
        let mut listener = None;
        if leads {
            let place = self.leader_host(ranks);
            let socket = listen::bind_free(&Endpoint { host: place.clone(), port: 0 });
            // A rank that returned here would leave the others waiting: tell them.
            let socket = socket.inspect_err(|error| self.fail(&error.to_string()))?;
            let port = socket
                .local_addr()
                .map_err(|error| GroupError::system("reading a socket's port", error))?
                .port();
            plan.leader = Some(Endpoint { host: place, port });
            listener = Some(socket);
        }
        let plans: Vec<Plan> = self
            .all_gather(phase, &plan.encode())?
            .iter()
            .enumerate()
            .map(|(rank, bytes)| Plan::decode(bytes).ok_or_else(|| self.unreadable(rank)))
            .collect::<Result<_>>()?;
        // Everybody checks everything, so that all come to the same verdict.
        check(&plans).map_err(|what| GroupError::Argument(format!("subset \"{phase}\": {what}")))?;

        let options = JoinOptions {
            join_deadline: self.deadline(),
            deadline: self.deadline(),
            cancel: self.cancel_token().clone(),
            ..JoinOptions::default()
        };
        let entry = self.entry(self.rank());
        if ranks.len() == 1 {
            let place = Place { node: 0, local_rank: 0, local_size: 1 };
            return Ok(Group::alone(Entry { place, ..entry.clone() }, &options));
        }
        let first = ranks.first().copied().unwrap_or_default();
        let lead = &plans[first];
        let root = lead.leader.clone().ok_or_else(|| self.unreadable(first))?;
        let identity = Identity {
            rank: ranks.iter().position(|rank| *rank == self.rank()).unwrap_or_default(),
            world_size: ranks.len(),
            expected_hosts: ranks.iter().map(|rank| self.entry(*rank).host.clone()).collect(),
            ..sub_identity(entry, lead.job, root)
        };
        Group::join_on(&identity, &options, listener)
    }

    /// The ranks of each node as a group of their own.
    ///
    /// # Errors
    /// As [`subset`](Self::subset).
    pub fn node_group(&self, phase: &'static str) -> Result<Group> {
        self.subset(phase, &self.node_ranks())
    }

    /// Where the members can reach this rank: its address towards rank 0. On rank 0 and its host that may
    /// be the loopback, which is right only if all members are there too.
    fn leader_host(&self, ranks: &[usize]) -> String {
        let host = &self.entry(self.rank()).host;
        let all_here = ranks.iter().all(|rank| self.entries_host(*rank) == Some(host.as_str()));
        match self.local_address().map(|address| address.ip()) {
            _ if all_here => Endpoint::loopback(0).host,
            Some(ip) if !ip.is_loopback() => ip.to_canonical().to_string(),
            _ => self.root().host.clone(),
        }
    }

    fn entries_host(&self, rank: usize) -> Option<&str> {
        (rank < self.size()).then(|| self.entry(rank).host.as_str())
    }

    fn unreadable(&self, rank: usize) -> GroupError {
        let peer = self.peer(rank).unwrap_or_else(|| crate::error::Peer::unknown(rank));
        GroupError::Protocol { peer, what: "a plan for smaller groups that does not parse".to_owned() }
    }
}

/// What is wrong with the lists, if anything.
fn check(plans: &[Plan]) -> Result<(), String> {
    for (rank, plan) in plans.iter().enumerate() {
        let ranks = &plan.ranks;
        if !ranks.contains(&rank) {
            return Err(format!("rank {rank} gave the list {ranks:?}, which it is not in"));
        }
        for (at, other) in ranks.iter().enumerate() {
            if ranks[..at].contains(other) {
                return Err(format!("rank {rank} gave the list {ranks:?}, which names rank {other} twice"));
            }
            let Some(theirs) = plans.get(*other) else {
                return Err(format!(
                    "rank {rank} gave the list {ranks:?}, but there are ranks 0 to {}",
                    plans.len() - 1
                ));
            };
            if theirs.ranks != *ranks {
                let theirs = &theirs.ranks;
                return Err(format!(
                    "rank {rank} gave the list {ranks:?}, rank {other} {theirs:?}: they must be equal"
                ));
            }
        }
    }
    Ok(())
}

impl Plan {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.job.as_bytes().to_vec();
        let host = self.leader.as_ref().map_or("", |leader| leader.host.as_str());
        out.extend_from_slice(&self.leader.as_ref().map_or(0, |leader| leader.port).to_le_bytes());
        out.extend_from_slice(&(host.len() as u16).to_le_bytes());
        out.extend_from_slice(host.as_bytes());
        self.ranks.iter().for_each(|rank| out.extend_from_slice(&(*rank as u32).to_le_bytes()));
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (job, rest) = bytes.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let (host, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        let (words, tail) = rest.as_chunks::<4>();
        let port = u16::from_le_bytes(*port);
        let host = std::str::from_utf8(host).ok()?.to_owned();
        tail.is_empty().then(|| Self {
            ranks: words.iter().map(|word| u32::from_le_bytes(*word) as usize).collect(),
            job: JobToken::from_bytes(*job),
            leader: (port != 0).then_some(Endpoint { host, port }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(lists: &[&[usize]]) -> Vec<Plan> {
        lists
            .iter()
            .map(|ranks| Plan { ranks: ranks.to_vec(), job: JobToken::random(), leader: None })
            .collect()
    }

    #[test]
    fn lists_must_partition() {
        assert_eq!(check(&plans(&[&[0, 2], &[1], &[0, 2]])), Ok(()));
        assert_eq!(check(&plans(&[&[1, 0], &[1, 0]])), Ok(()));
        for (wrong, text) in [
            (vec![&[0_usize, 1][..], &[1]], "they must be equal"),
            (vec![&[0, 1], &[1, 0]], "they must be equal"),
            (vec![&[1], &[1]], "which it is not in"),
            (vec![&[0, 0], &[1]], "twice"),
            (vec![&[0, 7], &[1]], "ranks 0 to 1"),
            (vec![&[], &[1]], "which it is not in"),
        ] {
            assert!(check(&plans(&wrong)).unwrap_err().contains(text), "{wrong:?}");
        }
    }

    #[test]
    fn plans_survive() {
        let plan = Plan {
            ranks: vec![3, 1],
            job: JobToken::random(),
            leader: Some(Endpoint { host: "::1".into(), port: 9 }),
        };
        let bytes = plan.encode();
        let back = Plan::decode(&bytes).unwrap();
        assert_eq!((back.ranks, back.job, back.leader), (plan.ranks, plan.job, plan.leader));
        assert!(Plan::decode(&bytes[..bytes.len() - 1]).is_none());
        assert!(Plan::decode(&[]).is_none());
    }
}
