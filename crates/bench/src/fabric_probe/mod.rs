//! `expertrail fabric probe`: what libfabric offers, and what every pair of ranks reaches.

mod document;
mod html;
mod measure;
mod schedule;
mod text;

pub use document::{
    FABRIC_SCHEMA, FABRIC_SCHEMA_ID, FabricFile, LibraryInfo, Measured, OfferInfo, Pair, ProbedRank,
};
pub use html::to_html;
pub use measure::{ProbeOptions, run};
pub use text::to_text;
