//! Comparison of a fleet: properties of many nodes, the majority of each, and who differs.

use crate::causes::CauseEntry;

const OUTLIER: CauseEntry = CauseEntry {
    id: "fleet-outlier",
    title: "a node differs from most others",
    text: "It may pass alone and still be the one that slows down or breaks a job over many nodes: another driver, firmware, parameter or library than its peers have.",
};
const SPLIT: CauseEntry = CauseEntry {
    id: "fleet-split",
    title: "nodes differ and no value has a majority",
    text: "The fleet was changed in part, or is made of several kinds of machines; which value is right cannot be told by counting.",
};

/// Causes of this part.
pub const CAUSES: &[&[CauseEntry]] = &[&[OUTLIER, SPLIT]];
