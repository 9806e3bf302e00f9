//! Parts of runs that lie in several files, put together.
//!
//! What one run printed is often spread over a file for each pod or rank. Parts are one run when they cannot be two: their
//! ranks are different ones, or each has the figures of one node of several, or they have no figures at all. Everything
//! else is a run by itself.

use std::collections::BTreeSet;

use super::coverage;
use super::model::{KEPT, Kind, LogFile, MARKS, Run};

/// The runs, each whole.
pub(super) fn join(parts: &[Run], nodes: Option<u64>) -> Vec<Run> {
    let (mut runs, mut loose) = (Vec::<Run>::new(), Vec::<Run>::new());
    let training = parts.iter().any(|part| part.kind == Kind::Training);
    let parts: Vec<Run> = parts.iter().map(with_its_file).collect();
    for part in &parts {
        if training && coverage::is_quiet_log(part) {
            loose.push(Run { kind: Kind::Fragment, ..part.clone() });
        } else if part.kind == Kind::Unknown {
            runs.push(part.clone());
        } else if belongs_to_another(part) {
            loose.push(part.clone());
        } else if let Some(run) = runs.iter_mut().find(|run| one_run(run, part, nodes)) {
            absorb(run, part);
        } else {
            runs.push(part.clone());
        }
    }
    for part in loose {
        let takes = |run: &Run| match part.kind {
            Kind::Guide => run.kind == Kind::Guide,
            Kind::Summary => run.kind == Kind::Training,
            // The log of a rank without a word that is looked for: of the training run, if there is one.
            _ if training && part.is_empty() => run.kind == Kind::Training,
            _ => run.kind != Kind::Unknown,
        };
        let near = runs.iter().position(|run| takes(run) && folder(run) == folder(&part));
        match near.or_else(|| runs.iter().position(takes)).and_then(|at| runs.get_mut(at)) {
            Some(run) => absorb(run, &part),
            None => runs.push(part),
        }
    }
    runs
}

/// With the file that it comes from as the one that it is made of.
fn with_its_file(part: &Run) -> Run {
    let mut part = part.clone();
    if part.logs.is_empty() && part.kind != Kind::Summary {
        part.logs.push(LogFile {
            name: part.place.file.clone(),
            training: part.training.is_some(),
            speakers: part.speakers.clone(),
        });
    }
    part
}

/// It has nothing that a run could be told by.
fn belongs_to_another(part: &Run) -> bool {
    match part.kind {
        Kind::Fragment | Kind::Summary => true,
        Kind::Guide => part.figures.is_empty() && part.settings.ranks.is_none(),
        _ => false,
    }
}

fn folder(run: &Run) -> &str {
    run.place.file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn one_run(run: &Run, part: &Run, nodes: Option<u64>) -> bool {
    if run.kind != part.kind
        || run.place.file == part.place.file
        || run.settings.tokens != part.settings.tokens
    {
        return false;
    }
    match run.kind {
        Kind::LowLatency | Kind::V2 => ranks(run).is_disjoint(&ranks(part)),
        Kind::Internode => {
            let wanted = nodes.or(run.settings.nodes).or(run.settings.nodes_at_least).unwrap_or(2);
            let have = (nodes_of(run) + nodes_of(part)) as u64;
            // Four groups say no more than that there are four nodes or more.
            let open = nodes.is_none() && run.settings.nodes.is_none();
            run.settings.groups == part.settings.groups && nodes_of(part) == 1 && (have <= wanted || open)
        }
        _ => false,
    }
}

fn ranks(run: &Run) -> BTreeSet<u32> {
    run.figures.iter().filter_map(|figure| figure.rank).collect()
}

pub(super) fn nodes_of(run: &Run) -> usize {
    run.figures.iter().filter_map(|figure| figure.node).collect::<BTreeSet<u32>>().len()
}

fn absorb(run: &mut Run, part: &Run) {
    let nodes = run.figures.iter().filter_map(|figure| figure.node).collect::<BTreeSet<u32>>();
    for figure in &part.figures {
        let mut figure = figure.clone();
        // The next free number: files of pods say no other.
        if let Some(node) = figure.node.filter(|node| nodes.contains(node)) {
            figure.node = Some(node.saturating_add(nodes.len() as u32));
        }
        run.figure(figure);
    }
    for mark in &part.marks {
        run.mark(mark.clone());
    }
    for note in &part.notes {
        run.note(note.clone());
    }
    fill(&mut run.unread, part.unread.as_ref());
    run.warned.extend(part.warned.iter().cloned());
    run.exits.extend(part.exits.iter().cloned());
    run.nics.extend(part.nics.iter().cloned());
    run.origins.extend(part.origins.iter().cloned());
    let room = KEPT.saturating_sub(run.logs.len());
    run.logs.extend(part.logs.iter().take(room).cloned());
    run.cases.begun = run.cases.begun.max(part.cases.begun);
    for (op, lines) in &part.cases.lines {
        *run.cases.lines.entry(op.clone()).or_default() += lines;
    }
    fill(&mut run.cases.latest, part.cases.latest.as_ref());
    run.nvshmem_lines += part.nvshmem_lines;
    run.nvshmem_ranks.extend(&part.nvshmem_ranks);
    for (name, said) in &part.versions {
        match run.versions.get(name) {
            Some(known) if known.text != said.text && name != "sms" && name != "collective" => {
                run.note(format!(
                    "{name} is {} at {} and {} at {}",
                    known.text, known.place, said.text, said.place
                ));
            }
            Some(_) => {}
            None => {
                run.versions.insert(name.clone(), said.clone());
            }
        }
    }
    for (section, place) in &part.sections {
        run.sections.entry(*section).or_insert_with(|| place.clone());
    }
    let (mine, other) = (&mut run.tests, &part.tests);
    mine.begun += other.begun;
    mine.passed += other.passed;
    mine.dtypes.extend(other.dtypes.iter().cloned());
    mine.wrong.extend(other.wrong.iter().take(MARKS).cloned());
    mine.verified = mine.verified.or(other.verified);
    fill(&mut mine.partly, other.partly.as_ref());
    fill(&mut mine.unverified, other.unverified.as_ref());
    if let (Some(mine), Some(other)) = (run.gpu.clone(), &part.gpu)
        && mine.text != other.text
    {
        run.note(format!("gpu is {} at {} and {} at {}", mine.text, mine.place, other.text, other.place));
    }
    fill(&mut run.gpu, part.gpu.as_ref());
    fill(&mut run.hca_offset, part.hca_offset.as_ref());
    fill(&mut run.internode_support, part.internode_support.as_ref());
    fill(&mut run.internode_missing, part.internode_missing.as_ref());
    fill(&mut run.planes, part.planes.as_ref());
    fill(&mut run.ended, part.ended.as_ref());
    fill(&mut run.layout, part.layout.as_ref());
    fill(&mut run.own_verdict, part.own_verdict.as_ref());
    let (settings, others) = (&mut run.settings, &part.settings);
    fill(&mut settings.nodes, others.nodes.as_ref());
    fill(&mut settings.ranks, others.ranks.as_ref());
    fill(&mut settings.ranks_per_node, others.ranks_per_node.as_ref());
    fill(&mut settings.ranks_listed, others.ranks_listed.as_ref());
    fill(&mut settings.ranks_of_rows, others.ranks_of_rows.as_ref());
    fill(&mut settings.transport, others.transport.as_ref());
    match (&mut run.training, &part.training) {
        (Some(training), Some(summary)) if part.kind == Kind::Summary => {
            // The file says more digits than the log, and is what was asked for.
            training.summarised = true;
            fill(&mut training.steps, summary.steps.as_ref());
            fill(&mut training.summary_file, Some(&part.place));
            fill(&mut training.summary_steps, summary.steps.as_ref());
            fill(&mut training.summary_ranks, summary.summary_ranks.as_ref());
            fill(&mut training.step_s, summary.step_s.as_ref());
            fill(&mut training.mfu_percent, summary.mfu_percent.as_ref());
        }
        // A file of that name that is no summary.
        (Some(training), None) if part.kind == Kind::Summary => {
            fill(&mut training.summary_file, Some(&part.place));
        }
        (none @ None, Some(training)) => *none = Some(training.clone()),
        _ => {}
    }
}

fn fill<T: Clone>(mine: &mut Option<T>, other: Option<&T>) {
    if mine.is_none() {
        *mine = other.cloned();
    }
}
