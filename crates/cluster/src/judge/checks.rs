//! Findings about one run: its figures, parts, ranks, versions and data.

use std::collections::BTreeSet;

use super::accounts;
use super::causes::{
    ABOVE, BELOW, CUT, FAR, LAUNCHER, MARKER, MIXED, NOT_RUN, SAYS_FAIL, SILENT, STACK, UNJUDGED, UNREAD,
};
use super::evidence::{At, finding, list, subject};
use super::model::{Kind, Mark, Place, Section};
use super::refs::references;
use super::weigh::{ABOVE_SHARE, FAR_SHARE, Known, Metric};
use super::{data, options, present};
use crate::finding::{Finding, Status};

/// One finding for each figure that is no pass.
pub(super) fn figures(known: &Known<'_>, metrics: &[Metric]) -> Vec<Finding> {
    let mut all = Vec::new();
    for metric in metrics {
        let above = metric.is_above();
        let new = |id| finding(id).about(metric.name.clone()).line(&metric.place);
        let printed = format!("{:.1} GB/s: {}", metric.value, metric.why);
        match metric.status {
            Status::Pass | Status::NotApplicable => {}
            status if above => all.push(
                new("J002").outcome(status, &ABOVE).saw(printed, "a figure that the link can carry").remedy(
                    "Check what the benchmark counts (own rank or node, both directions), the number of nodes, and the NIC rate that is assumed.",
                    &[],
                ),
            ),
            Status::Unknown => {
                all.push(new("J001").outcome(Status::Unknown, &UNJUDGED).saw(printed, "a reference or a ceiling"));
            }
            status if metric.is_far() => all.push(new("J002").outcome(status, &FAR).saw(
                printed,
                format!("at most {FAR_SHARE} times what its reference got"),
            ).remedy("Compare the settings and what the benchmark counts with the reference's.", &[])),
            status => {
                let why = assumed_nic(known, metric).map_or(printed.clone(), |note| format!("{printed}; {note}"));
                all.push(new("J001").outcome(status, &BELOW).saw(why, "90 % of what was expected, or more"));
            }
        }
        if let Some(finding) = beside(known, metric) {
            all.push(finding);
        }
    }
    all
}

fn assumed_nic(known: &Known<'_>, metric: &Metric) -> Option<String> {
    let ceiling = metric.ceiling.as_ref()?;
    let assumed = ceiling.link == "scale-out" && !known.nic_given && metric.reference.is_none();
    assumed.then(|| {
        format!(
            "{:.0} GB/s of NIC a GPU are assumed for {} (--nic-gb-s says otherwise)",
            known.links.scale_out.unwrap_or(0.0),
            known.gpu
        )
    })
}

/// The NVL figure beside an RDMA one must fit NVLink, too: it counts the own rank.
fn beside(known: &Known<'_>, metric: &Metric) -> Option<Finding> {
    if !matches!(known.run.kind, Kind::Internode | Kind::V2) {
        return None;
    }
    let up = known.links.scale_up?;
    let per = known.settings(metric.section).ranks_per_node.filter(|per| *per > 1)? as f64;
    let figure = known.run.figures.iter().find(|figure| figure.place == metric.place)?;
    let nvl = figure.beside_gb_s?;
    let most = up * per / (per - 1.0);
    (nvl > most * ABOVE_SHARE).then(|| {
        finding("J002")
            .about(format!("{}, NVLink's part", metric.name))
            .outcome(Status::Fail, &ABOVE)
            .saw(
                format!("{nvl:.1} GB/s: NVLink of {} carries {most:.1}", known.gpu),
                "a figure that the link can carry",
            )
            .line(&metric.place)
    })
}

/// Parts, ranks, versions, data, end.
pub(super) fn run(known: &Known<'_>) -> Vec<Finding> {
    let run = known.run;
    let mut all = Vec::new();
    if let Some(why) = &run.unread {
        all.push(
            finding("J022")
                .about(run.place.file.clone())
                .outcome(Status::Unknown, &UNREAD)
                .saw(why.clone(), "a file that can be read to its end")
                .line(&run.place),
        );
    }
    if matches!(run.kind, Kind::Unknown | Kind::Fragment) {
        let none = if run.kind == Kind::Unknown {
            "nothing that is known"
        } else {
            "no figures, and no run that it is a part of"
        };
        let why = run.notes.first().cloned().unwrap_or_else(|| none.to_owned());
        all.push(
            finding("J022")
                .about(run.place.file.clone())
                .outcome(Status::Unknown, &UNREAD)
                .saw(why, "output of a benchmark or training run")
                .line(&run.place),
        );
        all.extend(marks(known));
        all.extend(exits(known));
        return all;
    }
    all.extend(parts(known));
    all.extend(cases(known));
    all.extend(present::findings(known));
    all.extend(versions(known));
    all.extend(offset(known));
    all.extend(nvshmem(known));
    all.extend(data::findings(known));
    all.extend(data::totals(known));
    all.extend(end(known));
    all.extend(marks(known));
    all.extend(exits(known));
    all.extend(own(known));
    all.extend(warned(known));
    all.extend(accounts::findings(known));
    all.extend(options::contradictions(known));
    all
}

/// Warnings of the run itself.
fn warned(known: &Known<'_>) -> Option<Finding> {
    let first = known.run.warned.first()?;
    let more = match known.run.warned.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(
        finding("J023")
            .about(subject(known))
            .outcome(Status::Warn, &SAYS_FAIL)
            .saw(format!("{}{more}", first.text), "no warning")
            .line(&first.place),
    )
}

/// What each kind of run must have figures of.
pub(super) fn wanted(known: &Known<'_>) -> Vec<(Section, &'static str, &'static str)> {
    let many = known.run.settings.nodes.or(known.options.nodes) != Some(1);
    match known.run.kind {
        Kind::Guide if many => {
            vec![(Section::Intranode, "dispatch", "bf16"), (Section::Internode, "dispatch", "bf16")]
        }
        Kind::Guide => vec![(Section::Intranode, "dispatch", "bf16")],
        Kind::Intranode => ["fp8", "bf16"]
            .map(|dtype| (Section::Intranode, "dispatch", dtype))
            .into_iter()
            .chain([(Section::Intranode, "combine", "bf16")])
            .collect(),
        Kind::Internode => ["fp8", "bf16"]
            .map(|dtype| (Section::Internode, "dispatch", dtype))
            .into_iter()
            .chain([(Section::Internode, "combine", "bf16")])
            .collect(),
        Kind::LowLatency => {
            ["dispatch+combine", "dispatch", "combine"].map(|op| (Section::LowLatency, op, "")).to_vec()
        }
        Kind::V2 => {
            let section = if many { Section::Internode } else { Section::Intranode };
            ["dispatch", "combine"].map(|op| (section, op, "")).to_vec()
        }
        Kind::Alltoall => vec![(Section::Collective, "alltoall", "")],
        Kind::Expertrail => {
            // The document says what was measured: with scope node every node has measured itself, however many there are.
            let inside = known.run.sections.contains_key(&Section::Intranode)
                && !known.run.sections.contains_key(&Section::Internode);
            let section = if many && !inside { Section::Internode } else { Section::Intranode };
            ["dispatch", "combine"].map(|op| (section, op, "")).to_vec()
        }
        _ => Vec::new(),
    }
}

fn parts(known: &Known<'_>) -> Vec<Finding> {
    let run = known.run;
    let mut all = Vec::new();
    let mut failed: BTreeSet<Section> = BTreeSet::new();
    let errors = |section: Section| run.marks.iter().filter(move |mark| mark.section == Some(section));
    for (section, op, dtype) in wanted(known) {
        let first: Option<&Mark> = errors(section).next();
        if let Some(mark) = first {
            if !failed.insert(section) {
                continue;
            }
            let ranks: BTreeSet<u32> = errors(section).filter_map(|mark| mark.rank).collect();
            let ranks: Vec<u64> = ranks.into_iter().map(u64::from).collect();
            let who = if ranks.is_empty() { String::new() } else { format!(" (ranks {})", list(&ranks)) };
            all.push(not_run(
                &format!("{} part", section.label()),
                format!("it raised an error that the run went on after{who}: {}", mark.text),
                &mark.place,
            ));
            continue;
        }
        let has = run.figures.iter().any(|figure| {
            figure.section == section
                && (op.is_empty() || figure.op == op)
                && (dtype.is_empty() || figure.dtype == dtype)
        });
        if !has {
            let heading = run.sections.get(&section);
            let seen = match heading {
                Some(_) => "it began and has no figures",
                None => "it has no figures",
            };
            let what = if op.is_empty() || run.kind == Kind::Guide {
                format!("{} part", section.label())
            } else {
                format!("{} {op} {dtype}", section.label()).trim_end().to_owned()
            };
            all.push(not_run(&what, seen.to_owned(), heading.unwrap_or(&run.place)));
        }
    }
    all
}

/// V2's test prints the same lines in each of its cases: one of each rank for each operation. Counts of the whole run are
/// compared, for lines of ranks may come after the heading of the next case.
fn cases(known: &Known<'_>) -> Option<Finding> {
    let run = known.run;
    if run.kind != Kind::V2 {
        return None;
    }
    let ranks = run.figures.iter().filter_map(|figure| figure.rank).collect::<BTreeSet<u32>>().len() as u64;
    let most = run.cases.lines.values().copied().max().unwrap_or(0);
    // The heading of a case is rank 0's: it may be in a file that was not given.
    let wanted = run.cases.begun.saturating_mul(ranks).max(most);
    let (op, lines) = run.cases.lines.iter().find(|(_, lines)| **lines < wanted)?;
    Some(not_run(
        &format!("the last of {} cases", run.cases.begun.max(1)),
        format!(
            "it is not whole: {lines} lines of {op}, and {} cases of {ranks} ranks print {wanted}",
            run.cases.begun.max(1)
        ),
        run.cases.latest.as_ref().unwrap_or(&run.place),
    ))
}

fn not_run(what: &str, seen: String, place: &Place) -> Finding {
    finding("J003")
        .about(what)
        .outcome(Status::Unknown, &NOT_RUN)
        .saw(seen, "figures")
        .line(place)
        .remedy("Find the cause in the logs of all ranks, then run again.", &["expertrail diagnose LOGS..."])
}

fn versions(known: &Known<'_>) -> Vec<Finding> {
    let run = known.run;
    let mut all = Vec::new();
    for note in run.notes.iter().filter(|note| note.contains(" is ") && note.contains(" at ")) {
        all.push(
            finding("J005")
                .about("versions of ranks")
                .outcome(Status::Warn, &MIXED)
                .saw(note.clone(), "one version on all ranks")
                .line(&run.place),
        );
    }
    if run.kind != Kind::Guide {
        return all;
    }
    let of_gpu = |stack: &&super::refs::Reference| stack.engine == "guide" && !stack.stack.is_empty();
    let Some(reference) = references().references.iter().find(of_gpu) else { return all };
    for (name, wanted) in &reference.stack {
        match run.versions.get(name) {
            Some(said) if said.text == *wanted => {}
            Some(said) => all.push(
                finding("J005")
                    .about(name.clone())
                    .outcome(Status::Warn, &STACK)
                    .saw(said.text.clone(), format!("{wanted}, with which the references were measured"))
                    .line(&said.place)
                    .remedy("Judge the pair of DeepEP and NVSHMEM; run the validated image on the same nodes to tell the stack from the cluster.", &["expertrail stack --versions line=hybrid-ep,nvshmem=VERSION,transport=ibgda"]),
            ),
            // NVSHMEM's lines have a finding of their own.
            None if name == "nvshmem" => {}
            None => {
                let mut lacks = finding("J005").about(name.clone()).unknown("the output does not say it").advisory();
                lacks.cause = Some(STACK.id.to_owned());
                all.push(lacks.line(&run.place));
            }
        }
    }
    all
}

/// The guide's offsets: GPU N uses `mlx5_(N+1)` on H200 and `mlx5_(N+5)` on B200.
fn offset(known: &Known<'_>) -> Option<Finding> {
    let run = known.run;
    let Some((offset, place)) = run.hca_offset.as_ref() else {
        let between = run.figures.iter().find(|figure| figure.section == Section::Internode)?;
        // A few pasted lines have no banner either.
        if run.kind != Kind::Guide || run.settings.ranks.is_none() {
            return None;
        }
        return Some(
            finding("J006")
                .outcome(Status::Warn, crate::causes::get("hca-list-wrong-device")?)
                .saw(
                    "no line says which NIC each rank takes (NVSHMEM_HCA_LIST mapping: mlx5_(local_rank+N))",
                    "that line, with a number",
                )
                .line(&between.place)
                .remedy(
                    "Compare NVSHMEM_HCA_LIST of each rank with the topology of its node.",
                    &["expertrail topo"],
                ),
        );
    };
    let wanted: u64 = match known.gpu.as_str() {
        "H200" => 1,
        "B200" => 5,
        _ => return None,
    };
    let new = finding("J006").line(place);
    if *offset == wanted {
        return Some(new.saw(format!("{offset} on {}", known.gpu), ""));
    }
    let cause = crate::causes::get("hca-list-wrong-device")?;
    Some(
        new.outcome(Status::Warn, cause)
            .saw(
                format!("{offset} on {}", known.gpu),
                format!("{wanted}, the guide's for this GPU, unless the node's own topology says otherwise"),
            )
            .remedy("Compare with the topology of the node.", &["expertrail topo"]),
    )
}

fn nvshmem(known: &Known<'_>) -> Option<Finding> {
    let run = known.run;
    if run.kind != Kind::Guide {
        return None;
    }
    let began = run
        .figures
        .iter()
        .find(|figure| figure.section == Section::Internode)
        .map(|figure| &figure.place)
        .or_else(|| run.sections.get(&Section::Internode))?;
    let ranks = known.settings(Section::Internode).rank_count();
    let lines = run.nvshmem_lines;
    let place = run.versions.get("nvshmem").map_or(began, |said| &said.place);
    let new = finding("J007").line(place);
    if lines == 0 {
        return Some(new.outcome(Status::Unknown, &SILENT).saw(
            "no rank printed NVSHMEM's line: nothing confirms that the inter-node part started",
            "one line of each rank",
        ));
    }
    match ranks {
        Some(ranks) if lines >= ranks => Some(new.saw(format!("{lines} lines, {ranks} ranks"), "")),
        Some(ranks) => Some(
            new.outcome(Status::Warn, &SILENT)
                .saw(
                    format!("{lines} of {ranks} ranks printed NVSHMEM's line{}", silent(known, ranks)),
                    "one line of each rank",
                )
                .remedy("Give the logs of all pods, whole.", &[]),
        ),
        None => {
            Some(new.outcome(Status::Warn, &SILENT).saw(
                format!("{lines} lines; how many ranks there were is not known"),
                "one line of each rank",
            ))
        }
    }
}

/// Ranks without NVSHMEM's line, where launchers name the rank of each.
fn silent(known: &Known<'_>, ranks: u64) -> String {
    let named = &known.run.nvshmem_ranks;
    if named.is_empty() || named.len() as u64 != known.run.nvshmem_lines {
        return String::new();
    }
    let without = |rank: &u64| u32::try_from(*rank).is_ok_and(|rank| !named.contains(&rank));
    let without: Vec<u64> = (0..ranks.min(1 << 16)).filter(without).collect();
    format!("; none of ranks {}", list(&without))
}

/// Lines that a whole run prints at its end: said, and of no weight.
fn end(known: &Known<'_>) -> Option<Finding> {
    let run = known.run;
    let mut lacks = Vec::new();
    match run.kind {
        Kind::Guide => {
            let between = run.figures.iter().any(|figure| figure.section == Section::Internode);
            if between && run.layout.is_none() {
                lacks.push("the inter-node part's line of times (layout=)");
            }
            if run.ended.is_none() {
                lacks.push("the last line (DeepEP benchmark complete.)");
            }
        }
        Kind::V2 if !run.figures.is_empty() && !run.exits.iter().any(|exit| exit.code == 0) => {
            lacks.push(
                "what shows that no further case was to come (the test prints no last line; give its exit code with it)",
            );
            if run.cases.begun > 0 {
                let of = |dtype: &str| {
                    run.figures.iter().any(|figure| figure.op == "dispatch" && figure.dtype == dtype)
                };
                if !of("bf16") {
                    lacks.push("cases with BF16 dispatch");
                } else if !of("fp8") {
                    lacks.push("cases with FP8 dispatch");
                }
            }
        }
        Kind::Alltoall if run.ended.is_none() && !run.figures.is_empty() => {
            lacks.push("the average bus bandwidth below the table");
        }
        _ => {}
    }
    if lacks.is_empty() {
        return None;
    }
    let mut cut =
        finding("J016").about(subject(known)).unknown(format!("missing: {}", lacks.join(" and "))).advisory();
    cut.cause = Some(CUT.id.to_owned());
    CUT.text.clone_into(&mut cut.why);
    let place = run.figures.last().map_or(&run.place, |figure| &figure.place);
    Some(cut.line(place))
}

/// Whether the figures of every part came after a failure: the run went on, and measured what it was to measure. Without that
/// what was measured before says nothing of the run's end, and where the order is not known (another file) it is taken so.
fn got_over(known: &Known<'_>, mark: &Mark) -> bool {
    let wanted = wanted(known);
    !wanted.is_empty()
        && wanted.iter().all(|(section, ..)| {
            let mut figures = known.run.figures.iter().filter(|figure| figure.section == *section).peekable();
            figures.peek().is_some()
                && figures
                    .all(|figure| figure.place.file == mark.place.file && figure.place.line > mark.place.line)
        })
}

/// Failures that the log shows. In a training run, and for acceptance, each is one. Of a benchmark it depends on what came after:
/// with the figures of all parts after it, it is a warning; else the run is not one that ran.
fn marks(known: &Known<'_>) -> Option<Finding> {
    let run = known.run;
    let own: Vec<&Mark> = run.marks.iter().filter(|mark| mark.section.is_none()).collect();
    // A traceback says less than what stands around it.
    let first = own.iter().find(|mark| !mark.text.contains("Traceback")).or(own.first())?;
    let more = if own.len() > 1 { format!(" and {} more", own.len() - 1) } else { String::new() };
    let rank = first.rank.map_or(String::new(), |rank| format!("rank {rank}: "));
    let status = if run.kind == Kind::Training || known.options.accept.is_some() {
        Status::Fail
    } else if own.iter().all(|mark| got_over(known, mark)) {
        Status::Warn
    } else {
        Status::Unknown
    };
    Some(
        finding("J020")
            .about(subject(known))
            .outcome(status, &MARKER)
            .saw(format!("{rank}{}{more}", first.text), "no failure in any rank's log")
            .line(&first.place)
            .remedy("Name the cause.", &["expertrail diagnose LOGS..."]),
    )
}

fn exits(known: &Known<'_>) -> Option<Finding> {
    let run = known.run;
    // Acceptance has a finding of its own about them.
    if known.options.accept.is_some() && matches!(run.kind, Kind::Training | Kind::Fragment | Kind::Summary) {
        return None;
    }
    let bad: Vec<_> = run.exits.iter().filter(|exit| exit.code != 0).collect();
    let first = bad.first()?;
    let more = if bad.len() > 1 { format!(" and {} more", bad.len() - 1) } else { String::new() };
    Some(
        finding("J019")
            .about(subject(known))
            .outcome(Status::Fail, &LAUNCHER)
            .saw(format!("exit code {}{more}", first.code), "0 of every launcher")
            .line(&first.place),
    )
}

fn own(known: &Known<'_>) -> Option<Finding> {
    let said = known.run.own_verdict.as_ref()?;
    let status = match said.text.split(':').next().unwrap_or_default() {
        "pass" => return None,
        "fail" => Status::Fail,
        "not_verified" => Status::Warn,
        _ => Status::Unknown,
    };
    Some(
        finding("J023")
            .about(subject(known))
            .outcome(status, &SAYS_FAIL)
            .saw(said.text.clone(), "pass")
            .line(&said.place),
    )
}
