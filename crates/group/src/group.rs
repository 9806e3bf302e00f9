//! The group as its users see it.

use std::fmt;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::coordinator::Refusals;
use crate::error::{GroupError, Peer, Result};
use crate::identity::{Endpoint, Identity, MAX_WORLD};
use crate::join::{Arrival, JoinOptions, Joined};
use crate::layout::Place;
use crate::listen;
use crate::member::{Abort, Link, Wait};
use crate::parent;
use crate::wire::{Call, Cause, Entry, MAX_BLOB, Op, unpack};

/// The ranks of a job, joined.
///
/// All ranks make the same calls in the same order, each named by a phase; a rank that is elsewhere is
/// found out and named. The first failure is final: every later call returns it again. Dropping the group
/// leaves it in good order; ending without dropping it, a panic included, counts as dying.
pub struct Group {
    rank: usize,
    entries: Arc<[Entry]>,
    /// Not there in a world of one.
    link: Option<Mutex<Link>>,
    /// Rank 0's service thread.
    service: Option<JoinHandle<()>>,
    refusals: Refusals,
    failure: OnceLock<GroupError>,
    /// Left by [`Group::fail`] for the thread that is in a collective.
    abort: Abort,
    deadline_ms: AtomicU64,
    cancel: CancelToken,
    root: Endpoint,
}

impl Group {
    /// Joins the group of an identity.
    ///
    /// # Errors
    /// Ranks that did not come, a rank 0 that cannot be reached or refuses this process, or claims about
    /// nodes that contradict each other. The missing ranks are named on every rank that did join.
    pub fn join(identity: &Identity, options: &JoinOptions) -> Result<Self> {
        Self::join_on(identity, options, None)
    }

    /// Joins as the environment says ([`Identity::from_env`]), with the default options.
    ///
    /// A process started by [`LocalLaunch`](crate::spawn::LocalLaunch) also binds its life to the
    /// launcher's ([`bind_to_parent`](crate::bind_to_parent)).
    ///
    /// # Errors
    /// As [`join`](Self::join), and an environment that does not say who this process is.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(&JoinOptions::default())
    }

    /// As [`from_env`](Self::from_env), with options.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_env_with(options: &JoinOptions) -> Result<Self> {
        parent::bind_to_parent()?;
        let identity = Identity::from_env()?;
        let listener = if identity.rank == 0 { listen::inherited()? } else { None };
        Self::join_on(&identity, options, listener)
    }

    /// A world of one: no socket, no thread.
    pub fn single() -> Self {
        let identity = Identity::single();
        let place = Place { node: 0, local_rank: 0, local_size: 1 };
        let entry = Entry { host: identity.host, pid: std::process::id(), place };
        Self::alone(entry, &JoinOptions::default())
    }

    /// `count` groups of one job within this process, over loopback TCP: for threads that act as ranks.
    ///
    /// # Errors
    /// When the system gives no sockets, or `count` is not between 1 and [`MAX_WORLD`].
    pub fn local_threads(count: usize) -> Result<Vec<Self>> {
        Self::local_threads_with(count, &JoinOptions::default())
    }

    /// As [`local_threads`](Self::local_threads), with options.
    ///
    /// # Errors
    /// As [`local_threads`](Self::local_threads).
    pub fn local_threads_with(count: usize, options: &JoinOptions) -> Result<Vec<Self>> {
        if count == 0 || count > MAX_WORLD {
            return Err(GroupError::Argument(format!(
                "{count} ranks: between 1 and {MAX_WORLD} are supported"
            )));
        }
        let listener = listen::bind_free(&Endpoint::loopback(0))?;
        let port = listener
            .local_addr()
            .map_err(|error| GroupError::system("reading a socket's port", error))?
            .port();
        let mut identity =
            Identity { world_size: count, root: Endpoint::loopback(port), ..Identity::single() };
        (identity.local_rank, identity.local_size) = (None, Some(count));
        let mut listener = Some(listener);
        // All arrive before any is complete, so one thread can bring them all in.
        let arrivals: Vec<Arrival> = (0..count)
            .map(|rank| Arrival::new(&Identity { rank, ..identity.clone() }, options, listener.take()))
            .collect::<Result<_>>()?;
        arrivals.into_iter().map(|arrival| Ok(Self::of(arrival.complete(options)?, options))).collect()
    }

    pub(crate) fn join_on(
        identity: &Identity,
        options: &JoinOptions,
        listener: Option<TcpListener>,
    ) -> Result<Self> {
        let (rank, world) = (identity.rank, identity.world_size);
        if world == 0 || world > MAX_WORLD || rank >= world {
            let text =
                format!("rank {rank} of {world}: ranks are 0 to world size - 1, at most {MAX_WORLD} of them");
            return Err(GroupError::Argument(text));
        }
        if world == 1 {
            let place = Place { node: 0, local_rank: 0, local_size: 1 };
            let entry = Entry { host: identity.host.clone(), pid: std::process::id(), place };
            return Ok(Self::alone(entry, options));
        }
        Ok(Self::of(Arrival::new(identity, options, listener)?.complete(options)?, options))
    }

    fn of(joined: Joined, options: &JoinOptions) -> Self {
        Self {
            rank: joined.rank,
            entries: joined.entries.into(),
            link: Some(Mutex::new(joined.link)),
            service: joined.service,
            refusals: joined.refusals,
            failure: OnceLock::new(),
            abort: Abort::default(),
            deadline_ms: AtomicU64::new(millis(options.deadline)),
            cancel: options.cancel.clone(),
            root: joined.root,
        }
    }

    pub(crate) fn alone(entry: Entry, options: &JoinOptions) -> Self {
        Self {
            rank: 0,
            entries: Arc::new([entry]),
            link: None,
            service: None,
            refusals: Refusals::default(),
            failure: OnceLock::new(),
            abort: Abort::default(),
            deadline_ms: AtomicU64::new(millis(options.deadline)),
            cancel: options.cancel.clone(),
            root: Endpoint::loopback(0),
        }
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in all.
    pub fn size(&self) -> usize {
        self.entries.len()
    }

    /// Rank within the node.
    pub fn local_rank(&self) -> usize {
        self.entries[self.rank].place.local_rank
    }

    /// Ranks of this node.
    pub fn local_size(&self) -> usize {
        self.entries[self.rank].place.local_size
    }

    /// Index of this node.
    pub fn node(&self) -> usize {
        self.entries[self.rank].place.node
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.entries.iter().map(|entry| entry.place.node + 1).max().unwrap_or(1)
    }

    /// Node of every rank.
    pub fn node_of(&self) -> Vec<usize> {
        self.entries.iter().map(|entry| entry.place.node).collect()
    }

    /// The ranks of this rank's node, in order of local rank.
    pub fn node_ranks(&self) -> Vec<usize> {
        let mut ranks: Vec<usize> =
            (0..self.size()).filter(|rank| self.entries[*rank].place.node == self.node()).collect();
        ranks.sort_by_key(|rank| self.entries[*rank].place.local_rank);
        ranks
    }

    /// Host name of every rank.
    pub fn hosts(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.host.clone()).collect()
    }

    /// Process id of every rank, each valid on its own host.
    pub fn pids(&self) -> Vec<u32> {
        self.entries.iter().map(|entry| entry.pid).collect()
    }

    /// A rank with its host and process id, for messages; `None` past the last rank.
    pub fn peer(&self, rank: usize) -> Option<Peer> {
        let entry = self.entries.get(rank)?;
        Some(Peer {
            rank,
            host: Some(entry.host.clone()).filter(|host| !host.is_empty()),
            pid: Some(entry.pid),
        })
    }

    /// Connections that rank 0 refused, each with its reason; empty on other ranks.
    pub fn refusals(&self) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes how long each collective may take.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        self.set_deadline(deadline);
        self
    }

    /// Changes how long each later collective may take.
    pub fn set_deadline(&self, deadline: Duration) {
        self.deadline_ms.store(millis(deadline), Ordering::Relaxed);
    }

    /// How long each collective may take.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.load(Ordering::Relaxed))
    }

    /// The token that stops this group's waits.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

    /// Gives every rank what each rank gave, in order of rank. The blobs may differ in length.
    ///
    /// # Errors
    /// A rank that died, left, failed or is in another call; the deadline, with the ranks not there; a
    /// cancelled wait; more than [`MAX_BLOB`] bytes from one rank or
    /// [`MAX_GATHERED`](crate::MAX_GATHERED) in all.
    pub fn all_gather(&self, phase: &'static str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let call = Call { op: Op::AllGather, phase: phase.to_owned(), source: 0 };
        let body = self.collective(&call, bytes)?;
        if self.link.is_none() {
            return Ok(vec![body]);
        }
        unpack(&body, self.size()).ok_or_else(|| {
            let what = "a gathered result that does not parse".to_owned();
            self.keep(GroupError::Protocol { peer: Peer::unknown(0), what })
        })
    }

    /// Gives every rank what rank `source` gave; what the others give is ignored.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), and a source that is no rank.
    pub fn broadcast(&self, phase: &'static str, source: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        if source >= self.size() {
            let text =
                format!("broadcast \"{phase}\" from rank {source}: there are ranks 0 to {}", self.size() - 1);
            return Err(GroupError::Argument(text));
        }
        let call = Call { op: Op::Broadcast, phase: phase.to_owned(), source };
        self.collective(&call, if self.rank == source { bytes } else { &[] })
    }

    /// Waits until every rank is here.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    pub fn barrier(&self, phase: &'static str) -> Result<()> {
        self.collective(&Call { op: Op::Barrier, phase: phase.to_owned(), source: 0 }, &[]).map(drop)
    }

    /// Looks, without waiting, whether the group has failed: a death on any host shows here within
    /// moments, so other waits may poll it.
    ///
    /// # Errors
    /// The group's first failure. A rank 0 that left in good order is none.
    pub fn check(&self) -> Result<()> {
        self.first_failure()?;
        let Some(link) = &self.link else { return Ok(()) };
        let mut link = match link.try_lock() {
            Ok(link) => link,
            Err(TryLockError::Poisoned(link)) => link.into_inner(),
            // Another thread is in a collective and will find it.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        link.check(&self.abort).map_err(|error| self.keep(error))
    }

    /// Tells all ranks that this one cannot go on. Their calls, and this rank's own, return
    /// [`GroupError::Failed`] with the message. Another thread's call on this group ends with it too.
    pub fn fail(&self, message: &str) {
        if self.failure.get().is_some() {
            return;
        }
        let peer = self.peer(self.rank).unwrap_or_else(|| Peer::unknown(self.rank));
        let cause = Cause::Failed { peer, message: message.to_owned() };
        match self.link.as_ref().map(Mutex::try_lock) {
            None => {}
            Some(Ok(mut link)) => link.tell_failure(&cause),
            Some(Err(TryLockError::Poisoned(link))) => link.into_inner().tell_failure(&cause),
            // The thread that is in a collective looks for it.
            Some(Err(TryLockError::WouldBlock)) => {
                *self.abort.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
                return;
            }
        }
        self.keep(cause.into_error(""));
    }

    pub(crate) fn entry(&self, rank: usize) -> &Entry {
        &self.entries[rank]
    }

    pub(crate) fn root(&self) -> &Endpoint {
        &self.root
    }

    /// This rank's address towards rank 0; `None` on rank 0 itself.
    pub(crate) fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.link.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).local_address()
    }

    /// The group's first failure, if it has failed.
    fn first_failure(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Keeps an error if it is the first, and gives the first.
    fn keep(&self, error: GroupError) -> GroupError {
        self.failure.get_or_init(|| error).clone()
    }

    fn collective(&self, call: &Call, bytes: &[u8]) -> Result<Vec<u8>> {
        self.first_failure()?;
        if bytes.len() > MAX_BLOB {
            // The others need not wait for the deadline to learn that this call cannot complete.
            let (call, bytes) = (call.to_string(), bytes.len() as u64);
            let cause = Cause::TooLarge { call, bytes, limit: MAX_BLOB as u64 };
            if let Some(link) = &self.link {
                link.lock().unwrap_or_else(PoisonError::into_inner).tell_failure(&cause);
            }
            return Err(self.keep(cause.into_error("")));
        }
        let Some(link) = &self.link else { return Ok(bytes.to_vec()) };
        let phase = call.to_string();
        let wait =
            Wait { phase: &phase, deadline: self.deadline(), cancel: &self.cancel, abort: &self.abort };
        let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
        link.call(call, bytes, &wait).map_err(|error| self.keep(error))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            let mut link = link.into_inner().unwrap_or_else(PoisonError::into_inner);
            // A rank that panics did not mean to leave: the others must hear of a death, not a farewell.
            if self.failure.get().is_none() && !std::thread::panicking() {
                link.leave();
            }
        }
        if let Some(service) = self.service.take() {
            // It ends by itself once our end of its connection is closed; a panic in it was reported.
            let _ = service.join();
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("rank", &self.rank)
            .field("size", &self.size())
            .field("failure", &self.failure.get())
            .finish_non_exhaustive()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
