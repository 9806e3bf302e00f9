//! Lines that many rules ask for: versions, banners, progress, success, followers.

use crate::diagnose::event::Role::{Context, Follower, Progress, Success, Warning};
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Confidence, Rule};

/// A signal of literals alone.
const fn text(id: &'static str, role: Role, any: &'static [&'static str]) -> Signal {
    Signal { id, any, pattern: None, role }
}

/// A signal with a pattern.
const fn with(id: &'static str, role: Role, any: &'static [&'static str], pattern: &'static str) -> Signal {
    Signal { id, any, pattern: Some(pattern), role }
}

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    // --- what is there ---
    // The host library that loaded, as each PE prints it; field `version`.
    with("nvshmem-banner", Context, &["NVSHMEM v"], r"NVSHMEM v(?<version>\d+\.\d+\.\d+)"),
    // The version of NCCL that loaded; field `version`.
    with("nccl-version", Context, &["NCCL version "], r"NCCL version (?<version>\d+\.\d+(?:\.\d+)?)"),
    // First line of the guide's benchmark; fields `nodes`, `gpus`.
    with(
        "guide-banner",
        Context,
        &["DeepEP Benchmark: "],
        r"DeepEP Benchmark: (?<nodes>\d+) nodes, (?<gpus>\d+) GPUs",
    ),
    // Settings of a test of DeepEP.
    text("deepep-config", Context, &["[config] num_tokens="]),
    // A communicator of NCCL is up; fields `comm_rank`, `nranks`.
    with(
        "nccl-init-complete",
        Context,
        &["Init COMPLETE"],
        r"rank (?<comm_rank>\d+) nranks (?<nranks>\d+).*Init COMPLETE",
    ),
    // --- how far a rank came ---
    // The pod's script is about to start the ranks.
    text("torchrun-start", Progress, &["=== Starting torchrun ===", "Starting torchrun"]),
    // The intra-node part of the guide's benchmark begins.
    text("guide-intra-start", Progress, &["--- Intra-node DeepEP"]),
    // The inter-node part of the guide's benchmark begins.
    text("guide-inter-start", Progress, &["--- Inter-node DeepEP"]),
    // A step of training, a warm-up or a benchmark; fields `iter` and, where known, `of`.
    with(
        "iteration",
        Progress,
        &[
            "iteration",
            "Iteration",
            "iter ",
            "Iter ",
            "step ",
            "Step ",
            "step:",
            "step=",
            "step: ",
            "warmup ",
            "Warmup ",
        ],
        r"(?i)\b(?:iteration|iter|step|global[_ ]step|warmup)(?:\s+|\s*[:=]\s*)(?<iter>\d+)\b(?:\s*(?:/|of)\s*(?<of>\d+))?",
    ),
    // A rank enters a layer, a dispatch or a forward pass and says so.
    with(
        "layer-enter",
        Progress,
        &[
            "ntering layer",
            "ntering dispatch",
            "ntering MoE",
            "ntering forward",
            "nter dispatch",
            "nter layer",
            "before dispatch",
        ],
        r"(?i)(?:\benter(?:ing|ed|s)?|\bbefore) (?<what>layer ?\d*|dispatch|moe|forward)",
    ),
    // A test of DeepEP starts; fields `dtype`, `topk` (with or without).
    with(
        "deepep-testing",
        Progress,
        &["[testing] Running with "],
        r"\[testing\] Running with (?<dtype>\w+), (?<topk>with|without) top-k",
    ),
    // Kernels are compiled, captured or warmed up on this rank, others may wait.
    with(
        "jit-progress",
        Progress,
        &[
            "JIT Pre-Compile",
            "DeepGEMM warmup",
            "Capture cuda graph",
            "Capturing CUDA graph",
            "Capturing batches",
            "Compiling a graph",
            "torch.compile takes",
            "Compiling kernel",
            "compiling kernel",
            "Building extension module",
            "Autotuning",
            "autotuning",
        ],
        r"(?:(?<percent>\d+)%\||)",
    ),
    // A progress bar; field `percent`.
    with(
        "progress-bar",
        Progress,
        &["%|  ", "%|# ", "%|##", "%|▏", "%|▎", "%|▍", "%|▌", "%|▋", "%|▊", "%|▉", "%|█", "%|━", "%|=="],
        r"(?<percent>\d+)%\|",
    ),
    // The model's weights are read.
    text(
        "model-loading",
        Progress,
        &[
            "Loading safetensors checkpoint shards",
            "Loading checkpoint shards",
            "Load weight begin",
            "Load weight end",
            "Loading weights took",
            "Starting to load model",
            "loading checkpoint from",
            "Loading checkpoint from",
        ],
    ),
    // A server takes requests.
    text("serving-batch", Progress, &["Prefill batch", "Decode batch"]),
    // --- what ended well ---
    // A test of DeepEP passed; fields `dtype`, `topk`.
    with(
        "deepep-test-passed",
        Success,
        &["[testing] Running with "],
        r"\[testing\] Running with (?<dtype>\w+), (?<topk>with|without) top-k.*\.\.\. passed",
    ),
    // The best setting of a tuning run of DeepEP; fields `phase`, `gbs`.
    with(
        "deepep-tuning-best",
        Success,
        &["[tuning] Best "],
        r"\[tuning\] Best (?<phase>dispatch|combine).*?(?<gbs>[\d.]+) GB/s",
    ),
    // A figure of DeepEP's low-latency test; field `gbs`.
    with(
        "deepep-bandwidth",
        Success,
        &["andwidth: "],
        r"(?:Dispatch|Combine|combine) bandwidth: (?<gbs>[\d.]+) GB/s",
    ),
    // A figure line of the guide's benchmark; fields `dispatch`, `combine`, `total`.
    with(
        "guide-figures",
        Success,
        &["GB/s, total="],
        r"dispatch=(?<dispatch>[\d.]+) GB/s, combine=(?<combine>[\d.]+) GB/s, total=(?<total>[\d.]+) GB/s",
    ),
    // A part of the guide's benchmark failed; its script goes on and ends with 0. Fields `part`, `error`.
    with(
        "guide-section-error",
        Role::Failure,
        &["INTRA ERROR:", "INTER ERROR:"],
        r"(?<part>INTRA|INTER) ERROR: ?(?<error>.*)",
    ),
    // The guide's benchmark ran to its end (also with a part that failed).
    text("guide-complete", Progress, &["DeepEP benchmark complete."]),
    // nccl-tests verified its results.
    with("nccl-tests-ok", Success, &["# Out of bounds values"], r"# Out of bounds values\s*:\s*0 OK"),
    // It found values that are wrong; field `wrong`.
    with(
        "nccl-tests-wrong",
        Role::Failure,
        &["# Out of bounds values"],
        r"# Out of bounds values\s*:\s*(?<wrong>[1-9]\d*)\b",
    ),
    // nccl-tests gave its average; field `gbs`.
    with("nccl-tests-busbw", Success, &["# Avg bus bandwidth"], r"# Avg bus bandwidth\s*:\s*(?<gbs>[\d.]+)"),
    // The bench of Expertrail verified its rows; see `expertrail bench`.
    text("expertrail-bench-pass", Success, &["verdict: PASS"]),
    // The last of the configured steps is done; fields `iter`, `of`.
    with(
        "iterations-done",
        Success,
        &["iteration", "Iteration", "iter ", "Iter ", "step ", "Step ", "step:", "steps", "Steps"],
        r"(?i)(?:\b(?:iteration|iter|step|steps|iterations)(?:\s+|\s*[:=]\s*)(?<iter>\d+)\s*(?:/|of)\s*(?<of>\d+)\b|(?<iter2>\d+)\s*(?:/|of)\s*(?<of2>\d+) (?:iterations|steps)\b)",
    ),
    // A training run says that it ended.
    with(
        "training-finished",
        Success,
        &[
            "raining completed",
            "raining complete.",
            "raining complete!",
            "raining finished",
            "[after training is done]",
            "stopped: `max_steps",
            "Benchmark summary written",
            "benchmark_summary.json",
        ],
        r"(?i)training (?:completed?|finished)|after training is done|stopped: `max_steps|summary written|(?:wrote|written|saved).*benchmark_summary\.json|benchmark_summary\.json.*(?:written|saved)",
    ),
    // A process, a launcher or a container ended with 0.
    with(
        "exit-zero",
        Success,
        &[
            "exit code 0",
            "exit code: 0",
            "exit code=0",
            "exit status 0",
            "exitcode=0",
            "exitcode: 0",
            "exited with code 0",
            "exit_code=0",
            "exit 0",
            "EXIT_CODE=0",
            "exit=0",
        ],
        r"(?i)\bexit(?:ed with)?[ _]?(?:code|status)?(?:[:=] ?| )0(?:\b[^:.\d]|$)",
    ),
    // A suite of tests ended without a failure; field `passed`.
    with(
        "tests-passed",
        Success,
        &[" passed"],
        r"^=* ?(?<passed>\d+) passed(?:, \d+ (?:skipped|warnings?|deselected|xfailed))* in [\d.]+|^test result: ok\. (?<of_cargo>\d+) passed; 0 failed|^\[  PASSED  \] (?<of_gtest>\d+) tests?",
    ),
    // A server is up.
    text(
        "server-ready",
        Success,
        &["The server is fired up and ready to roll", "Application startup complete."],
    ),
    // Slurm's accounting of a step or job that ended well; see `diagnose::structured`.
    with(
        "sacct-completed",
        Success,
        &["sacct job="],
        r"^sacct job=\S+ (?:step=\d+ )?(?:name=\S+ )?state=COMPLETED exit=0:0",
    ),
    // A pod of a job ended well; see `diagnose::structured`.
    with("kube-pod-succeeded", Success, &["kube-pod "], r"^kube-pod (?<pod>\S+).* phase=Succeeded"),
    // --- what comes after a failure elsewhere ---
    // Sticky and reported wherever the next call happens. Rules that take it as the first failure ask for it by this id.
    text(
        "cuda-illegal-memory-access",
        Follower,
        &[
            "an illegal memory access was encountered",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "cudaErrorIllegalAddress",
        ],
    ),
    // A collective waited for a rank that did not come; fields `op`, `ms`.
    with(
        "nccl-watchdog",
        Follower,
        &["Watchdog caught collective operation timeout"],
        r"Watchdog caught collective operation timeout(?:.*?OpType=(?<op>\w+))?(?:.*?ran for (?<ms>\d+) milliseconds)?",
    ),
    // The watchdog takes its process down.
    text(
        "nccl-watchdog-abort",
        Follower,
        &[
            "Some NCCL operations have failed or timed out",
            "watchdog thread terminated with exception",
            "To avoid data inconsistency, we are taking the entire process down",
            "Received a dump signal",
            "heartbeat monitor",
        ],
    ),
    // The other end of a connection went away.
    text(
        "peer-closed",
        Follower,
        &[
            "Connection closed by remote peer",
            "onnection closed by peer",
            "onnection reset by peer",
            "remote process exited or there was a network error",
            "ncclRemoteError",
            "Broken pipe",
        ],
    ),
    // The summary of torchrun.
    text("elastic-child-failed", Follower, &["ChildFailedError", "Root Cause (first observed failure)"]),
    // How a process of torchrun ended; fields `code`, `local`, `pid`.
    with(
        "elastic-exit",
        Follower,
        &["exitcode"],
        r"exitcode\s*: (?<code>-?\d+)(?:\) local_rank: (?<local>\d+))?.*?\(pid: (?<pid>\d+)\)",
    ),
    // Which rank the summary of torchrun names; fields `failed_rank`, `local`.
    with(
        "elastic-rank",
        Follower,
        &["(local_rank: "],
        r"rank\s*: (?<failed_rank>\d+) \(local_rank: (?<local>\d+)\)",
    ),
    // A process aborted.
    text(
        "sigabrt",
        Follower,
        &[
            "SIGABRT",
            "Fatal Python error: Aborted",
            "terminate called after throwing",
            "Aborted (core dumped)",
        ],
    ),
    // A launcher ends the others.
    text(
        "sigterm",
        Follower,
        &[
            "closing signal SIGTERM",
            "Received SIGTERM",
            "Signals.SIGTERM death signal",
            "eceived signal 15",
            "Signal 15 (SIGTERM)",
        ],
    ),
    // A launcher of MPI says that some process ended; fields `failed_rank`, `node`, `signal`.
    with(
        "mpi-exit",
        Follower,
        &["mpirun noticed that process rank", "prterun noticed that process rank"],
        r"noticed that process rank (?<failed_rank>\d+) (?:with PID \S+ )?on node (?<node>\S+) exited on signal (?<signal>\d+)",
    ),
    // Boilerplate of launchers of MPI.
    text(
        "mpi-boilerplate",
        Follower,
        &[
            "Primary job  terminated normally, but",
            "one or more processes exited with non-zero status",
            "MPI_ABORT was invoked",
            "prterun has exited",
            "mpirun has exited",
        ],
    ),
    // How tasks of a step ended; fields `node`, `tasks`, `what`.
    with(
        "srun-task-exit",
        Follower,
        &["srun: error: "],
        r"srun: error: (?<node>\S+): tasks? (?<tasks>[\d,\-\[\]]+): (?<what>.+)",
    ),
    // Slurm ends a step or job.
    with(
        "slurm-cancelled",
        Follower,
        &["CANCELLED AT", "Terminating StepId", "Job step aborted"],
        r"(?:CANCELLED AT \S+ ?(?:\*\*\*|$|DUE TO (?:PREEMPT|JOB REQUEUE|SUSPEN|DEADLINE|TASK))|Terminating StepId|Job step aborted)",
    ),
    // NVSHMEM is used after its start had failed.
    text("nvshmem-before-init", Follower, &["API called before NVSHMEM initialization"]),
    // NVSHMEM is torn down.
    text("nvshmem-teardown", Follower, &["mutex destroy failed", "in nvshmem_finalize", "nvshmem_finalize:"]),
    // A traceback of Python begins.
    text("python-traceback", Follower, &["Traceback (most recent call last)"]),
    // A process left without ending its process group.
    text("process-group-left", Warning, &["destroy_process_group() was not called"]),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[Rule {
    cause: "data-wrong",
    needs: &["nccl-tests-wrong"],
    confidence: Confidence::Certain,
    because: "nccl-tests compared what arrived with what was sent, and {wrong} values are wrong: the figures of this run are worth nothing",
    rules_out: &["a run that is only slow or that hangs has 0 of them"],
    ..Rule::LIKELY
}];
