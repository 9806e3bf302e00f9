//! Where ranks find each other's sockets: abstract names, or files in a shared folder.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use expertrail_group::JobToken;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with,
};

use super::SOCKET_DIR;
use super::wait::Wait;
use crate::build_error::BuildError;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

const ONE_NAMESPACE: &str = "that rank says that it listens there, but abstract socket names are seen only within one \
     network namespace: run the ranks in one pod or with the host's network (hostNetwork, `--network host`), or set \
     EXPERTRAIL_SOCKET_DIR to a folder on a mount that all their containers share";
const ONE_FOLDER: &str = "that rank says that it listens there: EXPERTRAIL_SOCKET_DIR must be one folder, mounted into \
     the container of every rank and open to every rank's user";

/// What the ranks of one mesh share: a part of their sockets' names, and a word that tells them from others who
/// connect. Names can be read by every user of the host (`/proc/net/unix`), the word cannot.
pub(super) struct Job {
    name: String,
    secret: [u8; 16],
}

const HELLO: usize = 20;

impl Job {
    /// 16 bytes for the names, 16 for the secret.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk::<16>()?;
        let secret = rest.try_into().ok()?;
        Some(Self { name: JobToken::from_bytes(*name).to_string(), secret })
    }

    /// What `rank` sends first.
    pub(super) fn hello(&self, rank: usize) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..16].copy_from_slice(&self.secret);
        hello[16..].copy_from_slice(&(rank as u32).to_le_bytes());
        hello
    }

    /// The rank that sent `hello`; nothing if it is no rank of this mesh.
    fn sender(&self, hello: &[u8]) -> Option<usize> {
        let (secret, rank) = hello.split_first_chunk::<16>()?;
        let rank: [u8; 4] = rank.try_into().ok()?;
        (*secret == self.secret).then_some(u32::from_le_bytes(rank) as usize)
    }
}

/// Where a rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// An abstract name.
    Abstract(String),
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "the abstract name {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Abstract(name) => [b"@", name.as_bytes()].concat(),
            Self::File(path) => [b"/", path.as_os_str().as_bytes()].concat(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (b'@', name) => Some(Self::Abstract(std::str::from_utf8(name).ok()?.to_owned())),
            (b'/', path) => Some(Self::File(OsStr::from_bytes(path).into())),
            _ => None,
        }
    }

    fn resolve(&self) -> rustix::io::Result<SocketAddrUnix> {
        match self {
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            Self::File(path) => SocketAddrUnix::new(path.as_path()),
        }
    }

    /// The places where this rank may find it: a folder shared by containers can be mounted elsewhere here.
    fn places(&self, folder: Option<&Path>) -> Vec<Self> {
        let mut places = Vec::new();
        if let (Self::File(path), Some(folder)) = (self, folder) {
            places.extend(path.file_name().map(|name| Self::File(folder.join(name))));
        }
        if !places.contains(self) {
            places.push(self.clone());
        }
        places
    }

    /// Connects to `peer`, which listens here, and says `hello`.
    pub(super) fn dial(
        &self,
        peer: usize,
        folder: Option<&Path>,
        hello: &[u8],
        wait: &Wait<'_>,
    ) -> Result<OwnedFd, BuildError> {
        let rank = wait.rank();
        let places = self.places(folder);
        let mut reasons = Vec::new();
        for place in &places {
            match place.connect(peer, wait)? {
                Ok(socket) => {
                    // The socket is empty: the few bytes go at once or not at all.
                    return match send(&socket, hello, SendFlags::NOSIGNAL) {
                        Ok(sent) if sent == hello.len() => Ok(socket),
                        _ => Err(BuildError::PeerEnded { rank, peer, what: "connecting sockets" }),
                    };
                }
                Err(error) => reasons.push(std::io::Error::from(error).to_string()),
            }
        }
        let name = places.iter().map(ToString::to_string).collect::<Vec<_>>().join(", then ");
        let advice = if matches!(self, Self::Abstract(_)) { ONE_NAMESPACE } else { ONE_FOLDER };
        Err(BuildError::Connect { rank, peer, name, reason: reasons.join(", then "), advice })
    }

    /// One socket's connection: a failure of the wait outside, of the system inside.
    fn connect(&self, peer: usize, wait: &Wait<'_>) -> Result<rustix::io::Result<OwnedFd>, BuildError> {
        let rank = wait.rank();
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
            .map_err(|error| BuildError::system(rank, "making a socket", std::io::Error::from(error)))?;
        let address = match self.resolve() {
            Ok(address) => address,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Ok(Ok(socket)),
                Err(Errno::INTR) => {}
                // The listener's queue is full: nothing to poll for, it only gets better with time.
                Err(Errno::AGAIN) => {
                    wait.poll(&mut [], || vec![peer])?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}

/// A socket that listens. Its file, if it has one, is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    address: Address,
}

impl Listener {
    /// Listens for the other ranks of `size` in all.
    pub(super) fn open(
        rank: usize,
        size: usize,
        job: &Job,
        folder: Option<&Path>,
    ) -> Result<Self, BuildError> {
        let address = match folder {
            None => Address::Abstract(format!("expertrail/{}/{rank}", job.name)),
            Some(folder) => {
                let file = folder.join(format!("expertrail-{}-{rank}", job.name));
                let whole = std::path::absolute(&file);
                Address::File(whole.map_err(|error| BuildError::system(rank, "finding this folder", error))?)
            }
        };
        let system =
            |what: String| move |error: Errno| BuildError::system(rank, what, std::io::Error::from(error));
        let resolved = match (address.resolve(), folder) {
            (Err(Errno::NAMETOOLONG), Some(folder)) => {
                return Err(BuildError::Setting {
                    name: SOCKET_DIR,
                    value: folder.display().to_string(),
                    wanted: "a shorter path: the system allows 108 bytes for a socket's, its own name of some 50 included"
                        .to_owned(),
                });
            }
            (resolved, _) => resolved.map_err(system(format!("naming a socket {address}")))?,
        };
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
            .map_err(system("making a socket".to_owned()))?;
        let hint = if folder.is_some() { ", in the folder that EXPERTRAIL_SOCKET_DIR names" } else { "" };
        bind(&socket, &resolved).map_err(system(format!("making the socket {address}{hint}")))?;
        // From here on the file is removed at drop.
        let listener = Self { socket, address };
        // Every rank above connects before this one accepts.
        listen(&listener.socket, i32::try_from(size.max(128)).unwrap_or(i32::MAX))
            .map_err(system(format!("listening on {}", listener.address)))?;
        Ok(listener)
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts `ranks`, which have connected and said hello already, in order of rank. Others are turned away.
    pub(super) fn accept(
        &self,
        ranks: Range<usize>,
        job: &Job,
        wait: &Wait<'_>,
    ) -> Result<Vec<OwnedFd>, BuildError> {
        let mut found: Vec<Option<OwnedFd>> = ranks.clone().map(|_| None).collect();
        while found.iter().any(Option::is_none) {
            match accept_with(&self.socket, FLAGS) {
                Ok(socket) => {
                    let rank = greeting(&socket).and_then(|hello| job.sender(&hello));
                    if let Some(rank) = rank.filter(|rank| ranks.contains(rank)) {
                        found[rank - ranks.start].get_or_insert(socket);
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => {
                    let missing =
                        || ranks.clone().filter(|rank| found[rank - ranks.start].is_none()).collect();
                    wait.poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], missing)?;
                }
                Err(error) => {
                    let what = format!("accepting on {}", self.address);
                    return Err(BuildError::system(wait.rank(), what, std::io::Error::from(error)));
                }
            }
        }
        Ok(found.into_iter().flatten().collect())
    }
}

/// The first bytes of a connection that has been greeted already.
fn greeting(socket: &OwnedFd) -> Option<[u8; HELLO]> {
    let mut hello = [0; HELLO];
    loop {
        match recv(socket.as_fd(), &mut hello, RecvFlags::DONTWAIT) {
            Ok((HELLO, _)) => return Some(hello),
            Err(Errno::INTR) => {}
            _ => return None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::File(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use expertrail_group::{CancelToken, Peer};

    fn job(byte: u8) -> Job {
        Job::from_bytes(&[[byte; 16], [byte + 1; 16]].concat()).unwrap()
    }

    fn with_wait<T>(rank: usize, limit: Duration, body: impl FnOnce(&Wait<'_>) -> T) -> T {
        body(&Wait::new(&Peer::unknown(rank), "test", limit, &CancelToken::new()))
    }

    #[test]
    fn a_name_nobody_listens_on_is_explained() {
        let address = Address::Abstract("expertrail/of-nobody/3".to_owned());
        let error =
            with_wait(5, Duration::from_secs(5), |wait| address.dial(3, None, b"hello", wait)).unwrap_err();
        assert!(matches!(error, BuildError::Connect { rank: 5, peer: 3, .. }));
        assert_eq!(error.exit_code(), 4);
        let text = error.to_string();
        for part in
            ["rank 3", "expertrail/of-nobody/3", "refused", "network namespace", "EXPERTRAIL_SOCKET_DIR"]
        {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    }

    #[test]
    fn a_missing_file_names_both_places() {
        let address = Address::File("/nowhere/expertrail-x-0".into());
        let error = with_wait(1, Duration::from_secs(5), |wait| {
            address.dial(0, Some(Path::new("/elsewhere")), b"hello", wait)
        })
        .unwrap_err()
        .to_string();
        for part in ["/elsewhere/expertrail-x-0, then /nowhere/expertrail-x-0", "No such file", "mounted"] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }

    #[test]
    fn strangers_are_turned_away() {
        let (job, other) = (job(1), job(7));
        let listener = Listener::open(0, 3, &job, None).unwrap();
        let dial = |hello: &[u8]| {
            with_wait(1, Duration::from_secs(5), |wait| listener.address().dial(0, None, hello, wait))
                .unwrap()
        };
        // Silent, too short, of another job, a rank that is none, and this rank itself.
        let strangers =
            [dial(b""), dial(b"short"), dial(&other.hello(1)), dial(&job.hello(3)), dial(&job.hello(0))];
        let (second, first) = (dial(&job.hello(2)), dial(&job.hello(1)));
        let again = dial(&job.hello(2));
        let accepted =
            with_wait(0, Duration::from_secs(5), |wait| listener.accept(1..3, &job, wait)).unwrap();
        send(&accepted[0], b"1", SendFlags::empty()).unwrap();
        send(&accepted[1], b"2", SendFlags::empty()).unwrap();
        let mut byte = [0];
        for (socket, wanted) in [(&first, b'1'), (&second, b'2')] {
            assert_eq!(recv(socket, &mut byte, RecvFlags::empty()).unwrap().0, 1);
            assert_eq!(byte[0], wanted);
        }
        for socket in &strangers[1..] {
            assert!(!matches!(recv(socket, &mut byte, RecvFlags::DONTWAIT), Ok((1, _)) | Err(Errno::AGAIN)));
        }
        drop(again);
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let listener = Listener::open(0, 3, &job(20), None).unwrap();
        let error = with_wait(0, Duration::from_millis(50), |wait| listener.accept(1..3, &job(20), wait));
        let error = error.unwrap_err();
        assert!(
            matches!(&error, BuildError::Deadline { rank: 0, missing, .. } if *missing == [1, 2]),
            "{error}"
        );
        assert_eq!(error.exit_code(), 124);
    }

    #[test]
    fn addresses_survive() {
        for address in [Address::Abstract("expertrail/ab/0".into()), Address::File("/tmp/x y".into())] {
            assert_eq!(Address::decode(&address.encode()), Some(address));
        }
        assert_eq!(Address::decode(b""), None);
        assert_eq!(Address::decode(b"x"), None);
        assert!(Job::from_bytes(&[0; 31]).is_none() && Job::from_bytes(&[0; 33]).is_none());
    }
}
