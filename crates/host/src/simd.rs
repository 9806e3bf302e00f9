//! Which instruction set the row kernels use, chosen once at run time.

use std::fmt;

use crate::error::{HostError, Result};

/// The instruction sets that the row kernels are compiled for. All give the same bits: the kernels are one
/// body of plain Rust (no contraction, no reassociation, no flush to zero) compiled three times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Simd {
    /// What every CPU of the target has.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
}

/// Forces a set: `portable`, `avx2` or `avx512`.
pub const SIMD_VARIABLE: &str = "EXPERTRAIL_SIMD";

impl Simd {
    /// The widest set of this CPU.
    pub fn widest() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx512 {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// The set named by [`SIMD_VARIABLE`], or the widest.
    ///
    /// # Errors
    /// [`HostError::Setting`] when the name is unknown or this CPU lacks the set.
    pub fn from_env() -> Result<Self> {
        match std::env::var(SIMD_VARIABLE) {
            Ok(name) => Self::named(&name),
            Err(_) => Ok(Self::widest()),
        }
    }

    /// The set called `name`.
    ///
    /// # Errors
    /// As [`Simd::from_env`].
    pub fn named(name: &str) -> Result<Self> {
        let wanted = match name {
            "portable" => Self::Portable,
            "avx2" => Self::Avx2,
            "avx512" => Self::Avx512,
            _ => {
                return Err(HostError::Setting {
                    name: SIMD_VARIABLE,
                    value: name.to_owned(),
                    wanted: "portable, avx2 or avx512".to_owned(),
                });
            }
        };
        if wanted > Self::widest() {
            return Err(HostError::Setting {
                name: SIMD_VARIABLE,
                value: name.to_owned(),
                wanted: format!("a set that this CPU has; its widest is {}", Self::widest()),
            });
        }
        Ok(wanted)
    }

    /// Every set this CPU can run, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|&s| s <= Self::widest())
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}
