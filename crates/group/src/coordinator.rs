//! Rank 0's service thread: lets the ranks in, runs the collectives, tells everybody who died.
//!
//! All ranks, rank 0 included, are its clients, so a death is noticed and told at once whatever rank 0's
//! own program is doing. One thread serves all connections and never blocks on one of them: strangers and
//! slow ones cost nothing but a descriptor until their time is up.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::conn::Conn;
use crate::error::Peer;
use crate::guest::{Guest, Visit};
use crate::join::Notice;
use crate::layout::{Claim, resolve};
use crate::poll::wait;
use crate::table::{Entering, Step, Table};
use crate::wire::{self, Answer, Cause, Entry, Frame, Hello, MAX_BLOB};

/// The most connections that have not said who they are; the oldest makes room.
const MAX_GUESTS: usize = 1024;
/// The most refusals remembered for messages.
const MAX_REFUSALS: usize = 8;
/// How long the last messages may take to leave once rank 0 is done.
const FAREWELL: Duration = Duration::from_secs(2);

/// Refused connections, for messages.
pub(crate) type Refusals = Arc<Mutex<Vec<String>>>;

/// What the coordinator needs to know.
pub(crate) struct Setup {
    pub(crate) listener: TcpListener,
    /// Rank 0's own greeting and the coordinator's end of its connection.
    pub(crate) own: (Hello, Conn),
    /// Where each rank should run, where known.
    pub(crate) expected: Vec<Option<String>>,
    pub(crate) greeting_deadline: Duration,
    pub(crate) notice: Option<Notice>,
    pub(crate) refusals: Refusals,
}

/// A rank's place: its greeting once it came, its connection while it lasts.
struct Seat {
    hello: Option<Hello>,
    conn: Option<Conn>,
}

pub(crate) struct Coordinator {
    listener: TcpListener,
    greeting_deadline: Duration,
    notice: Option<Notice>,
    refusals: Refusals,
    expected: Vec<Option<String>>,
    job: crate::token::JobToken,
    seats: Vec<Seat>,
    guests: Vec<Guest>,
    /// The earliest deadline of those who wait for the group to be complete, and how long it was.
    join_by: (Instant, Duration),
    /// There from the moment the group is complete.
    table: Option<Table>,
    failed: Option<Cause>,
    /// When accepting goes on after the system ran out of descriptors.
    accept_after: Option<Instant>,
}

impl Coordinator {
    pub(crate) fn new(setup: Setup) -> Self {
        let (hello, conn) = setup.own;
        let mut seats: Vec<Seat> = (0..hello.world_size).map(|_| Seat { hello: None, conn: None }).collect();
        let join_by = (Instant::now() + hello.patience, hello.patience);
        let job = hello.job;
        seats[0] = Seat { hello: Some(hello), conn: Some(conn) };
        Self {
            listener: setup.listener,
            // Bounded so that adding it to now stays within the clock's range.
            greeting_deadline: setup.greeting_deadline.min(Duration::from_hours(1)),
            notice: setup.notice,
            refusals: setup.refusals,
            expected: setup.expected,
            job,
            seats,
            guests: Vec::new(),
            join_by,
            table: None,
            failed: None,
            accept_after: None,
        }
    }

    /// Serves until rank 0 is gone.
    pub(crate) fn run(mut self) {
        self.complete_if_all_here();
        while self.seats[0].conn.is_some() {
            self.sleep();
            self.accept();
            self.visit_guests();
            (0..self.seats.len()).for_each(|rank| self.serve(rank));
            self.tick();
        }
        self.farewell();
    }

    fn sleep(&mut self) {
        let now = Instant::now();
        let mut due: Option<Instant> = self.guests.iter().map(Guest::until).chain(self.accept_after).min();
        if self.failed.is_none() {
            let next = match &self.table {
                Some(table) => table.due(),
                None => Some(self.join_by.0),
            };
            due = due.into_iter().chain(next).min();
        }
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(1 + self.guests.len() + self.seats.len());
        if self.accept_after.is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.guests.iter().map(|guest| guest.conn.poll_fd()));
        fds.extend(self.seats.iter().filter_map(|seat| seat.conn.as_ref()).map(Conn::poll_fd));
        // One millisecond more than due, so that poll's granularity does not wake us just too early.
        wait(&mut fds, due.map(|due| due.saturating_duration_since(now) + Duration::from_millis(1)));
    }

    fn accept(&mut self) {
        let now = Instant::now();
        if self.accept_after.is_some_and(|after| now < after) {
            return;
        }
        self.accept_after = None;
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if self.guests.len() >= MAX_GUESTS {
                        self.guests.remove(0);
                    }
                    if let Ok(conn) = Conn::new(OwnedFd::from(stream)) {
                        self.guests.push(Guest::new(conn, from.to_string(), now + self.greeting_deadline));
                    }
                }
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock => return,
                    std::io::ErrorKind::Interrupted | std::io::ErrorKind::ConnectionAborted => {}
                    // Out of descriptors or memory: the connection stays in the queue, so try again later.
                    _ => {
                        self.tell(&format!("rank 0 cannot accept connections for the moment: {error}"));
                        self.accept_after = Some(now + Duration::from_millis(200));
                        return;
                    }
                },
            }
        }
    }

    fn visit_guests(&mut self) {
        let now = Instant::now();
        let mut at = 0;
        while at < self.guests.len() {
            match self.guests[at].visit(now) {
                Visit::Waiting => at += 1,
                Visit::Over => drop(self.guests.remove(at)),
                Visit::Unwelcome(reason) => {
                    self.refuse(at, &reason, now);
                    at += 1;
                }
                Visit::Greeted(hello) => {
                    // Its farewell to this group, sent before this greeting, may not have been read yet.
                    if hello.rank < self.seats.len() {
                        self.serve(hello.rank);
                    }
                    if let Some(reason) = self.objection(&hello) {
                        self.refuse(at, &reason, now);
                        at += 1;
                    } else if let Some(reason) = self.too_late_for(&hello) {
                        self.guests[at].refuse(&Answer::Later(reason), now);
                        at += 1;
                    } else {
                        let guest = self.guests.remove(at);
                        self.seat(*hello, guest.conn, now);
                    }
                }
            }
        }
    }

    /// Why a greeting does not belong to this group.
    fn objection(&self, hello: &Hello) -> Option<String> {
        let world = self.seats.len();
        if hello.job != self.job {
            return Some(format!(
                "its job token {} is not this job's {}; it belongs to another job or an earlier run on this port",
                hello.job, self.job
            ));
        }
        if hello.world_size != world {
            return Some(format!("it was started for {} ranks, this job has {world}", hello.world_size));
        }
        if hello.rank >= world {
            return Some(format!("it says it is rank {} of {world}", hello.rank));
        }
        let holder = self.seats[hello.rank].hello.as_ref()?;
        if self.too_late_for(hello).is_some() {
            return None;
        }
        Some(format!(
            "rank {} is already taken by {}; two processes were given the same rank",
            hello.rank,
            name(hello.rank, holder)
        ))
    }

    /// Why a rank of this job should come back for the job's next group: processes may form one after
    /// another on the same port, and a fast rank asks for the next while rank 0 still ends the last.
    fn too_late_for(&self, hello: &Hello) -> Option<String> {
        let rank = hello.rank;
        if let Some(cause) = &self.failed {
            return Some(format!("the group has already failed: {}", cause.clone().into_error("")));
        }
        let left = self.table.as_ref().is_some_and(|table| table.is_gone(rank));
        // On a network the farewell may even arrive after the greeting.
        let holder = self.seats.get(rank).and_then(|seat| seat.hello.as_ref());
        let same =
            holder.is_some_and(|holder| holder.pid == hello.pid && holder.claim.host == hello.claim.host);
        (left || same).then(|| format!("rank {rank} was already in this group, which rank 0 still holds"))
    }

    fn refuse(&mut self, at: usize, reason: &str, now: Instant) {
        self.guests[at].refuse(&Answer::Refused(reason.to_owned()), now);
        let line = format!("connection from {}: {reason}", self.guests[at].from);
        self.tell(&format!("rank 0 refused a {line}"));
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.len() < MAX_REFUSALS {
            refusals.push(line);
        }
    }

    fn seat(&mut self, hello: Hello, mut conn: Conn, now: Instant) {
        conn.queue(Answer::Accepted.encode().into());
        conn.flush();
        let until = (now + hello.patience, hello.patience);
        self.join_by = self.join_by.min(until);
        let rank = hello.rank;
        self.seats[rank] = Seat { hello: Some(hello), conn: Some(conn) };
        self.complete_if_all_here();
    }

    fn complete_if_all_here(&mut self) {
        let hellos: Option<Vec<&Hello>> = self.seats.iter().map(|seat| seat.hello.as_ref()).collect();
        let Some(hellos) = hellos else { return };
        let claims: Vec<Claim> = hellos.iter().map(|hello| hello.claim.clone()).collect();
        let places = match resolve(&claims) {
            Ok(places) => places,
            Err(reason) => return self.fail(&Cause::Layout(reason)),
        };
        let entries: Vec<Entry> = hellos
            .iter()
            .zip(places)
            .map(|(hello, place)| Entry { host: hello.claim.host.clone(), pid: hello.pid, place })
            .collect();
        self.table =
            Some(Table::new(hellos.iter().enumerate().map(|(rank, hello)| peer(rank, hello)).collect()));
        self.broadcast(wire::welcome(&entries));
    }

    /// Reads what a rank sent and acts on it.
    fn serve(&mut self, rank: usize) {
        let Some(conn) = &mut self.seats[rank].conn else { return };
        conn.flush();
        conn.fill();
        loop {
            let Some(conn) = &mut self.seats[rank].conn else { return };
            match conn.next_frame(MAX_BLOB) {
                Ok(Some(frame)) => self.handle(rank, frame),
                Ok(None) => break,
                Err(what) => {
                    self.seats[rank].conn = None;
                    let peer = self.peer(rank);
                    return self.fail(&Cause::Protocol { peer, what });
                }
            }
        }
        if self.seats[rank].conn.as_ref().is_some_and(|conn| conn.ended().is_some()) {
            self.seats[rank].conn = None;
            match &mut self.table {
                Some(table) => {
                    let step = table.end(rank);
                    self.act(step);
                }
                None => self.fail(&Cause::Died(self.peer(rank))),
            }
        }
    }

    fn handle(&mut self, rank: usize, frame: Frame) {
        match (frame, &mut self.table) {
            (Frame::Fail(cause), _) => self.fail(&cause),
            (Frame::Enter { call, sequence, deadline, body }, Some(table)) => {
                let step = table.enter(rank, Entering { call, sequence, deadline, body }, Instant::now());
                self.act(step);
            }
            (Frame::Bye, Some(table)) => {
                let step = table.leave(rank);
                self.act(step);
                if rank == 0 {
                    // Nothing more comes from it, and without rank 0 no call completes.
                    self.seats[0].conn = None;
                }
            }
            (Frame::Bye, None) => {
                self.seats[rank].conn = None;
                self.fail(&Cause::Left(self.peer(rank)));
            }
            (Frame::Enter { .. } | Frame::Welcome(_) | Frame::Done { .. } | Frame::RootLeft, _) => {
                let what = "a message that is not its to send".to_owned();
                self.fail(&Cause::Protocol { peer: self.peer(rank), what });
            }
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if let Some(table) = &mut self.table {
            let step = table.tick(now);
            return self.act(step);
        }
        if self.failed.is_some() || now < self.join_by.0 {
            return;
        }
        let missing = self.seats.iter().enumerate().filter(|(_, seat)| seat.hello.is_none());
        let ranks = missing
            .map(|(rank, _)| Peer { rank, host: self.expected.get(rank).cloned().flatten(), pid: None })
            .collect();
        let refused = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.fail(&Cause::Missing { ranks, waited: self.join_by.1, refused });
    }

    fn act(&mut self, step: Step) {
        match step {
            Step::Release { sequence, body } if self.failed.is_none() => {
                self.broadcast(wire::done(sequence, &body));
            }
            Step::Wait | Step::Release { .. } => {}
            Step::Fail(cause) => self.fail(&cause),
        }
    }

    /// Tells everybody of the first failure; later ones follow from it.
    fn fail(&mut self, cause: &Cause) {
        if self.failed.is_none() {
            self.failed = Some(cause.clone());
            self.broadcast(wire::fail(cause));
        }
    }

    fn broadcast(&mut self, bytes: Vec<u8>) {
        let bytes: Arc<[u8]> = bytes.into();
        for conn in self.seats.iter_mut().filter_map(|seat| seat.conn.as_mut()) {
            conn.queue(Arc::clone(&bytes));
            conn.flush();
        }
    }

    /// Rank 0 is done: tell the others and let the last bytes leave.
    fn farewell(mut self) {
        if self.failed.is_none() {
            self.broadcast(wire::root_left());
        }
        let until = Instant::now() + FAREWELL;
        for conn in self.seats.iter_mut().filter_map(|seat| seat.conn.as_mut()) {
            conn.drain_output(until.saturating_duration_since(Instant::now()));
            conn.finish_sending();
            // Unread bytes would turn the close into a reset.
            conn.fill();
        }
    }

    fn tell(&self, line: &str) {
        if let Some(notice) = &self.notice {
            notice.tell(line);
        }
    }

    fn peer(&self, rank: usize) -> Peer {
        self.seats[rank].hello.as_ref().map_or_else(|| Peer::unknown(rank), |hello| peer(rank, hello))
    }
}

fn peer(rank: usize, hello: &Hello) -> Peer {
    Peer { rank, host: Some(hello.claim.host.clone()).filter(|host| !host.is_empty()), pid: Some(hello.pid) }
}

fn name(rank: usize, hello: &Hello) -> String {
    peer(rank, hello).to_string()
}
