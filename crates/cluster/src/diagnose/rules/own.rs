//! Expertrail's own errors.
//!
//! The texts are those of `expertrail_core::Failure` and of the errors of the crates group, host and cuda: tests format them and
//! diagnose the result, so that a message that changes is noticed here.

use super::process::story::{line, unless_fine};
use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    // Failure: of a communicator.
    line(
        "own-rank-died",
        Role::Failure,
        &[" died (found by rank "],
        r"rank (?P<rank>\d+) died \(found by rank (?P<reporter>\d+) in (?P<phase>.+?), call (?P<epoch>\d+)\)",
    ),
    line(
        "own-rank-late",
        Role::Failure,
        &[" did not arrive before rank "],
        r"rank (?P<rank>\d+) did not arrive before rank (?P<reporter>\d+)'s deadline in (?P<phase>.+?), call (?P<epoch>\d+)",
    ),
    line(
        "own-rank-closed",
        Role::Failure,
        &[" closed its communicator while rank "],
        r"rank (?P<rank>\d+) closed its communicator while rank (?P<reporter>\d+) waited for it in (?P<phase>.+?), call (?P<epoch>\d+)",
    ),
    line(
        "own-memory-announced",
        Role::Failure,
        &["announced memory outside of its segment"],
        r"rank (?P<rank>\d+) announced memory outside of its segment \(found by rank (?P<reporter>\d+) in (?P<phase>.+?), call (?P<epoch>\d+)\)",
    ),
    // GroupError.
    line(
        "own-group-died",
        Role::Failure,
        &["died, was cut off, or ended without leaving the group"],
        r"rank (?P<rank>\d+)(?: \((?:host (?P<host>[^,)]+))?(?:, )?(?:pid (?P<pid>\d+))?\))? died, was cut off, or ended without leaving the group, (?:during )?(?P<phase>[^;]+)",
    ),
    line(
        "own-group-late",
        Role::Failure,
        &[" did not arrive within "],
        r#"(?:^|: )(?P<phase>[a-z][\w ]*(?:"[^"]*")?): (?P<ranks>(?:ranks? \[?\d|some ranks).*?) did not arrive within (?P<waited>[\d.]+) s"#,
    ),
    line(
        "own-root-silent",
        Role::Failure,
        &[" has not answered for "],
        r#"(?:^|: )(?P<phase>[a-z][\w ]*(?:"[^"]*")?): rank (?P<rank>\d+)(?: \((?:host (?P<host>[^,)]+))?(?:, )?(?:pid (?P<pid>\d+))?\))? has not answered for (?P<waited>[\d.]+) s"#,
    ),
    line(
        "own-group-left",
        Role::Failure,
        &[" left the group before "],
        r"rank (?P<rank>\d+)(?: \([^)]*\))? left the group before (?P<phase>[^:]+)",
    ),
    line(
        "own-group-calls-differ",
        Role::Failure,
        &["every rank must make the same calls in the same order"],
        r"rank (?P<rank>\d+)(?: \([^)]*\))? is in (?P<call>.+?), rank (?P<peer>\d+)(?: \([^)]*\))? is in (?P<other>.+?): every rank|rank (?P<a>\d+)(?: \([^)]*\))? is in (?P<a_call>.+?), rank (?P<b>\d+)(?: \([^)]*\))? in (?P<b_call>.+?): every rank",
    ),
    line(
        "own-calls-differ",
        Role::Failure,
        &[" differs between ranks: rank "],
        r"call (?P<epoch>\d+) differs between ranks: rank (?P<rank>\d+) called (?P<call>.+?), rank (?P<peer>\d+) called (?P<other>.+?);",
    ),
    line(
        "own-rank-not-joined",
        Role::Failure,
        &[" did not join within "],
        r"(?P<ranks>(?:ranks? \[?\d|some ranks).*?) did not join within (?P<waited>[\d.]+) s",
    ),
    line(
        "own-rank0-unreachable",
        Role::Failure,
        &[" could not reach rank 0 at "],
        r"rank (?P<rank>\d+) could not reach rank 0 at (?P<address>\S+) within (?P<waited>[\d.]+) s \((?P<last>.*?)\); check",
    ),
    line(
        "own-port-answers-otherwise",
        Role::Failure,
        &["found something else than an Expertrail rank 0 at "],
        r"rank (?P<rank>\d+) found something else than an Expertrail rank 0 at (?P<address>\S+) \(it answered (?P<found>.*?)\)",
    ),
    line(
        "own-port-not-bound",
        Role::Failure,
        &["rank 0 cannot listen on "],
        r"rank 0 cannot listen on (?P<address>\S+): (?P<reason>[^;]+)",
    ),
    // Setting up GPUs.
    line(
        "own-build-late",
        Role::Failure,
        &["; they may be slow or stuck"],
        r"rank (?P<reporter>\d+): (?P<phase>.+?) did not end within (?P<waited>[\d.]+) s: nothing from ranks \[(?P<ranks>[\d, ]+)\]",
    ),
    line(
        "own-build-ended",
        Role::Failure,
        &["; see its own output for the cause"],
        r"rank (?P<reporter>\d+): rank (?P<rank>\d+) ended during (?P<phase>[^;]+)",
    ),
    line(
        "own-library-missing",
        Role::Failure,
        &[" not found; looked at ", "none of those found serves; looked at "],
        r"(?P<library>\w[\w ]*\([^)]*\.(?:so|dll)[^)]*\)|lib[\w.-]+)(?:: none of those found serves| not found); looked at (?P<places>[^;]+)",
    ),
    line(
        "own-library-unfit",
        Role::Failure,
        &[" or newer is needed; ", " has no symbol ", " is of no use: its "],
        r"(?P<library>\S*(?:libcuda|libnvrtc)\S*) (?:is of version (?P<found>\S+), but (?P<needed>\S+) or newer is needed|has no symbol (?P<symbol>\w+), which is there since|is of no use: its )",
    ),
    line(
        "own-no-kernels",
        Role::Failure,
        &["and the run-time compiler cannot be used"],
        r"(?P<library>\S+) is not there for (?P<arch>\S+): this binary embeds",
    ),
    // Settings and machines that do not fit: the message says what to do.
    line(
        "own-peer-failed",
        Role::Failure,
        &[" failed during ", " failed between calls: "],
        r"rank (?P<rank>\d+)(?: \((?:host (?P<host>[^,)]+))?(?:, )?(?:pid (?P<pid>\d+))?\))? failed (?:during (?P<phase>[^:]+)|between calls): (?P<message>.+)",
    ),
    line(
        "own-join-refused",
        Role::Failure,
        &[" was refused by rank 0 at "],
        r"rank (?P<rank>\d+) was refused by rank 0 at (?P<address>\S+): (?P<reason>.+)",
    ),
    line(
        "own-settings-differ",
        Role::Failure,
        &["every rank must build with the same settings"],
        r"ranks disagree about (?P<what>.+?): rank (?P<rank>\d+) has (?P<value>.+?), rank (?P<peer>\d+) has (?P<other>.+?);",
    ),
    line(
        "own-shared-memory-small",
        Role::Failure,
        &["shared memory too small: "],
        r"shared memory too small: (?P<ranks>\d+) ranks need about (?P<each>.+?) each, (?P<needed>.+?) in all on this host, but (?P<limit>.+?) are available",
    ),
    line(
        "own-gpu-memory-short",
        Role::Failure,
        &["; end other programs on it (`nvidia-smi`)"],
        r"(?:^|: )(?P<device>[^:]+?) has (?P<free>[\d.]+ \w+) of (?P<total>[\d.]+ \w+) free, but (?P<needed>[\d.]+ \w+) are needed",
    ),
    line(
        "own-no-peer-access",
        Role::Failure,
        &["no peer access from "],
        r"no peer access from (?P<device>.+?) of rank (?P<rank>\d+) to (?P<other>.+?) of rank (?P<peer>\d+)",
    ),
    line(
        "own-compiler-too-old",
        Role::Failure,
        &["; install a newer one (`pip install nvidia-cuda-nvrtc`)"],
        r"(?P<library>NVRTC \S+) \([^)]*\) cannot compile for (?P<arch>\S+); it knows",
    ),
    line(
        "own-device-absent",
        Role::Failure,
        &["numbered from 0; look at CUDA_VISIBLE_DEVICES", "GPUs visible ("],
        r"no device (?P<device>\d+): (?P<visible>\d+) visible|(?P<ranks>\d+) ranks on this host but (?P<found>\d+) GPUs visible",
    ),
    line(
        "own-rank-refused",
        Role::Failure,
        &[
            "does not compile for ",
            "no CUDA device: driver ",
            "is in compute mode PROHIBITED",
            "is a MIG slice, and there is no peer access",
            "has compute capability ",
            "does not offer ",
            "would share one device",
            "are on different machines; the GPU backend",
            "do not share memory: the CPU backend",
            " cannot open the memory of rank ",
            " cannot map the memory of rank ",
            " cannot connect to the socket of rank ",
            "must run the same version of Expertrail",
            "the ranks do not agree on who runs where: ",
            "give worst_case_rows of at least ",
            "has no room for one row of ",
            "a kernel ended without its report",
            "cannot be captured in a CUDA graph: ",
            "cannot be loaded: ",
            "do not lie in a device allocation of ",
            "; the ranks started before it were stopped",
            "let processes be watched (pidfd_open",
            " cannot be watched: ",
            "cannot watch processes: ",
            "does not tell where rank 0 runs; ",
            "ranks are numbered from 0 and must be below the world size",
            "the local rank must be below the local size",
            "this channel is for set-up, not for data",
            "backend cuda asked of build()",
            "backend host asked of build_cuda()",
        ],
        r"(?:program|\S+) does not compile for sm_\w+ with NVRTC|no CUDA device: driver .* found none|is in compute mode PROHIBITED: no process|is a MIG slice, and there is no peer access|has compute capability \d+\.\d+, but the kernels need|does not offer .*; a virtual GPU or a sandbox|ranks (?P<a>\d+) and (?P<b>\d+) would share one device|ranks \d+ \(host .*\) and \d+ \(host .*\) (?:are on different machines|do not share memory)|rank (?P<rank>\d+) cannot (?:open the memory of|map the memory of|connect to the socket of) rank (?P<peer>\d+)|sent .*; all ranks must run the same version of Expertrail|the ranks do not agree on who runs where: (?P<reason>.+)|rank (?P<full>\d+) gave room for \d+ rows but receives|has no room for one row of \d+ bytes from each|rank (?P<silent>\d+): a kernel ended without its report|rank (?P<graph>\d+): .* cannot be captured in a CUDA graph|compiled kernel of \d+ bytes cannot be loaded|do not lie in a device allocation of|cannot start .* as rank (?P<unstarted>\d+): |this kernel does not let processes be watched|rank (?P<unwatched>\d+) \(pid \d+\) cannot be watched|^(?:error: )?cannot watch processes: |does not tell where rank 0 runs; |rank \d+ of \d+ by .*: ranks are numbered from 0|the local rank must be below the local size|\d+ bytes, at most \d+ are allowed; this channel is for set-up|backend (?:cuda|host) asked of build",
    ),
    line(
        "own-values-refused",
        Role::Failure,
        &[
            "both must be at least 1, ",
            "there must be between 1 and ",
            "but the communicator has ",
            "it must be a multiple of ",
            "it must be between 1 and ",
            " tokens on one rank: at most ",
            "rows to one rank: at most ",
            "is out of range; ids are 0 to ",
            " elements given, ",
            "handle does not belong here: ",
            " is not usable: wanted ",
            ": between 1 and ",
            " is set but ",
            " contradicts ",
        ],
        r#"\d+ ranks(?: with \d+ per node|, \d+ per node): both must be at least 1|\d+ experts: there must be between 1 and|the routing chooses among \d+ experts, but the communicator has|hidden size \d+: it must be a multiple of|top-k \d+ of \d+ experts: it must be|expert alignment \d+: it must be|\d+ tokens on one rank: at most \d+ are allowed|could send \d+ rows to one rank: at most|routing of token \d+, choice \d+: expert -?\d+ is out of range|: \d+ elements given, \d+ wanted \(|handle does not belong here: |^(?:error: )?[A-Z][A-Z0-9_]+=".*" is not usable: wanted |world size \d+ by .*: between 1 and \d+ are supported|^(?:error: )?[A-Z][A-Z0-9_]+ is set but [A-Z][A-Z0-9_]+ is not; |^(?:error: )?[A-Z][A-Z0-9_]+\S* contradicts [A-Z][A-Z0-9_]+"#,
    ),
    // What other ranks say of it.
    line(
        "own-peer-build",
        Role::Follower,
        &[" cannot build because rank "],
        r"rank (?P<reporter>\d+) cannot build because rank (?P<rank>\d+) cannot: (?P<reason>.*)",
    ),
    line(
        "own-refused",
        Role::Follower,
        &["'s own error says why"],
        r"rank (?P<rank>\d+) refused call (?P<epoch>\d+), so rank (?P<reporter>\d+) gave it up too",
    ),
    line(
        "own-cancelled",
        Role::Follower,
        &["cancelled at rank ", "cancelled by rank "],
        r"cancelled (?:at|by) rank (?P<reporter>\d+)",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "expertrail-rank-died",
        any: &["own-rank-died", "own-group-died", "own-build-ended"],
        confidence: Confidence::Certain,
        because: "Expertrail says that rank {rank} ended while others waited for it ({phase}); they report it, the reason is in that rank's own output",
        rules_out: &["a rank that is only slow is reported as one that did not arrive, not as one that died"],
        refine: Some(culprit),
        ..Rule::LIKELY
    },
    Rule {
        cause: "expertrail-rank-late",
        any: &["own-rank-late", "own-group-late", "own-root-silent", "own-build-late"],
        confidence: Confidence::Certain,
        because: "Expertrail's deadline ran out while a rank was still alive and had not come to the call ({phase})",
        rules_out: &["a rank that had ended would be reported as dead at once, by its closed socket"],
        refine: Some(culprit),
        ..Rule::LIKELY
    },
    Rule {
        cause: "expertrail-calls-differ",
        any: &[
            "own-calls-differ",
            "own-group-calls-differ",
            "own-rank-closed",
            "own-group-left",
            "own-memory-announced",
        ],
        confidence: Confidence::Certain,
        because: "ranks made different calls, or one ended its part before the others",
        rules_out: &["no rank died and no deadline ran out: the ranks' programs differ"],
        refine: Some(culprit),
        ..Rule::LIKELY
    },
    Rule {
        cause: "expertrail-rank-not-joined",
        needs: &["own-rank-not-joined"],
        confidence: Confidence::Certain,
        because: "rank 0 was up and {ranks} did not join it within {waited} s",
        rules_out: &["rank 0 listens: it is the one that reports"],
        refine: Some(culprit),
        ..Rule::LIKELY
    },
    Rule {
        cause: "expertrail-rank0-unreachable",
        needs: &["own-rank0-unreachable"],
        confidence: Confidence::Certain,
        because: "rank {rank} found nobody at {address} within {waited} s ({last})",
        rules_out: &["something else on that port would have answered, and Expertrail would say so"],
        refine: Some(root),
        ..Rule::LIKELY
    },
    Rule {
        cause: "expertrail-port-taken",
        any: &["own-port-answers-otherwise", "own-port-not-bound"],
        confidence: Confidence::Certain,
        because: "another program holds rank 0's port {address}",
        rules_out: &["the address is reached: no firewall and no name is in the way"],
        refine: Some(port),
        ..Rule::LIKELY
    },
    Rule {
        cause: "expertrail-library-missing",
        any: &["own-library-missing", "own-library-unfit", "own-no-kernels", "own-compiler-too-old"],
        confidence: Confidence::Certain,
        because: "a library that Expertrail loads at run time is not there, or is too old: {library}",
        rules_out: &["nothing was launched yet: neither network nor other ranks take part"],
        refine: Some(library),
        ..Rule::LIKELY
    },
    Rule {
        cause: "expertrail-calls-differ",
        needs: &["own-settings-differ"],
        confidence: Confidence::Certain,
        because: "ranks were built with different settings: {what} is {value} on rank {rank} and {other} on rank {peer}",
        rules_out: &["no rank died and no deadline ran out: the ranks' programs differ"],
        refine: Some(culprit),
        ..Rule::LIKELY
    },
    Rule {
        cause: "shm-small",
        needs: &["own-shared-memory-small"],
        confidence: Confidence::Certain,
        because: "Expertrail's {ranks} ranks need {needed} of shared memory on this host, and {limit} are available",
        rules_out: &[
            "it was counted before anything was touched: no bus error and no other program is in the way",
        ],
        refine: Some(fits),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gpu-memory-exhausted",
        needs: &["own-gpu-memory-short"],
        confidence: Confidence::Certain,
        because: "{device} has {free} of {total} free, and Expertrail needs {needed}",
        rules_out: &["it is memory of the GPU: shared memory of the host has a message of its own"],
        refine: Some(fits),
        ..Rule::LIKELY
    },
    Rule {
        cause: "p2p-unavailable",
        needs: &["own-no-peer-access"],
        confidence: Confidence::Certain,
        because: "the driver gives {device} of rank {rank} no access to {other} of rank {peer}",
        rules_out: &["both devices are visible and open: only the way between them is closed"],
        refine: Some(fits),
        ..Rule::LIKELY
    },
    Rule {
        cause: "one-gpu-visible",
        needs: &["own-device-absent"],
        confidence: Confidence::Possible,
        because: "a rank asks for a GPU that its process does not see",
        refine: Some(fewer),
        ..Rule::LIKELY
    },
];

fn fits(case: &Case, claim: Claim) -> Option<Claim> {
    unless_fine(case, claim)
}

fn fewer(case: &Case, claim: Claim) -> Option<Claim> {
    unless_fine(case, claim.next("what each rank sees: CUDA_VISIBLE_DEVICES and `nvidia-smi -L` in its environment, and the number of ranks started there"))
}

/// Names the ranks at fault, the earliest report first, and adds what they wrote last themselves.
fn culprit(case: &Case, mut claim: Claim) -> Option<Claim> {
    // A line may be of other kinds, too: a barrier's name may hold the word iteration.
    let own_at = |place| {
        let here = || case.events.iter().filter(move |event| event.place == place);
        here().find(|event| event.signal.starts_with("own-")).or_else(|| here().next())
    };
    let mut events: Vec<_> = claim.evidence.iter().filter_map(|&place| own_at(place)).collect();
    events.sort_by(|a, b| match a.before(b) {
        Some(true) => std::cmp::Ordering::Less,
        Some(false) => std::cmp::Ordering::Greater,
        None => std::cmp::Ordering::Equal,
    });
    let first = *events.first()?;
    claim.evidence = events.iter().map(|event| event.place).collect();
    let ranks = first.field("rank").or(first.field("a")).map(|rank| format!("rank {rank}"));
    let named = first.field("ranks").map(|ranks| {
        if ranks.starts_with(|c: char| c.is_ascii_digit()) {
            format!("ranks {ranks}")
        } else {
            ranks.to_owned()
        }
    });
    let mut subject = ranks.or(named)?;
    if let Some(host) = first.field("host") {
        subject = format!("{subject} (host {host})");
    }
    let number = first.number("rank").and_then(|rank| u32::try_from(rank).ok());
    // A rank that said itself why it gives up is not at fault for ending: what it said is.
    if claim.cause == "expertrail-rank-died"
        && case.events.iter().any(|event| {
            event.rank == number
                && number.is_some()
                && event.role == Role::Failure
                && event.signal.starts_with("own-")
                && !["own-rank-died", "own-group-died", "own-build-ended"].contains(&event.signal)
                && event.before(first) == Some(true)
        })
    {
        return None;
    }
    let mut own = case.events.iter().filter(|event| {
        event.rank == number && number.is_some() && event.role == Role::Failure && event.place != first.place
    });
    if let Some(last) = own.rfind(|event| !event.signal.starts_with("own-")) {
        claim.evidence.push(last.place);
        claim.because.push_str("; its own output has a failure of its own");
    }
    unless_fine(case, claim.about(subject))
}

fn root(case: &Case, claim: Claim) -> Option<Claim> {
    unless_fine(case, claim.about("rank 0"))
}

fn port(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = super::process::story::about(case, claim, "address");
    unless_fine(case, claim)
}

fn library(case: &Case, claim: Claim) -> Option<Claim> {
    let claim = super::process::story::about(case, claim, "library");
    // A binary that fell back to embedded kernels or to the CPU goes on.
    unless_fine(case, claim)
}
