//! What the numbers of a run mean.

use crate::causes::CauseEntry;

/// Causes of this part.
pub const CAUSES: &[&[CauseEntry]] = &[];
