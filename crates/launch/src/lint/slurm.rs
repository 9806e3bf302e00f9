//! Batch scripts.

use super::finding::Sink;
use super::scripts::option;
use super::unit::{Kind, Unit, number};

pub(crate) fn check(unit: &Unit<'_>, text: &str, sink: &mut Sink<'_>) {
    first_host(unit, sink);
    steps(unit, sink);
    if unit.kind != Kind::Batch {
        return;
    }
    head(unit, text, sink);
    let several = unit.nodes.as_ref().is_some_and(|nodes| nodes.count > 1);
    let has = |name: &str| {
        option(&unit.directives, &[name]).is_some() || unit.directives.iter().any(|word| word.text == name)
    };
    let begin = unit.directives.first().map_or(1, |word| word.line);
    if several && !has("--exclusive") {
        sink.add("N122", unit.at(begin), "no --exclusive").fix("#SBATCH --exclusive");
    }
    let asks = ["--gpus-per-node", "--gres", "--gpus", "-G", "--gpus-per-task", "--exclusive"]
        .iter()
        .any(|name| has(name))
        || unit.programs(&["srun"]).any(|(_, command)| {
            command.words.iter().any(|word| word.text.contains("gpu") || word.text.contains("gres"))
        });
    if !asks {
        sink.add("N129", unit.at(begin), "no GPUs are asked for").fix("#SBATCH --gpus-per-node=8");
    }
}

fn head(unit: &Unit<'_>, text: &str, sink: &mut Sink<'_>) {
    if !text.starts_with("#!") {
        sink.add("N130", unit.at(1), "the first line is no `#!`").fix("#!/bin/bash");
    }
    let command = text.lines().position(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let late = command
        .and_then(|at| unit.directives.iter().find(|word| word.line > at + 1).map(|word| (word, at + 1)));
    if let Some((word, at)) = late {
        let what = format!("#SBATCH {} stands below the first command, on line {at}", word.text);
        sink.add("N123", unit.at(word.line), what).fix("all #SBATCH lines above the first command");
    }
}

/// The first host, cut out of a list that Slurm folds.
fn first_host(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let cut = |value: &str| {
        let list = ["SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"];
        let cut = list
            .iter()
            .any(|name| value.contains(&format!("{name}%")) || value.contains(&format!("{name}:0")));
        let whole = list.iter().any(|name| value == format!("${name}") || value == format!("${{{name}}}"));
        let piped = list.iter().any(|name| value.contains(name))
            && (value.contains("cut ") || value.contains("awk "))
            && !value.contains("scontrol");
        cut || whole || piped
    };
    for setting in &unit.settings {
        if matches!(
            setting.name.as_str(),
            "MASTER_ADDR" | "HEAD_NODE" | "MASTER" | "head_node" | "master_addr"
        ) && cut(&setting.value)
        {
            let what =
                format!("{}={} cuts a list that may be folded (node[01-04])", setting.name, setting.value);
            sink.add("N120", setting.at, what).fix(format!(
                "{}=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1)",
                setting.name
            ));
        }
    }
}

fn steps(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    for (index, command) in unit.programs(&["srun"]) {
        let each = option(&command.words, &["--ntasks-per-node"])
            .or_else(|| option(&unit.directives, &["--ntasks-per-node"]))
            .and_then(|word| Some((number(&word.text)?, word.line)));
        let below: Vec<_> = unit
            .commands
            .iter()
            .enumerate()
            .filter(|(at, _)| *at == index || unit.chain(*at).iter().any(|link| std::ptr::eq(*link, command)))
            .collect();
        let torchrun = below.iter().any(|(at, _)| unit.torchruns().any(|(run, _)| run == *at));
        if let (true, Some((count, line))) = (torchrun, each.filter(|(count, _)| *count > 1)) {
            sink.add(
                "N121",
                unit.at(line),
                format!("--ntasks-per-node is {count}, and each task starts torchrun"),
            )
            .fix("--ntasks-per-node=1: torchrun starts the ranks itself");
        }
        let mpirun = below.iter().any(|(_, other)| {
            other.words.iter().any(|word| matches!(word.text.rsplit('/').next(), Some("mpirun" | "mpiexec")))
        });
        let container = command.option(&["--container-image", "--container-name"]);
        if mpirun && container.is_some() {
            sink.add("N127", unit.at(command.line()), "mpirun inside a container that srun starts")
                .fix("srun --mpi=pmix ... PROGRAM: Slurm starts the ranks");
        }
        let python =
            below.iter().any(|(_, other)| other.words.iter().any(|word| word.text.starts_with("python")));
        if let Some(kind) = command.option(&["--mpi"]).filter(|word| word.text.starts_with("pmi"))
            && python
            && !mpirun
            && container.is_none()
        {
            sink.add(
                "N124",
                unit.at(kind.line),
                format!("--mpi={} for a program that uses no MPI", kind.text),
            )
            .fix("--mpi=none");
        }
        if let Some(image) = &container {
            let mounts = command.option(&["--container-mounts"]).map(|word| word.text).unwrap_or_default();
            if !mounts.contains("gdrdrv") && !mounts.contains("/dev:") && mounts != "/dev" {
                sink.add(
                    "N125",
                    unit.at(image.line),
                    "the container gets /dev/gdrdrv only where enroot's hooks mount it",
                )
                .fix("--container-mounts=/dev/gdrdrv:/dev/gdrdrv");
            }
        }
        if let Some(list) = command.option(&["--export"])
            && !list.text.starts_with("ALL")
            && list.text.contains('=')
            && !list.text.split(',').any(|part| part == "ALL")
        {
            sink.add(
                "N128",
                unit.at(list.line),
                format!("--export={} drops every other variable", list.text),
            )
            .fix(format!("--export=ALL,{}", list.text));
        }
        let one = command.option(&["--gpus-per-task"]).filter(|word| word.text == "1");
        if let Some(word) = one.filter(|_| each.is_none_or(|(count, _)| count > 1)) {
            single(unit, word.line, sink);
        }
    }
    if let Some(word) = option(&unit.directives, &["--gpus-per-task"]).filter(|word| word.text == "1") {
        single(unit, word.line, sink);
    }
    for (_, command) in unit.programs(&["srun"]) {
        if let Some(bind) = command.option(&["--gpu-bind"]).filter(|word| word.text.starts_with("single")) {
            single(unit, bind.line, sink);
        }
    }
}

fn single(unit: &Unit<'_>, line: usize, sink: &mut Sink<'_>) {
    sink.add("N126", unit.at(line), "each task sees one GPU only")
        .fix("--gpus-per-node=8, and the GPU by SLURM_LOCALID");
}
