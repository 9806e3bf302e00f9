//! Expertrail's own errors.
//!
//! The texts are those of `expertrail_core::Failure` and of the errors of the crates group, host and cuda: tests format them and
//! diagnose the result, so that a message that changes is noticed here.

use super::process::story::{RULE, line, unless_fine};
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
        ..RULE
    },
    Rule {
        cause: "expertrail-rank-late",
        any: &["own-rank-late", "own-group-late", "own-root-silent", "own-build-late"],
        confidence: Confidence::Certain,
        because: "Expertrail's deadline ran out while a rank was still alive and had not come to the call ({phase})",
        rules_out: &["a rank that had ended would be reported as dead at once, by its closed socket"],
        refine: Some(culprit),
        ..RULE
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
        ..RULE
    },
    Rule {
        cause: "expertrail-rank-not-joined",
        needs: &["own-rank-not-joined"],
        confidence: Confidence::Certain,
        because: "rank 0 was up and {ranks} did not join it within {waited} s",
        rules_out: &["rank 0 listens: it is the one that reports"],
        refine: Some(culprit),
        ..RULE
    },
    Rule {
        cause: "expertrail-rank0-unreachable",
        needs: &["own-rank0-unreachable"],
        confidence: Confidence::Certain,
        because: "rank {rank} found nobody at {address} within {waited} s ({last})",
        rules_out: &["something else on that port would have answered, and Expertrail would say so"],
        refine: Some(root),
        ..RULE
    },
    Rule {
        cause: "expertrail-port-taken",
        any: &["own-port-answers-otherwise", "own-port-not-bound"],
        confidence: Confidence::Certain,
        because: "another program holds rank 0's port {address}",
        rules_out: &["the address is reached: no firewall and no name is in the way"],
        refine: Some(port),
        ..RULE
    },
    Rule {
        cause: "expertrail-library-missing",
        any: &["own-library-missing", "own-library-unfit", "own-no-kernels"],
        confidence: Confidence::Certain,
        because: "a library that Expertrail loads at run time is not there, or is too old: {library}",
        rules_out: &["nothing was launched yet: neither network nor other ranks take part"],
        refine: Some(library),
        ..RULE
    },
];

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
