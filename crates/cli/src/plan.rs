//! `expertrail plan`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use expertrail::Dtype;
use expertrail_bench::preset::{self as presets, PRESETS, Preset, Scope, parse_dtype};
use expertrail_cluster::plan::{
    self, Chunks, CombineType, Document, Engine, LinkArgs, Links, Mode, Plan, Request, Routing, Settings,
    SweptOver,
};
use expertrail_cluster::profile;

use crate::node::{Stop, check_output, finish, print, write_output};

/// What is to run.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineName {
    /// This project's library.
    Expertrail,
    /// DeepEP's Buffer at 567632d.
    DeepepV1,
    /// DeepEP's `ElasticBuffer` at dd758ca.
    DeepepV2,
}

/// What combine moves.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CombineName {
    /// BF16.
    Bf16,
    /// DeepEP's 10-bit logarithmic format, LL mode only.
    Logfmt,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(
    after_help = "A figure is what a tool prints, with that tool's own way of counting; ceilings are the roofline's, expected ranges are shares\n\
    of it that were published or measured. Exit codes: 0 nothing is refused, 1 a rule of the engine refuses it, 2 bad arguments,\n\
    4 no access, 5 warnings under --strict."
)]
pub(crate) struct PlanArgs {
    /// Workload; every size below overrides its part: deepseek-v3, decode, guide-intranode, guide-internode, quick.
    #[arg(long, value_parser = |name: &str| name.parse::<Preset>().map_err(|e| e.to_string()))]
    preset: Option<Preset>,
    /// Nodes [default: the preset's, or 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    nodes: Option<u32>,
    /// GPUs of each node, one rank each.
    #[arg(long, value_name = "G", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    gpus_per_node: u32,
    /// GPU, for the rate of NVLink: h100, h200, h800, b200, b300, gb200, gb300, a100.
    #[arg(long)]
    gpu: Option<String>,
    /// NIC of each GPU: cx7-400, cx7-200, cx6-200, cx8-800, bf3-400, efa-p5, efa-p5en, efa-p6-b200, efa-p6-b300.
    #[arg(long)]
    nic: Option<String>,
    /// Provider profile (a name, or a JSON file), for both rates.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// One-way NVLink GB/s of a GPU, instead of the product's.
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true)]
    nvlink_gb_s: Option<f64>,
    /// NIC GB/s of a GPU, instead of the product's.
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true)]
    nic_gb_s: Option<f64>,
    /// GB/s of the frontend NIC that a wrong pin may choose [default: half of a rail].
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true)]
    frontend_gb_s: Option<f64>,
    /// Fixed time of a call, microseconds, in the time floors.
    #[arg(long, value_name = "US", default_value_t = 0.0, allow_negative_numbers = true)]
    alpha_us: f64,
    /// Tokens of each rank.
    #[arg(long)]
    tokens: Option<usize>,
    /// Elements of a row.
    #[arg(long)]
    hidden: Option<usize>,
    /// Experts chosen for a token.
    #[arg(long)]
    top_k: Option<usize>,
    /// Experts in all.
    #[arg(long)]
    experts: Option<usize>,
    /// Groups of experts of group-limited routing.
    #[arg(long, value_name = "N", requires = "top_groups", conflicts_with = "with_replacement")]
    groups: Option<usize>,
    /// Groups that a token may use.
    #[arg(long, value_name = "M", requires = "groups")]
    top_groups: Option<usize>,
    /// A token may draw an expert twice [default: the preset's, or false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    with_replacement: Option<bool>,
    /// ht (high throughput) or ll (low latency) [default: the preset's, or ht].
    #[arg(long, value_parser = |t: &str| t.parse::<presets::Mode>().map_err(|e| e.to_string()))]
    mode: Option<presets::Mode>,
    /// What dispatch moves: bf16, or fp8 with a scale for 128 elements [default: the preset's, or bf16].
    #[arg(long, value_parser = |t: &str| parse_dtype(t).map_err(|e| e.to_string()))]
    dtype: Option<Dtype>,
    /// What combine moves.
    #[arg(long, value_enum, default_value = "bf16")]
    combine_dtype: CombineName,
    /// In LL mode, copies inside a node go through the NIC, too.
    #[arg(long)]
    no_ll_nvlink: bool,
    /// What is to run: its limits and its memory.
    #[arg(long, value_enum, default_value = "expertrail")]
    engine: EngineName,
    /// SMs of a call.
    #[arg(long, value_name = "N")]
    sms: Option<usize>,
    /// DeepEP V1: `num_qps_per_rank` [default: 24; in LL mode the local experts].
    #[arg(long, value_name = "N")]
    qps: Option<usize>,
    /// DeepEP V1: `NVSHMEM_QP_DEPTH` [default: 1024].
    #[arg(long, value_name = "N")]
    qp_depth: Option<usize>,
    /// DeepEP V1: Config's four chunk sizes: NVLink send and receive, RDMA send and receive [default: its table's].
    #[arg(long, value_name = "A,B,C,D", value_parser = chunks)]
    chunks: Option<Chunks>,
    /// DeepEP V1: `num_nvl_bytes` [default: its size hint; with the guide's presets the guide's].
    #[arg(long, value_name = "BYTES")]
    nvl_bytes: Option<u64>,
    /// DeepEP V1: `num_rdma_bytes` [default: its size hint; with the guide's presets the guide's].
    #[arg(long, value_name = "BYTES")]
    rdma_bytes: Option<u64>,
    /// expertrail: outputs alive at once [default: 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    live_outputs: Option<u32>,
    /// Plan for several values, as nodes=2,4,8,16 (nodes, gpus-per-node, tokens, hidden, top-k or experts).
    #[arg(long, value_name = "WHAT=A,B,...", value_parser = sweep)]
    sweep: Option<SweptOver>,
    /// Read a printed number with a figure's own accounting, as deepep-v1-rdma/dispatch=43 (ids are in the JSON).
    #[arg(long, value_name = "FIGURE/OP=GB/S", value_parser = printed, conflicts_with = "sweep")]
    printed: Vec<Printed>,
    /// Warnings make the exit code 5.
    #[arg(long)]
    strict: bool,
    /// Write the plan (expertrail.plan/1) here; - is standard output, and then nothing else goes there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts, one file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A number that a tool printed.
#[derive(Clone, Debug)]
struct Printed {
    figure: String,
    operation: String,
    gb_s: f64,
}

fn printed(text: &str) -> Result<Printed, String> {
    let wanted = || "FIGURE/OPERATION=GB/s wanted, as deepep-v1-rdma/dispatch=43".to_owned();
    let (name, number) = text.split_once('=').ok_or_else(wanted)?;
    let (figure, operation) = name.split_once('/').ok_or_else(wanted)?;
    match number.parse::<f64>() {
        Ok(gb_s) if gb_s.is_finite() && gb_s > 0.0 => {
            Ok(Printed { figure: figure.to_owned(), operation: operation.to_owned(), gb_s })
        }
        _ => Err(wanted()),
    }
}

fn chunks(text: &str) -> Result<Chunks, String> {
    let numbers: Option<Vec<usize>> =
        text.split(',').map(|n| n.trim().parse::<u32>().ok().map(|n| n as usize)).collect();
    match numbers.as_deref() {
        Some(&[nvl_send, nvl_recv, rdma_send, rdma_recv]) => {
            Ok(Chunks { nvl_send, nvl_recv, rdma_send, rdma_recv })
        }
        _ => Err("four whole numbers wanted, as 36,288,20,128".to_owned()),
    }
}

/// What a sweep may go through.
const SWEPT: [&str; 6] = ["nodes", "gpus-per-node", "tokens", "hidden", "top-k", "experts"];
/// Plans of a sweep.
const MOST_SWEPT: usize = 64;

fn sweep(text: &str) -> Result<SweptOver, String> {
    let wanted = || format!("WHAT=A,B,... wanted, as nodes=2,4,8,16; WHAT is one of {}", SWEPT.join(", "));
    let (parameter, values) = text.split_once('=').ok_or_else(wanted)?;
    if !SWEPT.contains(&parameter) {
        return Err(wanted());
    }
    let values: Option<Vec<usize>> =
        values.split(',').map(|n| n.trim().parse().ok().filter(|n| *n > 0)).collect();
    match values {
        Some(values) if values.len() <= MOST_SWEPT => {
            Ok(SweptOver { parameter: parameter.to_owned(), values })
        }
        Some(_) => Err(format!("at most {MOST_SWEPT} values wanted")),
        None => Err(wanted()),
    }
}

/// Runs the command; gives the exit code.
pub(crate) fn main(args: &PlanArgs) -> u8 {
    finish(run(args))
}

fn run(args: &PlanArgs) -> Result<u8, Stop> {
    check_output(args.json.as_deref())?;
    check_output(args.html.as_deref())?;
    let request = args.request()?;
    let document = match &args.sweep {
        Some(swept) => over(&request, swept)?,
        None => {
            Document::new(vec![plan::plan(&request).map_err(|error| Stop::usage(error.to_string()))?], None)
        }
    };
    let mut text = plan::text(&document);
    if let Some(plan) = document.plans.first().filter(|_| !args.printed.is_empty()) {
        text.push_str(&readings(plan, &args.printed)?);
    }
    if let Some(file) = &args.html {
        write_output(file, &plan::html(&document))?;
    }
    if let Some(file) = &args.json {
        let json =
            serde_json::to_string_pretty(&document).map_err(|error| Stop::access(error.to_string()))?;
        write_output(file, &(json + "\n"))?;
    }
    // Standard output holds one thing.
    let taken = |file: &Option<PathBuf>| file.as_deref() == Some(Path::new("-"));
    if !taken(&args.json) && !taken(&args.html) {
        print(&text)?;
    }
    Ok(document.exit_code(args.strict))
}

/// A plan for each value of a sweep.
fn over(request: &Request, swept: &SweptOver) -> Result<Document, Stop> {
    let one = |&value: &usize| {
        plan::plan(&with(request, &swept.parameter, value))
            .map_err(|error| Stop::usage(format!("{} {value}: {error}", swept.parameter)))
    };
    let plans: Result<Vec<Plan>, Stop> = swept.values.iter().map(one).collect();
    Ok(Document::new(plans?, Some(swept.clone())))
}

/// `request` with one value changed.
fn with(request: &Request, parameter: &str, value: usize) -> Request {
    let mut request = request.clone();
    match parameter {
        "nodes" => request.nodes = value,
        "gpus-per-node" => request.gpus_per_node = value,
        "tokens" => request.tokens = value,
        "hidden" => request.hidden = value,
        "top-k" => request.top_k = value,
        _ => request.experts = value,
    }
    request
}

fn readings(plan: &Plan, printed: &[Printed]) -> Result<String, Stop> {
    let mut out = String::from("\nPrinted numbers, read with each figure's own accounting:\n");
    for Printed { figure: id, operation, gb_s } in printed {
        let figure = plan.figure(id, operation).ok_or_else(|| {
            let known: Vec<String> =
                plan.figures.iter().map(|figure| format!("{}/{}", figure.id, figure.operation)).collect();
            Stop::usage(format!("--printed {id}/{operation}: this plan has {}", known.join(", ")))
        })?;
        let r = figure.reading(*gb_s, &plan.links);
        let share = |share: Option<f64>| share.map_or(String::new(), |s| format!(" ({:.1} %)", s * 100.0));
        let _ = write!(
            out,
            "  {} {operation} {gb_s} GB/s: {:.1} µs; NIC {:.2} GB/s{}, NVLink {:.2} GB/s{}",
            figure.tool,
            r.time_us,
            r.scale_out_gb_s,
            share(r.scale_out_share),
            r.scale_up_gb_s,
            share(Some(r.scale_up_share))
        );
        let _ = match r.of_ceiling {
            Some(of) if of > 1.05 => {
                writeln!(
                    out,
                    "; {:.0} % of the ceiling: the measurement or its accounting is wrong",
                    of * 100.0
                )
            }
            Some(of) => writeln!(out, "; {:.0} % of the ceiling", of * 100.0),
            None => writeln!(out),
        };
    }
    Ok(out)
}

impl PlanArgs {
    fn request(&self) -> Result<Request, Stop> {
        let preset = self.preset;
        let mut missing = Vec::new();
        let mut size = |name: &'static str, given: Option<usize>, of: fn(&Preset) -> usize| {
            given.or(preset.as_ref().map(of)).unwrap_or_else(|| {
                missing.push(name);
                0
            })
        };
        let tokens = size("--tokens", self.tokens, |p| p.tokens);
        let hidden = size("--hidden", self.hidden, |p| p.hidden);
        let top_k = size("--top-k", self.top_k, |p| p.top_k);
        let experts = size("--experts", self.experts, |p| p.experts);
        if !missing.is_empty() {
            return Err(Stop::usage(format!(
                "{} wanted, or a --preset: {}",
                missing.join(", "),
                PRESETS.map(|p| p.name).join(", ")
            )));
        }
        // A preset of one group per node is a plan of one node, however many run it at once.
        let inside = preset.is_some_and(|p| p.scope == Scope::Node);
        if let (true, Some("nodes")) = (inside, self.sweep.as_ref().map(|swept| swept.parameter.as_str())) {
            return Err(Stop::usage(
                "--sweep nodes: this preset has one group for each node, so nodes change nothing; sweep gpus-per-node",
            ));
        }
        let nodes = self.nodes.map_or(preset.map_or(1, |p| p.nodes), |nodes| nodes as usize);
        let mode = self.mode.or(preset.map(|p| p.mode)).unwrap_or(presets::Mode::Ht);
        Ok(Request {
            nodes: if inside { 1 } else { nodes },
            gpus_per_node: self.gpus_per_node as usize,
            links: self.links()?,
            frontend_gb_s: self.frontend()?,
            alpha_us: self.alpha_us,
            tokens,
            hidden,
            top_k,
            experts,
            routing: self.routing(preset.is_some_and(|p| p.with_replacement)),
            mode: match mode {
                presets::Mode::Ht => Mode::Ht,
                presets::Mode::Ll => Mode::Ll,
            },
            fp8: self.dtype.or(preset.map(|p| p.dtype)) == Some(Dtype::Fp8E4m3),
            combine: match self.combine_dtype {
                CombineName::Bf16 => CombineType::Bf16,
                CombineName::Logfmt => CombineType::Logfmt,
            },
            ll_without_nvlink: self.no_ll_nvlink,
            engine: match self.engine {
                EngineName::Expertrail => Engine::Expertrail,
                EngineName::DeepepV1 => Engine::DeepepV1,
                EngineName::DeepepV2 => Engine::DeepepV2,
            },
            settings: self.settings(),
        })
    }

    fn routing(&self, preset_replaces: bool) -> Routing {
        match (self.groups, self.top_groups) {
            (Some(groups), Some(chosen)) => Routing::Groups { groups, chosen },
            _ if self.with_replacement.unwrap_or(preset_replaces) => Routing::WithReplacement,
            _ => Routing::Uniform,
        }
    }

    fn settings(&self) -> Settings {
        let guide = self.preset.filter(|p| p.name.starts_with("guide-"));
        let v1 = matches!(self.engine, EngineName::DeepepV1);
        // The guide's script: 40 SMs inside a node, 20 across.
        let guide_sms = guide.filter(|_| v1).map(|p| if p.scope == Scope::Node { 40 } else { 20 });
        Settings {
            sms: self.sms.or(guide_sms),
            qps: self.qps,
            qp_depth: self.qp_depth,
            chunks: self.chunks,
            nvl_bytes: self.nvl_bytes,
            rdma_bytes: self.rdma_bytes,
            live_outputs: self.live_outputs.map(|outputs| outputs as usize),
            guide_buffers: guide.is_some() && v1,
        }
    }

    fn links(&self) -> Result<Links, Stop> {
        let profile = self.profile.as_deref().map(profile::get).transpose();
        let profile = profile.map_err(|error| match error {
            profile::ProfileError::Read { .. } => Stop::access(error.to_string()),
            _ => Stop::usage(error.to_string()),
        })?;
        let links = LinkArgs {
            gpu: self.gpu.as_deref(),
            nic: self.nic.as_deref(),
            nvlink_gb_s: self.nvlink_gb_s,
            nic_gb_s: self.nic_gb_s,
            profile: profile.as_ref(),
        };
        links.resolve().map_err(|error| Stop::usage(error.to_string()))
    }

    fn frontend(&self) -> Result<Option<f64>, Stop> {
        match self.frontend_gb_s {
            Some(gb_s) if !(gb_s.is_finite() && gb_s > 0.0) => {
                Err(Stop::usage(format!("--frontend-gb-s {gb_s}: a positive number wanted")))
            }
            given => Ok(given),
        }
    }
}
