//! References: published and own figures with their settings and provenance, what machines' links carry, and what share of
//! them engines reach. All of it is data (`data/references.json`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::model::{Counts, Figure, Run, Section, Settings};

const TEXT: &str = include_str!("../../data/references.json");

/// The name of the references file's version.
pub const REFERENCES_SCHEMA: &str = "expertrail.references/1";

/// Keys of [`Reference::settings`].
const KEYS: &[&str] = &[
    "nodes",
    "ranks_per_node",
    "tokens",
    "hidden",
    "top_k",
    "experts",
    "sms",
    "transport",
    "span",
    "rows_in",
];

/// References, machines and priors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct References {
    /// [`REFERENCES_SCHEMA`].
    pub schema: String,
    /// By how much runs vary: 0.10 is 10 %.
    pub variation: f64,
    /// Who says so.
    pub variation_source: String,
    /// What the links of machines carry.
    pub machines: Vec<GpuMachine>,
    /// What share of a link an engine reaches.
    pub priors: Vec<Prior>,
    /// Figures.
    pub references: Vec<Reference>,
}

/// Links of the machines that a GPU is sold in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuMachine {
    /// `H200`.
    pub gpu: String,
    /// `sm90`.
    pub arch: String,
    /// One-way `NVLink` GB/s of a GPU, by its data sheet.
    pub scale_up_gb_s: f64,
    /// GB/s of a GPU's NICs in usual machines, one way.
    pub scale_out_gb_s: f64,
    /// Where that is from.
    pub note: String,
}

/// The least share of a link that an engine was seen to reach when that link binds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prior {
    /// `guide`, `deepep-v1`, `deepep-ll`, `deepep-v2`, `nccl`, `expertrail`, `uccl`.
    pub engine: String,
    /// `scale-up`, `scale-out`, `memory`.
    pub link: String,
    /// `sm90`; empty: any.
    pub arch: String,
    /// `efa`; empty: any.
    pub transport: String,
    /// Share of the ceiling.
    pub low: f64,
    /// What a call takes besides its bytes, microseconds: a short call reaches a smaller share of the link for that alone.
    pub fixed_us: f64,
    /// Where that is from.
    pub source: String,
}

/// A figure that somebody got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reference {
    /// Name.
    pub id: String,
    /// `H200`, or `sm90` where only the architecture is known.
    pub gpu: String,
    /// The engine.
    pub engine: String,
    /// Part.
    pub section: Section,
    /// Operation.
    pub op: String,
    /// `bf16`, `fp8`; empty: any.
    pub dtype: String,
    /// What the figure counts.
    pub counts: Counts,
    /// GB/s per GPU, one for each run or node.
    pub samples: Vec<f64>,
    /// By how much runs vary; none: as the file says for all.
    pub variation: Option<f64>,
    /// What a run must agree in: `nodes`, `ranks_per_node`, `tokens`, `hidden`, `top_k`, `experts`, `sms`, `transport`, `span`, `rows_in`.
    pub settings: BTreeMap<String, Value>,
    /// Versions; a run that says others is not held against it.
    pub stack: BTreeMap<String, String>,
    /// What the clock saw.
    pub timing: String,
    /// The machine.
    pub machine: String,
    /// Who published it, and where.
    pub source: String,
    /// When.
    pub date: String,
    /// Anything else.
    pub note: String,
    /// Its authors have withdrawn it.
    pub retired: bool,
}

impl Prior {
    /// The least share of the link that a call is expected to reach whose bytes alone take `bytes_us` there.
    pub fn low_for(&self, bytes_us: Option<f64>) -> f64 {
        match bytes_us {
            Some(us) if us > 0.0 && self.fixed_us > 0.0 => self.low * us / (us + self.fixed_us),
            _ => self.low,
        }
    }
}

impl Reference {
    /// The least sample.
    pub fn least(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The range: the samples, and the variation on both sides.
    pub fn range(&self, variation: f64) -> (f64, f64) {
        let variation = self.variation.unwrap_or(variation);
        let most = self.samples.iter().copied().fold(0.0, f64::max);
        (self.least() * (1.0 - variation), most * (1.0 + variation))
    }
}

impl References {
    /// Reads a references file.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self =
            serde_json::from_str(text).map_err(|error| format!("not a references file: {error}"))?;
        if file.schema != REFERENCES_SCHEMA {
            return Err(format!("schema `{}`: {REFERENCES_SCHEMA} is wanted", file.schema));
        }
        for reference in &file.references {
            let id = &reference.id;
            if reference.samples.is_empty()
                || reference.samples.iter().any(|sample| !sample.is_finite() || *sample <= 0.0)
            {
                return Err(format!("reference `{id}`: samples must be one number or more, each above 0"));
            }
            if let Some(key) = reference.settings.keys().find(|key| !KEYS.contains(&key.as_str())) {
                return Err(format!("reference `{id}`: unknown setting `{key}`; known: {}", KEYS.join(", ")));
            }
            if reference.source.is_empty() || reference.machine.is_empty() || reference.date.is_empty() {
                return Err(format!("reference `{id}`: source, machine and date must be given"));
            }
        }
        Ok(file)
    }

    /// The machine that has this GPU.
    pub fn machine(&self, gpu: &str) -> Option<&GpuMachine> {
        self.machines.iter().find(|machine| machine.gpu.eq_ignore_ascii_case(gpu))
    }

    /// The prior of an engine over a link; the closest to the architecture and transport.
    pub fn prior(&self, engine: &str, link: &str, arch: &str, transport: &str) -> Option<&Prior> {
        let fits = |own: &str, wanted: &str| own.is_empty() || own == wanted;
        self.priors
            .iter()
            .filter(|prior| prior.engine == engine && prior.link == link)
            .filter(|prior| fits(&prior.arch, arch) && fits(&prior.transport, transport))
            .min_by_key(|prior| prior.arch.is_empty() as u8 + prior.transport.is_empty() as u8)
    }
}

/// The references of this program. Their text is tested; were it broken there would be none, and every verdict would be inconclusive.
pub fn references() -> &'static References {
    static READ: LazyLock<References> = LazyLock::new(|| References::parse(TEXT).unwrap_or_default());
    &READ
}

/// What a figure is held against.
pub(super) struct Sought<'a> {
    pub(super) run: &'a Run,
    pub(super) figure: &'a Figure,
    pub(super) settings: &'a Settings,
    pub(super) engine: &'a str,
    pub(super) gpu: &'a str,
    pub(super) arch: &'a str,
}

impl Sought<'_> {
    fn value(&self, key: &str) -> Option<String> {
        let settings = self.settings;
        let number = match key {
            "nodes" => settings.node_count(),
            "ranks_per_node" => settings.ranks_per_node,
            "tokens" => settings.tokens,
            "hidden" => settings.hidden,
            "top_k" => settings.top_k,
            "experts" => settings.experts,
            "sms" => self.figure.sms,
            "transport" => return settings.transport.clone(),
            _ => return self.figure.details.get(key).cloned(),
        };
        number.map(|number| number.to_string())
    }

    /// Everything but the stack agrees.
    pub(super) fn agrees(&self, reference: &Reference) -> bool {
        let same = |wanted: &Value, got: Option<String>| match wanted {
            Value::String(text) => got.as_ref() == Some(text),
            other => got == Some(other.to_string()),
        };
        (reference.gpu.eq_ignore_ascii_case(self.gpu) || reference.gpu == self.arch)
            && !reference.gpu.is_empty()
            && reference.engine == self.engine
            && reference.section == self.figure.section
            && reference.op == self.figure.op
            && (reference.dtype.is_empty() || reference.dtype == self.figure.dtype)
            && reference.counts == self.figure.counts
            && reference.settings.iter().all(|(key, wanted)| same(wanted, self.value(key)))
    }

    /// Versions that the run says and that are not those of the reference.
    pub(super) fn other_stack(&self, reference: &Reference) -> Vec<String> {
        reference
            .stack
            .iter()
            .filter_map(|(name, wanted)| {
                let said = self.run.versions.get(name)?;
                (said.text != *wanted).then(|| format!("{name} {} and not {wanted}", said.text))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole() {
        let file = References::parse(TEXT).unwrap();
        assert!(file.references.len() > 100);
        let mut ids: Vec<&str> = file.references.iter().map(|reference| reference.id.as_str()).collect();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "two references of one name");
        for reference in &file.references {
            let known = file.machine(&reference.gpu).is_some()
                || file.machines.iter().any(|machine| machine.arch == reference.gpu);
            assert!(known, "{}: GPU {}", reference.id, reference.gpu);
            assert!(file.priors.iter().any(|prior| prior.engine == reference.engine), "{}", reference.id);
            assert!(!reference.timing.is_empty(), "{}", reference.id);
            if reference.id.starts_with("guide-") {
                assert!(reference.note.contains("range here is made from"), "{}", reference.id);
            }
        }
        for prior in &file.priors {
            assert!(prior.low > 0.0 && prior.low < 1.0 && !prior.source.is_empty(), "{prior:?}");
            assert!((0.0..1000.0).contains(&prior.fixed_us), "{prior:?}");
        }
    }

    #[test]
    fn ranges_of_the_guide() {
        // 276.9 and 275.4 GB/s, and 10 % on both sides.
        let reference = references()
            .references
            .iter()
            .find(|reference| reference.id == "guide-b200-intranode-dispatch")
            .unwrap();
        let (low, high) = reference.range(references().variation);
        assert!((low - 247.86).abs() < 0.005 && (high - 304.59).abs() < 0.005, "{low} {high}");
    }

    #[test]
    fn files_that_are_refused() {
        for (text, why) in [
            ("{", "not a references file"),
            (r#"{"schema":"x"}"#, "is wanted"),
            (r#"{"schema":"expertrail.references/1","references":[{"id":"a"}]}"#, "samples"),
            (
                r#"{"schema":"expertrail.references/1","references":[{"id":"a","samples":[1],"settings":{"tokns":1}}]}"#,
                "unknown setting `tokns`",
            ),
            (r#"{"schema":"expertrail.references/1","references":[{"id":"a","samples":[1]}]}"#, "source"),
        ] {
            let error = References::parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
