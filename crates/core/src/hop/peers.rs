//! What is known of every rail peer: which headers and statuses came, who failed, who said goodbye, and so what is still
//! awaited.
//!
//! **Which calls meet.** A rank in call c can get the header of c or, from a peer that has finished c already, of c + 1; the
//! status of c only, because the peer needs this rank's header to send it. Anything else is an error, so no header is ever
//! counted twice or for another call.
//!
//! **Teardown.** A rank says goodbye when all its chunks are credited, and lets go of its memory when moreover every peer
//! has said goodbye. By then nothing is on its way to it: headers and statuses were awaited by the calls, its own chunks by
//! their credits, the peers' chunks by the calls. And nothing that it sent is on its way but its own goodbyes, because a peer
//! awaits all else before its goodbye: whose local completion is all that is left to wait for.
//!
//! **Failure.** A failed peer is awaited for nothing, and what still comes from it is to be dropped: its messages of ended
//! calls would look like duplicates.

use thiserror::Error;

use super::immediate::nearest_epoch;

/// A message that cannot have come, or a step that comes too early.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PeerError {
    /// The message names a node that is no peer.
    #[error(
        "a message came from node {node}, but this is node {own} of {nodes}; all nodes must declare the same topology"
    )]
    Unknown {
        /// The node named.
        node: usize,
        /// This node.
        own: usize,
        /// Nodes in all.
        nodes: usize,
    },
    /// The same message came twice.
    #[error(
        "the {what} of node {node} for call {epoch} came twice; the network duplicated a completion, or the peer runs \
         another version: end the communicator"
    )]
    Duplicate {
        /// Which message.
        what: &'static str,
        /// Who sent it.
        node: usize,
        /// The call.
        epoch: u64,
    },
    /// A message of a call that no peer can be in.
    #[error(
        "the {what} of node {node} is for call {epoch}, but this node is in call {own}; every rank must make the same calls"
    )]
    OtherCall {
        /// Which message.
        what: &'static str,
        /// Who sent it.
        node: usize,
        /// The call it is for.
        epoch: u64,
        /// The call this node is in.
        own: u64,
    },
    /// The caller ends a call before all has come.
    #[error("call {epoch} cannot end: the {what} of node {node} has not come")]
    Awaited {
        /// Which message.
        what: &'static str,
        /// Whose.
        node: usize,
        /// The call.
        epoch: u64,
    },
}

/// What a call awaits from every peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awaited {
    /// The header of this call.
    Header,
    /// The status at a dispatch's end.
    Status,
    /// The goodbye after the last call.
    Bye,
}

impl Awaited {
    fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Status => "status",
            Self::Bye => "bye",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Peer {
    header: bool,
    /// The header of the next call came already.
    next_header: bool,
    status: bool,
    /// The peer's last call.
    bye: Option<u64>,
    /// Its failure, as [`Failure::to_word`](crate::Failure::to_word).
    failed: Option<u64>,
}

/// The rail peers of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peers {
    own: usize,
    epoch: u64,
    nodes: Vec<Peer>,
    first_failure: Option<(usize, u64)>,
}

impl Peers {
    /// For node `own` of `nodes`, before call 1.
    pub fn new(nodes: usize, own: usize) -> Self {
        Self { own, epoch: 1, nodes: vec![Peer::default(); nodes], first_failure: None }
    }

    /// The call in progress; between calls, the next one.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Counts a header and tells its call: this one or the next.
    ///
    /// # Errors
    /// [`PeerError`] when it came before or cannot have come.
    pub fn header(&mut self, node: usize, low_epoch: u8) -> Result<u64, PeerError> {
        let what = "header";
        let (own, epoch) = (self.epoch, self.call_of(what, node, low_epoch)?);
        let peer = self.peer(node)?;
        let seen = if epoch == own { &mut peer.header } else { &mut peer.next_header };
        if std::mem::replace(seen, true) {
            return Err(PeerError::Duplicate { what, node, epoch });
        }
        Ok(epoch)
    }

    /// Counts a status of this call.
    ///
    /// # Errors
    /// [`PeerError`] when it came before or cannot have come.
    pub fn status(&mut self, node: usize, low_epoch: u8) -> Result<u64, PeerError> {
        let what = "status";
        let (own, epoch) = (self.epoch, self.call_of(what, node, low_epoch)?);
        if epoch != own {
            return Err(PeerError::OtherCall { what, node, epoch, own });
        }
        if std::mem::replace(&mut self.peer(node)?.status, true) {
            return Err(PeerError::Duplicate { what, node, epoch });
        }
        Ok(epoch)
    }

    /// The call of a chunk from `node`: this one or the next. A credit needs no such check: its number says all.
    ///
    /// # Errors
    /// [`PeerError`] when no peer can be in that call.
    pub fn chunk(&mut self, node: usize, low_epoch: u8) -> Result<u64, PeerError> {
        self.peer(node)?;
        match self.call_of("chunk", node, low_epoch) {
            // Of a call that has ended: all its chunks came before.
            Err(PeerError::Duplicate { what, node, epoch }) => {
                Err(PeerError::OtherCall { what, node, epoch, own: self.epoch })
            }
            other => other,
        }
    }

    /// Counts the goodbye of a peer whose last call was this one or the one before.
    ///
    /// # Errors
    /// [`PeerError`] when it came before or cannot have come.
    pub fn bye(&mut self, node: usize, low_epoch: u8) -> Result<u64, PeerError> {
        let (what, own) = ("bye", self.epoch);
        let epoch = nearest_epoch(own, low_epoch);
        let peer = self.peer(node)?;
        if let Some(epoch) = peer.bye {
            return Err(PeerError::Duplicate { what, node, epoch });
        }
        if epoch != own && epoch + 1 != own {
            return Err(PeerError::OtherCall { what, node, epoch, own });
        }
        peer.bye = Some(epoch);
        Ok(epoch)
    }

    /// Marks a peer as failed, by the word of its failure. Only the first failure of each counts, and only the first of all
    /// is the communicator's.
    ///
    /// # Errors
    /// [`PeerError::Unknown`] when `node` is no peer.
    pub fn fail(&mut self, node: usize, word: u64) -> Result<(), PeerError> {
        self.peer(node)?.failed.get_or_insert(word);
        self.first_failure.get_or_insert((node, word));
        Ok(())
    }

    /// The first failure: node and word.
    pub fn failure(&self) -> Option<(usize, u64)> {
        self.first_failure
    }

    /// Peers that are not known to have failed.
    pub fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        self.others().filter(|(_, peer)| peer.failed.is_none()).map(|(node, _)| node)
    }

    /// The peers from which this is still awaited, ascending: those alive that have not sent it.
    pub fn missing(&self, what: Awaited) -> impl Iterator<Item = usize> + '_ {
        let came = move |peer: &Peer| match what {
            Awaited::Header => peer.header,
            Awaited::Status => peer.status,
            Awaited::Bye => peer.bye.is_some(),
        };
        self.others().filter(move |(_, peer)| peer.failed.is_none() && !came(peer)).map(|(node, _)| node)
    }

    /// During a call: a peer that left before it. Its header will never come ([`Cause::Left`](crate::Cause::Left)).
    pub fn left(&self) -> Option<usize> {
        let mut others = self.others();
        others.find(|(_, peer)| peer.bye.is_some_and(|last| last < self.epoch)).map(|(node, _)| node)
    }

    /// Ends the call and tells its number: every header must have come, and of a dispatch every status.
    ///
    /// # Errors
    /// [`PeerError::Awaited`], naming the first peer whose message is missing.
    pub fn finish(&mut self, dispatch: bool) -> Result<u64, PeerError> {
        let epoch = self.epoch;
        let awaited = if dispatch { &[Awaited::Header, Awaited::Status][..] } else { &[Awaited::Header] };
        for &what in awaited {
            if let Some(node) = self.missing(what).next() {
                return Err(PeerError::Awaited { what: what.name(), node, epoch });
            }
        }
        for peer in &mut self.nodes {
            peer.header = std::mem::take(&mut peer.next_header);
            peer.status = false;
        }
        self.epoch += 1;
        Ok(epoch)
    }

    /// Peers whose credits are awaited before this rank says goodbye: alive ones with chunks in flight by
    /// `in_flight(node)`, the sum of [`Sender::in_flight`](super::Sender::in_flight) over the operations.
    pub fn undrained(&self, in_flight: impl Fn(usize) -> u64) -> impl Iterator<Item = usize> {
        self.alive().filter(move |&node| in_flight(node) > 0)
    }

    /// Whether this rank may let go of the memory that peers write to.
    pub fn may_close(&self, in_flight: impl Fn(usize) -> u64) -> bool {
        self.missing(Awaited::Bye).next().is_none() && self.undrained(in_flight).next().is_none()
    }

    /// The call that a message belongs to, this one or the next. One of an ended call came before: calls end when all came.
    fn call_of(&self, what: &'static str, node: usize, low_epoch: u8) -> Result<u64, PeerError> {
        let (own, epoch) = (self.epoch, nearest_epoch(self.epoch, low_epoch));
        if epoch > 0 && epoch < own {
            return Err(PeerError::Duplicate { what, node, epoch });
        }
        if epoch != own && epoch != own + 1 {
            return Err(PeerError::OtherCall { what, node, epoch, own });
        }
        Ok(epoch)
    }

    fn peer(&mut self, node: usize) -> Result<&mut Peer, PeerError> {
        let (own, nodes) = (self.own, self.nodes.len());
        match self.nodes.get_mut(node) {
            Some(peer) if node != own => Ok(peer),
            _ => Err(PeerError::Unknown { node, own, nodes }),
        }
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.nodes.iter().enumerate().filter(|&(node, _)| node != self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(peers: &Peers, what: Awaited) -> Vec<usize> {
        peers.missing(what).collect()
    }

    #[test]
    fn two_calls_meet() {
        let mut peers = Peers::new(3, 1);
        assert_eq!(missing(&peers, Awaited::Header), [0, 2]);
        assert_eq!(peers.header(0, 1), Ok(1));
        // Node 0 has finished call 1 already (a combine) and begins call 2.
        assert_eq!(peers.header(0, 2), Ok(2));
        assert_eq!(peers.finish(false), Err(PeerError::Awaited { what: "header", node: 2, epoch: 1 }));
        assert_eq!(peers.header(2, 1), Ok(1));
        assert_eq!(peers.finish(false), Ok(1));
        assert_eq!(missing(&peers, Awaited::Header), [2]);
        peers.header(2, 2).unwrap();
        assert_eq!(peers.finish(true), Err(PeerError::Awaited { what: "status", node: 0, epoch: 2 }));
        peers.status(0, 2).unwrap();
        peers.status(2, 2).unwrap();
        assert_eq!(peers.finish(true), Ok(2));
        assert_eq!(missing(&peers, Awaited::Header), [0, 2]);
        assert_eq!(missing(&peers, Awaited::Status), [0, 2]);
    }

    #[test]
    fn what_cannot_come_is_an_error() {
        let mut peers = Peers::new(2, 0);
        let duplicate = |what, epoch| Err(PeerError::Duplicate { what, node: 1, epoch });
        let other = |what, epoch, own| Err(PeerError::OtherCall { what, node: 1, epoch, own });
        assert_eq!(peers.header(1, 3), other("header", 3, 1));
        assert_eq!(peers.header(1, 0), other("header", 0, 1));
        assert_eq!(peers.status(1, 2), other("status", 2, 1));
        peers.header(1, 1).unwrap();
        assert_eq!(peers.header(1, 1), duplicate("header", 1));
        peers.header(1, 2).unwrap();
        assert_eq!(peers.header(1, 2), duplicate("header", 2));
        peers.status(1, 1).unwrap();
        assert_eq!(peers.status(1, 1), duplicate("status", 1));
        peers.finish(true).unwrap();
        assert_eq!(peers.header(1, 1), duplicate("header", 1));
        assert_eq!(peers.status(1, 1), duplicate("status", 1));
        assert_eq!((peers.chunk(1, 2), peers.chunk(1, 3)), (Ok(2), Ok(3)));
        assert_eq!(peers.chunk(1, 1), other("chunk", 1, 2));
        assert_eq!(peers.chunk(1, 4), other("chunk", 4, 2));
        for node in [0, 2, 4095] {
            let unknown = PeerError::Unknown { node, own: 0, nodes: 2 };
            assert_eq!(peers.header(node, 2), Err(unknown.clone()));
            assert_eq!(peers.status(node, 2), Err(unknown.clone()));
            assert_eq!(peers.chunk(node, 2), Err(unknown.clone()));
            assert_eq!(peers.bye(node, 2), Err(unknown.clone()));
            assert_eq!(peers.fail(node, 2), Err(unknown));
        }
    }

    #[test]
    fn a_failed_peer_is_awaited_for_nothing() {
        let mut peers = Peers::new(3, 0);
        peers.header(1, 1).unwrap();
        peers.fail(2, 77).unwrap();
        peers.fail(2, 78).unwrap();
        assert_eq!(peers.failure(), Some((2, 77)));
        assert_eq!(peers.alive().collect::<Vec<_>>(), [1]);
        assert!(missing(&peers, Awaited::Header).is_empty());
        assert_eq!(missing(&peers, Awaited::Bye), [1]);
        assert_eq!(peers.finish(false), Ok(1));
        let in_flight = |node| if node == 2 { 5 } else { 0 };
        assert!(peers.undrained(in_flight).next().is_none());
        assert!(!peers.may_close(in_flight));
        peers.bye(1, 1).unwrap();
        assert!(peers.may_close(in_flight));
        assert!(!peers.may_close(|_| 1));
    }

    #[test]
    fn leaving() {
        let mut peers = Peers::new(3, 0);
        for node in [1, 2] {
            peers.header(node, 1).unwrap();
        }
        // Node 1 has left after call 1, in which this node still is: no harm.
        assert_eq!(peers.bye(1, 1), Ok(1));
        assert_eq!(peers.left(), None);
        peers.finish(false).unwrap();
        // In call 2 it is missing.
        assert_eq!(peers.left(), Some(1));
        assert_eq!(peers.bye(1, 1), Err(PeerError::Duplicate { what: "bye", node: 1, epoch: 1 }));
        assert_eq!(peers.bye(2, 0), Err(PeerError::OtherCall { what: "bye", node: 2, epoch: 0, own: 2 }));
        assert_eq!(peers.bye(2, 1), Ok(1));
        assert!(peers.may_close(|_| 0));
    }
}
