//! Launch lint: rules of the chosen engine with the numbers put in, each with its source.

mod own;
mod v1;
mod v1_ll;
mod v2;

use super::document::{Level, Lint};
use super::request::{Engine, Mode, Request, Routing, Sizes};

/// SMs of `DeepEP` V1's class attribute `Buffer.num_sms`.
const V1_SMS: usize = 20;
/// Outputs alive at once that `Communicator::builder` provides for.
pub(super) const DEFAULT_LIVE_OUTPUTS: usize = 2;

const V1: &str = "DeepEP 567632d";
const V2: &str = "DeepEP dd758ca, ElasticBuffer";

/// Every rule: id, what it says, where it is from. An id is never used again for something else. Top-k above 32, which
/// no engine takes, is no lint: core refuses it.
pub const LINTS: &[(&str, &str, &str)] = &[
    ("L001", "rank menu inside a node", V1),
    ("L002", "GPUs of a node", V1),
    ("L003", "node menu", V1),
    ("L004", "node menu of older builds", "DeepEP forks and older builds, launch.cuh: 2, 4, 8, 16, 18, 20"),
    ("L005", "experts divide by ranks", V1),
    ("L006", "SMs are even", V1),
    ("L007", "SMs between nodes", V1),
    ("L008", "queue pairs, normal kernels", "DeepEP 567632d, internode.cu, device assertion"),
    ("L009", "RDMA buffer fits an int", V1),
    ("L010", "NVLink buffer fits an int", V1),
    ("L011", "buffers in 16-byte units fit an int", V1),
    ("L012", "buffers are multiples of 128", V1),
    ("L013", "buffers hold the chunks", "DeepEP 567632d, Config"),
    ("L014", "chunk sizes", "DeepEP 567632d, Config"),
    ("L015", "NVLink receive chunk per node", "DeepEP 567632d, internode.cu, combine"),
    (
        "L016",
        "chunks of DeepEP's own inter-node test",
        "DeepEP 567632d, tests/test_internode.py and internode.cu",
    ),
    ("L017", "row bytes, normal kernels", V1),
    ("L019", "local experts", V1),
    ("L020", "nodes that a token reaches", V1),
    ("L021", "default configuration", "DeepEP 567632d, Buffer.get_dispatch_config"),
    ("L022", "SMs of the GPU", V1),
    ("L023", "what SM80 lacks", "DeepEP 567632d, setup.py, DISABLE_SM90_FEATURES"),
    ("L030", "ranks, low-latency kernels", V1),
    ("L031", "hidden menu, low-latency kernels", V1),
    ("L032", "top-k, low-latency kernels", V1),
    ("L033", "queue pairs, low-latency kernels", V1),
    ("L034", "queue depth", "DeepEP 567632d, Buffer.low_latency_dispatch"),
    ("L035", "tokens, low-latency kernels", V1),
    ("L036", "experts, low-latency kernels", V1),
    (
        "L037",
        "low-latency kernels on EFA",
        "AWS, DeepEP benchmarks on EFA: `Max amount of libfabric retries reached`",
    ),
    ("L050", "low-latency mode of V2", V2),
    ("L051", "ranks and experts of V2", V2),
    ("L053", "row bytes of V2", V2),
    ("L054", "SMs of V2", V2),
    ("L070", "shape", "expertrail-core, Shape::check"),
    ("L071", "rows are numbered in 32 bits", "expertrail-core, Shape::check_rows"),
    ("L072", "one NVLink domain", "expertrail-cuda, assemble"),
    ("L073", "experts on GPUs", "expertrail-cuda, protocol"),
    ("L074", "SMs of a call", "expertrail-cuda, protocol"),
    ("L075", "low-latency mode", "expertrail bench: ll is not built yet"),
    ("L090", "an assumed rate", "links.json"),
    ("L091", "experts divide by ranks evenly", "expertrail-core, Placement"),
    ("L092", "settings that the engine has not", "the interface of the engine"),
];

/// SMs of a call: given, or the engine's fixed default.
pub(super) fn sms(request: &Request) -> Option<usize> {
    request.settings.sms.or(match (request.engine, request.mode) {
        (Engine::DeepepV1, Mode::Ht) => Some(V1_SMS),
        _ => None,
    })
}

/// Rules that did not hold.
pub(super) struct Rules {
    found: Vec<Lint>,
}

impl Rules {
    /// Notes rule `id` unless `holds`: the rule with its numbers, and what to change.
    fn want(&mut self, (id, level): (&str, Level), holds: bool, observed: String, remedy: &str) {
        if holds {
            return;
        }
        let (title, source) =
            LINTS.iter().find(|rule| rule.0 == id).map_or(("", ""), |rule| (rule.1, rule.2));
        self.found.push(Lint {
            id: id.to_owned(),
            level,
            title: title.to_owned(),
            observed,
            remedy: remedy.to_owned(),
            source: source.to_owned(),
        });
    }
}

/// What the chosen engine says of the settings, the worst first.
pub(super) fn lints(request: &Request, sizes: &Sizes) -> Vec<Lint> {
    let mut rules = Rules { found: Vec::new() };
    match (request.engine, request.mode) {
        (Engine::DeepepV1, Mode::Ht) => v1::lint(request, &mut rules),
        (Engine::DeepepV1, Mode::Ll) => v1_ll::lint(request, &mut rules),
        (Engine::DeepepV2, _) => v2::lint(request, &mut rules),
        (Engine::Expertrail, _) => own::lint(request, sizes, &mut rules),
    }
    assumptions(request, &mut rules);
    unused(request, &mut rules);
    rules.found.sort_by_key(|lint| lint.level);
    rules.found
}

fn assumptions(request: &Request, rules: &mut Rules) {
    let out = request.links.scale_out.as_ref().filter(|_| request.nodes > 1);
    for (name, link) in [("NVLink", Some(&request.links.scale_up)), ("NIC", out)] {
        let Some(link) = link.filter(|link| link.assumed) else { continue };
        rules.want(
            ("L090", Level::Note),
            false,
            format!("{name} of {} GB/s is assumed: {}", link.gb_s, link.source),
            "measure it, and give --nvlink-gb-s or --nic-gb-s",
        );
    }
}

/// Settings that were given and change nothing.
fn unused(request: &Request, rules: &mut Rules) {
    let v1 = request.engine == Engine::DeepepV1;
    let ht = v1 && request.mode == Mode::Ht;
    let given = &request.settings;
    let names: Vec<&str> = [
        ("--chunks", given.chunks.is_some(), ht),
        ("--nvl-bytes", given.nvl_bytes.is_some(), ht),
        ("--rdma-bytes", given.rdma_bytes.is_some(), v1),
        ("--qps", given.qps.is_some(), v1 && !(ht && request.nodes == 1)),
        ("--qp-depth", given.qp_depth.is_some(), v1 && !ht),
        ("--live-outputs", given.live_outputs.is_some(), request.engine == Engine::Expertrail),
    ]
    .into_iter()
    .filter(|(_, given, used)| *given && !used)
    .map(|(name, ..)| name)
    .collect();
    rules.want(
        ("L092", Level::Note),
        names.is_empty(),
        format!("{} changes nothing here", names.join(", ")),
        "leave it out, or plan the engine that has it",
    );
}

/// The rule that `DeepEP` has for experts and ranks in all its modes.
fn experts_divide(request: &Request, rules: &mut Rules) {
    let (experts, ranks) = (request.experts, request.ranks());
    rules.want(
        ("L005", Level::Refuse),
        experts.is_multiple_of(ranks),
        format!("experts % ranks = {experts} % {ranks} = {}, 0 wanted", experts % ranks.max(1)),
        "change the number of experts (add redundant ones) or of ranks",
    );
}

/// The most nodes that a token can have destinations on.
fn most_nodes(request: &Request) -> usize {
    let by_k = request.nodes.min(request.top_k);
    match request.routing {
        // A group of experts is a contiguous block: it covers so many nodes, and one more where it straddles.
        Routing::Groups { groups, chosen } if groups > 0 => {
            let covers = request.nodes.div_ceil(groups) + usize::from(!request.nodes.is_multiple_of(groups));
            let covers = if groups.is_multiple_of(request.nodes) { 1 } else { covers };
            by_k.min(chosen.saturating_mul(covers))
        }
        _ => by_k,
    }
}
