//! One thing that is started, whatever file it is in: its settings, commands, pods, nodes and GPUs.

use super::finding::At;
use super::script::{Command, Word};
use super::tree::Value;

/// Where a variable is set, and so who sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// `env` of a container.
    Pod,
    /// Exported in a script: everything that it starts.
    Exported,
    /// In front of a command, or `-x` of mpirun: what that starts.
    Command,
    /// Assigned in a script and not exported: nobody but the script.
    Local,
    /// A file of variables.
    File,
    /// In the program itself (`os.environ[...]` of an embedded Python text).
    Program,
}

/// A variable.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) name: String,
    /// As it stands; empty where it comes from elsewhere.
    pub(crate) value: String,
    pub(crate) at: At,
    pub(crate) scope: Scope,
    /// The value is known: it is no reference, template or expression.
    pub(crate) decided: bool,
}

/// A number, and where and as what it is written.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) count: u64,
    pub(crate) at: At,
    /// `completions`, `#SBATCH --nodes`, ...
    pub(crate) what: String,
}

/// Kinds of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Kubernetes: Job and what wraps it, one pod a node.
    Job,
    /// Kubernetes: launcher and workers of MPI.
    MpiJob,
    /// Kubernetes: anything else with a pod template.
    Pods,
    /// A batch script of Slurm.
    Batch,
    /// A script or command lines.
    Shell,
    /// Variables only.
    Variables,
}

/// What a pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It starts the others.
    Launcher,
    /// It has the GPUs.
    Worker,
}

/// A pod template.
#[derive(Clone, Debug)]
pub(crate) struct Pod<'a> {
    pub(crate) role: Role,
    /// The template: metadata and spec.
    pub(crate) template: &'a Value,
    /// The spec.
    pub(crate) spec: &'a Value,
    /// The container that has the GPUs, or else the first.
    pub(crate) container: &'a Value,
    /// The replica or job spec that the template is in.
    pub(crate) owner: &'a Value,
}

impl Pod<'_> {
    /// The count of an extended resource, from limits or else requests.
    pub(crate) fn resource(&self, name: &str) -> Option<(u64, usize)> {
        ["limits", "requests"].into_iter().find_map(|part| {
            let resources = self.container.path(&["resources", part])?;
            Some((resources.number_at(name)?, resources.line_of(name)))
        })
    }

    /// Names of all resources that are asked for.
    pub(crate) fn resources(&self) -> Vec<&str> {
        ["limits", "requests"]
            .into_iter()
            .filter_map(|part| self.container.path(&["resources", part]))
            .flat_map(|part| part.entries().iter().map(|entry| entry.key.as_str()))
            .collect()
    }

    /// Whether its ranks talk within their node alone, as this project's own engine does so far and says.
    pub(crate) fn within_a_node(&self) -> bool {
        let (label, value) = crate::engine::SCOPE;
        self.template
            .path(&["metadata", "labels"])
            .and_then(|labels| labels.text_at(label))
            .is_some_and(|text| text == value)
    }

    /// Capabilities that are added, with their lines.
    pub(crate) fn capabilities(&self) -> Vec<(String, usize)> {
        self.container
            .path(&["securityContext", "capabilities", "add"])
            .map(|list| list.items().iter().filter_map(|item| Some((item.text()?, item.line))).collect())
            .unwrap_or_default()
    }

    /// Whether the container may do everything.
    pub(crate) fn privileged(&self) -> bool {
        self.container.get("securityContext").is_some_and(|context| context.flag_at("privileged"))
    }
}

/// A launch.
#[derive(Clone, Debug)]
pub(crate) struct Unit<'a> {
    pub(crate) kind: Kind,
    pub(crate) file: usize,
    /// Line where it begins.
    pub(crate) line: usize,
    /// Name of the object; empty in scripts.
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    /// The document.
    pub(crate) doc: Option<&'a Value>,
    pub(crate) pods: Vec<Pod<'a>>,
    pub(crate) settings: Vec<Setting>,
    pub(crate) commands: Vec<Command>,
    /// All text of scripts and here-documents, to see what is mentioned.
    pub(crate) text: String,
    /// `#SBATCH` options.
    pub(crate) directives: Vec<Word>,
    /// Nodes as the object or the scheduler says it.
    pub(crate) nodes: Option<Figure>,
    /// GPUs of a node.
    pub(crate) gpus: Option<Figure>,
    /// Variables may come from elsewhere (`envFrom`, a file that is sourced).
    pub(crate) open: bool,
}

/// The most commands and settings of a launch. Rules compare them with each other, and the time for that is a product.
pub(crate) const MOST: usize = 2000;

/// DeepEP's own tests, which count nodes and fork their ranks.
pub(crate) const DEEPEP_TESTS: &[&str] = &["test_intranode.py", "test_internode.py", "test_low_latency.py"];

impl Unit<'_> {
    /// Whether there was no room for all that the file has.
    pub(crate) fn crowded(&self) -> bool {
        self.commands.len() >= MOST || self.settings.len() >= MOST
    }

    /// A place in its file.
    pub(crate) fn at(&self, line: usize) -> At {
        At { file: self.file, line }
    }

    /// The last setting of `name` that reaches a program.
    pub(crate) fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().rev().find(|setting| setting.name == name && setting.scope != Scope::Local)
    }

    /// The value of `name`, where it is set and known.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.setting(name).filter(|setting| setting.decided).map(|setting| setting.value.as_str())
    }

    /// Whether NVSHMEM or NCCL would take `name` for switched on.
    pub(crate) fn on(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| {
            !matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "f" | "false" | "n" | "no")
        })
    }

    /// Commands whose program is one of `names`.
    pub(crate) fn programs<'b>(&'b self, names: &'b [&str]) -> impl Iterator<Item = (usize, &'b Command)> {
        self.commands.iter().enumerate().filter(move |(_, command)| names.contains(&command.program()))
    }

    /// Lines that start ranks with torchrun.
    pub(crate) fn torchruns(&self) -> impl Iterator<Item = (usize, &Command)> {
        self.commands.iter().enumerate().filter(|(_, command)| {
            // Inside srun or another launcher it is not the first word.
            let mut words = command.words.iter().map(|word| word.text.as_str());
            words.clone().any(|word| word.rsplit('/').next() == Some("torchrun"))
                && !matches!(command.program(), "echo" | "which" | "command" | "pip" | "printf" | "kubectl")
                || words.any(|word| matches!(word, "torch.distributed.run" | "torch.distributed.launch"))
        })
    }

    /// Lines of Open MPI that start processes.
    pub(crate) fn mpiruns(&self) -> impl Iterator<Item = (usize, &Command)> {
        self.programs(&["mpirun", "mpiexec", "prterun", "orterun"])
    }

    /// Commands that run one of DeepEP's own tests, with its name.
    pub(crate) fn deepep_tests(&self) -> impl Iterator<Item = (usize, &Command, &'static str)> {
        self.commands.iter().enumerate().filter_map(|(index, command)| {
            let words = || command.words.iter().map(|word| word.text.rsplit('/').next().unwrap_or_default());
            let test = DEEPEP_TESTS.iter().find(|test| words().any(|word| word == **test))?;
            Some((index, command, *test))
        })
    }

    /// The command and those that start it, inside out.
    pub(crate) fn chain(&self, index: usize) -> Vec<&Command> {
        let mut chain = Vec::new();
        let mut next = Some(index);
        while let Some(command) = next.and_then(|index| self.commands.get(index)) {
            chain.push(command);
            next = command.outer;
        }
        chain
    }

    /// Whether it names DeepEP.
    pub(crate) fn uses_deepep(&self) -> bool {
        let named = |text: &str| {
            let lower = text.to_ascii_lowercase();
            lower.contains("deep_ep") || lower.contains("deepep")
        };
        named(&self.text)
            || named(&self.name)
            || self.pods.iter().any(|pod| pod.container.text_at("image").is_some_and(|image| named(&image)))
    }

    /// Whether it runs NVSHMEM, by itself or under DeepEP.
    pub(crate) fn uses_nvshmem(&self) -> bool {
        self.uses_deepep() || self.settings.iter().any(|setting| setting.name.starts_with("NVSHMEM_"))
    }

    /// Whether it asks for or counts on more nodes than one.
    pub(crate) fn across_nodes(&self) -> bool {
        let by_option = |command: &Command| {
            command.option(&["--nnodes"]).and_then(|word| number(&word.text)).is_some_and(|nodes| nodes > 1)
        };
        self.nodes.as_ref().is_some_and(|nodes| nodes.count > 1)
            || self.torchruns().any(|(_, command)| by_option(command))
    }
}

/// Whether a value stands as it is written: no variable, template or blank to fill in.
pub(crate) fn decided(value: &str) -> bool {
    let placeholder = value.contains('<') && value.contains('>');
    !(value.contains('$') || value.contains('`') || value.contains("{{") || placeholder)
}

/// A whole number that is written out.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// `2` of `mlx5_2`, with `mlx5_`; none for the beginning of names, `mlx5`.
pub(crate) fn numbered(name: &str) -> Option<(&str, u64)> {
    if matches!(name, "mlx5" | "mlx4") {
        return None;
    }
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(digits);
    Some((stem, number.parse().ok()?))
}
