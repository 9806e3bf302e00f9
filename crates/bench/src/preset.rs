//! Named workloads, and the caller's overrides on top of them.

use std::fmt;
use std::str::FromStr;

use expertrail_core::{CoreError, Dtype, Shape, Topology};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How a message is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// High throughput: training and prefill.
    Ht,
    /// Low latency: decode.
    Ll,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ht => "ht",
            Self::Ll => "ll",
        })
    }
}

impl FromStr for Mode {
    type Err = PresetError;

    fn from_str(text: &str) -> Result<Self, PresetError> {
        match text {
            "ht" => Ok(Self::Ht),
            "ll" => Ok(Self::Ll),
            _ => {
                Err(PresetError::Unknown { what: "mode", given: text.to_owned(), known: "ht, ll".to_owned() })
            }
        }
    }
}

/// How far one group of ranks reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// One group per node, all of them at once.
    Node,
    /// One group over all ranks.
    World,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::World => "world",
        })
    }
}

impl FromStr for Scope {
    type Err = PresetError;

    fn from_str(text: &str) -> Result<Self, PresetError> {
        match text {
            "node" => Ok(Self::Node),
            "world" => Ok(Self::World),
            _ => Err(PresetError::Unknown {
                what: "scope",
                given: text.to_owned(),
                known: "node, world".to_owned(),
            }),
        }
    }
}

/// Parses `bf16` or `fp8`, as `--dtype` takes them.
///
/// # Errors
/// [`PresetError::Unknown`] for any other text.
pub fn parse_dtype(text: &str) -> Result<Dtype, PresetError> {
    match text {
        "bf16" => Ok(Dtype::Bf16),
        "fp8" => Ok(Dtype::Fp8E4m3),
        _ => {
            Err(PresetError::Unknown { what: "dtype", given: text.to_owned(), known: "bf16, fp8".to_owned() })
        }
    }
}

/// A named workload. Every field can be overridden, see [`Preset::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for the help text.
    pub about: &'static str,
    /// Tokens of each rank, T.
    pub tokens: usize,
    /// Elements of a row, H.
    pub hidden: usize,
    /// Experts chosen for a token, K.
    pub top_k: usize,
    /// Experts in all, E.
    pub experts: usize,
    /// What dispatch moves. Combine always moves BF16.
    pub dtype: Dtype,
    /// Whether a row may name an expert twice (the guide draws with replacement).
    pub with_replacement: bool,
    /// Ranks when the caller names none.
    pub ranks: usize,
    /// Nodes when the caller does not say and the ranks divide by it; otherwise one node.
    pub nodes: usize,
    /// How far one group reaches.
    pub scope: Scope,
    /// The mode this workload is meant for.
    pub mode: Mode,
    /// Iterations before timing starts.
    pub warmup: usize,
    /// Timed iterations.
    pub iters: usize,
}

const QUICK: Preset = Preset {
    name: "quick",
    about: "seconds on any machine: 1024 tokens x 2048, top-8 of 64",
    tokens: 1024,
    hidden: 2048,
    top_k: 8,
    experts: 64,
    dtype: Dtype::Bf16,
    with_replacement: false,
    ranks: 4,
    nodes: 1,
    scope: Scope::World,
    mode: Mode::Ht,
    warmup: 3,
    iters: 20,
};

/// All presets, the default first.
pub const PRESETS: [Preset; 5] = [
    QUICK,
    Preset {
        name: "deepseek-v3",
        about: "training and prefill of DeepSeek-V3: 4096 tokens x 7168, top-8 of 256, FP8 dispatch",
        tokens: 4096,
        hidden: 7168,
        experts: 256,
        dtype: Dtype::Fp8E4m3,
        ..QUICK
    },
    Preset {
        name: "decode",
        about: "one decode step: 128 tokens x 7168, top-8 of 256, FP8 dispatch, LL mode",
        tokens: 128,
        hidden: 7168,
        experts: 256,
        dtype: Dtype::Fp8E4m3,
        mode: Mode::Ll,
        warmup: 10,
        iters: 100,
        ..QUICK
    },
    Preset {
        name: "guide-intranode",
        about: "the Kubernetes guide's run inside each node: 65,536 tokens x 3072, top-16 of 128",
        tokens: 65_536,
        hidden: 3072,
        top_k: 16,
        experts: 128,
        with_replacement: true,
        scope: Scope::Node,
        warmup: 10,
        iters: 50,
        ..QUICK
    },
    Preset {
        name: "guide-internode",
        about: "the Kubernetes guide's run across nodes: 8192 tokens x 3072, top-8 of 128",
        tokens: 8192,
        hidden: 3072,
        experts: 128,
        with_replacement: true,
        nodes: 2,
        warmup: 10,
        iters: 50,
        ..QUICK
    },
];

impl FromStr for Preset {
    type Err = PresetError;

    fn from_str(name: &str) -> Result<Self, PresetError> {
        PRESETS.iter().find(|p| p.name == name).copied().ok_or_else(|| PresetError::Unknown {
            what: "preset",
            given: name.to_owned(),
            known: PRESETS.map(|p| p.name).join(", "),
        })
    }
}

/// What the caller sets instead of the preset's value; `None` keeps the preset's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Ranks in all.
    pub ranks: Option<usize>,
    /// Ranks on each node.
    pub ranks_per_node: Option<usize>,
    /// Tokens of each rank.
    pub tokens: Option<usize>,
    /// Elements of a row.
    pub hidden: Option<usize>,
    /// Experts chosen for a token.
    pub top_k: Option<usize>,
    /// Experts in all.
    pub experts: Option<usize>,
    /// What dispatch moves.
    pub dtype: Option<Dtype>,
    /// Whether a row may name an expert twice.
    pub with_replacement: Option<bool>,
    /// How far one group reaches.
    pub scope: Option<Scope>,
    /// The mode.
    pub mode: Option<Mode>,
    /// Iterations before timing starts.
    pub warmup: Option<usize>,
    /// Timed iterations.
    pub iters: Option<usize>,
}

/// A preset with its overrides applied, every rule checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Name of the preset it comes from.
    pub preset: &'static str,
    /// Sizes, `max_tokens` being the tokens of each rank.
    pub shape: Shape,
    /// The declared topology.
    pub topology: Topology,
    /// What dispatch moves.
    pub dispatch_dtype: Dtype,
    /// What combine moves (always BF16).
    pub combine_dtype: Dtype,
    /// Whether a row may name an expert twice.
    pub with_replacement: bool,
    /// How far one group reaches.
    pub scope: Scope,
    /// The mode asked for. Only [`Mode::Ht`] is built: see [`Resolved::warnings`].
    pub mode: Mode,
    /// Iterations before timing starts.
    pub warmup: usize,
    /// Timed iterations, at least one.
    pub iters: usize,
    /// What the user must be told about these settings.
    pub warnings: Vec<String>,
}

/// Settings that cannot be run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PresetError {
    /// A name that does not exist.
    #[error("unknown {what} `{given}`; known: {known}")]
    Unknown {
        /// Kind of name.
        what: &'static str,
        /// What was given.
        given: String,
        /// What exists.
        known: String,
    },
    /// No timed iteration.
    #[error("0 timed iterations asked for: there would be nothing to report; give --iters 1 or more")]
    NoIterations,
    /// More iterations than can be kept.
    #[error("{given} {what} iterations asked for: at most {MOST_ITERATIONS} are kept; give fewer")]
    TooMany {
        /// Which.
        what: &'static str,
        /// How many.
        given: usize,
    },
    /// The shape or topology breaks a rule of the core.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// The most iterations of either kind: every timed one's samples are kept and reported.
pub const MOST_ITERATIONS: usize = 10_000_000;

impl Preset {
    /// Applies `over` and checks shape and topology. With `Scope::Node` the experts are spread over the
    /// ranks of one node, as in the guide.
    ///
    /// # Errors
    /// [`PresetError::NoIterations`] for zero timed iterations, [`PresetError::TooMany`], [`PresetError::Core`] for a shape or
    /// topology that the core refuses.
    pub fn resolve(&self, over: &Overrides) -> Result<Resolved, PresetError> {
        let ranks = over.ranks.unwrap_or(self.ranks);
        let topology = Topology::new(ranks, over.ranks_per_node.unwrap_or_else(|| self.per_node(ranks)))?;
        let dispatch_dtype = over.dtype.unwrap_or(self.dtype);
        let shape = Shape {
            max_tokens: over.tokens.unwrap_or(self.tokens),
            hidden: over.hidden.unwrap_or(self.hidden),
            top_k: over.top_k.unwrap_or(self.top_k),
            experts: over.experts.unwrap_or(self.experts),
        };
        shape.check(dispatch_dtype == Dtype::Fp8E4m3)?;
        let iters = over.iters.unwrap_or(self.iters);
        if iters == 0 {
            return Err(PresetError::NoIterations);
        }
        let warmup = over.warmup.unwrap_or(self.warmup);
        for (what, given) in [("timed", iters), ("warm-up", warmup)] {
            if given > MOST_ITERATIONS {
                return Err(PresetError::TooMany { what, given });
            }
        }
        let mode = over.mode.unwrap_or(self.mode);
        let mut warnings = Vec::new();
        if mode == Mode::Ll {
            warnings.push(format!(
                "{} is a low-latency (LL) workload; LL mode is not built yet, so it runs in HT mode and its \
                 times are not LL times",
                self.name
            ));
        }
        Ok(Resolved {
            preset: self.name,
            shape,
            topology,
            dispatch_dtype,
            combine_dtype: Dtype::Bf16,
            with_replacement: over.with_replacement.unwrap_or(self.with_replacement),
            scope: over.scope.unwrap_or(self.scope),
            mode,
            warmup,
            iters,
            warnings,
        })
    }

    fn per_node(&self, ranks: usize) -> usize {
        if ranks > 0 && ranks.is_multiple_of(self.nodes) { ranks / self.nodes } else { ranks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(name: &str) -> Preset {
        name.parse().unwrap()
    }

    #[test]
    fn the_shapes_of_the_design() {
        let shape = |name| {
            let p: Preset = preset(name);
            (p.tokens, p.hidden, p.top_k, p.experts)
        };
        assert_eq!(shape("quick"), (1024, 2048, 8, 64));
        assert_eq!(shape("deepseek-v3"), (4096, 7168, 8, 256));
        assert_eq!(shape("decode"), (128, 7168, 8, 256));
        assert_eq!(shape("guide-intranode"), (65_536, 3072, 16, 128));
        assert_eq!(shape("guide-internode"), (8192, 3072, 8, 128));
    }

    #[test]
    fn every_preset_resolves_by_itself() {
        for p in PRESETS {
            let r = p.resolve(&Overrides::default()).unwrap();
            assert_eq!(r.combine_dtype, Dtype::Bf16);
            assert_eq!(r.warnings.is_empty(), r.mode == Mode::Ht, "{}", p.name);
        }
    }

    #[test]
    fn nodes_follow_the_ranks() {
        let nodes = |name, ranks| {
            let over = Overrides { ranks: Some(ranks), ..Overrides::default() };
            preset(name).resolve(&over).unwrap().topology.nodes()
        };
        assert_eq!([nodes("guide-internode", 8), nodes("guide-internode", 7), nodes("quick", 8)], [2, 1, 1]);
        assert_eq!(nodes("guide-internode", 1), 1);
    }

    #[test]
    fn overrides_win_and_are_checked() {
        let over = Overrides { dtype: Some(Dtype::Bf16), hidden: Some(136), ..Overrides::default() };
        assert_eq!(preset("deepseek-v3").resolve(&over).unwrap().shape.hidden, 136);
        let fp8 = Overrides { dtype: None, ..over };
        let text = preset("deepseek-v3").resolve(&fp8).unwrap_err().to_string();
        assert!(text.contains("136") && text.contains("128"), "{text}");
        let none = Overrides { iters: Some(0), ..Overrides::default() };
        assert!(preset("quick").resolve(&none).unwrap_err().to_string().contains("--iters 1"));
        let zero = Overrides { ranks: Some(0), ..Overrides::default() };
        assert!(matches!(preset("quick").resolve(&zero), Err(PresetError::Core(_))));
        let odd = Overrides { ranks: Some(6), ranks_per_node: Some(4), ..Overrides::default() };
        assert!(preset("quick").resolve(&odd).is_err());
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let text = "slow".parse::<Preset>().unwrap_err().to_string();
        assert!(text.contains("`slow`") && text.contains("guide-internode"), "{text}");
        assert!("HT".parse::<Mode>().is_err() && "rack".parse::<Scope>().is_err());
        assert!(parse_dtype("fp16").unwrap_err().to_string().contains("bf16, fp8"));
    }
}
