//! Runs over the simulated network: ranks are threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use expertrail::Group;
use expertrail::fabric::Transport;
use expertrail::fabric::sim::{Cut, Network, Plan, Stall};

use super::check::Seen;
use super::line::{Act, Line};
use super::rank::{self, Job, RANKS, Report};
use super::trap::Action;

struct Thread<'a> {
    line: &'a Line,
    rank: usize,
    /// In reverse: the group of all ranks is the last.
    groups: Vec<Group>,
    networks: [Network; 2],
    opened: usize,
    reports: Sender<(usize, Report, Instant)>,
}

impl Job for Thread<'_> {
    fn group(&mut self) -> Group {
        self.groups.pop().expect("a second group at the most")
    }

    fn open(&mut self) -> Box<dyn Transport> {
        let network = &self.networks[self.opened.min(1)];
        self.opened += 1;
        // Each rail has its own number, so that single ones can be cut.
        Box::new(network.endpoint(self.rank as u32))
    }

    fn action(&self) -> Action {
        let (network, act, rank) = (self.networks[0].clone(), self.line.act, self.rank as u32);
        let (reports, own) = (self.reports.clone(), self.rank);
        Box::new(move || {
            let _ = reports.send((own, Report::Acting, Instant::now()));
            let (to, at) = ((rank + 2) % RANKS as u32, network.now());
            let cut = |both, fail_after| network.cut(Cut { from: rank, to, both, at, fail_after });
            match act {
                Act::Cut => cut(false, Some(100)),
                Act::CutBoth => cut(true, Some(100)),
                Act::Silence => cut(true, None),
                Act::Stall => network.stall(Stall { node: rank, from: at, until: u64::MAX }),
                Act::Slow => std::thread::sleep(Duration::from_millis(500)),
                other => panic!("threads cannot {other:?}"),
            }
        })
    }

    fn report(&self, report: Report) {
        let _ = self.reports.send((self.rank, report, Instant::now()));
    }
}

/// Runs a line; gives what every rank told.
pub fn run(line: &Line) -> Seen {
    let (send, reports): (_, Receiver<(usize, Report, Instant)>) = channel();
    let seed = line.number as u64;
    // A network that says `Sent` for what it has only taken loses it in silence when it is cut: that takes the deadline, as
    // the lines of `silence` do.
    let plan = |seed| Plan { buffered: 0, ..Plan::reordering(seed) };
    let networks = [seed, seed + 1000].map(|seed| Network::new(plan(seed)));
    let [mut first, mut second] = [(); 2].map(|()| Group::local_threads(RANKS).expect("groups"));
    std::thread::scope(|scope| {
        for rank in (0..RANKS).rev() {
            let groups = vec![second.pop().expect("a group"), first.pop().expect("a group")];
            let mut thread =
                Thread { line, rank, groups, networks: networks.clone(), opened: 0, reports: send.clone() };
            scope.spawn(move || rank::run(line, &mut thread));
        }
    });
    drop(send);
    Seen { reports: reports.into_iter().collect(), slack: Duration::ZERO }
}
