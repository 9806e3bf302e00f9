//! What the command line and the environment ask for.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

/// Multiplies every deadline: under a sanitizer kernels run a hundred times slower.
const SCALE: &str = "EXPERTRAIL_DEADLINE_SCALE";

/// A stage of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Conformance,
    Stress,
    Faults,
}

impl Stage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Conformance => "conformance",
            Self::Stress => "stress",
            Self::Faults => "faults",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Conformance, Self::Stress, Self::Faults].into_iter().find(|stage| stage.name() == name)
    }
}

/// Settings of a stage.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) stage: Stage,
    /// The checks of one rank's process, by number; `None` in the launcher.
    pub(crate) checks: Option<Vec<usize>>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) list: bool,
    /// Checks whose name contains one of these; all if empty.
    pub(crate) filters: Vec<String>,
    pub(crate) calls: usize,
    pub(crate) seed: u64,
    /// GPUs to use; as many as there are unless set.
    pub(crate) gpus: Option<usize>,
    /// Where ranks of one launch leave notes for each other.
    pub(crate) folder: PathBuf,
    pub(crate) scale: u32,
}

pub(crate) const USAGE: &str = "\
usage: gpu_suite conformance|stress|faults [--json FILE] [--filter TEXT]... [--list] [--gpus N]
                 [--calls N] [--seed N]      (stress: 10000 calls from seed 1 unless set)
EXPERTRAIL_COMMIT goes into the summary; EXPERTRAIL_DEADLINE_SCALE multiplies every deadline.
Ends with 0; 1 after a failed check, 2 for wrong arguments, 3 when nothing was run, 4 without GPUs.";

impl Settings {
    pub(crate) fn from_args(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = args.peekable();
        let is_rank = args.next_if(|arg| arg == "rank").is_some();
        let stage = args.next().ok_or("a stage is missing")?;
        let stage = Stage::named(&stage).ok_or_else(|| format!("{stage:?} is no stage"))?;
        let mut settings = Self {
            stage,
            checks: None,
            json: None,
            list: false,
            filters: Vec::new(),
            calls: 10_000,
            seed: 1,
            gpus: None,
            folder: PathBuf::new(),
            scale: match std::env::var(SCALE) {
                Ok(text) => number::<u32>(SCALE, &text)?.max(1),
                Err(_) => 1,
            },
        };
        if is_rank {
            let checks = args.next().ok_or("the checks' numbers are missing")?;
            let numbers = checks.split(',').map(|text| number("a check", text)).collect::<Result<_, _>>()?;
            settings.checks = Some(numbers);
        }
        while let Some(arg) = args.next() {
            if arg == "--list" {
                settings.list = true;
                continue;
            }
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--json" => settings.json = Some(value()?.into()),
                "--filter" => settings.filters.push(value()?),
                "--calls" => settings.calls = number(&arg, &value()?)?,
                "--seed" => settings.seed = number(&arg, &value()?)?,
                "--gpus" => settings.gpus = Some(number(&arg, &value()?)?),
                "--folder" => settings.folder = value()?.into(),
                _ => return Err(format!("{arg:?} is no option")),
            }
        }
        Ok(settings)
    }

    /// The arguments of a rank's process that runs `checks`.
    pub(crate) fn for_rank(&self, checks: &[usize], gpus: usize) -> Vec<String> {
        let checks: Vec<String> = checks.iter().map(usize::to_string).collect();
        let folder = self.folder.display().to_string();
        let (calls, seed, gpus) = (self.calls.to_string(), self.seed.to_string(), gpus.to_string());
        ["rank", self.stage.name(), &checks.join(",")]
            .into_iter()
            .chain(["--calls", &calls, "--seed", &seed, "--gpus", &gpus, "--folder", &folder])
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn takes(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|text| name.contains(text.as_str()))
    }

    /// A deadline of so many seconds, scaled.
    pub(crate) fn deadline(&self, seconds: u64) -> Duration {
        Duration::from_secs(seconds) * self.scale
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "calls": self.calls,
            "seed": self.seed,
            "gpus": self.gpus,
            "filters": self.filters,
            "deadline_scale": self.scale,
            "max_connections": std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok(),
        })
    }
}

fn number<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{what}: {text:?} is no number that fits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Settings, String> {
        Settings::from_args(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn a_ranks_arguments_come_back() {
        let mut settings = parse("stress --calls 77 --seed 18446744073709551615").unwrap();
        settings.folder = "/tmp/x".into();
        let rank = parse(&settings.for_rank(&[3, 0, 12], 2).join(" ")).unwrap();
        assert_eq!(rank.checks.as_deref(), Some(&[3, 0, 12][..]));
        assert_eq!((rank.calls, rank.seed, rank.gpus), (77, u64::MAX, Some(2)));
        assert_eq!(rank.folder.to_str(), Some("/tmp/x"));
        assert_eq!(rank.stage, Stage::Stress);
    }

    #[test]
    fn wrong_arguments_say_what() {
        for (line, text) in [
            ("paint", "\"paint\" is no stage"),
            ("stress --calls", "--calls needs a value"),
            ("stress --calls many", "--calls: \"many\" is no number"),
            ("faults --frob", "\"--frob\" is no option"),
            ("rank faults one", "a check: \"one\""),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
