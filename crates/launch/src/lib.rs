//! From one description of a run (`run.toml`) to launch files for every system, and the run itself: started, watched, collected, judged
//! and cleaned up.

#![forbid(unsafe_code)]

pub mod ab;
pub mod bundle;
pub mod doc;
pub mod drive;
pub mod engine;
pub mod files;
pub mod lint;
pub mod platform;
pub mod render;
pub mod run;
pub mod spec;
mod words;
pub mod worker;
