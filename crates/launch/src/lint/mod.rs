//! Launch files that anybody wrote: what in them fails at once, or runs wrong without saying so.
//!
//! Files are recognised by what is in them: objects of Kubernetes, batch scripts of Slurm, shell, files of variables. Files that are given
//! together are judged together (a Service in one, the Job in another). Values that a template fills in later are not judged.

mod counts;
mod driver;
mod embedded;
mod finding;
mod job;
mod limits;
mod lists;
mod names;
mod nodes;
mod objects;
mod pod;
mod rules;
mod script;
mod scripts;
mod service;
mod slurm;
mod start;
mod transport;
mod tree;
mod unit;

use expertrail_cluster::facts::Facts;
use expertrail_cluster::profile::Profile;
use expertrail_cluster::topo;
use thiserror::Error;

pub use finding::{FileRead, Finding, JSON_SCHEMA, Report, SCHEMA, Severity};
pub use rules::{RULES, Rule, text as rules_text};

use finding::Sink;
use objects::Object;
use tree::Value;
use unit::{Kind, Unit};

/// Bytes of a file. Launch files are smaller by far, also with a program inside; an object of Kubernetes has 1.5 MiB at most.
pub const LARGEST: usize = 2 << 20;

/// A file.
#[derive(Clone, Debug)]
pub struct Input {
    /// As it was named.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// Why a file cannot be judged.
#[derive(Debug, Error)]
pub enum LintError {
    /// It is not text.
    #[error("{0} is not text (UTF-8): lint reads launch files, not images or archives")]
    NotText(String),
    /// It is larger than any launch file.
    #[error("{name} has {bytes} bytes, more than the {LARGEST} that lint reads: give the launch file itself")]
    Large {
        /// The file.
        name: String,
        /// Its bytes.
        bytes: usize,
    },
    /// It has more in it than any launch file.
    #[error("{0} has {most} commands or variables or more, which no launch file has: give the launch file itself", most = unit::MOST)]
    Crowded(String),
    /// Its YAML or JSON cannot be read.
    #[error("{name}:{line}: {what}; kubectl would refuse the file as well")]
    Syntax {
        /// The file.
        name: String,
        /// Counted from 1.
        line: usize,
        /// What the reader said.
        what: String,
    },
    /// It is this program's own description.
    #[error(
        "{0} describes a run: `expertrail render TARGET {0} -o DIR` checks it and makes launch files; lint reads what others wrote"
    )]
    OwnDescription(String),
    /// It is none of the kinds.
    #[error(
        "{0} is no launch file that lint knows: objects of Kubernetes (YAML or JSON), a batch script, a shell script with torchrun, mpirun or srun, or lines NAME=value"
    )]
    Unknown(String),
}

/// What is known of the nodes.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Their profile.
    pub profile: Option<Profile>,
    /// Facts of one of them, which say more than a profile.
    pub facts: Option<Facts>,
}

impl Options {
    /// The profile to judge by, and where it is from.
    fn nodes(&self) -> (Option<Profile>, Option<String>) {
        let Some(facts) = &self.facts else {
            let name = self.profile.as_ref().map(|profile| format!("profile {}", profile.id));
            return (self.profile.clone(), name);
        };
        let map = topo::map(facts);
        let names = |role| map.with(role).map(|nic| nic.name.clone()).collect::<Vec<_>>();
        let rails = names(topo::Role::Rail);
        let others =
            map.devices.iter().map(|nic| nic.name.clone()).filter(|name| !rails.contains(name)).collect();
        let profile = Profile {
            title: "the node of --facts".to_owned(),
            gpus: u32::try_from(map.gpus.len()).unwrap_or_default(),
            rails,
            not_rails: others,
            ..self.profile.clone().unwrap_or_default()
        };
        (Some(profile), Some("facts".to_owned()))
    }
}

/// What a file turned out to be.
enum Content {
    Documents(Vec<Value>),
    Script,
    Variables,
}

/// Judges `inputs` together.
///
/// # Errors
/// When a file is none that can be judged.
pub fn lint(inputs: &[Input], options: &Options) -> Result<Report, LintError> {
    let texts = inputs.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let contents = inputs
        .iter()
        .zip(&texts)
        .map(|(input, text)| recognise(&input.name, text))
        .collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = inputs.iter().map(|input| input.name.clone()).collect();
    let mut objects: Vec<Object<'_>> = Vec::new();
    let mut units: Vec<Unit<'_>> = Vec::new();
    let mut files = Vec::new();
    for (file, (content, text)) in contents.iter().zip(&texts).enumerate() {
        let mut kinds = Vec::new();
        match content {
            Content::Documents(documents) => {
                let own = objects::objects(file, documents);
                kinds.extend(own.iter().map(Object::kind));
                units.extend(own.iter().filter_map(|object| objects::unit(*object)));
                objects.extend(own);
            }
            Content::Script => {
                let unit = scripts::unit(file, text);
                kinds.push(if unit.kind == Kind::Batch { "batch script" } else { "shell" }.to_owned());
                units.push(unit);
            }
            Content::Variables => {
                kinds.push("variables".to_owned());
                units.push(scripts::variables(file, text));
            }
        }
        files.push(FileRead { name: inputs[file].name.clone(), kinds });
    }
    let embedded = embedded::units(&objects, &units);
    units.extend(embedded);
    if let Some(unit) = units.iter().find(|unit| unit.crowded()) {
        return Err(LintError::Crowded(inputs[unit.file].name.clone()));
    }
    let mut sink = Sink { names: &names, findings: Vec::new() };
    let (given, mut known) = options.nodes();
    for unit in &units {
        let nodes = nodes::of(unit, given.as_ref());
        if known.is_none() {
            known = nodes.profile.as_ref().map(|profile| {
                let sure = if nodes.certain { "" } else { " perhaps" };
                format!("{}{sure}, as the file says", profile.id)
            });
        }
        let text = &texts[unit.file];
        lists::check(unit, &nodes, &mut sink);
        transport::check(unit, &mut sink);
        counts::check(unit, &mut sink);
        limits::check(unit, nodes.profile.as_ref(), &mut sink);
        job::check(unit, &nodes, &mut sink);
        pod::check(unit, &nodes, &mut sink);
        service::check(unit, &objects, &mut sink);
        start::check(unit, &mut sink);
        slurm::check(unit, text, &mut sink);
        names::check(unit, text, &mut sink);
    }
    driver::check(&objects, &mut sink);
    let mut findings = sink.findings;
    findings.sort_by(|a, b| {
        let place = |finding: &Finding| names.iter().position(|name| *name == finding.file);
        (place(a), a.line, a.id, &a.what).cmp(&(place(b), b.line, b.id, &b.what))
    });
    findings.dedup();
    Ok(Report { schema: SCHEMA, files, profile: known, findings })
}

fn text(input: &Input) -> Result<&str, LintError> {
    if input.bytes.len() > LARGEST {
        return Err(LintError::Large { name: input.name.clone(), bytes: input.bytes.len() });
    }
    let text = std::str::from_utf8(&input.bytes).map_err(|_| LintError::NotText(input.name.clone()))?;
    if text.contains('\0') {
        return Err(LintError::NotText(input.name.clone()));
    }
    Ok(text.trim_start_matches('\u{feff}'))
}

fn recognise(name: &str, text: &str) -> Result<Content, LintError> {
    const STARTERS: &[&str] = &[
        "torchrun", "mpirun", "mpiexec", "srun", "sbatch", "python", "python3", "export", "docker", "podman",
    ];
    if text.starts_with("#!") || text.lines().any(|line| line.starts_with("#SBATCH")) {
        return Ok(Content::Script);
    }
    if is_toml(name, text) {
        return Err(LintError::OwnDescription(name.to_owned()));
    }
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).peekable();
    let nothing = lines.peek().is_none();
    let variable = |line: &str| {
        let line = line.strip_prefix("export ").unwrap_or(line);
        script::assignment(line).is_some_and(|(_, value)| !value.contains(" $(") && !value.contains(';'))
    };
    if !nothing && lines.all(variable) {
        return Ok(Content::Variables);
    }
    // Either word at the beginning of a line, or in JSON, is meant for kubectl.
    let kube = text.lines().any(|line| line.starts_with("apiVersion:") || line.starts_with("kind:"))
        || text.trim_start().starts_with(['{', '[']);
    let error = match tree::documents(text) {
        Ok(documents) if documents.iter().any(objects::is_object) => {
            return Ok(Content::Documents(documents));
        }
        Ok(_) => None,
        Err(error) => Some(error),
    };
    if let Some(error) = error.filter(|_| kube) {
        return Err(LintError::Syntax {
            name: name.to_owned(),
            line: error.line.unwrap_or(1),
            what: finding::printable(&error.what),
        });
    }
    let script = script::parse(text, 1);
    if !kube && script.commands.iter().any(|command| STARTERS.contains(&command.program())) {
        return Ok(Content::Script);
    }
    Err(LintError::Unknown(name.to_owned()))
}

/// Whether it is a description of a run, or any other TOML.
fn is_toml(name: &str, text: &str) -> bool {
    let named = std::path::Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("toml"));
    let spaced = || text.lines().any(|line| line.trim_start().starts_with('[') || line.contains(" = "));
    named || spaced() && toml::from_str::<toml::Table>(text).is_ok_and(|table| !table.is_empty())
}
