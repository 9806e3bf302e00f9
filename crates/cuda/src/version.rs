//! Versions as CUDA counts them.

use std::fmt;

/// A version of the CUDA interface, of the driver or of NVRTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Before the point.
    pub major: i32,
    /// After the point.
    pub minor: i32,
}

impl Version {
    /// From `cuDriverGetVersion`'s number: 13000 is 13.0, 12080 is 12.8.
    pub fn from_number(number: i32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
