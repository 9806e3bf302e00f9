//! Process groups: who am I, who are the others, and what happened to them.
//!
//! * [`Identity`] reads what the launcher (torchrun, Slurm, Open MPI, Kubernetes, or our own) said.
//! * [`Group`] joins the ranks over TCP in a star around rank 0, and offers the three small collectives
//!   that set-up needs: all-gather, broadcast, barrier. Bulk data never goes this way.
//! * [`DeathWatch`] tells within milliseconds that a process of this host has ended.
//! * [`spawn::LocalLaunch`] starts ranks on this host and reaps every one of them.
//!
//! Every wait has a name, a deadline and a culprit: an error says which rank, on which host, was missing
//! from which phase. A rank that dies is named to all survivors; a rank that left on purpose is named as
//! such; two ranks in different phases are both named.
#![forbid(unsafe_code)]

mod cancel;
mod conn;
mod coordinator;
mod dial;
mod error;
mod group;
mod guest;
pub mod identity;
mod interrupt;
mod join;
mod layout;
mod listen;
mod member;
mod parent;
pub mod poll;
pub mod spawn;
mod subset;
mod table;
mod token;
mod watch;
mod wire;

pub use cancel::CancelToken;
pub use error::{GroupError, InCall, Peer, Result};
pub use group::Group;
pub use identity::{Endpoint, Identity, IdentityError, Launcher};
pub use interrupt::Watch as SignalWatch;
pub use join::{JoinOptions, Notice};
pub use parent::{Bond, bind_to_parent, exec_bound};
pub use token::JobToken;
pub use watch::{DeathWatch, WatchError};
pub use wire::{MAX_BLOB, MAX_GATHERED};
