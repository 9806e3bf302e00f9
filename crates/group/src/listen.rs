//! The socket that rank 0 listens on.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::error::{GroupError, Result};
use crate::identity::Endpoint;

/// Names the descriptor on which the launcher handed rank 0 its listening socket.
pub(crate) const LISTEN_FD: &str = "EXPERTRAIL_LISTEN_FD";
/// A rank 0 of an earlier run may still be on its way out.
const PATIENCE: Duration = Duration::from_secs(3);

/// Listens where the others will look for rank 0.
pub(crate) fn bind(root: &Endpoint) -> Result<TcpListener> {
    // A name or outside address may not be one of this host's own (a service's, a NAT's), so anything
    // that is not the loopback listens on all of them. Most systems serve IPv4 on the IPv6 wildcard too.
    let hosts: &[&str] = if root.is_loopback() { &[root.host.as_str()] } else { &["::", "0.0.0.0"] };
    let until = Instant::now() + PATIENCE;
    loop {
        let mut last = None;
        for host in hosts {
            match TcpListener::bind((*host, root.port)) {
                Ok(listener) => return prepared(listener),
                Err(error) => last = Some(error),
            }
        }
        let in_use = last.as_ref().is_some_and(|error| error.kind() == std::io::ErrorKind::AddrInUse);
        if !in_use || Instant::now() >= until {
            let reason = last.map(|error| error.to_string()).unwrap_or_default();
            return Err(GroupError::Bind { addr: root.to_string(), reason });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A listener on any free port of the same kind of address as `root`.
pub(crate) fn bind_free(root: &Endpoint) -> Result<TcpListener> {
    bind(&Endpoint { host: root.host.clone(), port: 0 })
}

fn prepared(listener: TcpListener) -> Result<TcpListener> {
    listener.set_nonblocking(true).map_err(|error| GroupError::system("preparing rank 0's socket", error))?;
    Ok(listener)
}

/// Takes the listening socket that the launcher handed over as standard input, if it did.
///
/// Standard input is then replaced by `/dev/null`, so that the port closes with the group. A second group
/// of the same process finds no socket there and binds the address anew.
pub(crate) fn inherited() -> Result<Option<TcpListener>> {
    let Some(value) = std::env::var_os(LISTEN_FD).filter(|value| !value.is_empty()) else { return Ok(None) };
    if value != "0" {
        let text =
            format!("{LISTEN_FD}={} is not usable: only 0, standard input, is supported", value.display());
        return Err(GroupError::Argument(text));
    }
    let stdin = std::io::stdin();
    if !sockopt::socket_acceptconn(&stdin).unwrap_or(false) {
        return Ok(None);
    }
    let taking = |error: std::io::Error| GroupError::system("taking the launcher's listening socket", error);
    let own = stdin.as_fd().try_clone_to_owned().map_err(taking)?;
    let null = std::fs::File::open("/dev/null").map_err(taking)?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| taking(error.into()))?;
    prepared(TcpListener::from(own)).map(Some)
}

/// Makes room for one descriptor per rank, as far as the hard limit allows.
pub(crate) fn raise_descriptor_limit(ranks: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = ranks as u64 + 256;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        // If it is refused, accepting says so when descriptors run out.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    }
}
