//! The binary `expertrail`.
fn main() {}
