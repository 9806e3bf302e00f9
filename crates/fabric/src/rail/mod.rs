//! A rail: one rank's endpoint, its registered region, and the proxy thread that serves it.
//!
//! The rank packs chunks in its region and gives 16-byte commands; the proxy posts the writes, counts what arrives by the
//! state machines of [`expertrail_core::hop`], and publishes flags. The rank never calls the transport, and the proxy never
//! waits for the rank: that is what a GPU needs too.

mod counters;
mod flags;
mod layout;
mod memory;
mod proxy;
mod worker;

pub use counters::RailStats;
pub use flags::{Flags, Way};
pub use layout::{CHANNELS, RailLayout, RailSizes, STATUS_BYTES, WORD_BYTES};
pub use memory::Pages;
pub use proxy::{Listener, Proxy, ProxyConfig, Rail, RailCard, RailEnd};
pub use worker::STOP_AT_ONCE;
