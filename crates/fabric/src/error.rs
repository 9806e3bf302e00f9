//! What can go wrong with a transport.

use thiserror::Error;

/// Result of a transport.
pub type Result<T> = std::result::Result<T, FabricError>;

/// An error of a transport. All but [`FabricError::Argument`] end the transport for the peer that they name, or for all.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FabricError {
    /// The library could not be opened.
    #[error(
        "libfabric is not available: {reason}; looked for {looked_for}. Install it (Debian and Ubuntu: libfabric1; EFA: the \
         EFA installer, /opt/amazon/efa/lib), or name it in EXPERTRAIL_LIBFABRIC"
    )]
    NoLibrary {
        /// Every name tried.
        looked_for: String,
        /// What the loader said of the last one.
        reason: String,
    },
    /// The library is there and offers no such provider or domain.
    #[error("no {wanted} among what {library} offers ({offered}); {hint}")]
    NoProvider {
        /// The provider and domain asked for.
        wanted: String,
        /// The library with its version.
        library: String,
        /// What it offers instead.
        offered: String,
        /// What to do.
        hint: String,
    },
    /// The provider lacks something that the protocol needs.
    #[error("{provider} cannot be used: {lacks}")]
    Unsuitable {
        /// Provider and domain.
        provider: String,
        /// What it lacks.
        lacks: String,
    },
    /// A call of the library failed.
    #[error("{call} of {provider} failed: {reason} ({code})")]
    Library {
        /// The call.
        call: &'static str,
        /// Provider and domain.
        provider: String,
        /// The library's words.
        reason: String,
        /// Its number.
        code: i32,
    },
    /// A write to a peer failed.
    #[error("a write to peer {peer} over {provider} failed: {reason} ({code})")]
    Peer {
        /// The peer's number, as given to [`connect`](crate::Transport::connect).
        peer: u32,
        /// Provider and domain.
        provider: String,
        /// The library's words.
        reason: String,
        /// Its number.
        code: i32,
    },
    /// Something of a peer's arrived twice, which no transport may do.
    #[error("node {node}'s {what} arrived twice: the network or its provider repeats completions")]
    Repeated {
        /// The node.
        node: usize,
        /// What it was.
        what: String,
    },
    /// An argument is outside of what was registered or connected: an error of the caller; nothing was posted.
    #[error("{what}")]
    Argument {
        /// What is wrong.
        what: String,
    },
    /// Bytes from a peer do not parse.
    #[error(
        "peer {peer} sent {what} that does not parse: both sides must run the same version of Expertrail"
    )]
    Exchange {
        /// The peer's number.
        peer: u32,
        /// What it was.
        what: &'static str,
    },
    /// The system refused something.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        reason: String,
    },
}
