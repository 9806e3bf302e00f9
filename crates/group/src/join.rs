//! How a rank comes into its group.

use std::fmt;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::conn::Conn;
use crate::coordinator::{Coordinator, Refusals, Setup};
use crate::dial::Dial;
use crate::error::{GroupError, Peer, Result};
use crate::identity::{Endpoint, Identity};
use crate::layout::Claim;
use crate::listen;
use crate::member::{Abort, Link, Wait};
use crate::token::JobToken;
use crate::wire::{Entry, Hello};

/// Where rank 0 tells of things that are not errors of its own, such as a refused connection.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Passes each line to `sink`, which is called from rank 0's service thread.
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    pub(crate) fn tell(&self, line: &str) {
        (self.0)(line);
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

/// How a group is joined and how long its calls may take.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// How long to wait for all ranks to join. The shortest of all ranks' counts.
    pub join_deadline: Duration,
    /// How long each collective may take; [`Group::set_deadline`](crate::Group::set_deadline) changes it later.
    pub deadline: Duration,
    /// How long a connection to rank 0 may take to say who it is.
    pub greeting_deadline: Duration,
    /// Stops joining and every later wait.
    pub cancel: CancelToken,
    /// Told of refused connections, on rank 0.
    pub notice: Option<Notice>,
}

impl Default for JoinOptions {
    /// 60 s to join and for each collective, 5 s to greet.
    fn default() -> Self {
        Self {
            join_deadline: Duration::from_mins(1),
            deadline: Duration::from_mins(1),
            greeting_deadline: Duration::from_secs(5),
            cancel: CancelToken::new(),
            notice: None,
        }
    }
}

/// A rank whose group is complete.
pub(crate) struct Joined {
    pub(crate) rank: usize,
    pub(crate) entries: Vec<Entry>,
    pub(crate) link: Link,
    pub(crate) service: Option<JoinHandle<()>>,
    pub(crate) refusals: Refusals,
    pub(crate) root: Endpoint,
}

/// A rank that was let in and waits for the others.
pub(crate) struct Arrival {
    rank: usize,
    link: Link,
    service: Option<JoinHandle<()>>,
    refusals: Refusals,
    root: Endpoint,
    until: Instant,
}

impl Arrival {
    pub(crate) fn new(
        identity: &Identity,
        options: &JoinOptions,
        listener: Option<TcpListener>,
    ) -> Result<Self> {
        let started = Instant::now();
        // Longer than a century is as good as for ever, and stays within the clock's range.
        let patience = options.join_deadline.min(Duration::from_secs(4_000_000_000));
        let until = started + patience;
        let hello = Hello {
            job: identity.job,
            rank: identity.rank,
            world_size: identity.world_size,
            pid: std::process::id(),
            patience,
            claim: Claim {
                host: identity.host.clone(),
                node: identity.node,
                local_rank: identity.local_rank,
                local_size: identity.local_size,
            },
        };
        let host = Some(identity.host.clone()).filter(|host| !host.is_empty());
        let me = Peer { rank: identity.rank, host, pid: Some(hello.pid) };
        let refusals = Refusals::default();
        let mut service = None;
        let conn = if identity.rank == 0 {
            let (conn, handle) = start_service(identity, options, (hello, listener), &refusals)?;
            service = Some(handle);
            conn
        } else {
            Dial { root: &identity.root, hello, started, until, cancel: &options.cancel }.greet()?
        };
        let root = Peer { rank: 0, host: Some(identity.root.host.clone()), pid: None };
        let link = Link::new(conn, me, root);
        Ok(Self { rank: identity.rank, link, service, refusals, root: identity.root.clone(), until })
    }

    /// Waits until all ranks have joined.
    pub(crate) fn complete(mut self, options: &JoinOptions) -> Result<Joined> {
        let left = self.until.saturating_duration_since(Instant::now());
        let wait =
            Wait { phase: "joining", deadline: left, cancel: &options.cancel, abort: &Abort::default() };
        let result = self.link.welcome(&wait);
        let entries = match result {
            Ok(entries) if self.rank < entries.len() => entries,
            other => {
                // The service ends with our end of its connection.
                drop(self.link);
                if let Some(service) = self.service {
                    let _ = service.join();
                }
                let what = "a list of ranks without this one".to_owned();
                return Err(other.err().unwrap_or(GroupError::Protocol { peer: Peer::unknown(0), what }));
            }
        };
        let (link, service) = (self.link, self.service);
        Ok(Joined { rank: self.rank, entries, link, service, refusals: self.refusals, root: self.root })
    }
}

/// Starts rank 0's service thread and gives rank 0's own end of its connection.
fn start_service(
    identity: &Identity,
    options: &JoinOptions,
    (hello, listener): (Hello, Option<TcpListener>),
    refusals: &Refusals,
) -> Result<(Conn, JoinHandle<()>)> {
    let starting = |error: std::io::Error| GroupError::system("starting rank 0's service", error);
    listen::raise_descriptor_limit(identity.world_size);
    let listener = match listener {
        Some(listener) => listener,
        None => listen::bind(&identity.root)?,
    };
    let (own, served) = UnixStream::pair().map_err(starting)?;
    let coordinator = Coordinator::new(Setup {
        listener,
        own: (hello, Conn::new(served.into()).map_err(starting)?),
        expected: (0..identity.world_size).map(|rank| identity.expected_host(rank)).collect(),
        greeting_deadline: options.greeting_deadline,
        notice: options.notice.clone(),
        refusals: Arc::clone(refusals),
    });
    let service = std::thread::Builder::new()
        .name("expertrail-group".to_owned())
        .spawn(move || coordinator.run())
        .map_err(starting)?;
    Ok((Conn::new(own.into()).map_err(starting)?, service))
}

/// The identity of one rank of a smaller group, completed by the caller.
pub(crate) fn sub_identity(entry: &Entry, job: JobToken, root: Endpoint) -> Identity {
    Identity {
        local_rank: None,
        local_size: None,
        node: Some(entry.place.node),
        host: entry.host.clone(),
        job,
        root,
        ..Identity::single()
    }
}
