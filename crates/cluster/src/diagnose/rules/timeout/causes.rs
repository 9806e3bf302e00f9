//! From the seven answers to causes.

use super::super::{ibgda, nvshmem};
use super::kernel::{self, Silent};
use super::questions::{Devices, Frame, Questions, Reached, When, earlier_failure, preparing};
use super::{NEW_LAYOUT, TIMEOUTS, below, failing, known_bad, patched, saying, weigh};
use crate::diagnose::Case;
use crate::diagnose::event::Event;
use crate::diagnose::rule::{Claim, Confidence};
use crate::finding::Status;

/// The first wait in vain, or the illegal access that stands alone.
fn first(case: &Case) -> Option<&Event> {
    case.first_of(TIMEOUTS).or_else(|| case.first("cuda-illegal-memory-access"))
}

/// Whether DeepEP is of the hybrid-ep line, whose head lacks pull request 564.
fn hybrid(case: &Case) -> bool {
    case.version("line") == Some("hybrid-ep") || case.has("deepep-hybrid-line")
}

/// Whether the base image is one whose NVSHMEM is of the new layout (NGC 26 and newer).
fn new_image(case: &Case) -> bool {
    case.events("framework-image").filter_map(|event| event.number("year")).max() >= Some(26)
}

/// How sure the mismatch of queue pairs is; none where it is ruled out.
fn layout(case: &Case, questions: &Questions) -> Option<Confidence> {
    let first = first(case)?;
    if questions.mismatch == Some(false) || matches!(questions.frame.answer, Frame::IntraNode) {
        return None;
    }
    let access = case.first_of(TIMEOUTS).is_none();
    // An illegal access alone, with nothing of NVSHMEM's version, points nowhere.
    if access && questions.mismatch.is_none() && nvshmem::loaded(case, Some(first)).is_none() {
        return None;
    }
    // Two versions that contradict each other prove neither, and so do a message and a frame of different calls.
    if nvshmem::contradicted(case) || questions.frames_differ {
        return Some(Confidence::Possible);
    }
    // Such a pair makes no dispatch between nodes work: one that did clears it. So does a rank that got its counts.
    if questions.when.answer == When::Later || case.has("recv-counters-set") {
        return Some(Confidence::Possible);
    }
    // Device code built for the old order under a library of the new one: no change of DeepEP's source matters.
    let split = nvshmem::split(case, Some(first)).is_some_and(|(device, host, _)| {
        below(&device, NEW_LAYOUT) && !below(&host, NEW_LAYOUT) && !case.has("versions-aligned")
    });
    let split = split && nvshmem::device_said(case);
    if split && !access && questions.quiet() && !questions.someone_else() {
        let lacks = questions.mismatch == Some(true) || hybrid(case);
        return Some(if lacks { Confidence::Certain } else { Confidence::Likely });
    }
    if questions.mismatch == Some(true) {
        let alone = patched(case).is_some_and(|(_, alone)| alone);
        if questions.someone_else() || access {
            return Some(if questions.someone_else() { Confidence::Possible } else { Confidence::Likely });
        }
        return Some(if alone || !questions.quiet() { Confidence::Likely } else { Confidence::Certain });
    }
    if questions.someone_else() || !questions.quiet() {
        return Some(Confidence::Possible);
    }
    let loaded = nvshmem::loaded(case, Some(first));
    let new = loaded.as_deref().is_some_and(|version| !below(version, NEW_LAYOUT));
    let unknown_but_new_image = loaded.is_none() && new_image(case);
    let stuck = case.has("recv-counters-unset");
    let begun = matches!(questions.when.answer, When::First | When::Start);
    let other_passes = case.has("other-image-passes") || older_run_passed(case, first);
    let sure = if new {
        (stuck && begun) || (hybrid(case) && (stuck || begun)) || (other_passes && (stuck || begun))
    } else {
        unknown_but_new_image && (stuck || begun) && (hybrid(case) || other_passes)
    };
    // The illegal access that stands alone has more causes: the line of DeepEP must be known to lack the change, or another image pass.
    let sure = sure && (!access || other_passes || hybrid(case));
    Some(if sure { Confidence::Likely } else { Confidence::Possible })
}

/// Whether another file shows an older NVSHMEM with figures.
fn older_run_passed(case: &Case, first: &Event) -> bool {
    let old = case.events("nvshmem-banner").filter(|event| {
        event.place.file != first.place.file
            && event.field("version").is_some_and(|version| below(version, NEW_LAYOUT))
    });
    old.map(|event| event.place.file).any(|file| {
        case.events("figures").any(|event| event.place.file == file && !event.text.contains("Node "))
    })
}

/// An illegal access after a timeout is no evidence: it follows.
fn without_access(case: &Case, claim: &mut Claim) {
    if case.has_any(TIMEOUTS) {
        let access = case.first("cuda-illegal-memory-access").map(|event| event.place);
        claim.evidence.retain(|place| Some(*place) != access);
    }
}

/// NVSHMEM's default queue pairs lie where DeepEP does not look.
pub(super) fn rc_layout(case: &Case, mut claim: Claim) -> Option<Claim> {
    let questions = Questions::of(case)?;
    claim.confidence = layout(case, &questions)?;
    let near = first(case);
    let version = nvshmem::loaded(case, near);
    without_access(case, &mut claim);
    claim.evidence.extend(questions.versions.evidence.iter().copied());
    let stuck = case.first("recv-counters-unset").map(|event| event.place);
    claim.evidence.extend(stuck);
    claim.evidence.dedup();
    let loads = version.map_or("of an NGC 26 image".to_owned(), |version| version);
    if claim.confidence == Confidence::Possible {
        // A pair that is known to be bad stays a hypothesis beside whatever else is seen.
        let later = questions.when.answer == When::Later;
        if questions.mismatch != Some(true)
            && (later || decided(case, &questions, "nvshmem-rc-layout-mismatch"))
        {
            return None;
        }
        claim = saying(
            claim,
            "NVSHMEM from 3.5.19 on and a DeepEP without pull request 564 stop at the first dispatch like this. Decided by: the NVSHMEM that loaded (its banner) and the commit of DeepEP.",
        );
        return Some(claim.next(questions.next(case)));
    }
    let lacks = match patched(case) {
        Some((false, true)) => "its commit is one without pull request 564",
        Some((false, false)) => "it lacks pull request 564",
        _ if hybrid(case) => "it is of the hybrid-ep line, whose head lacks pull request 564",
        _ => "nothing shows that it has pull request 564",
    };
    claim.because = format!(
        "NVSHMEM {loads} stores its default queue pairs in another order than DeepEP looks them up in: {lacks}. The first dispatch between nodes then makes no progress."
    );
    claim.subject = Some(format!("NVSHMEM {loads} with DeepEP"));
    if questions.quiet() {
        claim = claim.not("Missing modules or keys: no rank's transport warned before.");
    }
    if stuck.is_some() {
        claim = claim.not("A slow or lost packet: the counters are all at -1, nothing arrived at all.");
    }
    if questions.when.answer == When::First {
        claim = claim.not("A fault that comes with load or time: it is the first dispatch.");
    }
    if case.has("cuda-illegal-memory-access") && case.first_of(TIMEOUTS).is_some() {
        claim = claim.not("A fault of memory: the illegal accesses come after the timeout, in teardown.");
    }
    if claim.confidence == Confidence::Likely {
        claim = claim.next("`expertrail stack --source-root <DeepEP source>`, or one dispatch between two nodes with NVSHMEM 3.4.5.");
    }
    Some(claim)
}

/// NVSHMEM's device code in the extension is of another version than the library that loads.
pub(super) fn split(case: &Case, mut claim: Claim) -> Option<Claim> {
    let first = first(case)?;
    let (device, host, lines) = nvshmem::split(case, Some(first))?;
    // Where the versions were made one and the run fails as before, it is not that.
    if case.has("versions-aligned") {
        return None;
    }
    // Where DeepEP is known to lack what the loaded NVSHMEM needs, one version of both would not heal it: that comes first.
    let lacks = known_bad(case) == Some(true) || (hybrid(case) && !below(&host, NEW_LAYOUT));
    claim.confidence = match (nvshmem::device_said(case), lacks) {
        (true, false) => Confidence::Certain,
        (true, true) => Confidence::Likely,
        // A wheel that is installed need not be what the extension was built with; beside a package that loads instead it is the likely one.
        (false, false) if case.has("nvshmem-host-library") => Confidence::Likely,
        (false, _) => Confidence::Possible,
    };
    if nvshmem::contradicted(case) {
        claim = weigh(claim, Confidence::Possible);
    }
    claim.evidence = lines.iter().map(|event| event.place).chain([first.place]).collect();
    claim.because = format!(
        "The extension holds device code of NVSHMEM {device}, and the host library that loads is {host}: they share structures in device memory."
    );
    claim.subject = Some(format!("NVSHMEM {device} in the extension, {host} loaded"));
    if !nvshmem::device_said(case) {
        claim.because = format!(
            "A wheel of NVSHMEM {device} is installed and the host library that loads is {host}. If the extension was built with the wheel, its device code does not fit."
        );
        claim.subject = Some(format!("NVSHMEM {device} as a wheel, {host} loaded"));
        claim = claim.next("The version of the device code in the extension: `strings <site-packages>/deep_ep_cpp*.so | grep -i 'nvshmem.*[0-9]\\.[0-9]'`, or the log of its build.");
    }
    let questions = Questions::of(case)?;
    if matches!(questions.frame.answer, Frame::IntraNode)
        || matches!(questions.reached.answer, Reached::Failed(_))
    {
        claim = weigh(claim, Confidence::Possible);
    }
    let new = !below(&host, NEW_LAYOUT);
    if new && known_bad(case) != Some(false) {
        claim = claim.next("After the versions are one, a dispatch between two nodes: with NVSHMEM 3.5.19 or newer DeepEP needs pull request 564 as well.");
    }
    if !nvshmem::device_said(case) {
        return Some(claim);
    }
    Some(claim.not("The banner alone, which names the host library: the device code was looked at too."))
}

/// A rank compiles while the others wait.
pub(super) fn jit(case: &Case, mut claim: Claim) -> Option<Claim> {
    let first = case.first_of(TIMEOUTS).or_else(|| case.first("nccl-watchdog"))?;
    let rank = preparing(case, first)?;
    if !failing(case) {
        return None;
    }
    claim.evidence = vec![rank.place, first.place];
    claim.subject = rank.rank.map(|rank| format!("rank {rank}"));
    let goes_on = first.before(rank) == Some(true);
    claim.because = if goes_on {
        "A rank was still compiling or warming up kernels after others had given up waiting for it in a collective call.".to_owned()
    } else {
        "Kernels were being compiled or warmed up, with no sign of an end, when ranks that were ready gave up waiting.".to_owned()
    };
    if earlier_failure(case, first).is_some() {
        claim = weigh(claim, Confidence::Possible);
    }
    let warned = Questions::of(case).is_some_and(|questions| !questions.quiet());
    if warned {
        claim = weigh(claim, Confidence::Possible);
    }
    // Versions that do not fit make the same wait: neither is ruled out by the other.
    if known_bad(case) == Some(true) {
        claim = weigh(claim, Confidence::Possible);
        return Some(claim.next("A second start with a warm cache of kernels: it passes where the compiling was the reason, and stops as before where the versions are."));
    }
    Some(claim.not("The network: the missing rank says what it does instead, and it is no communication."))
}

/// Work requests of several warps on one queue pair.
pub(super) fn qp_race(case: &Case, mut claim: Claim) -> Option<Claim> {
    // Newer kernels print no meta: then it takes a tree that is known to lack the change.
    let bare = case.version("181") == Some("no");
    let zero = |event: &&Event| {
        event.field("meta").map_or_else(
            || bare && event.text.contains("RDMA meta"),
            |meta| meta.chars().all(|c| matches!(c, '0' | ',' | ' ')),
        )
    };
    let metas: Vec<&Event> = case.events("kernel-timeout").filter(zero).collect();
    let (silent, places) = kernel::silent(case)?;
    if metas.is_empty() || case.version("181") == Some("yes") {
        return None;
    }
    let questions = Questions::of(case)?;
    let version = case
        .version("deep_ep")
        .or_else(|| case.events("deepep-version-line").find_map(|event| event.field("version")));
    // The change is of spring 2025, between the releases 1.0 and 1.1.
    if version.is_some_and(|version| !below(version, (1, 2, 0))) && case.version("181") != Some("no") {
        return None;
    }
    let dated = case.events("deepep-source-date").find(|event| {
        let year = event.number("year").or(event.number("year2"));
        let month = event.number("month").or_else(|| event.field("name").and_then(month));
        year == Some(2025) && matches!(month, Some(4 | 5))
    });
    let old = case.version("181") == Some("no")
        || dated.is_some()
        || case.has("deepep-multi-qp")
        || version.is_some_and(|version| below(version, (1, 1, 0)));
    claim.evidence = places;
    claim.evidence.extend(dated.or_else(|| case.first("deepep-version-line")).map(|event| event.place));
    // A race may be won before it is lost: where the tree is the one that brought it, tests that passed before say nothing.
    let known = case.has("deepep-multi-qp");
    let other = case.has("bonded-nic")
        || (questions.when.answer == When::Later && !known)
        || questions.someone_else()
        || !questions.quiet()
        || matches!(&silent, Silent::Several(nodes) if nodes.len() > 2);
    if !old || (other && case.version("181") != Some("no")) {
        if decided(case, &questions, "deepep-qp-race") {
            return None;
        }
        claim = saying(
            claim,
            "A forwarder waited for counts that another node never wrote (meta 0, 0, 0, 0). A DeepEP of April or May 2025 loses work requests like that. Decided by: DeepEP's commit.",
        );
        claim.subject = Some(silent.text());
        return Some(weigh(claim, Confidence::Possible).next(questions.next(case)));
    }
    claim = saying(
        claim,
        "Forwarders waited for counts that the other node never wrote (the meta of a channel stayed zero), on some channels and not on others, with a DeepEP in which warps of one channel can submit to one queue pair at a time and lose work requests.",
    );
    claim.subject = Some("DeepEP before pull request 181".to_owned());
    Some(claim.not(
        "NVLink: the NVL receivers wait for a forwarder of their own node, which waits for the other node.",
    ))
}

/// The number of a month by its first letters.
fn month(name: &str) -> Option<i64> {
    const NAMES: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    NAMES.iter().position(|known| *known == name).and_then(|index| i64::try_from(index + 1).ok())
}

/// Whether something else is surely at work, so that hypotheses would only distract.
fn decided(case: &Case, questions: &Questions, besides: &str) -> bool {
    let layout =
        || besides != "nvshmem-rc-layout-mismatch" && layout(case, questions) > Some(Confidence::Possible);
    layout()
        || matches!(questions.reached.answer, Reached::Preparing | Reached::Failed(_))
        || (nvshmem::split(case, first(case)).is_some() && !case.has("versions-aligned"))
        || ibgda::tweaked(case)
        || (case.has_any(&["ibgda-alloc-skip", "iomemory-800", "ibgda-uar-unmapped"])
            && questions.devices.answer == Devices::All)
}

/// Whether waits between nodes with no other explanation leave room for a hypothesis.
fn open(case: &Case) -> Option<Questions> {
    let questions = Questions::of(case)?;
    let far = matches!(questions.frame.answer, Frame::InterNode | Frame::LowLatency | Frame::Unknown);
    (far && failing(case) && !decided(case, &questions, "")).then_some(questions)
}

/// What the facts say of one of the causes: where that was read and what is there.
fn fact(case: &Case, causes: &[&str]) -> Option<String> {
    let found = case.preflight.iter().find(|finding| {
        matches!(finding.status, Status::Fail | Status::Warn)
            && finding.cause.as_deref().is_some_and(|cause| causes.contains(&cause))
    })?;
    let place = found.evidence.first().map_or("facts", |evidence| evidence.source.as_str());
    Some(format!("{place}: {}; wanted: {}", found.observed, found.wanted))
}

/// Kernel modules, by facts, by the guide's check, or as a hypothesis.
pub(super) fn modules(case: &Case, claim: Claim) -> Option<Claim> {
    let questions = open(case)?;
    let bad = ibgda::without_modules(case);
    let told = fact(case, &["peermem-missing", "peermem-not-registered"]);
    evidence_or_hypothesis(
        case,
        claim,
        &questions,
        (bad, told),
        [
            "The kernel modules that hand GPU memory to the NIC (nvidia_peermem, gdrdrv) are missing",
            "Decided by: `lsmod | grep -E 'nvidia_peermem|gdrdrv'` on every node.",
        ],
    )
}

/// Keys of the driver, likewise.
pub(super) fn keys(case: &Case, claim: Claim) -> Option<Claim> {
    let questions = open(case)?;
    let bad = ibgda::without_keys(case);
    let told = fact(case, &["driver-key-missing", "driver-key-not-active"]);
    evidence_or_hypothesis(
        case,
        claim,
        &questions,
        (bad, told),
        [
            "The driver's keys (PeerMappingOverride, EnableStreamMemOPs) are not active",
            "Decided by: `grep -E 'EnableStreamMemOPs|RegistryDwords' /proc/driver/nvidia/params` on every node.",
        ],
    )
}

fn evidence_or_hypothesis(
    case: &Case,
    mut claim: Claim,
    questions: &Questions,
    (bad, told): (Option<Vec<String>>, Option<String>),
    [what, by]: [&str; 2],
) -> Option<Claim> {
    let later = questions.when.answer == When::Later;
    if let Some(nodes) = bad.as_ref().filter(|nodes| !nodes.is_empty()) {
        claim.evidence.extend(case.first_of(&["node-check", "driver-param-off"]).map(|event| event.place));
        claim.because =
            format!("{what} on {}, and a dispatch between nodes waited in vain.", nodes.join(", "));
        claim.subject = Some(nodes.join(", "));
        return Some(claim);
    }
    // What dispatches went well without is not what stopped one.
    if let Some(told) = told.filter(|_| !later) {
        claim.because = format!(
            "{what} on the node whose facts were given ({told}), and a dispatch between nodes waited in vain."
        );
        claim.subject = case.facts.as_ref().and_then(|facts| facts.node.value().cloned());
        return Some(claim);
    }
    // Dispatches that went well, a check that finds them, warnings of another kind and an illegal access alone leave no room for it.
    if later
        || bad.is_some()
        || case.has_any(&["ibgda-alloc-skip", "iomemory-800", "ibgda-uar-unmapped", "no-peermem"])
    {
        return None;
    }
    claim.because = format!("{what} on a node: NVSHMEM's start then fails silently. {by}");
    Some(weigh(claim, Confidence::Possible).next(questions.next(case)))
}

/// A rank that never came.
pub(super) fn absent(case: &Case, mut claim: Claim) -> Option<Claim> {
    let questions = Questions::of(case)?;
    if !failing(case) || questions.reached.answer == Reached::All || decided(case, &questions, "") {
        return None;
    }
    let silent = kernel::silent(case);
    claim.because = match (&questions.reached.answer, &silent) {
        (Reached::Not(ranks), _) => {
            let list: Vec<String> = ranks.iter().take(12).map(u32::to_string).collect();
            claim.subject = Some(format!("rank {}", list.join(", ")));
            format!(
                "Ranks {} wrote something and show no wait: the others may wait for them.",
                list.join(", ")
            )
        }
        (_, Some((silent @ (Silent::Node(_) | Silent::Rank(_)), places))) => {
            claim.subject = Some(silent.text());
            claim.evidence.extend(places.iter().copied());
            format!(
                "Every line of the kernels that names a sender names {}: that node, its link, or its ranks did not come.",
                silent.text()
            )
        }
        (_, Some((several, places))) => {
            claim.evidence.extend(places.iter().copied());
            format!("The kernels wait for {}: no single node or link.", several.text())
        }
        _ => "A rank did not come to the call: it failed, waited or computed elsewhere.".to_owned(),
    };
    claim.because.push_str(" Decided by: the last lines of every rank before the first timeout.");
    Some(weigh(claim, Confidence::Possible).next(questions.next(case)))
}

/// Compiling elsewhere, without a line that shows it.
pub(super) fn maybe_jit(case: &Case, mut claim: Claim) -> Option<Claim> {
    let questions = Questions::of(case)?;
    let framework = case.has_any(&["serving", "jit-compiling", "vllm-engine", "jit-finished"]);
    if !framework || !failing(case) || decided(case, &questions, "") {
        return None;
    }
    claim = saying(
        claim,
        "A rank may still have compiled kernels while the others waited; a second start with a warm cache then works. Decided by: compile or warm-up lines of the ranks that did not time out.",
    );
    Some(weigh(claim, Confidence::Possible).next(questions.next(case)))
}

/// NICs that do not belong to their GPUs.
pub(super) fn mapping(case: &Case, mut claim: Claim) -> Option<Claim> {
    let questions = open(case)?;
    if !case.has_any(&["bonded-nic", "kernel-timeout"]) {
        return None;
    }
    claim = saying(
        claim,
        "Ranks may use a NIC that is not theirs, or one NIC for several of them (bonds, more GPUs than NICs). Decided by: the NIC that NVSHMEM_DEBUG=INFO shows for each rank, against `expertrail topo`.",
    );
    claim.evidence.extend(case.first("bonded-nic").map(|event| event.place));
    Some(weigh(claim, Confidence::Possible).next(questions.next(case)))
}

/// A wait inside a node in vLLM, with nothing that says dual batch overlap is on.
pub(super) fn maybe_dual_batch(case: &Case, mut claim: Claim) -> Option<Claim> {
    let questions = Questions::of(case)?;
    let vllm = case.has("vllm-finalize-async") || case.has("vllm-engine");
    if !vllm || case.has("vllm-dbo") || case.has("dispatch-timeout") || questions.someone_else() {
        return None;
    }
    claim = saying(
        claim,
        "vLLM's dual batch overlap with DeepEP's high-throughput mode stops like this. Decided by: whether --enable-dbo is set.",
    );
    Some(weigh(claim, Confidence::Possible).next(questions.next(case)))
}

/// An illegal access with no timeout before it.
pub(super) fn device_states(case: &Case, mut claim: Claim) -> Option<Claim> {
    let questions = Questions::of(case)?;
    if !failing(case)
        || decided(case, &questions, "")
        || !case.has_any(&["internode-frame", "low-latency-frame", "nvshmem-banner", "nvshmem-source-path"])
    {
        return None;
    }
    claim = saying(
        claim,
        "An illegal access is the first failure, with no wait before it. With NVSHMEM built from source, an extension compiled without __CUDACC_RDC__ can have a state of IBGDA of its own that nobody fills. Decided by: how NVSHMEM was built, and DeepEP's commit.",
    );
    Some(weigh(claim, Confidence::Possible).next(questions.next(case)))
}
