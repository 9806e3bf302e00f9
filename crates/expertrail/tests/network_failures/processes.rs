//! Runs over libfabric: ranks are processes of this test program, which tell what they see in lines.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use expertrail::Group;
use expertrail::fabric::Transport;
use expertrail::fabric::ofi::{self, Library, OpenOptions, Provider};
use expertrail::group::{Endpoint, Identity, JobToken, JoinOptions};

use super::check::Seen;
use super::line::{Act, Line, lines};
use super::rank::{self, Job, RANKS, Report};
use super::trap::Action;

/// Line, rank, and the ports of the two groups.
const ROLE: &str = "EXPERTRAIL_TEST_ROLE";
const MARK: &str = "@@";
/// No run takes longer; a rank that hangs is ended then.
const LIMIT: Duration = Duration::from_secs(40);

/// Whether there is a libfabric.
pub fn can_run() -> bool {
    can_run_on(1)
}

/// Whether there is a libfabric of this major version or a later one.
pub fn can_run_on(major: u32) -> bool {
    match Library::open() {
        Ok(library) if library.version().0 < major => {
            println!("NOT RUN: {}; a version from {major}.0 on is wanted", library.name());
            false
        }
        Ok(_) => true,
        Err(error) => {
            // scripts/test installs one and sets the variable: then it must be there.
            assert!(std::env::var_os(ofi::VARIABLE).is_none(), "{error}");
            println!("NOT RUN: {error}");
            false
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Ranks that end with this value, whatever happens.
struct Ranks(Vec<Child>);

impl Ranks {
    /// Lets stopped ones go on.
    fn resume(&self, rank: usize) {
        signal("-CONT", &[self.0[rank].id()]);
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal(name: &str, processes: &[u32]) {
    let processes = processes.iter().map(u32::to_string);
    let _ = Command::new("kill").arg(name).args(processes).status();
}

/// Runs a line; gives what every rank told.
pub fn run(line: &Line) -> Seen {
    let (send, reports) = channel();
    let ports = [free_port(), free_port()];
    let mut ranks = Ranks(Vec::new());
    for rank in 0..RANKS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "rank_process"])
            .env(ROLE, format!("{} {rank} {} {}", line.number, ports[0], ports[1]))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let send = send.clone();
        std::thread::spawn(move || {
            for text in out.lines().map_while(Result::ok) {
                if let Some(report) = text.split_once(MARK).and_then(|(_, text)| decode(text)) {
                    let _ = send.send((rank, report, Instant::now()));
                }
            }
        });
        ranks.0.push(child);
    }
    drop(send);
    let mut seen = listen(line, &ranks, &reports);
    if line.over == "shm" && line.act == Act::Kill {
        // What the dead left was swept when the others built anew.
        seen.extend(line.hit.iter().filter_map(|&rank| left_behind(rank, ranks.0[rank].id())));
    }
    Seen { reports: seen, slack: Duration::ZERO }
}

/// The first file of the provider that a rank's process left.
fn left_behind(rank: usize, process: u32) -> Option<(usize, Report, Instant)> {
    let files = std::fs::read_dir("/dev/shm").ok()?.flatten();
    let name = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .find(|name| name.starts_with(&format!("{process}:")))?;
    Some((rank, Report::Wrong(format!("its process left /dev/shm/{name}")), Instant::now()))
}

fn listen(
    line: &Line,
    ranks: &Ranks,
    reports: &Receiver<(usize, Report, Instant)>,
) -> Vec<(usize, Report, Instant)> {
    let until = Instant::now() + LIMIT;
    let mut seen = Vec::new();
    loop {
        match reports.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(report) => seen.push(report),
            Err(RecvTimeoutError::Disconnected) => return seen,
            Err(RecvTimeoutError::Timeout) => {
                seen.push((0, Report::Wrong(format!("not over after {LIMIT:?}")), Instant::now()));
                return seen;
            }
        }
        let failed = seen.iter().filter(|(_, report, _)| matches!(report, Report::Failed { .. })).count();
        let last_failed = matches!(seen.last(), Some((_, Report::Failed { .. }, _)));
        if line.act == Act::Stop && last_failed && failed == RANKS - 1 {
            ranks.resume(line.victim);
        }
    }
}

fn encode(report: &Report) -> String {
    match report {
        Report::Acting => "acting".to_owned(),
        Report::Fine => "fine".to_owned(),
        Report::Anew => "anew".to_owned(),
        Report::Wrong(text) => format!("wrong {}", text.replace('\n', " ")),
        Report::Failed { cause, culprit, phase, text } => {
            format!("failed {cause} {culprit} {phase} {}", text.replace('\n', " "))
        }
    }
}

fn decode(text: &str) -> Option<Report> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    Some(match word {
        "acting" => Report::Acting,
        "fine" => Report::Fine,
        "anew" => Report::Anew,
        "wrong" => Report::Wrong(rest.to_owned()),
        "failed" => {
            let mut parts = rest.splitn(4, ' ').map(str::to_owned);
            let (cause, culprit, phase) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
            Report::Failed { cause, culprit, phase, text: parts.next()? }
        }
        _ => return None,
    })
}

fn say(report: &Report) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n{MARK}{}", encode(report)).and_then(|()| out.flush());
}

/// In a process of its own: one rank.
struct Process {
    line: Line,
    rank: usize,
    /// Of the groups still to come.
    ports: Vec<u16>,
    pids: Vec<u32>,
    library: Library,
}

/// Runs as one rank, if this process was started to be one.
pub fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let numbers: Vec<usize> = role.split(' ').map(|number| number.parse().unwrap()).collect();
    let &[number, rank, first, second] = &numbers[..] else { panic!("{ROLE}={role}") };
    let line = lines().into_iter().find(|line| line.number == number).unwrap();
    let library = Library::open().unwrap();
    let ports = vec![second as u16, first as u16];
    let mut process = Process { line: line.clone(), rank, ports, pids: Vec::new(), library };
    rank::run(&line, &mut process);
}

impl Job for Process {
    fn group(&mut self) -> Group {
        let port = self.ports.pop().expect("a second group at the most");
        let dead = |rank: usize| {
            self.ports.is_empty() && self.line.act == Act::Kill && self.line.hit.contains(&rank)
        };
        let ranks: Vec<usize> = (0..RANKS).filter(|rank| !dead(*rank)).collect();
        let identity = Identity {
            rank: ranks.iter().position(|rank| *rank == self.rank).unwrap(),
            world_size: ranks.len(),
            local_rank: None,
            local_size: None,
            job: JobToken::from_parts(["network failures", &port.to_string()]),
            root: Endpoint::loopback(port),
            ..Identity::single()
        };
        let options = JoinOptions { join_deadline: Duration::from_secs(20), ..JoinOptions::default() };
        let group = Group::join(&identity, &options).unwrap();
        self.pids = group.pids();
        group
    }

    fn open(&mut self) -> Box<dyn Transport> {
        let over = self.line.over.clone();
        let options = OpenOptions {
            domain: (over == "tcp").then(|| "lo".to_owned()),
            provider: Provider::Named(over),
            queue_depth: 64,
            arrivals: 256,
            ..OpenOptions::default()
        };
        ofi::open_with(&self.library, &options).unwrap()
    }

    fn action(&self) -> Action {
        let act = self.line.act;
        let hit: Vec<u32> = self.line.hit.iter().map(|&rank| self.pids[rank]).collect();
        Box::new(move || {
            say(&Report::Acting);
            match act {
                // One system call after the other: the two of a node end within microseconds.
                Act::Kill => signal("-KILL", &hit),
                Act::Stop => {
                    signal("-STOP", &hit);
                    // Until the signal has reached every thread.
                    std::thread::sleep(Duration::from_millis(200));
                }
                Act::Slow => std::thread::sleep(Duration::from_millis(500)),
                other => panic!("processes cannot {other:?}"),
            }
        })
    }

    fn report(&self, report: Report) {
        say(&report);
    }
}
