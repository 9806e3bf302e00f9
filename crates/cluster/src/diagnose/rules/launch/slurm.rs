//! Slurm and its containers.

use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{
    RESIDUAL, about, confident_claims, ended_well, line, text, unless_fine,
};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "slurm-node-failed",
        Role::Failure,
        &["NODE_FAIL", "NODE FAIL", "Node failure on"],
        r"state=NODE_FAIL(?:.* nodes=(?P<nodes>\S+))?|(?:JOB|STEP) \S+ ON (?P<on>\S+) CANCELLED AT \S+ DUE TO NODE FAIL\w*|Node failure on (?P<node>[\w.-]+)|DUE TO NODE FAIL\w*|\bNODE_FAIL\b",
    ),
    line(
        "slurm-time-limit-reached",
        Role::Follower,
        &["DUE TO TIME LIMIT", "TIMEOUT", "Reason=TimeLimit"],
        r"DUE TO TIME LIMIT|^sacct job=(?P<job>\S+).* state=TIMEOUT\b|\bJobState=TIMEOUT\b|^State: TIMEOUT\b|Reason=TimeLimit\b",
    ),
    // A process that answers the warning and saves is not stuck.
    line(
        "sigterm-answered",
        Role::Context,
        &["SIGTERM", "SIGUSR1"],
        r"(?i)SIG(?:TERM|USR1)\b.*(?:sav|checkpoint)",
    ),
    line(
        "sacct-failed",
        Role::Follower,
        &["sacct job="],
        r"^sacct job=.* state=(?:FAILED|BOOT_FAIL|DEADLINE|PREEMPTED)\b",
    ),
    // What tools that run jobs say of a job: that it failed, not why.
    line(
        "job-failed",
        Role::Follower,
        &["Missing success indicators", "failed"],
        r"Missing success indicators|(?i)\bjob [\w./-]+ (?:has )?failed(?:$|[:.,])",
    ),
    text("ipc-register-failed", Role::Failure, &["Failed to register remote memory"]),
    text("device-ordinal-invalid", Role::Failure, &["invalid device ordinal"]),
    text(
        "peer-access-refused",
        Role::Failure,
        &["peer access is not supported between these two devices", "cudaIpcOpenMemHandle failed"],
    ),
    line(
        "ipc-handle-invalid",
        Role::Failure,
        &["invalid resource handle", "cudaErrorInvalidResourceHandle"],
        r"(?i)(?:deep_?ep|ipc|peer|buffer|symmetric|runtime\.sync).*(?:invalid resource handle|InvalidResourceHandle)|(?:invalid resource handle|InvalidResourceHandle).*(?:ipc|peer)",
    ),
    line(
        "one-gpu-for-each-task",
        Role::Context,
        &[
            "gpus-per-task",
            "GPUS_PER_TASK",
            "gpu-bind",
            "GPU_BIND",
            "device_count",
            "visible devices: 1",
            "nvidia-smi -L | wc",
        ],
        r"nvidia-smi -L \| wc -l\W+1\s*$|gpus-per-task[= ]1\b|GPUS_PER_TASK\W+1\b|gpu[-_]bind\W+(?:single:1|per_task:1|map_gpu)|(?i)GPU_BIND\W+(?:single:1|per_task:1)|device_count(?:\(\))?\W+1\b|visible devices: 1\b",
    ),
    line(
        "one-gpu-visible-to-task",
        Role::Context,
        &["CUDA_VISIBLE_DEVICES"],
        r#"CUDA_VISIBLE_DEVICES\W{1,4}(?:\d+|GPU-[0-9a-f-]+)['"\])]*\s*(?:$|[A-Z; ])"#,
    ),
    text(
        "container-cli-missing",
        Role::Failure,
        &[
            "Command not found: nvidia-container-cli",
            "nvidia-container-cli: command not found",
            "nvidia-container-cli: not found",
        ],
    ),
    text("home-unbound", Role::Warning, &["HOME: unbound variable"]),
    text(
        "pyxis-start-failed",
        Role::Failure,
        &["pyxis: container start failed", "spank_pyxis.so: task_init() failed"],
    ),
    text("container-ldcache-failed", Role::Failure, &["ldcache error"]),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "slurm-node-failed",
        needs: &["slurm-node-failed"],
        confidence: Confidence::Certain,
        because: "Slurm lost a node of the job and ended it",
        rules_out: &["what ranks report of closed connections follows from it"],
        refine: Some(node_failed),
        ..Rule::LIKELY
    },
    Rule {
        cause: "slurm-time-limit",
        needs: &["slurm-time-limit-reached"],
        confidence: Confidence::Likely,
        because: "Slurm ended the job at its time limit",
        rules_out: &["no rank reports a failure or a wait in vain before"],
        refine: Some(time_limit),
        ..Rule::LIKELY
    },
    Rule {
        cause: "one-gpu-visible",
        any: &["ipc-register-failed", "device-ordinal-invalid", "peer-access-refused"],
        confidence: Confidence::Likely,
        because: "each task sees one GPU only, so it can neither open its neighbours' memory nor take the device of its local rank",
        rules_out: &["tasks of one node fail at each other: no network is in the way"],
        refine: Some(isolated),
        ..Rule::LIKELY
    },
    Rule {
        cause: "one-gpu-visible",
        needs: &["ipc-handle-invalid"],
        confidence: Confidence::Likely,
        because: "a handle of a neighbour's memory cannot be opened, and each task sees one GPU only: the neighbour's GPU is none of its own",
        rules_out: &["a handle from another host would fail in tasks that see all GPUs of theirs, too"],
        refine: Some(isolated_handle),
        ..Rule::LIKELY
    },
    Rule {
        cause: "enroot-nvidia-hook",
        needs: &["container-cli-missing"],
        confidence: Confidence::Certain,
        because: "the container's NVIDIA hook fails: nvidia-container-cli is not installed on that node",
        rules_out: &[
            "the last line (spank, task_init) is the same for every failure of Pyxis; the cause is in the middle of the block",
        ],
        refine: Some(hook),
        ..Rule::LIKELY
    },
    Rule {
        cause: "enroot-nvidia-hook",
        any: &["container-ldcache-failed", "pyxis-start-failed"],
        unless: &["container-cli-missing"],
        confidence: Confidence::Possible,
        because: "a container does not start, and a hook of the container runtime is at fault on the nodes that say so; why does not show",
        refine: Some(other_hook),
        ..Rule::LIKELY
    },
];

fn node_failed(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = about(case, claim, "nodes");
    let claim = if claim.subject.is_none() { about(case, claim, "node") } else { claim };
    let claim = if claim.subject.is_none() { about(case, claim, "on") } else { claim };
    unless_fine(case, claim)
}

/// Seconds without any sign of a run after which it may hang: steps, checkpoints and requests come more often.
const SILENT: f64 = 3600.0;

fn time_limit(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("slurm-time-limit-reached")?;
    if ended_well(case, event) || !confident_claims(case, RESIDUAL).is_empty() {
        return None;
    }
    let harmless = [
        "slurm-cancelled",
        "slurm-time-limit-reached",
        "sigterm",
        "srun-task-exit",
        "mpi-boilerplate",
        "sacct-failed",
        "job-failed",
    ];
    let trouble = case.events.iter().any(|other| {
        matches!(other.role, Role::Failure | Role::Follower)
            && !harmless.contains(&other.signal)
            && other.before(event) == Some(true)
    });
    let stepped =
        case.events.iter().any(|step| step.role == Role::Progress && step.before(event) == Some(true));
    // Hours without a line that means anything are those of a hang, as far as the logs go.
    let silence = event
        .field("silence")
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|silence| *silence >= SILENT && !case.has("sigterm-answered"));
    if let Some(silence) = silence.filter(|_| !trouble) {
        claim.confidence = Confidence::Possible;
        claim.because = format!(
            "Slurm ended the job at its time limit, {:.1} hours after the line before it: it may have hung all that time",
            silence / 3600.0
        );
        claim.rules_out.clear();
        claim.next = Some(
            "what the ranks did in that time: their own output, or `py-spy dump --pid <pid>` in a new run"
                .to_owned(),
        );
    } else if trouble {
        claim.confidence = Confidence::Possible;
        claim.because = "Slurm ended the job at its time limit, after ranks had reported trouble: the limit is the end of a hang, not its cause".into();
        claim.rules_out.clear();
        claim.next = Some("what the first rank that stopped was doing: its own output, or `py-spy dump --pid <pid>` in a new run".to_owned());
    } else if stepped {
        claim.confidence = Confidence::Certain;
    }
    Some(about(case, claim, "job"))
}

fn isolated_handle(case: &Case, mut claim: Claim) -> Option<Claim> {
    if case.has_any(&["ipc-register-failed", "device-ordinal-invalid", "peer-access-refused"]) {
        return None;
    }
    let several = case.per_node.is_some_and(|per| per > 1) || case.ranks_seen.len() > 1;
    let shown = case
        .first("one-gpu-for-each-task")
        .or_else(|| case.first("one-gpu-visible-to-task").filter(|_| several))?;
    claim.evidence.push(shown.place);
    unless_fine(case, claim.about("CUDA_VISIBLE_DEVICES"))
}

fn isolated(case: &Case, mut claim: Claim) -> Option<Claim> {
    let binding = case.first("one-gpu-for-each-task");
    let visible = case.first("one-gpu-visible-to-task");
    let several = case.per_node.is_some_and(|per| per > 1) || case.ranks_seen.len() > 1;
    match (binding, visible) {
        (Some(_), _) => {}
        (None, Some(_)) if several => {}
        _ => {
            claim.confidence = Confidence::Possible;
            claim.because = "a task cannot reach the GPU that it asks for: it may see one GPU only".into();
            claim.rules_out.clear();
            claim.next = Some("what each task sees: `srun bash -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES; nvidia-smi -L'` with the job's options".to_owned());
        }
    }
    claim.evidence.extend(binding.or(visible).map(|event| event.place));
    unless_fine(case, claim.about("CUDA_VISIBLE_DEVICES"))
}

fn hook(case: &Case, mut claim: Claim) -> Option<Claim> {
    if let Some(home) = case.first("home-unbound") {
        claim.evidence.push(home.place);
        claim.because.push_str(
            "; apart from that HOME is not set in the task (`--export` names variables and leaves it out)",
        );
    }
    let nodes: Vec<_> = case.nodes("container-cli-missing").into_iter().collect();
    if !nodes.is_empty() {
        claim.subject = Some(nodes.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", "));
    }
    unless_fine(case, claim)
}

fn other_hook(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = claim.next(
        "which nodes fail and which do not, by starting the image once on each: `srun -N <nodes> --ntasks-per-node=1 --container-image=<image> true`",
    );
    unless_fine(case, claim)
}
