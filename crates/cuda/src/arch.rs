//! GPU architectures, as the compiler names them.

use std::fmt;

/// An architecture to compile for, such as `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Compute capability without its point: 90 for 9.0.
    pub number: i32,
}

impl Arch {
    /// H100, H200.
    pub const SM_90A: Self = Self { number: 90 };
    /// B200.
    pub const SM_100A: Self = Self { number: 100 };
    /// B300.
    pub const SM_103A: Self = Self { number: 103 };
    /// The architectures that every kernel must compile for.
    pub const GATED: [Self; 3] = [Self::SM_90A, Self::SM_100A, Self::SM_103A];

    /// The architecture of a device of compute capability `major.minor`.
    pub fn of(major: i32, minor: i32) -> Self {
        Self { number: major * 10 + minor }
    }
}

impl fmt::Display for Arch {
    /// From 9.0 on a device's own features need the suffix `a`; earlier ones have none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let specific = if self.number >= 90 { "a" } else { "" };
        write!(f, "sm_{}{specific}", self.number)
    }
}
