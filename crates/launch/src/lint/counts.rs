//! Numbers that must move together, and what a program takes them for.

use super::finding::Sink;
use super::script::{Command, Word};
use super::scripts;
use super::unit::{Figure, Kind, Scope, Unit, number};

pub(crate) fn check(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    nodes(unit, sink);
    gpus(unit, sink);
    world(unit, sink);
    contract(unit, sink);
    mpi(unit, sink);
    ports(unit, sink);
    experts(unit, sink);
}

fn figure(unit: &Unit<'_>, word: &Word, what: &str) -> Option<Figure> {
    Some(Figure { count: number(&word.text)?, at: unit.at(word.line), what: what.to_owned() })
}

fn variable(unit: &Unit<'_>, name: &str) -> Option<Figure> {
    let setting = unit.setting(name).filter(|setting| setting.decided)?;
    Some(Figure { count: number(&setting.value)?, at: setting.at, what: name.to_owned() })
}

/// Nodes of the srun that starts a command, or else of the whole.
fn nodes_of(unit: &Unit<'_>, index: usize) -> Option<Figure> {
    let srun = unit.chain(index).into_iter().find(|command| command.program() == "srun");
    let own = srun
        .and_then(|srun| figure(unit, &scripts::option(&srun.words, &["--nodes", "-N"])?, "srun --nodes"));
    own.or_else(|| unit.nodes.clone())
}

fn nodes(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    if let Some(spec) = unit.doc.filter(|_| unit.kind == Kind::Job).and_then(|doc| doc.get("spec"))
        && let (Some(all), Some(once)) = (spec.number_at("completions"), spec.number_at("parallelism"))
        && all != once
    {
        let what = format!("completions is {all} and parallelism {once}");
        sink.add("N040", unit.at(spec.line_of("parallelism")), what).fix(format!("parallelism: {all}"));
    }
    let mut figures = Vec::new();
    for (index, command) in unit.torchruns() {
        if let Some(found) = command.option(&["--nnodes"]).and_then(|word| figure(unit, &word, "--nnodes")) {
            figures.push((found, nodes_of(unit, index)));
        }
    }
    for name in ["NUM_NODES", "NNODES"] {
        figures.extend(variable(unit, name).map(|found| (found, unit.nodes.clone())));
    }
    let first = figures.first().map(|(found, _)| found.clone());
    for (found, wanted) in figures {
        let Some(wanted) = wanted.or_else(|| first.clone()) else { continue };
        if found.count != wanted.count {
            let what = format!("{} is {} and {} is {}", found.what, found.count, wanted.what, wanted.count);
            sink.add("N041", found.at, what)
                .fix(format!("{} nodes in both, or {} in both", wanted.count, found.count));
        }
    }
}

fn gpus(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let Some(gpus) = &unit.gpus else { return };
    let mut found: Vec<Figure> = unit
        .torchruns()
        .filter_map(|(_, command)| {
            let word = command.option(&["--nproc_per_node", "--nproc-per-node"])?;
            figure(unit, &word, "--nproc_per_node")
        })
        .collect();
    found.extend(
        ["NUM_GPUS_PER_NODE", "LOCAL_WORLD_SIZE"].into_iter().filter_map(|name| variable(unit, name)),
    );
    for figure in found.iter().filter(|figure| figure.count != gpus.count) {
        let what = format!("{} is {} and {} is {}", figure.what, figure.count, gpus.what, gpus.count);
        let finding = sink.add("N043", figure.at, what);
        finding.fix(format!("{} {}", figure.what, gpus.count));
        if figure.count < gpus.count {
            finding.weigh(super::finding::Severity::Warn);
        }
    }
}

/// GPUs of a node, from wherever.
pub(crate) fn per_node(unit: &Unit<'_>) -> Option<u64> {
    let torchrun = || {
        unit.torchruns()
            .find_map(|(_, command)| number(&command.option(&["--nproc_per_node", "--nproc-per-node"])?.text))
    };
    let gpus = unit.gpus.as_ref().map(|gpus| gpus.count);
    gpus.or_else(|| variable(unit, "NUM_GPUS_PER_NODE").map(|figure| figure.count)).or_else(torchrun)
}

/// Nodes, from wherever.
pub(crate) fn node_count(unit: &Unit<'_>) -> Option<u64> {
    let option = || unit.torchruns().find_map(|(_, command)| number(&command.option(&["--nnodes"])?.text));
    let variables = || ["NUM_NODES", "NNODES"].into_iter().find_map(|name| variable(unit, name));
    let nodes = unit.nodes.as_ref().map(|nodes| nodes.count);
    nodes.or_else(option).or_else(|| variables().map(|figure| figure.count))
}

/// Whether the programs are DeepEP's tests and nothing else that counts ranks.
fn counts_nodes(unit: &Unit<'_>) -> bool {
    unit.deepep_tests().next().is_some() && unit.torchruns().next().is_none()
}

fn world(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let (Some(nodes), Some(size)) = (node_count(unit), variable(unit, "WORLD_SIZE")) else { return };
    if counts_nodes(unit) {
        if size.count != nodes {
            let what = format!("WORLD_SIZE is {} and there are {nodes} nodes", size.count);
            sink.add("N044", size.at, what).fix(format!("WORLD_SIZE={nodes}"));
        }
        return;
    }
    let Some(gpus) = per_node(unit) else { return };
    let wanted = nodes.saturating_mul(gpus);
    if size.count != wanted {
        let what =
            format!("WORLD_SIZE is {}; {nodes} nodes with {gpus} GPUs have {wanted} ranks", size.count);
        sink.add("N042", size.at, what).fix(format!("WORLD_SIZE={wanted}"));
    }
}

/// Processes that a launcher starts on a node for the command at `index`.
fn processes(unit: &Unit<'_>, index: usize) -> Option<Figure> {
    unit.chain(index).into_iter().find_map(|command| match command.program() {
        "mpirun" | "mpiexec" | "prterun" => {
            let word = scripts::option(&command.words, &["-N", "--npernode", "-npernode"]);
            let map = command.option(&["--map-by"]).and_then(|word| {
                let count = word.text.strip_prefix("ppr:")?.split(':').next()?.to_owned();
                Some(Word { text: count, line: word.line })
            });
            figure(unit, &word.or(map)?, "mpirun -N")
        }
        "srun" => {
            let own = scripts::option(&command.words, &["--ntasks-per-node"])
                .and_then(|word| figure(unit, &word, "srun --ntasks-per-node"));
            own.or_else(|| {
                let word = scripts::option(&unit.directives, &["--ntasks-per-node"])?;
                figure(unit, &word, "#SBATCH --ntasks-per-node")
            })
        }
        _ => None,
    })
}

fn contract(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    for (index, command, test) in unit.deepep_tests() {
        let chain = unit.chain(index);
        let torchrun = unit.torchruns().find(|(_, run)| chain.iter().any(|link| std::ptr::eq(*link, *run)));
        if let Some((_, run)) = torchrun {
            let word = run.option(&["--nproc_per_node", "--nproc-per-node"]);
            if word.as_ref().is_some_and(|word| word.text.trim() != "1") {
                let line = word.map_or(command.line(), |word| word.line);
                let what =
                    format!("torchrun starts several processes of {test}, each of which starts 8 ranks");
                sink.add("N044", unit.at(line), what).fix(format!(
                    "RANK=$NODE_RANK WORLD_SIZE=$NUM_NODES MASTER_ADDR=... python3 tests/{test}   # once on each node"
                ));
            }
            continue;
        }
        if let Some(figure) = processes(unit, index).filter(|figure| figure.count > 1) {
            let what = format!("{} is {}: each process of {test} starts 8 ranks", figure.what, figure.count);
            sink.add("N044", figure.at, what).fix("one process on a node: --ntasks-per-node=1, mpirun -N 1");
        }
    }
    // The other way round: a process for each rank, told the number of nodes.
    for (index, command) in unit.commands.iter().enumerate() {
        let chain = unit.chain(index);
        let Some(figure) = processes(unit, index).filter(|figure| figure.count > 1) else { continue };
        let size = chain.iter().flat_map(|command| &command.sets).find(|set| set.name == "WORLD_SIZE");
        let (value, line) = match size {
            Some(set) => (set.value.clone(), set.line),
            None => match unit.setting("WORLD_SIZE") {
                Some(setting) => (setting.value.clone(), setting.at.line),
                None => continue,
            },
        };
        let by_node = ["SLURM_NNODES", "SLURM_JOB_NUM_NODES"].iter().any(|name| value.contains(name));
        let test = unit.deepep_tests().any(|(test, ..)| test == index);
        let torchrun = unit.torchruns().any(|(run, _)| run == index);
        if by_node && !value.contains('*') && !test && !torchrun && runs_program(command) {
            let what = format!("WORLD_SIZE={value} counts nodes and {} is {}", figure.what, figure.count);
            sink.add("N045", unit.at(line), what).fix("WORLD_SIZE=$SLURM_NTASKS RANK=$SLURM_PROCID");
            break;
        }
    }
}

fn runs_program(command: &Command) -> bool {
    command.words.iter().any(Word::python)
}

fn mpi(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let slots = unit
        .doc
        .filter(|_| unit.kind == Kind::MpiJob)
        .and_then(|doc| Some(doc.get("spec")?.number_at("slotsPerWorker").unwrap_or(1)));
    for (index, command) in unit.mpiruns() {
        let each = processes(unit, index);
        let all = scripts::option(&command.words, &["-np", "-n", "--n", "--np"])
            .and_then(|word| figure(unit, &word, "mpirun -np"));
        if let (Some(slots), Some(each)) = (slots, &each)
            && each.count > slots
        {
            let what = format!("mpirun -N is {} and slotsPerWorker {slots}", each.count);
            sink.add("N046", each.at, what).fix(format!("slotsPerWorker: {}", each.count));
        }
        let per = each.map(|each| each.count).or(slots);
        if let (Some(all), Some(nodes), Some(per)) = (all, &unit.nodes, per)
            && all.count != nodes.count.saturating_mul(per)
        {
            let wanted = nodes.count.saturating_mul(per);
            let what = format!(
                "mpirun -np is {}; {} is {} with {per} processes each",
                all.count, nodes.what, nodes.count
            );
            sink.add("N046", all.at, what).fix(format!("-np {wanted}"));
        }
    }
    for (_, command) in unit.programs(&["srun"]).filter(|_| unit.kind == Kind::Batch) {
        let own = scripts::option(&command.words, &["--nodes", "-N"])
            .and_then(|word| figure(unit, &word, "srun --nodes"));
        if let (Some(own), Some(nodes)) = (own, &unit.nodes)
            && own.count > nodes.count
        {
            let what = format!("srun asks for {} nodes and {} is {}", own.count, nodes.what, nodes.count);
            sink.add("N041", own.at, what).fix(format!("#SBATCH --nodes={}", own.count));
        }
    }
}

fn ports(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let Some(port) = variable(unit, "MASTER_PORT") else { return };
    let own = unit.setting("MASTER_PORT").is_some_and(|setting| setting.scope != Scope::Program);
    for (_, command) in unit.torchruns() {
        let Some(word) = command.option(&["--master_port", "--master-port"]) else { continue };
        if let Some(option) =
            figure(unit, &word, "--master_port").filter(|option| own && option.count != port.count)
        {
            let what = format!("--master_port is {} and MASTER_PORT {}", option.count, port.count);
            sink.add("N047", option.at, what).fix("one of them; torchrun takes --master_port");
        }
    }
}

fn experts(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let Some(nodes) = node_count(unit) else { return };
    for (_, command, test) in unit.deepep_tests() {
        let option = |name: &str| command.option(&[name]).map(|word| number(&word.text));
        // Defaults of the tests; a number that is not written out decides nothing.
        let default = if test == "test_low_latency.py" { 288 } else { 256 };
        let Some(experts) = option("--num-experts").unwrap_or(Some(default)) else { continue };
        let Some(local) = option("--num-processes").unwrap_or(Some(8)) else { continue };
        let nodes = if test == "test_intranode.py" { 1 } else { nodes };
        let ranks = nodes.saturating_mul(local).max(1);
        if experts % ranks != 0 {
            let line = command.option(&["--num-experts"]).map_or(command.line(), |word| word.line);
            let what = format!("{experts} experts over {ranks} ranks ({test})");
            let next = experts.div_ceil(ranks).saturating_mul(ranks);
            sink.add("N048", unit.at(line), what).fix(format!("--num-experts {next}"));
        }
    }
}
