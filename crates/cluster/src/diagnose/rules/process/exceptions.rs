//! Exceptions of Python that no library of communication raised.

use super::story::{RESIDUAL, confident_claims, ended_well, failed_before, line};
use crate::diagnose::case::earliest;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::handled::handled;
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::{Case, Event};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    line(
        "python-exception",
        Role::Failure,
        &[
            "KeyError",
            "ValueError",
            "TypeError",
            "IndexError",
            "AttributeError",
            "FileNotFoundError",
            "ZeroDivisionError",
            "AssertionError",
            "NameError",
            "UnboundLocalError",
            "PermissionError",
            "JSONDecodeError",
            "UnicodeDecodeError",
            "NotImplementedError",
            "RecursionError",
            "IsADirectoryError",
            "StopIteration",
            "FloatingPointError",
            "OverflowError",
            "UnpicklingError",
            "SafetensorError",
            "ValidationError",
            "CheckpointException",
            "OSError: ",
            "ConfigAttributeError",
            "LookupError",
            "ArithmeticError",
            "BadZipFile",
            "NotADirectoryError",
            "DatasetGenerationError",
        ],
        r"^\s*(?:[A-Za-z_]\w*\.)*(?P<kind>KeyError|ValueError|TypeError|IndexError|AttributeError|FileNotFoundError|ZeroDivisionError|AssertionError|NameError|UnboundLocalError|PermissionError|JSONDecodeError|UnicodeDecodeError|NotImplementedError|RecursionError|IsADirectoryError|NotADirectoryError|StopIteration|FloatingPointError|OverflowError|UnpicklingError|SafetensorError|ValidationError|CheckpointException|OSError|ConfigAttributeError|LookupError|ArithmeticError|BadZipFile|DatasetGenerationError)(?:: (?P<what>.*))?\s*$",
    ),
    // RuntimeErrors that shapes, checkpoints and data loaders raise.
    line(
        "python-runtime-error-ordinary",
        Role::Failure,
        &["RuntimeError: "],
        r"^\s*RuntimeError: (?P<what>Error\(s\) in loading state_dict.*|The size of tensor.*|Sizes of tensors must match.*|mat1 and mat2.*|shape '.*' is invalid.*|stack expects each tensor.*|Caught \w+ in DataLoader.*|PytorchStreamReader.*|expected scalar type.*|The expanded size.*|unexpected EOF.*|Invalid magic.*|Expected all tensors.*|Given groups=.*|each element in list of batch.*|probability tensor contains.*|.*[Ll]oss is (?:nan|NaN).*)",
    ),
    // Any other: something is wrong, and what it says is for other rules to know.
    line(
        "python-runtime-error",
        Role::Follower,
        &[
            "RuntimeError: ",
            "ImportError: ",
            "ModuleNotFoundError: ",
            "EOFError",
            "TimeoutError",
            "ConnectionError",
        ],
        r"^\s*(?:[A-Za-z_]\w*\.)*(?P<kind>RuntimeError|ImportError|ModuleNotFoundError|EOFError|TimeoutError|ConnectionError)(?:: (?P<what>.*))?\s*$",
    ),
    // The innermost frames, where they are in a library of communication.
    line(
        "communication-frame",
        Role::Context,
        &[
            "/deep_ep/",
            "torch/distributed/",
            "/nvshmem",
            "/uccl",
            "/nixl",
            "/mscclpp",
            "/nccl",
            "/mori",
            "elastic/rendezvous",
        ],
        r#"File "(?P<path>[^"]*)", line \d+, in (?P<function>\S+)"#,
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[Rule {
    cause: "application-error",
    any: &["python-exception", "python-runtime-error-ordinary"],
    confidence: Confidence::Likely,
    because: "an exception of the program itself ended a rank",
    rules_out: &[
        "nothing is known to have failed before it, and it does not come out of a library of communication",
    ],
    refine: Some(first_of_all),
    ..Rule::LIKELY
}];

const KINDS: &[&str] = &["python-exception", "python-runtime-error-ordinary"];

/// Lines between the innermost frame and the exception: code, markers under it, and what other ranks write between.
const FRAME_LINES: u64 = 4;
const FRAME_LINES_MERGED: u64 = 40;

/// Whether a library of communication raised it: its frame is right above.
fn from_communication(case: &Case, event: &Event) -> bool {
    let merged = event.rank.is_some() && case.ranks_seen.len() > 1;
    let reach = if merged { FRAME_LINES_MERGED } else { FRAME_LINES };
    case.events("communication-frame").any(|frame| {
        frame.place.file == event.place.file
            && frame.rank == event.rank
            && frame.place.line < event.place.line
            && event.place.line - frame.place.line <= reach
    })
}

/// Whether whoever wrote the exception made progress after it and then failed otherwise: it was caught.
fn went_on(case: &Case, event: &Event) -> bool {
    let alone = case.ranks_seen.len() <= 1 && case.nodes_seen.len() <= 1;
    let same = |other: &&Event| {
        other.place.file == event.place.file
            && other.rank == event.rank
            && (event.rank.is_some() || alone)
            && event.before(other) == Some(true)
    };
    let later = || case.events.iter().filter(same);
    let Some(end) = later().find(|other| other.role == Role::Failure && !KINDS.contains(&other.signal))
    else {
        return false;
    };
    later().any(|other| other.role == Role::Progress && other.before(end) == Some(true))
}

/// Lines within which a more telling failure of the same rank explains the exception.
const SAME_STORY: u64 = 200;

/// What the operating system refuses: no fault of the program ([`REFUSALS`]), and shared memory is another matter.
fn refused(event: &Event) -> bool {
    REFUSALS.iter().any(|text| event.text.contains(text))
}

const REFUSALS: [&str; 5] =
    ["[Errno 24]", "[Errno 28]", "[Errno 122]", "Too many open files", "No space left on device"];

fn first_of_all(case: &Case, mut claim: Claim) -> Option<Claim> {
    // What its process caught is only asked for where nothing else of the kind is there.
    let kinds = || KINDS.iter().flat_map(|signal| case.events(signal));
    let event = earliest(kinds().filter(|event| !handled(case, event) && !refused(event)))
        .or_else(|| earliest(kinds().filter(|event| !refused(event))))?;
    if ended_well(case, event) || failed_before(case, event, KINDS) {
        return None;
    }
    // What is raised while a process is being stopped from outside is no cause.
    if case.events("sigterm").any(|stop| stop.before(event) == Some(true)) {
        return None;
    }
    let explained = confident_claims(case, RESIDUAL).iter().any(|other| {
        other.evidence.iter().filter_map(|&place| case.at(place)).any(|evidence| {
            let same = evidence.place.file == event.place.file
                && evidence.rank == event.rank
                && evidence.place.line.abs_diff(event.place.line) <= SAME_STORY;
            let bad = matches!(evidence.role, Role::Failure | Role::Warning | Role::Follower);
            bad && (same || event.before(evidence) != Some(true))
        })
    });
    if explained {
        return None;
    }
    let kind = event.field("kind").unwrap_or("RuntimeError");
    let what = event.field("what").unwrap_or_default();
    claim.evidence = vec![event.place];
    let shown: String = what.chars().take(120).collect();
    claim.because = if shown.is_empty() {
        format!("{kind} ended a rank; the others waited for it")
    } else {
        format!("{kind} ({shown}) ended a rank; the others waited for it")
    };
    if let Some(rank) = event.rank {
        claim.subject = Some(format!("rank {rank}"));
    }
    let waiting = case.events.iter().any(|other| {
        other.role == Role::Follower && other.rank != event.rank && event.before(other) == Some(true)
    });
    // With a zone on one stamp and none on the other, which came first is open.
    let zones = case.events.iter().find(|other| {
        other.role == Role::Failure
            && other.place.file != event.place.file
            && other.dated()
            && event.dated()
            && other.clock != event.clock
            && event.before(other).is_none()
    });
    let went_on = went_on(case, event) || handled(case, event);
    let bare = kind == "AssertionError" && what.trim().is_empty();
    if went_on {
        claim.confidence = Confidence::Possible;
        claim.rules_out.clear();
        claim.next =
            Some("whether that exception ended its process: the rank made progress after it".to_owned());
    } else if let Some(other) = zones {
        claim.confidence = Confidence::Possible;
        claim.rules_out.clear();
        claim.next = Some(format!(
            "the time zone of the stamps without one: whether that exception was before {}:{} is open",
            case.file(other.place.file),
            other.place.line
        ));
    } else if from_communication(case, event) || bare {
        claim.confidence = Confidence::Possible;
        claim.rules_out.clear();
        claim.next = Some("the condition that the assertion or library checks: the lines of the traceback above it, on the first rank that has it".to_owned());
    } else if waiting && case.first_failure().is_some_and(|first| first.place == event.place) {
        claim.confidence = Confidence::Certain;
        claim.rules_out.push("what other ranks report (watchdogs, closed connections) is later".to_owned());
    }
    Some(claim)
}
