//! Each figure against its reference, or against the roofline.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Options;
use super::ceiling::{self, Ceiling, Links};
use super::merge;
use super::model::{Counts, Figure, Kind, Place, Run, Section, Settings};
use super::peers;
use super::refs::{Reference, References, Sought, references};
use crate::finding::Status;

/// A figure is a pass from this share of the least that was expected: runs vary by 10 %.
pub const PASS_SHARE: f64 = 0.9;

/// Below this share it is a failure, between the two a warning (reference/validation-facts.md section 5).
pub const FAIL_SHARE: f64 = 0.6;

/// Above this share of what can be, the figure or the bytes it counts are wrong.
pub const ABOVE_SHARE: f64 = 1.05;

/// Above this multiple of the most that its reference's range allows, something else was measured.
pub const FAR_SHARE: f64 = 1.5;

/// What a figure was held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// A figure of the same GPU, engine, build and settings.
    Reference,
    /// The roofline, and the share of it that the engine is known to reach.
    Roofline,
    /// Nothing.
    #[default]
    #[serde(other)]
    None,
}

/// The reference that a figure was held against.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Used {
    /// Its name.
    pub id: String,
    /// Its samples, GB/s.
    pub samples: Vec<f64>,
    /// The least of its range, GB/s.
    pub low: f64,
    /// The most of its range, GB/s.
    pub high: f64,
    /// What its clock saw.
    pub timing: String,
    /// Machine.
    pub machine: String,
    /// Source.
    pub source: String,
    /// Date.
    pub date: String,
    /// Remarks: how the range was made, that it was withdrawn.
    pub note: String,
}

/// The place of a figure among those of other ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// How many there are; the figure judged is their median.
    pub count: usize,
    /// The least.
    pub least: f64,
    /// The rank that has it.
    pub least_rank: Option<u32>,
    /// Where that stands.
    pub place: Place,
    /// The most.
    pub most: f64,
    /// The rank that has it.
    pub most_rank: Option<u32>,
    /// Where that stands.
    pub most_place: Place,
}

/// A judged figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metric {
    /// Number of the run it is of, from 0.
    pub run: usize,
    /// `inter-node dispatch bf16`.
    pub name: String,
    /// Part.
    pub section: Section,
    /// Operation.
    pub op: String,
    /// `bf16`, `fp8`; empty: not said.
    pub dtype: String,
    /// What the printed figure counts.
    pub counts: Counts,
    /// Node.
    pub node: Option<u32>,
    /// As printed: GB/s per GPU, or seconds.
    pub value: f64,
    /// `GB/s` or `s`.
    pub unit: String,
    /// The same with the own rank or node counted, GB/s; none: not known.
    pub logical_gb_s: Option<f64>,
    /// What crosses the wire, GB/s; none: not known.
    pub wire_gb_s: Option<f64>,
    /// Microseconds as printed.
    pub time_us: Option<f64>,
    /// SMs.
    pub sms: Option<u64>,
    /// Further settings.
    pub details: BTreeMap<String, String>,
    /// The most that it could be.
    pub ceiling: Option<Ceiling>,
    /// Share of the ceiling.
    pub fraction: Option<f64>,
    /// What it was held against.
    pub basis: Basis,
    /// The reference.
    pub reference: Option<Used>,
    /// Share of the least that was expected: 1 is as good as the worst of the reference's samples, or the engine's low bound.
    pub share: Option<f64>,
    /// Outcome.
    pub status: Status,
    /// One line: why.
    pub why: String,
    /// Among other ranks.
    pub spread: Option<Spread>,
    /// Where the figure stands.
    pub place: Place,
}

/// A run with what options and its own figures say of its machine.
pub(super) struct Known<'a> {
    pub(super) run: &'a Run,
    pub(super) index: usize,
    pub(super) gpu: String,
    pub(super) arch: String,
    pub(super) engine: String,
    pub(super) links: Links,
    pub(super) nic_given: bool,
    pub(super) options: &'a Options,
}

impl<'a> Known<'a> {
    pub(super) fn new(run: &'a Run, index: usize, options: &'a Options) -> Self {
        let said = run.gpu.as_ref().map(|said| said.text.clone());
        let gpu = said.or_else(|| options.gpu.clone()).unwrap_or_default().to_uppercase();
        let machine = references().machine(&gpu);
        let engine = match &options.engine {
            Some(engine) if !matches!(run.kind, Kind::Expertrail | Kind::Alltoall | Kind::Guide) => {
                engine.clone()
            }
            _ => run.kind.engine().to_owned(),
        };
        Self {
            run,
            index,
            arch: machine.map_or_else(String::new, |machine| machine.arch.clone()),
            engine,
            links: Links {
                scale_up: options.scale_up_gb_s.or(machine.map(|machine| machine.scale_up_gb_s)),
                scale_out: options.nic_gb_s.or(machine.map(|machine| machine.scale_out_gb_s)),
            },
            nic_given: options.nic_gb_s.is_some(),
            gpu,
            options,
        }
    }

    /// Settings of a part of the run; the guide's script fixes those of its two parts.
    pub(super) fn settings(&self, section: Section) -> Settings {
        let mut settings = self.run.settings.clone();
        let given = self.options;
        let deepep =
            matches!(self.run.kind, Kind::Guide | Kind::Intranode | Kind::Internode | Kind::LowLatency);
        fill(&mut settings.nodes, given.nodes);
        fill(&mut settings.ranks_per_node, given.ranks_per_node);
        if settings.ranks_per_node.is_none() {
            // DeepEP's tests start eight ranks on each node; nccl-tests name theirs.
            settings.ranks_per_node = match (deepep, settings.ranks, settings.nodes) {
                (true, ..) => Some(8),
                (false, Some(ranks), Some(nodes)) if nodes > 0 => Some(ranks.div_ceil(nodes)),
                _ => None,
            };
        }
        if let (Kind::LowLatency, None, None, Some(per)) =
            (self.run.kind, settings.ranks, settings.nodes, settings.ranks_per_node.filter(|per| *per > 0))
        {
            // Fewer than a node's ranks: what is there may be a part of anything.
            let most = self.run.figures.iter().filter_map(|figure| figure.rank).max();
            let ranks = most.map_or(0, |most| u64::from(most) + 1);
            // One node's ranks over a transport between nodes: others may be missing.
            let alone = ranks == per && settings.transport.as_deref() == Some("ibgda");
            settings.nodes = (ranks >= per && !alone).then(|| ranks.div_ceil(per));
        }
        if self.run.kind == Kind::Internode && settings.nodes.is_none() {
            let seen = merge::nodes_of(self.run) as u64;
            settings.nodes = (seen >= settings.nodes_at_least.unwrap_or(2)).then_some(seen);
        }
        fill(&mut settings.tokens, given.tokens);
        fill(&mut settings.hidden, given.hidden);
        fill(&mut settings.top_k, given.top_k);
        fill(&mut settings.experts, given.experts);
        if settings.transport.is_none() {
            settings.transport.clone_from(&given.transport);
        }
        match self.run.kind {
            Kind::Guide => {
                settings.with_replacement = true;
                settings.hidden = Some(3072);
                settings.experts = Some(128);
                (settings.tokens, settings.top_k) = match section {
                    Section::Intranode => (Some(65_536), Some(16)),
                    _ => (Some(8192), Some(8)),
                };
            }
            // Its defaults; the output does not say them.
            Kind::LowLatency => {
                fill(&mut settings.tokens, Some(128));
                fill(&mut settings.hidden, Some(7168));
                fill(&mut settings.top_k, Some(8));
            }
            Kind::Intranode | Kind::Internode => {
                fill(&mut settings.experts, Some(256));
            }
            _ => {}
        }
        settings
    }

    /// SMs of a figure; the guide's script fixes them.
    fn with_sms(&self, figure: &Figure) -> Figure {
        let mut figure = figure.clone();
        if self.run.kind == Kind::Guide {
            figure.sms = Some(if figure.section == Section::Intranode { 40 } else { 20 });
        }
        figure
    }
}

fn fill(mine: &mut Option<u64>, other: Option<u64>) {
    *mine = mine.or(other);
}

/// The figures of a run, judged.
pub(super) fn metrics(known: &Known<'_>) -> Vec<Metric> {
    match known.run.kind {
        Kind::LowLatency | Kind::V2 => medians(known),
        Kind::Alltoall => peak(known),
        _ => known.run.figures.iter().map(|figure| judge(known, figure, None)).collect(),
    }
    .into_iter()
    .chain(step_time(known))
    .collect()
}

/// One metric for all ranks: their median, the slowest beside it.
fn medians(known: &Known<'_>) -> Vec<Metric> {
    let mut groups: Vec<(&Figure, Vec<&Figure>)> = Vec::new();
    for figure in &known.run.figures {
        let same = |other: &Figure| {
            other.section == figure.section && other.op == figure.op && other.dtype == figure.dtype
        };
        match groups.iter_mut().find(|(first, _)| same(first)) {
            Some((_, all)) => all.push(figure),
            None => groups.push((figure, vec![figure])),
        }
    }
    groups
        .into_iter()
        .filter_map(|(_, mut all)| {
            all.sort_by(|a, b| a.value.total_cmp(&b.value));
            let median = all.get((all.len().max(1) - 1) / 2)?;
            let (least, most) = (all.first()?, all.last()?);
            let spread = Spread {
                count: all.len(),
                least: least.value,
                least_rank: least.rank,
                place: least.place.clone(),
                most: most.value,
                most_rank: most.rank,
                most_place: most.place.clone(),
            };
            Some(judge(known, median, Some(spread)))
        })
        .collect()
}

/// The size with the most bus bandwidth.
fn peak(known: &Known<'_>) -> Vec<Metric> {
    let best = known.run.figures.iter().max_by(|a, b| a.value.total_cmp(&b.value));
    best.map(|figure| judge(known, figure, None)).into_iter().collect()
}

/// The spread of a figure of all ranks whose times are given: what the slowest would be by its time beside the others'.
fn of_times(figure: &Figure) -> Option<Spread> {
    let slowest = figure.rank_times_us.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    let mut others: Vec<f64> =
        figure.rank_times_us.iter().filter(|(rank, _)| *rank != slowest.0).map(|(_, us)| *us).collect();
    let others = peers::median(&mut others).filter(|others| *others > 0.0)?;
    if *slowest.1 <= others {
        return None;
    }
    Some(Spread {
        count: figure.rank_times_us.len(),
        least: figure.value * others / slowest.1,
        least_rank: Some(*slowest.0),
        place: figure.place.clone(),
        most: figure.value,
        most_rank: None,
        most_place: figure.place.clone(),
    })
}

fn step_time(known: &Known<'_>) -> Option<Metric> {
    let training = known.run.training.as_ref()?;
    let value = training.step_s?;
    Some(Metric {
        run: known.index,
        name: "training step time".to_owned(),
        section: Section::Training,
        op: "step-time".to_owned(),
        counts: Counts::Time,
        value,
        unit: "s".to_owned(),
        status: Status::NotApplicable,
        why: "step times are compared with a baseline only".to_owned(),
        place: training.place.clone(),
        ..Metric::default()
    })
}

fn name(figure: &Figure) -> String {
    let mut name = format!("{} {}", figure.section.label(), figure.op);
    for word in [&figure.dtype].into_iter().chain(figure.details.values()) {
        if !word.is_empty() {
            name.push(' ');
            name.push_str(word);
        }
    }
    if figure.details.contains_key("size") {
        name.push_str(" B");
    }
    if let Some(sms) = figure.sms {
        name = format!("{name} {sms} SMs");
    }
    if let Some(node) = figure.node {
        name = format!("{name}, node {node}");
    }
    name
}

fn judge(known: &Known<'_>, printed: &Figure, spread: Option<Spread>) -> Metric {
    let figure = known.with_sms(printed);
    let settings = known.settings(figure.section);
    let wire = figure.wire_gb_s.or_else(|| ceiling::wire(&figure, &settings));
    let ceiling = ceiling::of(&figure, &settings, known.links);
    // What the ceiling bounds: rows written on the CPU backend, else the figure as it counts.
    let bounded = figure.memory_gb_s.unwrap_or(figure.value);
    let fraction =
        ceiling.as_ref().filter(|most| most.logical_gb_s > 0.0).map(|most| bounded / most.logical_gb_s);
    let mut metric = Metric {
        run: known.index,
        name: name(printed),
        section: figure.section,
        op: figure.op.clone(),
        dtype: figure.dtype.clone(),
        counts: figure.counts,
        node: figure.node,
        value: figure.value,
        unit: "GB/s".to_owned(),
        logical_gb_s: logical(&figure, &settings),
        wire_gb_s: wire,
        time_us: figure.time_us,
        sms: figure.sms,
        details: figure.details.clone(),
        ceiling,
        fraction,
        spread: spread.or_else(|| of_times(&figure)),
        place: figure.place.clone(),
        ..Metric::default()
    };
    weigh(known, &figure, &settings, &mut metric);
    extremes(&mut metric);
    metric
}

impl Metric {
    /// Share of the ceiling of the rank with most, where there are several.
    pub(super) fn most_fraction(&self) -> Option<f64> {
        let spread = self.spread.as_ref().filter(|spread| spread.count > 1 && self.value > 0.0)?;
        Some(self.fraction? * spread.most / self.value)
    }

    /// It, or that of one of its ranks, is more than its link carries.
    pub(super) fn is_above(&self) -> bool {
        [self.fraction, self.most_fraction()].into_iter().flatten().any(|fraction| fraction > ABOVE_SHARE)
    }

    /// It is far above what its reference got.
    pub(super) fn is_far(&self) -> bool {
        self.reference.as_ref().is_some_and(|used| self.value > used.high * FAR_SHARE)
    }
}

/// The median says nothing of the worst ranks: one above the ceiling, or one far below its peers or what was expected.
fn extremes(metric: &mut Metric) {
    let Some(spread) = metric.spread.clone().filter(|spread| spread.count > 1) else { return };
    let who = |rank: Option<u32>| rank.map_or("a rank".to_owned(), |rank| format!("rank {rank}"));
    let mut worse = Vec::new();
    let said = metric.fraction.is_some_and(|fraction| fraction > ABOVE_SHARE);
    if let Some(fraction) = metric.most_fraction().filter(|fraction| !said && *fraction > ABOVE_SHARE) {
        worse.push(format!(
            "{} has {:.1}, {fraction:.3} of the ceiling: no link carries that",
            who(spread.most_rank),
            spread.most
        ));
    }
    let of_expected = metric.share.map(|share| share * spread.least / metric.value);
    if spread.least < metric.value * FAIL_SHARE || of_expected.is_some_and(|share| share < FAIL_SHARE) {
        worse.push(format!(
            "{} has {:.1}, {:.0} % of the median",
            who(spread.least_rank),
            spread.least,
            spread.least / metric.value * 100.0
        ));
    }
    if !worse.is_empty() {
        metric.status = Status::Fail;
        metric.why = format!("{}; {}", worse.join("; "), metric.why);
    }
}

/// With the own rank, or node, counted.
fn logical(figure: &Figure, settings: &Settings) -> Option<f64> {
    match figure.counts {
        Counts::Nodes | Counts::Ranks | Counts::Experts => Some(figure.value),
        Counts::OtherRanks => {
            let ranks = usize::try_from(settings.ranks_per_node?).ok()?;
            expertrail_core::roofline::wire_to_logical(figure.value, ranks)
        }
        Counts::Wire => figure.beside_gb_s,
        Counts::Bus | Counts::Time => None,
    }
}

fn weigh(known: &Known<'_>, figure: &Figure, settings: &Settings, metric: &mut Metric) {
    if known.run.kind == Kind::Alltoall {
        match known.run.versions.get("collective").map(|said| said.text.as_str()) {
            Some("alltoall") => {}
            Some(other) => {
                metric.status = Status::Unknown;
                (metric.op, metric.name) = (other.to_owned(), format!("collective {other}"));
                (metric.wire_gb_s, metric.ceiling, metric.fraction) = (None, None, None);
                metric.why = format!("bus bandwidth of {other}_perf, and alltoall is what is judged");
                return;
            }
            None => {
                metric.status = Status::Unknown;
                "the output does not name alltoall_perf: other collectives count their bus bandwidth otherwise"
                    .clone_into(&mut metric.why);
                return;
            }
        }
    }
    // A yardstick of the run itself binds no less than the data sheet.
    if let (Some(ceiling), Some(up)) = (&metric.ceiling, known.links.scale_up)
        && ceiling.measured
        && ceiling.link == "scale-up"
        && (ceiling.logical_gb_s > up * ABOVE_SHARE || figure.value > up * ABOVE_SHARE)
    {
        metric.status = Status::Fail;
        metric.why = format!(
            "{:.1} GB/s, and {:.1} said to be measured of the links: NVLink of {} carries {up:.0}",
            figure.value, ceiling.logical_gb_s, known.gpu
        );
        metric.fraction = Some(figure.value.max(ceiling.logical_gb_s) / up);
        return;
    }
    if let (Some(fraction), Some(ceiling)) = (metric.fraction, &metric.ceiling)
        && fraction > ABOVE_SHARE
    {
        // A measured ceiling may itself be off; a data sheet is not. Copies in memory bind no dispatch: it reads a row once and writes
        // it to several ranks, where a copy reads as much as it writes.
        metric.status = match (ceiling.measured, ceiling.link.as_str()) {
            (_, "memory") => Status::Warn,
            (true, _) => Status::Unknown,
            (false, _) => Status::Fail,
        };
        let what = if ceiling.link == "memory" {
            "more than plain copies wrote: that yardstick is too low here, and a share of it says nothing"
        } else {
            "no link carries that: the time or the bytes counted are wrong"
        };
        metric.why =
            format!("{fraction:.3} of the ceiling ({:.1}, {}): {what}", ceiling.logical_gb_s, ceiling.how);
        return;
    }
    let sought = Sought {
        run: known.run,
        figure,
        settings,
        engine: &known.engine,
        gpu: &known.gpu,
        arch: &known.arch,
    };
    let file = references();
    let candidates: Vec<&Reference> = known
        .options
        .references
        .iter()
        .chain(&file.references)
        .filter(|reference| sought.agrees(reference))
        .collect();
    if let Some(reference) = candidates.iter().find(|reference| sought.other_stack(reference).is_empty()) {
        by_reference(file, reference, metric);
        return;
    }
    let other = if candidates.is_empty() { "" } else { " with these versions" };
    by_roofline(known, file, other, metric);
}

fn grade(share: f64) -> Status {
    if share >= PASS_SHARE {
        Status::Pass
    } else if share >= FAIL_SHARE {
        Status::Warn
    } else {
        Status::Fail
    }
}

fn by_reference(file: &References, reference: &Reference, metric: &mut Metric) {
    let (low, high) = reference.range(file.variation);
    let share = metric.value / reference.least();
    let samples: Vec<String> = reference.samples.iter().map(|sample| format!("{sample}")).collect();
    metric.basis = Basis::Reference;
    metric.share = Some(share);
    metric.status =
        if metric.value >= low { Status::Pass } else { grade(share.min(PASS_SHARE - f64::EPSILON)) };
    let far = metric.value > high * FAR_SHARE;
    if far {
        metric.status = Status::Warn;
    }
    let place = match (far, metric.value > high) {
        (true, _) => {
            ", far above its range: another setting (tokens, hidden size, nodes), or another way of counting bytes or time"
        }
        (_, true) => ", above its range",
        _ => "",
    };
    metric.why =
        format!("{:.0} % of {} (range {low:.1}-{high:.1}){place}", share * 100.0, samples.join(", "));
    let mut note = reference.note.clone();
    if reference.retired {
        note = format!("Withdrawn by its authors. {note}");
    }
    metric.reference = Some(Used {
        id: reference.id.clone(),
        samples: reference.samples.clone(),
        low,
        high,
        timing: reference.timing.clone(),
        machine: reference.machine.clone(),
        source: reference.source.clone(),
        date: reference.date.clone(),
        note,
    });
}

fn by_roofline(known: &Known<'_>, file: &References, other: &str, metric: &mut Metric) {
    metric.status = Status::Unknown;
    let Some(ceiling) = &metric.ceiling else {
        metric.why =
            format!("no reference for these settings{other}, and no ceiling: {}", missing(known, metric));
        return;
    };
    let transport = known.settings(metric.section).transport.unwrap_or_default();
    let Some(prior) = file.prior(&known.engine, &ceiling.link, &known.arch, &transport) else {
        metric.why = format!(
            "no reference for these settings{other}, and no prior of {} over {}",
            known.engine, ceiling.link
        );
        return;
    };
    let of = ceiling.prior_of_gb_s.unwrap_or(ceiling.logical_gb_s);
    let Some(fraction) = metric.fraction.filter(|_| of > 0.0) else { return };
    // GB/s x us: thousands of bytes, and by the link's GB/s the time that they take there.
    let bytes_us = metric.time_us.map(|us| us * fraction * ceiling.logical_gb_s / of);
    let low = prior.low_for(bytes_us);
    let share = fraction * ceiling.logical_gb_s / (of * low);
    metric.basis = Basis::Roofline;
    metric.share = Some(share);
    metric.status = grade(share);
    let pushed = match ceiling.prior_of_gb_s {
        Some(push) if push < ceiling.logical_gb_s => format!(", {push:.1} by as many SMs"),
        _ => String::new(),
    };
    // Said where it changes what is expected by a tenth or more.
    let short = match bytes_us {
        Some(us) if low < prior.low * 0.9 => format!(
            ": {:.2} for long calls, and here {us:.0} us of bytes meet up to {:.0} us of the call itself",
            prior.low, prior.fixed_us
        ),
        _ => String::new(),
    };
    metric.why = format!(
        "no reference for these settings{other}: {fraction:.2} of the roofline {:.1} ({}{pushed}), {low:.2} or more expected{short}",
        ceiling.logical_gb_s, ceiling.how,
    );
}

fn missing(known: &Known<'_>, metric: &Metric) -> String {
    let settings = known.settings(metric.section);
    let mut lacks = Vec::new();
    if known.gpu.is_empty() {
        lacks.push("the GPU is not known (--gpu)");
    } else if known.arch.is_empty() && known.links.scale_up.is_none() {
        lacks.push("nothing is known of this GPU's links (--nvlink-gb-s, --nic-gb-s)");
    }
    if settings.node_count().is_none() {
        lacks.push("the number of nodes is not known (--nodes)");
    }
    if settings.ranks_per_node.is_none() {
        lacks.push("the ranks of a node are not known (--ranks-per-node)");
    }
    if lacks.is_empty() && metric.counts == Counts::Wire && settings.node_count() > Some(1) {
        lacks.push("a result over several nodes counts what crosses NVLink and NICs as one");
    }
    if lacks.is_empty() {
        lacks.push("nothing crosses a link");
    }
    lacks.join(", ")
}
