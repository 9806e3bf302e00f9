//! The images there are.

use std::fmt;
use std::str::FromStr;

/// The commit of awslabs/awsome-distributed-ai whose `setup_deepep_efa.sh` takes the arguments that the image for EFA gives it.
pub(super) const SETUP_COMMIT: &str = "61b67c2849bc45d5d2afbf842c1cac75f44816e0";

/// An image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Our own: one binary, no PyTorch.
    Expertrail,
    /// DeepEP's hybrid-ep line with NVSHMEM 3.4.5, for InfiniBand.
    DeepepInfiniband,
    /// DeepEP V1 with NVSHMEM 3.7.0, for EFA.
    DeepepEfa,
    /// DeepEP 4214430 with NVSHMEM 3.6.5 and the change of pull request 564, for InfiniBand.
    Deepep564,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Expertrail, Self::DeepepInfiniband, Self::DeepepEfa, Self::Deepep564];

    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expertrail => "expertrail",
            Self::DeepepInfiniband => "deepep-infiniband",
            Self::DeepepEfa => "deepep-efa",
            Self::Deepep564 => "deepep-564",
        }
    }

    pub(super) fn template(self) -> &'static str {
        match self {
            Self::Expertrail => include_str!("../../../assets/images/expertrail.Containerfile"),
            Self::DeepepInfiniband => include_str!("../../../assets/images/deepep-infiniband.Containerfile"),
            Self::DeepepEfa => include_str!("../../../assets/images/deepep-efa.Containerfile"),
            Self::Deepep564 => include_str!("../../../assets/images/deepep-564.Containerfile"),
        }
    }

    /// What it is built for when nothing is said: the GPUs its combination was seen to work on.
    pub(super) fn architectures(self) -> &'static [&'static str] {
        match self {
            Self::Expertrail => &[],
            Self::DeepepInfiniband | Self::Deepep564 => &["9.0"],
            Self::DeepepEfa => &["9.0", "10.0", "10.3"],
        }
    }

    pub(super) fn tag(self, architectures: &[String]) -> String {
        let gpu = architectures
            .iter()
            .map(|one| format!("sm{}", one.replace('.', "")))
            .collect::<Vec<_>>()
            .join("-");
        match self {
            Self::Expertrail => "expertrail:latest".to_owned(),
            Self::DeepepInfiniband => format!("deepep:{gpu}-nvshmem345"),
            Self::DeepepEfa => "deepep:efa1.48.0".to_owned(),
            Self::Deepep564 => format!("deepep:{gpu}-nvshmem365-564"),
        }
    }

    /// What the building script looks at before it begins.
    pub(super) fn checks(self) -> &'static str {
        match self {
            Self::DeepepEfa => {
                "if [ -z \"${SETUP_SHA256:-}\" ]; then\n    \
                     echo \"error: SETUP_SHA256 is not set: it is the sha256 of the setup_deepep_efa.sh that you have read (./build.sh --help says how to make it)\" >&2\n    \
                     exit 2\n\
                 fi\n"
            }
            _ => "",
        }
    }

    pub(super) fn arguments(self) -> &'static str {
        match self {
            Self::DeepepEfa => "--build-arg \"SETUP_SHA256=$SETUP_SHA256\" ",
            _ => "",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("`{text}` is no image; there are {}", names.join(", "))
        })
    }
}
