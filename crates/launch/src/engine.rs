//! The command lines that run inside a job.

use expertrail_cluster::check::Target;

use crate::platform::Fabric;
use crate::run::{Pins, Run, Step};
use crate::spec::{Contract, Engine, Preflight};

/// Our benchmark for `DeepEP`, one file without dependencies.
pub const DEEPEP_FILE: &str = "deepep_bench.py";

/// Its text.
pub const DEEPEP_TEXT: &str = include_str!("../assets/deepep_bench.py");

/// The label of pods whose ranks talk within their node alone, and its value. Nothing else tells `lint` that such pods need no NIC.
pub const SCOPE: (&str, &str) = ("expertrail.dev/scope", "node");

/// A word of a shell line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Taken as it is: quoted where a shell would change it.
    Plain(String),
    /// Already shell: `"$MASTER_ADDR"`.
    Shell(String),
}

impl From<&str> for Word {
    fn from(text: &str) -> Self {
        Self::Plain(text.to_owned())
    }
}

impl From<String> for Word {
    fn from(text: String) -> Self {
        Self::Plain(text)
    }
}

/// `words` as one line of a POSIX shell.
pub fn shell(words: &[Word]) -> String {
    let words = words.iter().map(|word| match word {
        Word::Plain(text) => quote(text),
        Word::Shell(text) => text.clone(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// `words` as a line for a person, one option with its value on each line.
pub fn shell_long(words: &[Word], indent: &str) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        let word = shell(std::slice::from_ref(word));
        if index > 0 {
            text.push_str(if word.starts_with("--") { " \\\n" } else { " " });
            if word.starts_with("--") {
                text.push_str(indent);
            }
        }
        text.push_str(&word);
    }
    text
}

/// `text` as one word of a POSIX shell.
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%^".contains(c);
    // `A==b` reads like a comparison that went wrong, and zsh looks for a program behind a `=`.
    if !text.is_empty() && !text.starts_with('=') && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Where a job finds things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This project's binary.
    pub binary: Word,
    /// Directory of the rendered files.
    pub files: String,
    /// Directory for outputs; it is made by the worker.
    pub out: String,
    /// Host of rank 0.
    pub master: Word,
    /// Whether files go into the log, because nothing else leaves the job.
    pub frames: bool,
}

/// What of the worker is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One process for each node, which starts the ranks.
    Node,
    /// One process for each node, which only checks it.
    Preflight,
    /// One process for each rank, started by `srun` or `mpirun`.
    Rank,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Preflight => "preflight",
            Self::Rank => "rank",
        }
    }
}

/// The worker's command line for `step`.
pub fn worker(run: &Run, step: &Step, part: Part, place: &Place) -> Vec<Word> {
    let mut words = vec![place.binary.clone(), "worker".into(), part.name().into()];
    let mut option = |name: &str, value: Word| words.extend([Word::from(name), value]);
    if part != Part::Preflight {
        option("--run-id", run.id.clone().into());
    }
    // srun and mpirun tell a rank how many nodes there are.
    if part != Part::Rank {
        option("--nodes", step.nodes.to_string().into());
    }
    if part != Part::Preflight {
        option("--ranks-per-node", run.gpus_per_node.to_string().into());
        option("--contract", step.contract.name().into());
        option("--master", place.master.clone());
        option("--master-port", run.port_of(step).to_string().into());
        if step.pinned && step.contract == Contract::Ranks {
            let pins = match &run.pins {
                Pins::None => "none".to_owned(),
                Pins::Auto => "auto".to_owned(),
                Pins::List(list) => list.join(","),
            };
            option("--pins", pins.into());
        }
    }
    // The worker puts `exit/rank-N.json` under it.
    option(if part == Part::Rank { "--record" } else { "--out" }, place.out.clone().into());
    if part != Part::Rank {
        option("--preflight", run.preflight.name().into());
        option("--for", wanted_for(run).into());
    }
    if part == Part::Node {
        option("--timeout", run.timeout_s.to_string().into());
        for file in &step.collect {
            option("--collect", fill(file, place).into());
        }
    }
    if place.frames && part != Part::Rank {
        words.push("--frames".into());
    }
    if step.pinned && run.pins != Pins::None && part != Part::Preflight && step.contract == Contract::Ranks {
        words.push("--require-hca-active".into());
    }
    if part != Part::Preflight {
        words.push("--".into());
        words.extend(argv(step, place));
    }
    words
}

/// What the check of a node looks at it for, as `expertrail check --for` calls it.
fn wanted_for(run: &Run) -> &'static str {
    let target = match (run.engine, run.fabric) {
        (Engine::Expertrail, _) => Target::Expertrail,
        (_, Fabric::Efa) => Target::DeepepEfa,
        // Both get the variables of IBGDA.
        (Engine::Deepep, _) | (Engine::Command, Fabric::Infiniband) => Target::DeepepIbgda,
        (Engine::Command, Fabric::Unknown) => Target::Nccl,
    };
    target.name()
}

/// Program and arguments of the step, with the directories filled in.
pub fn argv(step: &Step, place: &Place) -> Vec<Word> {
    let binary =
        |word: &String| if word == "{expertrail}" { place.binary.clone() } else { fill(word, place).into() };
    step.argv.iter().map(binary).collect()
}

/// `text` with the directories of `place`. What only the worker knows stays.
pub fn fill(text: &str, place: &Place) -> String {
    text.replace("{files}", &place.files).replace("{out}", &place.out)
}

/// Whether nodes are checked before the ranks start.
pub fn checks(run: &Run) -> bool {
    run.preflight != Preflight::Off
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_out_of_a_shell_as_they_went_in() {
        for text in [
            "plain",
            "two words",
            "it's",
            "$HOME",
            "a;b",
            "",
            "mlx5_1:1,mlx5_2:1",
            "=mlx5_1:1",
            "{rank}",
            "*",
        ] {
            let out = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quote(text))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
        }
        assert_eq!(shell(&["a b".into(), Word::Shell("\"$X\"".to_owned())]), "'a b' \"$X\"");
    }
}
