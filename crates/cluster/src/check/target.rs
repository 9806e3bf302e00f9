//! What a node is wanted for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a node is wanted for: what is required depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Our own library: no registry keys, no GDRCopy.
    #[default]
    Expertrail,
    /// DeepEP's V1 kernels with NVSHMEM's IBGDA transport on InfiniBand or RoCE.
    DeepepIbgda,
    /// DeepEP on AWS EFA, through NVSHMEM's libfabric transport.
    DeepepEfa,
    /// NCCL (DeepEP V2 among its users).
    Nccl,
}

impl Target {
    /// Every target.
    pub const ALL: [Self; 4] = [Self::Expertrail, Self::DeepepIbgda, Self::DeepepEfa, Self::Nccl];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expertrail => "expertrail",
            Self::DeepepIbgda => "deepep-ibgda",
            Self::DeepepEfa => "deepep-efa",
            Self::Nccl => "nccl",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|target| target.name() == text)
            .ok_or_else(|| format!("`{text}` is no target; there are {known}"))
    }
}
