//! What is known of the peers, and how a dead or unreachable one is found where the provider itself says nothing.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How often the processes of peers are looked at, at most.
const EVERY: Duration = Duration::from_millis(50);

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The provider's number for its address.
    pub(crate) address: u64,
    /// Writes in flight to it.
    pub(crate) in_flight: usize,
    /// Since when the provider has taken nothing for it, although nothing is in flight to it.
    refused_since: Option<Instant>,
    /// Its process, where it is another one of this machine: the `shm` provider reports no death.
    process: Option<OwnedFd>,
    life: Life,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Alive,
    /// Its process has ended; what it completed before may still be in the queue.
    Ended,
    /// And the queue has been read since.
    Gone,
}

impl Peer {
    /// A peer whose process is `pid`, if that is known.
    pub(crate) fn new(address: u64, pid: Option<u32>) -> Self {
        let process = pid
            .filter(|pid| *pid != std::process::id())
            .and_then(|pid| Pid::from_raw(pid.cast_signed()))
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { address, in_flight: 0, refused_since: None, process, life: Life::Alive }
    }

    /// Whether it is known to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.life == Life::Gone
    }

    /// The provider took a write or completed one.
    pub(crate) fn moved(&mut self) {
        self.refused_since = None;
    }

    /// The provider took nothing just now: for how long it has not, when nothing of ours keeps it busy.
    pub(crate) fn refused(&mut self) -> Duration {
        if self.in_flight > 0 {
            self.refused_since = None;
            return Duration::ZERO;
        }
        self.refused_since.get_or_insert_with(Instant::now).elapsed()
    }

    fn look(&mut self) -> bool {
        match self.life {
            Life::Gone => return false,
            Life::Ended => {
                self.life = Life::Gone;
                return true;
            }
            Life::Alive => {}
        }
        if let Some(process) = &self.process {
            // Readable once the process has ended, whether anybody has collected it or not.
            let mut descriptors = [PollFd::new(process, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::event::poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0) {
                self.life = Life::Ended;
            }
        }
        false
    }
}

/// All peers.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    list: Vec<Peer>,
    watched: bool,
    looked: Option<Instant>,
}

impl Peers {
    pub(crate) fn new(list: Vec<Peer>) -> Self {
        let watched = list.iter().any(|peer| peer.process.is_some());
        Self { list, watched, looked: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn get_mut(&mut self, peer: u32) -> Option<&mut Peer> {
        self.list.get_mut(peer as usize)
    }

    /// Those that are gone since the last look. Looks at most every 50 ms; to be called when the queue was found empty.
    pub(crate) fn newly_gone(&mut self) -> Vec<u32> {
        if !self.watched || self.looked.is_some_and(|looked| looked.elapsed() < EVERY) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        (0u32..).zip(&mut self.list).filter_map(|(number, peer)| peer.look().then_some(number)).collect()
    }
}

/// The process that an address of the `shm` provider names (`fi_shm://PID`, with more behind it in some versions).
pub(crate) fn process_of(address: &str) -> Option<u32> {
    let rest = address.strip_prefix("fi_shm://")?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_shm_names_its_process() {
        assert_eq!(process_of("fi_shm://5391"), Some(5391));
        assert_eq!(process_of("fi_shm://5391:0:2"), Some(5391));
        for other in ["fi_ns://5391", "fi_shm://", "fi_shm://x1", "fi_shm://99999999999", ""] {
            assert_eq!(process_of(other), None, "{other}");
        }
    }

    #[test]
    fn an_ended_process_is_gone_at_the_second_look() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut peers = Peers::new(vec![Peer::new(0, None), Peer::new(1, Some(child.id()))]);
        let mut look = || {
            peers.looked = None;
            peers.newly_gone()
        };
        assert_eq!(look(), []);
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut looks = 0;
        let gone = loop {
            let gone = look();
            looks += 1;
            if !gone.is_empty() || Instant::now() > deadline {
                break gone;
            }
        };
        child.wait().unwrap();
        assert_eq!(gone, [1]);
        assert!(looks >= 2);
        assert_eq!(look(), [], "told once");
        assert!(peers.get_mut(1).unwrap().is_gone() && !peers.get_mut(0).unwrap().is_gone());
    }

    #[test]
    fn a_peer_is_refused_only_while_nothing_is_in_flight_to_it() {
        let mut peer = Peer::new(0, None);
        peer.refused();
        std::thread::sleep(Duration::from_millis(2));
        assert!(peer.refused() >= Duration::from_millis(2));
        peer.in_flight = 1;
        assert_eq!(peer.refused(), Duration::ZERO);
        peer.in_flight = 0;
        assert!(peer.refused() < Duration::from_millis(2), "counted anew");
    }
}
