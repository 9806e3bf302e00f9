//! What the pattern of figures means.
//!
//! * A Blackwell GPU at about half inside every node, and normal between nodes: the build lacks the aggressive PTX
//!   instructions (the guide: 130-150 GB/s dispatch, 80-100 combine).
//! * Between nodes a sixth of the NIC or less: the ranks of a node share one NIC ([`SharedNic`]: eight on one of 400 Gb/s
//!   get an eighth, on a frontend of 200 Gb/s a sixteenth, which the guide calls single-digit).
//! * Between nodes about half: two GPUs on one NIC, or one of two planes.

use std::collections::BTreeSet;

use expertrail_core::roofline::SharedNic;

use super::evidence::{At, finding};
use super::model::{Kind, NicChoice, Section};
use super::refs::{Sought, references};
use super::weigh::{Known, Metric};
use crate::causes;
use crate::finding::{Finding, Status};

/// Shares of what was expected that are "about half"; the guide's case is 0.37 (combine) to 0.51 (dispatch) of its samples.
const HALF: std::ops::RangeInclusive<f64> = 0.30..=0.65;

/// A share of the NIC up to which its ranks must be sharing it: an eighth, and a quarter of that above.
const SHARED: f64 = 0.156;

pub(super) fn findings(known: &Known<'_>, metrics: &[Metric]) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(slow_instructions(known, metrics));
    all.extend(nics(known, metrics));
    all
}

/// Share of what this GPU gives at these settings, whatever the versions.
fn share(known: &Known<'_>, metric: &Metric) -> Option<f64> {
    let settings = known.settings(metric.section);
    let figure = known.run.figures.iter().find(|figure| {
        figure.place == metric.place && figure.op == metric.op && figure.dtype == metric.dtype
    })?;
    let mut figure = figure.clone();
    figure.sms = metric.sms;
    let sought = Sought {
        run: known.run,
        figure: &figure,
        settings: &settings,
        engine: &known.engine,
        gpu: &known.gpu,
        arch: &known.arch,
    };
    let near = references().references.iter().find(|reference| sought.agrees(reference));
    near.map(|reference| metric.value / reference.least()).or(metric.share)
}

fn slow_instructions(known: &Known<'_>, metrics: &[Metric]) -> Option<Finding> {
    if !matches!(known.run.kind, Kind::Guide | Kind::Intranode)
        || !matches!(known.arch.as_str(), "sm100" | "sm103")
    {
        return None;
    }
    let inside: Vec<&Metric> = metrics
        .iter()
        .filter(|metric| {
            metric.section == Section::Intranode && matches!(metric.op.as_str(), "dispatch" | "combine")
        })
        .collect();
    let first = inside.first()?;
    let half = inside.iter().all(|metric| share(known, metric).is_some_and(|share| HALF.contains(&share)));
    // Between nodes it is no slower: else something else is wrong, too.
    let between: Vec<&Metric> =
        metrics.iter().filter(|metric| metric.section == Section::Internode).collect();
    if !half || between.iter().any(|metric| !matches!(metric.status, Status::Pass | Status::Unknown)) {
        return None;
    }
    let normal =
        if between.is_empty() { "between nodes nothing is known" } else { "between nodes it is normal" };
    let shares: Vec<String> = inside
        .iter()
        .filter_map(|metric| {
            share(known, metric)
                .map(|share| format!("{} {:.1} ({:.0} %)", metric.op, metric.value, share * 100.0))
        })
        .collect();
    Some(
        finding("J012")
            .about(known.gpu.clone())
            .outcome(Status::Fail, causes::get("aggressive-ptx-off")?)
            .saw(
                format!("inside nodes {}, alike on all, and {normal}: a build without the aggressive PTX instructions, no fault of hardware or fabric", shares.join(", ")),
                "a build with them",
            )
            .line(&first.place)
            .remedy(
                "Rebuild DeepEP with setup.py's gate to architecture 9.0 taken out, then run again.",
                &["DISABLE_AGGRESSIVE_PTX_INSTRS=0 TORCH_CUDA_ARCH_LIST=10.0 python setup.py build_ext --inplace"],
            ),
    )
}

/// Several ranks that took one device, if NVSHMEM says so.
fn one_device(nics: &[NicChoice]) -> Option<&NicChoice> {
    let devices: BTreeSet<u64> = nics.iter().map(|nic| nic.device).collect();
    if nics.len() > 1 && devices.len() == 1 { nics.first() } else { None }
}

fn nics(known: &Known<'_>, metrics: &[Metric]) -> Option<Finding> {
    let chosen = one_device(&known.run.nics);
    let settings = known.settings(Section::Internode);
    // The guide is about two nodes and more with 400 Gb/s a GPU; what NVSHMEM says of its devices is of several nodes, too. With
    // more nodes more of the figure is on the wire, so that two are the careful guess.
    let told = known.run.kind == Kind::Guide || chosen.is_some() || known.run.planes.is_some();
    let nodes = settings.node_count().or(told.then_some(2));
    let nodes = usize::try_from(nodes?).ok().filter(|nodes| *nodes > 1)?;
    let nic = known.links.scale_out.or(told.then_some(50.0))?;
    let worst = metrics
        .iter()
        .filter(|metric| {
            matches!(metric.section, Section::Internode | Section::LowLatency)
                && matches!(metric.op.as_str(), "dispatch" | "combine")
                && !matches!(metric.status, Status::Pass | Status::NotApplicable)
        })
        .map(|metric| {
            let share = (nodes as f64 - 1.0) / nodes as f64;
            (metric, metric.wire_gb_s.unwrap_or(metric.value * share))
        })
        .min_by(|(_, a), (_, b)| a.total_cmp(b));
    let (metric, wire) = worst?;
    let offset = known
        .run
        .hca_offset
        .as_ref()
        .map_or(String::new(), |(offset, _)| format!("; ranks take mlx5_(local rank + {offset})"));
    let per = usize::try_from(settings.ranks_per_node.unwrap_or(8)).unwrap_or(8);
    let shared = SharedNic::new(nic, per, nodes);
    if wire <= nic * SHARED {
        let (id, more) = match chosen {
            Some(nic) if nic.mapping => (
                "pe-mapping-with-uid-bootstrap",
                format!("; NVSHMEM says device {} on every rank ({})", nic.device, nic.place),
            ),
            Some(nic) => (
                "hca-list-wrong-device",
                format!("; NVSHMEM says device {} on every rank ({})", nic.device, nic.place),
            ),
            None => ("hca-list-wrong-device", String::new()),
        };
        return Some(
            finding("J013")
                .about(metric.name.clone())
                .outcome(Status::Fail, causes::get(id)?)
                .saw(
                    format!(
                        "{:.1} GB/s printed, {wire:.1} on the wire of a NIC of {nic:.0}: {per} ranks on one NIC would print {:.1}, on a slower frontend less{offset}{more}",
                        metric.value,
                        shared.printed_gb_s.unwrap_or(shared.wire_gb_s)
                    ),
                    "each rank on the NIC of its GPU",
                )
                .line(&metric.place)
                .remedy(
                    "Take each rank's NIC from the topology of the node, set NVSHMEM_HCA_LIST in each rank before deep_ep.Buffer(), and correct NVSHMEM_HCA_OFFSET.",
                    &["expertrail topo"],
                ),
        );
    }
    let of_nic = || {
        let transport = settings.transport.clone().unwrap_or_default();
        let prior = references().prior(&known.engine, "scale-out", &known.arch, &transport)?;
        Some(wire / (nic * prior.low))
    };
    let half = share(known, metric).or_else(of_nic).is_some_and(|share| HALF.contains(&share));
    if !half {
        return None;
    }
    let planes = (known.arch == "sm103" || known.run.planes.is_some()) && known.run.kind != Kind::V2;
    let (id, text) = match chosen {
        Some(nic) if nic.mapping => (
            "pe-mapping-with-uid-bootstrap",
            format!("; NVSHMEM says device {} on several ranks ({})", nic.device, nic.place),
        ),
        Some(nic) => (
            "nic-shared-by-two-gpus",
            format!("; NVSHMEM says device {} on several ranks ({})", nic.device, nic.place),
        ),
        None if planes => (
            "multi-plane-unused",
            "; V1 kernels use one of a GPU's two planes, if its NIC has two".to_owned(),
        ),
        None => (
            "nic-shared-by-two-gpus",
            "; the figures alone do not tell it from a link at half rate: the counters of each NIC do"
                .to_owned(),
        ),
    };
    Some(
        finding("J014")
            .about(metric.name.clone())
            .outcome(Status::Warn, causes::get(id)?)
            .saw(format!("{:.1} GB/s printed, {wire:.1} on the wire of a NIC of {nic:.0}, about half of what is usual{offset}{text}", metric.value), "every NIC in use")
            .line(&metric.place)
            .remedy("See which NIC each rank takes, and whether the counters of all NICs move.", &["expertrail topo", "expertrail check"]),
    )
}
