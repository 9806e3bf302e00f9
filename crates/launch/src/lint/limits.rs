//! What the engine itself refuses: the rules of `expertrail plan`, over the shape that a launch has.

use expertrail_cluster::plan::{Level, LinkArgs, LinkRate, Links, NicKind};
use expertrail_cluster::profile::Profile;

use super::counts::{node_count, per_node};
use super::finding::{Severity, Sink};
use super::script::Command;
use super::unit::{Unit, number};
use crate::run::limits::{self, Shape};
use crate::spec::{Benchmark, DeepepDriver, Workload};

/// Plan's rules that lint has as rules of its own: experts by ranks (N048), queue depth (N031).
const OWN: [&str; 3] = ["L005", "L034", "L091"];

/// GPUs of a node where nothing says how many: `DeepEP`'s tests start so many processes.
const USUAL_GPUS: u64 = 8;

/// What starts a benchmark.
struct Started<'u> {
    command: &'u Command,
    driver: DeepepDriver,
    one: Benchmark,
    gpus: Option<u64>,
    /// Names of its options for tokens, hidden, top-k and experts.
    names: [&'static str; 4],
}

pub(crate) fn check(unit: &Unit<'_>, profile: Option<&Profile>, sink: &mut Sink<'_>) {
    for one in started(unit) {
        let Some(shape) = shape(unit, profile, &one) else { continue };
        let lints = match limits::lints(&shape) {
            Ok(lints) => lints,
            Err(error) => {
                let what = format!("sizes that no engine takes: {error} ({})", one.one.name());
                sink.add("N049", unit.at(one.command.line()), what);
                continue;
            }
        };
        for lint in lints.iter().filter(|lint| !OWN.contains(&lint.id.as_str())) {
            let severity = match lint.level {
                Level::Refuse => Severity::Fail,
                Level::Warn => Severity::Note,
                Level::Note => continue,
            };
            let what =
                format!("{}: {} ({}, plan's rule {})", lint.title, lint.observed, one.one.name(), lint.id);
            sink.add("N049", unit.at(one.command.line()), what).weigh(severity).fix(&lint.remedy);
        }
    }
}

fn started<'u>(unit: &'u Unit<'_>) -> Vec<Started<'u>> {
    let mut all = Vec::new();
    for (_, command, test) in unit.deepep_tests() {
        let one = match test {
            "test_intranode.py" => Benchmark::Intranode,
            "test_internode.py" => Benchmark::Internode,
            _ => Benchmark::LowLatency,
        };
        let gpus = match command.option(&["--num-processes"]) {
            Some(word) => number(&word.text),
            None => Some(USUAL_GPUS),
        };
        let names = ["--num-tokens", "--hidden", "--num-topk", "--num-experts"];
        all.push(Started { command, driver: DeepepDriver::UpstreamTests, one, gpus, names });
    }
    let own = |command: &&Command| command.words.iter().any(|word| word.text.ends_with("deepep_bench.py"));
    for command in unit.commands.iter().filter(own) {
        let given = command.option(&["--benchmarks"]).map(|word| word.text);
        let given = given.unwrap_or_else(|| "intranode,internode".to_owned());
        for one in [Benchmark::Intranode, Benchmark::Internode, Benchmark::LowLatency] {
            if given.split(',').any(|name| name == one.name()) {
                let names = ["--tokens", "--hidden", "--top-k", "--experts"];
                all.push(Started { command, driver: DeepepDriver::Own, one, gpus: per_node(unit), names });
            }
        }
    }
    all
}

/// The shape, where it is written out; what a shell or a template fills in decides nothing.
fn shape(unit: &Unit<'_>, profile: Option<&Profile>, one: &Started<'_>) -> Option<Shape> {
    let nodes = if one.one == Benchmark::Intranode { 1 } else { node_count(unit)? };
    // A benchmark of several nodes on one is another rule's matter.
    if one.one == Benchmark::Internode && nodes < 2 {
        return None;
    }
    let size = |name: &str| -> Option<Option<u32>> {
        match one.command.option(&[name]) {
            None => Some(None),
            Some(word) => u32::try_from(number(&word.text)?).ok().map(Some),
        }
    };
    let [tokens, hidden, top_k, experts] = one.names;
    let workload = Workload {
        tokens: size(tokens)?,
        hidden: size(hidden)?,
        top_k: size(top_k)?,
        experts: size(experts)?,
        sms: if one.driver == DeepepDriver::Own { size("--sms")? } else { None },
        ..Workload::default()
    };
    Some(Shape {
        driver: one.driver,
        one: one.one,
        nodes: u32::try_from(nodes).ok()?,
        gpus: u32::try_from(one.gpus?).ok().filter(|gpus| *gpus > 0)?,
        links: links(unit, profile),
        workload,
        qp_depth: unit.value("NVSHMEM_QP_DEPTH").and_then(|depth| depth.trim().parse().ok()),
    })
}

fn links(unit: &Unit<'_>, profile: Option<&Profile>) -> Links {
    let known =
        profile.and_then(|profile| LinkArgs { profile: Some(profile), ..LinkArgs::default() }.resolve().ok());
    let mut links = known.unwrap_or_default();
    links.scale_out.get_or_insert_with(LinkRate::default);
    if unit.value("NVSHMEM_REMOTE_TRANSPORT") == Some("libfabric") {
        links.nic_kind = NicKind::Efa;
    }
    links
}
