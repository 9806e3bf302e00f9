//! Shell texts into commands and settings.

use super::finding::At;
use super::script::{self, Command, Word, assignment};
use super::unit::{Figure, Kind, Scope, Setting, Unit, decided, number};

/// Adds the script `text`, whose first line has number `line`, to `unit`.
pub(crate) fn add(unit: &mut Unit<'_>, text: &str, line: usize) {
    let script = script::parse(text, line);
    let base = unit.commands.len();
    unit.text.push_str(text);
    unit.text.push('\n');
    let mut all = false;
    for mut command in script.commands {
        if unit.crowded() {
            return;
        }
        command.outer = command.outer.map(|outer| outer + base);
        settings(unit, &command, &mut all);
        unit.commands.push(command);
    }
    for body in &script.heredocs {
        program(unit, &body.text, body.line);
    }
    // `python3 -c TEXT` is a program as well.
    let texts: Vec<Word> = unit.commands[base..]
        .iter()
        .filter(|command| command.program().starts_with("python"))
        .filter_map(|command| command.option(&["-c"]))
        .collect();
    for word in texts {
        program(unit, &word.text, word.line);
    }
}

/// Adds a command that is given as words.
pub(crate) fn add_words(unit: &mut Unit<'_>, words: Vec<Word>) {
    let text: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    unit.text.push_str(&text.join(" "));
    unit.text.push('\n');
    let command = script::command(words, None);
    settings(unit, &command, &mut false);
    unit.commands.push(command);
}

fn put(unit: &mut Unit<'_>, (name, value): (&str, &str), line: usize, scope: Scope) {
    if unit.crowded() {
        return;
    }
    let at = At { file: unit.file, line };
    let (name, value) = (name.to_owned(), by_default(name, value).to_owned());
    unit.settings.push(Setting { decided: decided(&value), name, value, at, scope });
}

/// `x` of `NAME=${NAME:-x}`, which is what counts unless somebody sets it outside.
fn by_default<'v>(name: &str, value: &'v str) -> &'v str {
    let inner = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let rest = inner.and_then(|inner| inner.strip_prefix(name));
    rest.and_then(|rest| rest.strip_prefix(":-").or_else(|| rest.strip_prefix('-'))).unwrap_or(value)
}

/// The settings that a command makes. `all`: `set -a` was said, so that every assignment is exported.
fn settings(unit: &mut Unit<'_>, command: &Command, all: &mut bool) {
    let alone = command.words.is_empty();
    for set in &command.sets {
        let known = unit
            .settings
            .iter()
            .any(|setting| setting.name == set.name && matches!(setting.scope, Scope::Exported | Scope::Pod));
        let scope = match (alone, known || *all) {
            (false, _) => Scope::Command,
            (true, true) => Scope::Exported,
            (true, false) => Scope::Local,
        };
        put(unit, (&set.name, &set.value), set.line, scope);
    }
    let arguments = command.words.get(1..).unwrap_or_default();
    match command.program() {
        "export" | "declare" | "typeset" => {
            if command.program() != "export" && !command.has("-x") {
                return;
            }
            for word in arguments.iter().filter(|word| !word.text.starts_with('-')) {
                export(unit, word);
            }
        }
        "set" => *all = *all || command.has("-a") || command.has("allexport"),
        "unset" => {
            let gone: Vec<&str> = arguments.iter().map(|word| word.text.as_str()).collect();
            unit.settings.retain(|setting| !gone.contains(&setting.name.as_str()));
        }
        "source" | "." | "module" => unit.open = true,
        "mpirun" | "mpiexec" | "prterun" | "orterun" => {
            pairs(unit, arguments, &["-x", "--x"]);
        }
        "docker" | "podman" | "nerdctl" => {
            unit.open |= command.option(&["--env-file"]).is_some();
            pairs(unit, arguments, &["-e", "--env"]);
        }
        "srun" | "sbatch" => {
            if let Some(list) = command.option(&["--export"]) {
                for part in list.text.split(',') {
                    if let Some((name, value)) = assignment(part) {
                        put(unit, (&name, &value), list.line, Scope::Command);
                    }
                }
            }
        }
        _ => {}
    }
}

fn export(unit: &mut Unit<'_>, word: &Word) {
    if let Some((name, value)) = assignment(&word.text) {
        put(unit, (&name, &value), word.line, Scope::Exported);
        return;
    }
    for setting in unit.settings.iter_mut().filter(|setting| setting.name == word.text) {
        if setting.scope == Scope::Local {
            setting.scope = Scope::Exported;
        }
    }
}

/// `-x NAME=VALUE` and `-e NAME=VALUE`.
fn pairs(unit: &mut Unit<'_>, arguments: &[Word], flags: &[&str]) {
    for pair in arguments.windows(2) {
        if let [flag, word] = pair
            && flags.contains(&flag.text.as_str())
            && let Some((name, value)) = assignment(&word.text)
        {
            put(unit, (&name, &value), word.line, Scope::Command);
        }
    }
}

/// What an embedded Python text sets: `os.environ["X"] = ...`, `os.environ.setdefault("X", ...)`.
fn program(unit: &mut Unit<'_>, text: &str, line: usize) {
    for (offset, code) in text.lines().enumerate() {
        if unit.crowded() {
            return;
        }
        let code = code.trim_start();
        let Some(rest) = code.strip_prefix("os.environ") else { continue };
        let Some(rest) = rest.strip_prefix('[').or_else(|| rest.strip_prefix(".setdefault(")) else {
            continue;
        };
        let Some(quote) = rest.chars().next().filter(|quote| matches!(quote, '"' | '\'')) else { continue };
        let Some((name, rest)) = rest[1..].split_once(quote) else { continue };
        let value = rest.trim_start_matches([']', ' ', ',']).trim_start_matches('=').trim();
        if value.is_empty() || value.starts_with('=') {
            continue;
        }
        let value = value.trim_end_matches(')');
        let literal = value
            .strip_prefix(['"', '\''])
            .and_then(|inner| inner.strip_suffix(['"', '\'']))
            .filter(|inner| !inner.contains(['"', '\'']));
        let at = At { file: unit.file, line: line + offset };
        unit.settings.push(Setting {
            name: name.to_owned(),
            value: literal.unwrap_or(value).to_owned(),
            at,
            scope: Scope::Program,
            decided: literal.is_some(),
        });
    }
}

/// A batch script or plain shell.
pub(crate) fn unit<'a>(file: usize, text: &str) -> Unit<'a> {
    unit_at(file, text, 1)
}

/// The same for a script whose first line has number `first` in the file.
pub(crate) fn unit_at<'a>(file: usize, text: &str, first: usize) -> Unit<'a> {
    let batch = text.lines().any(|line| line.starts_with("#SBATCH"));
    let mut unit = empty(if batch { Kind::Batch } else { Kind::Shell }, file);
    if batch {
        for (index, line) in text.lines().enumerate() {
            let Some(rest) = line.strip_prefix("#SBATCH") else { continue };
            // A comment may follow the options.
            let rest = rest.split(" #").next().unwrap_or_default();
            for word in rest.split_whitespace() {
                unit.directives.push(Word { text: word.to_owned(), line: index + first });
            }
        }
    }
    add(&mut unit, text, first);
    if batch {
        unit.nodes = directive(&unit, &["--nodes", "-N"], "#SBATCH --nodes");
        let gpus = ["--gpus-per-node", "--gres"];
        unit.gpus = gpus.into_iter().find_map(|name| {
            let word = option(&unit.directives, &[name])?;
            let last = word.text.rsplit(':').next()?;
            Some(Figure { count: number(last)?, at: unit.at(word.line), what: format!("#SBATCH {name}") })
        });
    }
    if unit.nodes.is_none() {
        unit.nodes = started(&unit);
    }
    unit
}

/// Nodes that a script's own launcher starts processes on.
fn started(unit: &Unit<'_>) -> Option<Figure> {
    let count = |command: &Command, names: &[&str]| {
        let word = option(&command.words, names)?;
        Some((number(&word.text)?, word.line))
    };
    let mpirun = unit.mpiruns().find_map(|(_, command)| {
        let (all, line) = count(command, &["-np", "-n", "--np"])?;
        let (each, _) = count(command, &["-N", "--npernode", "-npernode"]).filter(|(each, _)| *each > 0)?;
        Some((all / each, line, "nodes of mpirun"))
    });
    let srun = || {
        unit.programs(&["srun"]).find_map(|(_, command)| {
            let (nodes, line) = count(command, &["--nodes", "-N"])?;
            Some((nodes, line, "srun --nodes"))
        })
    };
    let (nodes, line, what) = mpirun.or_else(srun)?;
    Some(Figure { count: nodes, at: unit.at(line), what: what.to_owned() })
}

/// A file of variables.
pub(crate) fn variables<'a>(file: usize, text: &str) -> Unit<'a> {
    let mut unit = empty(Kind::Variables, file);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        if let Some((name, value)) = assignment(line) {
            put(&mut unit, (&name, value.trim().trim_matches(['"', '\''])), index + 1, Scope::File);
        }
    }
    unit
}

/// A launch of which nothing is known.
pub(crate) fn empty<'a>(kind: Kind, file: usize) -> Unit<'a> {
    Unit {
        kind,
        file,
        line: 1,
        name: String::new(),
        namespace: None,
        doc: None,
        pods: Vec::new(),
        settings: Vec::new(),
        commands: Vec::new(),
        text: String::new(),
        directives: Vec::new(),
        nodes: None,
        gpus: None,
        open: false,
    }
}

fn directive(unit: &Unit<'_>, names: &[&str], what: &str) -> Option<Figure> {
    let word = option(&unit.directives, names)?;
    Some(Figure { count: number(&word.text)?, at: unit.at(word.line), what: what.to_owned() })
}

/// The value of the first of `names` among `words` (`--nodes=2`, `--nodes 2`, `-N2`), the last one that is given.
pub(crate) fn option(words: &[Word], names: &[&str]) -> Option<Word> {
    words.iter().enumerate().rev().find_map(|(index, word)| {
        names.iter().find_map(|name| {
            let rest = word.text.strip_prefix(name)?;
            if rest.is_empty() {
                return words.get(index + 1).cloned();
            }
            let short = !name.starts_with("--");
            let value = rest.strip_prefix('=').or(Some(rest).filter(|_| short))?;
            Some(Word { text: value.to_owned(), line: word.line })
        })
    })
}
