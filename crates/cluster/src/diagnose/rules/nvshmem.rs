//! NVSHMEM's start.

use std::collections::BTreeSet;

use super::deepep;
use super::timeout::{Questions, below, failing, saying, weigh};
use crate::diagnose::Case;
use crate::diagnose::event::{Event, Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::versions::GIVEN;

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    Signal {
        id: "nvshmem-host-library",
        any: &["libnvshmem_host.so", "libnvshmem3-cuda", "NVSHMEM host", "nvshmem host", "host lib"],
        pattern: Some(
            r"libnvshmem_host\.so\.(?P<version>3\.\d+\.\d+)|libnvshmem3-cuda-\d+\D{1,12}(?P<package>3\.\d+\.\d+)|(?i:nvshmem host|host lib(?:rary)?)[^\n]{0,60}?(?P<said>3\.\d+\.\d+)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "nvshmem-device-library",
        any: &[
            "nvshmem_device",
            "NVSHMEM device",
            "nvshmem device",
            "NVSHMEM_DEVICE",
            "device lib",
            "device code",
            "device side",
            "embedded",
            "deep_ep_cpp",
        ],
        pattern: Some(
            r"(?i)(?:libnvshmem_device\S*|nvshmem[_ -]device|device (?:lib(?:rary)?|code|side)|embedded)[^\n]{0,80}?(?P<version>3\.\d+\.\d+)|(?P<said>3\.\d+\.\d+)[^\n]{0,30}libnvshmem_device|deep_ep_cpp\S*\.so[^\n=>]{0,60}?nvshmem[^\n=>]{0,30}?(?P<package>3\.\d+\.\d+)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "nvshmem-wheel",
        any: &["nvidia-nvshmem-cu", "nvidia_nvshmem_cu"],
        pattern: Some(
            r"nvidia[-_]nvshmem[-_]cu1\d(?:==|[-:]? +v?|-)(?P<version>\d+\.\d+\.\d+)|nvidia[-_]nvshmem[-_]cu1\d.{0,60}resolved (?:to )?v?(?P<said>\d+\.\d+\.\d+)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "nvshmem-init-failed",
        any: &[
            "nvshmem initialization failed",
            "nvshmem setup connections failed",
            "building transport map failed",
            "bootstrap pre-initialization failed",
            "connect EPS failed",
            "create DCT share err",
            "transport create connect failed",
            "nvshmem detect topo failed",
            "nvshmemi_init failed",
        ],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-modify-qp-failed",
        any: &["ibv_modify_qp failed"],
        pattern: Some(r"(?:non-zero status: (?P<status>\d+))?.*ibv_modify_qp failed"),
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-peer-not-accessible",
        any: &["is not accessible, exiting"],
        pattern: Some(r"\[GPU (?P<gpu>\d+)\] Peer GPU (?P<peer>\d+) is not accessible"),
        role: Role::Failure,
    },
    Signal {
        id: "no-peermem",
        any: &["neither nv_peer_mem", "nvidia_peermem detected. Skipping"],
        pattern: None,
        role: Role::Warning,
    },
    Signal {
        id: "nvshmem-heap-failed",
        any: &["cuMemCreate failed"],
        pattern: Some(r"non-zero status: (?P<status>\d+):? cuMemCreate failed|cuMemCreate failed"),
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-devx-uar",
        any: &["cannot allocate mlx5dv_devx_uar"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-no-more-teams",
        any: &["No more teams available"],
        pattern: Some(r"No more teams available(?: \(max = (?P<max>\d+)\))?"),
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-no-socket-interface",
        any: &["No socket interface found"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "af-inet6-forced",
        any: &["does not support IPv4", "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY to AF_INET6"],
        pattern: Some(r"AF_INET6"),
        role: Role::Warning,
    },
    Signal {
        id: "nvshmem-address-handle",
        any: &["Unable to create ah"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-bootstrap-truncated",
        any: &["Message truncated: received"],
        pattern: Some(r"Message truncated: received (?P<got>\d+) bytes instead of (?P<want>\d+)"),
        role: Role::Failure,
    },
    Signal {
        id: "nvshmem-some-devices-failed",
        any: &["Failed to initialize all selected devices"],
        pattern: None,
        role: Role::Warning,
    },
    Signal {
        id: "link-ethernet",
        any: &["Ethernet", "RoCE", "ROCE", "/RoCE", ":ffff:", "netdev "],
        // A row of `show_gids` with version v2 is one of RoCE; `rdma link` names an Ethernet interface.
        pattern: Some(
            r"(?i:link[_ ]layer)\W{1,20}Ethernet|\bRoCE(?:v2)?\b|/RoCE\b|^\s*\w+\s+\d+\s+\d+\s+[0-9a-f]{4}(?::[0-9a-f]{4}){7}\s+(?:[\d.]+\s+)?v2\b|\blink \S+/\d+ state \w+ .*netdev (?:e|rdma|bond|roce)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "link-infiniband",
        any: &["InfiniBand", ":1/IB", "NET/IB"],
        pattern: Some(r"(?i:link[_ ]layer)\W{1,20}InfiniBand|mlx5_\w+:\d/IB\b"),
        role: Role::Context,
    },
    Signal {
        id: "nvshmem-source-path",
        any: &["nvshmem_src", "nvshmem-3", "nvshmem/3", "nvshmem_3"],
        pattern: Some(r"nvshmem(?:_src)?[-_/](?P<version>3\.\d+\.\d+)"),
        role: Role::Context,
    },
    Signal {
        id: "nvshmem-version-said",
        any: &["NVSHMEM", "nvshmem"],
        pattern: Some(r"(?i:nvshmem)(?: version)?[ :=]+v?(?P<version>3\.\d+\.\d+)"),
        role: Role::Context,
    },
    Signal {
        id: "megatron-bridge",
        any: &["nvidia/nemo:26", "nemo:26", "Megatron-Bridge", "megatron/bridge", "megatron.bridge"],
        pattern: None,
        role: Role::Context,
    },
    Signal {
        id: "gid-index-variable",
        any: &["NVSHMEM_IB_GID_INDEX"],
        pattern: Some(r"NVSHMEM_IB_GID_INDEX(?:'?\W{1,5}(?P<value>\d+))?"),
        role: Role::Context,
    },
    Signal {
        id: "gid-index-unknown",
        any: &["NVSHMEM_IB_GID_INDEX", "GID_INDEX"],
        pattern: Some(
            r"(?i)grep\b.*GID_INDEX.*\|\s*wc|(?:no|not|without|unknown|unrecogni[sz]ed)\b.{0,60}GID_INDEX|GID_INDEX.{0,60}\b(?:not (?:found|listed|known|recogni[sz]ed|in)|unknown|no match|unused|0 matches|ignored)",
        ),
        role: Role::Context,
    },
    Signal {
        id: "libfabric-retries",
        any: &["Max amount of libfabric retries reached"],
        pattern: None,
        role: Role::Failure,
    },
    Signal {
        id: "efa-in-use",
        any: &[
            "elected provider is efa",
            "elected Provider is efa",
            "provider: efa",
            "rovider=efa",
            "NET/OFI",
            "FI_PROVIDER",
            "rdmap",
            "vpc.amazonaws.com/efa",
            "EFA ",
            " EFA",
            "FI_EFA_",
        ],
        pattern: Some(
            r"(?i:selected provider is efa)|\bFI_EFA_USE_DEVICE_RDMA\W{1,5}(?:1|true)|provider: efa|FI_PROVIDER\W{1,5}efa|NVSHMEM_LIBFABRIC_PROVIDER\W{1,5}efa|NET/OFI .*(?:efa|EFA|rdmap)|\brdmap\d+s\d+|vpc\.amazonaws\.com/efa|\bEFA\b.*(?:device|adapter|provider|NIC|interface|installer)|p[56][a-z0-9-]*\.48xlarge",
        ),
        role: Role::Context,
    },
    Signal {
        id: "remote-transport-unset",
        any: &["NVSHMEM_REMOTE_TRANSPORT"],
        pattern: Some(
            r"NVSHMEM_REMOTE_TRANSPORT['\x22]?(?:\s*[:=]\s*['\x22]?(?:$|\(?unset|\(?not set|None\b|<unset|<not set|''|\x22\x22|ibrc\b|\s*$)| (?:is )?(?:unset|not set))",
        ),
        role: Role::Context,
    },
    Signal {
        id: "remote-transport-libfabric",
        any: &["NVSHMEM_REMOTE_TRANSPORT"],
        pattern: Some(r"NVSHMEM_REMOTE_TRANSPORT['\x22]?\s*[:=]\s*['\x22]?libfabric"),
        role: Role::Context,
    },
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "nvshmem-roce-address-handle",
        needs: &["nvshmem-address-handle"],
        unless: &["nvshmem-bootstrap-truncated"],
        because: "NVSHMEM could not create an address handle while it set up IBGDA. Up to 3.4.5 it does not clear the attributes it passes, and on RoCE what is left in them counts.",
        refine: Some(address_handle),
        ..Rule::LIKELY
    },
    Rule {
        cause: "nvshmem-bootstrap-tcp-order",
        needs: &["nvshmem-bootstrap-truncated"],
        because: "A message of NVSHMEM's bootstrap over TCP had {got} bytes where {want} were due: messages arrive in another order than they are read, and PEs exchange wrong connection data. Errors of verbs after it follow.",
        rules_out: &[
            "The RDMA network: the verbs calls fail with data that came wrong over the control channel.",
        ],
        ..Rule::LIKELY
    },
    Rule {
        cause: "variable-unknown-to-library",
        needs: &["nvshmem-modify-qp-failed", "gid-index-variable"],
        because: "A GID index is set by a variable that this NVSHMEM does not know, so queue pairs are connected with the index it finds by itself.",
        refine: Some(gid_variable),
        ..Rule::LIKELY
    },
    Rule {
        cause: "qp-connect-failed",
        needs: &["nvshmem-modify-qp-failed"],
        unless: &["nvshmem-bootstrap-truncated"],
        confidence: Confidence::Possible,
        refine: Some(modify_qp),
        ..Rule::LIKELY
    },
    Rule {
        cause: "nvshmem-no-remote-transport",
        needs: &["nvshmem-peer-not-accessible"],
        unless: &["no-peermem"],
        refine: Some(peer),
        ..Rule::LIKELY
    },
    Rule {
        cause: "p2p-unavailable",
        needs: &["nvshmem-peer-not-accessible"],
        unless: &["no-peermem"],
        confidence: Confidence::Possible,
        refine: Some(near_peer),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gpu-memory-exhausted",
        needs: &["nvshmem-heap-failed"],
        confidence: Confidence::Certain,
        because: "NVSHMEM's heap could not be allocated: cuMemCreate returned 2, which is CUDA_ERROR_OUT_OF_MEMORY.",
        rules_out: &[
            "The network: `Connection closed by remote peer` and illegal accesses come after the rank gave up.",
            "Missing rights in the container: those give cuMemCreate another status.",
        ],
        refine: Some(heap),
        ..Rule::LIKELY
    },
    Rule {
        cause: "container-privilege-devx",
        needs: &["nvshmem-devx-uar"],
        because: "The NIC's page for doorbells could not be allocated through DEVX: the container lacks rights for it.",
        rules_out: &[
            "The driver's keys: without them the page is allocated and then cannot be mapped (`GPU cannot map UAR`).",
        ],
        ..Rule::LIKELY
    },
    Rule {
        cause: "nvshmem-max-teams",
        needs: &["nvshmem-no-more-teams"],
        confidence: Confidence::Certain,
        because: "NVSHMEM has no team left of the number allowed ({max}): newer versions need one more than DeepEP writes into NVSHMEM_MAX_TEAMS.",
        rules_out: &[
            "Memory: NVSHMEMX_ERROR_OUT_OF_MEMORY is the name of the status, and the text speaks of teams.",
        ],
        ..Rule::LIKELY
    },
    Rule {
        cause: "launcher-misdetects-ip-family",
        needs: &["nvshmem-no-socket-interface", "af-inet6-forced"],
        confidence: Confidence::Certain,
        because: "The launcher could not tell that the interface has an IPv4 address and forced NVSHMEM's bootstrap to IPv6; no interface matches.",
        rules_out: &["A wrong interface name: the launcher's own warning stands before the failure."],
        ..Rule::LIKELY
    },
    Rule {
        cause: "nvshmem-bootstrap-interface",
        needs: &["nvshmem-no-socket-interface"],
        unless: &["af-inet6-forced"],
        confidence: Confidence::Possible,
        because: "NVSHMEM's bootstrap found no interface: the name in NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME does not exist there, or it has no address of the family asked for.",
        refine: Some(|_, claim| {
            Some(claim.next("`ip -br addr` in the container of the failing rank, and its NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME and _FAMILY."))
        }),
        ..Rule::LIKELY
    },
    Rule {
        cause: "efa-ll-retries",
        needs: &["libfabric-retries"],
        confidence: Confidence::Certain,
        because: "NVSHMEM's libfabric transport used up its retries: the low-latency kernels send more at a time than the provider's queue takes.",
        rules_out: &["A lost link: the provider answered -11, try again, each time."],
        ..Rule::LIKELY
    },
    Rule {
        cause: "efa-transport-not-set",
        any: &["cpu-recv-timeout", "dispatch-timeout", "recv-counters-unset"],
        because: "The nodes have EFA, and NVSHMEM_REMOTE_TRANSPORT is not libfabric: NVSHMEM uses a transport that EFA does not have.",
        refine: Some(efa),
        ..Rule::LIKELY
    },
];

/// Versions of NVSHMEM that the lines say, with each line.
fn versions<'a>(case: &'a Case, signal: &'a str) -> impl Iterator<Item = (&'a str, &'a Event)> {
    case.events(signal).filter_map(move |event| {
        // A list of linked libraries names the host library beside the extension.
        if signal == "nvshmem-device-library"
            && event.text.contains("nvshmem_host")
            && !event.text.contains("evice")
        {
            return None;
        }
        let field = ["version", "package", "said"].into_iter().find_map(|name| event.field(name))?;
        Some((field, event))
    })
}

/// The NVSHMEM that loaded in the run of `near`: the banner of that file, else of any; else what is known otherwise.
pub(super) fn loaded(case: &Case, near: Option<&Event>) -> Option<String> {
    let banner = || versions(case, "nvshmem-banner");
    let here = near.and_then(|near| {
        let mine = banner().filter(|(_, event)| event.place.file == near.place.file);
        let (before, after): (Vec<_>, Vec<_>) =
            mine.partition(|(_, event)| event.place.line <= near.place.line);
        before.last().or(after.first()).map(|(version, _)| *version)
    });
    let newest =
        || banner().map(|(version, _)| version).max_by_key(|version| super::timeout::numbers(version));
    here.or_else(newest)
        .or_else(|| case.version("nvshmem"))
        .or_else(|| {
            ["nvshmem-host-library", "nvshmem-wheel", "nvshmem-version-said", "nvshmem-source-path"]
                .into_iter()
                .find_map(|signal| versions(case, signal).next().map(|(version, _)| version))
        })
        .map(str::to_owned)
}

/// Versions of the device code in the extension and of the host library, where both are known and differ; with the lines.
pub(super) fn split<'a>(case: &'a Case, near: Option<&Event>) -> Option<(String, String, Vec<&'a Event>)> {
    let host =
        versions(case, "nvshmem-banner").last().or_else(|| versions(case, "nvshmem-host-library").next());
    let host_version = loaded(case, near)?;
    let device = versions(case, "nvshmem-device-library").last();
    let device_version = case.version("nvshmem_device").or(device.map(|(version, _)| version));
    // Where the extension's own version is not said, the wheel it was built from tells, if the library is of another source.
    let wheel = versions(case, "nvshmem-wheel").next();
    let device_version = device_version.or(wheel.filter(|_| host.is_some()).map(|(version, _)| version))?;
    if device_version == host_version {
        return None;
    }
    let lines = [device.or(wheel), host].into_iter().flatten().map(|(_, event)| event).collect();
    Some((device_version.to_owned(), host_version, lines))
}

/// Whether the version that was given beside the logs (`--stack`) is none of those that banners show: which is of this run is open.
pub(super) fn contradicted(case: &Case) -> bool {
    let given = case.question.known.get("nvshmem").filter(|known| known.source == GIVEN);
    let mut banners = versions(case, "nvshmem-banner").peekable();
    given.is_some_and(|given| banners.peek().is_some() && banners.all(|(version, _)| version != given.value))
}

/// Whether something says the version of the device code itself, and not of a wheel beside it.
pub(super) fn device_said(case: &Case) -> bool {
    case.version("nvshmem_device").is_some() || case.has("nvshmem-device-library")
}

/// Whether the rails are Ethernet, where something says so.
fn roce(case: &Case) -> Option<bool> {
    match case.version("roce") {
        Some(value) => Some(value == "yes"),
        None if case.has("link-ethernet") && !case.has("link-infiniband") => Some(true),
        None if case.has("link-infiniband") && !case.has("link-ethernet") => Some(false),
        None => None,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what a rule takes to look closer")]
fn address_handle(case: &Case, mut claim: Claim) -> Option<Claim> {
    let first = case.first("nvshmem-address-handle");
    let version = loaded(case, first);
    let old = version.as_deref().map(|version| below(version, (3, 5, 19)));
    claim.evidence.extend(case.first("link-ethernet").map(|event| event.place));
    claim.evidence.extend(
        case.first_of(&["nvshmem-banner", "nvshmem-source-path", "nvshmem-version-said"])
            .map(|event| event.place),
    );
    let next = "The link layer of the rails (`cat /sys/class/infiniband/*/ports/1/link_layer`) and the NVSHMEM that loaded (its banner).";
    if old == Some(false) {
        claim.because = format!(
            "NVSHMEM {} could not create an address handle; the fault that is known of this is mended there.",
            version.unwrap_or_default()
        );
        return Some(weigh(claim, Confidence::Possible).next(next));
    }
    // A report with this message, where other nodes of the same image work, is open: an old NVSHMEM does not explain it.
    let open = case.has_any(&["nvshmem-some-devices-failed", "megatron-bridge"]);
    let eight = deepep::gpu(case).is_some_and(|(gpu, _)| matches!(gpu, "B300" | "GB300"));
    let fits = match roce(case) {
        Some(roce) => roce,
        None => eight && old == Some(true),
    };
    if !fits || open {
        return Some(weigh(claim, Confidence::Possible).next(next));
    }
    Some(claim.not("A wrong GID or a cable: those fail when queue pairs connect (`ibv_modify_qp failed`), not when an address handle is made."))
}

#[expect(clippy::unnecessary_wraps, reason = "what a rule takes to look closer")]
fn gid_variable(case: &Case, mut claim: Claim) -> Option<Claim> {
    let version = loaded(case, case.first("nvshmem-modify-qp-failed"));
    claim.subject = Some("NVSHMEM_IB_GID_INDEX".to_owned());
    let absent = case.first("gid-index-unknown");
    claim.evidence.extend(absent.map(|event| event.place));
    let known_without = version.as_deref().is_some_and(|version| version.starts_with("3.4."));
    if absent.is_some() || known_without {
        return Some(claim.not("A wrong index: the value does not reach the library."));
    }
    Some(weigh(claim, Confidence::Possible).next("Whether the library that loads knows the variable: `strings libnvshmem_host.so.3 nvshmem_transport_*.so* | grep GID_INDEX`."))
}

#[expect(clippy::unnecessary_wraps, reason = "what a rule takes to look closer")]
fn modify_qp(case: &Case, mut claim: Claim) -> Option<Claim> {
    let codes: BTreeSet<i64> =
        case.events("nvshmem-modify-qp-failed").filter_map(|event| event.number("status")).collect();
    let code = codes.first().copied();
    let (says, next) = match code {
        Some(110) => (
            "110 is ETIMEDOUT: the peer's NIC was not reached. Low-latency mode connects every PE with every PE, across rails too",
            "`ib_write_bw` (or rping) between NICs of different rails of two nodes, with the GID index the job uses.",
        ),
        Some(101) => (
            "101 is ENETUNREACH: there is no route from this NIC's address to the peer's",
            "The GIDs and addresses of the failing NIC and of its peer (`show_gids`, `ip route get`).",
        ),
        Some(22) => (
            "22 is EINVAL: an attribute does not fit the port, such as its GID index, MTU or a port that is down",
            "State, link layer and GIDs of every HCA that NVSHMEM may take on the failing node (`ibv_devinfo -v`).",
        ),
        _ => (
            "the status that verbs returned is not in the lines",
            "The status before `ibv_modify_qp failed` on the rank that failed first (110, 101 and 22 are three questions).",
        ),
    };
    claim.because = format!(
        "NVSHMEM could not connect a queue pair; {says}. Which of several reasons it is, these lines do not say."
    );
    Some(claim.next(next))
}

/// Ranks of a node for the arithmetic of peers: what is said, else the 8 of an HGX node.
fn node_size(case: &Case) -> i64 {
    i64::from(deepep::local_world(case).unwrap_or(8))
}

fn peer(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("nvshmem-peer-not-accessible")?;
    let (gpu, peer, size) = (event.number("gpu")?, event.number("peer")?, node_size(case));
    if gpu / size == peer / size {
        return None;
    }
    claim.because = format!(
        "PE {gpu} cannot reach PE {peer}, which is on another node ({size} to a node): NVSHMEM has no remote transport between them."
    );
    claim.subject = Some(format!("node {}", peer / size));
    let claim = claim
        .not("NVLink or peer access: the first peer that cannot be reached is the first of another node.")
        .next("NVSHMEM_DEBUG=INFO of one rank on each of the two nodes: why each transport was skipped.");
    Some(if case.has_any(&["ibgda-alloc-skip", "nic-not-mlx5", "ibgda-uar-unmapped"]) {
        weigh(claim, Confidence::Possible)
    } else {
        claim
    })
}

fn near_peer(case: &Case, mut claim: Claim) -> Option<Claim> {
    let event = case.first("nvshmem-peer-not-accessible")?;
    let (gpu, peer, size) = (event.number("gpu")?, event.number("peer")?, node_size(case));
    if gpu / size != peer / size {
        return None;
    }
    claim.because = format!(
        "PE {gpu} cannot reach PE {peer}, and by the numbers both are on one node ({size} to a node): peer access over NVLink or PCIe, if PEs are numbered so."
    );
    Some(claim.next("`nvidia-smi topo -p2p r` on that node, and which host each PE runs on."))
}

fn heap(case: &Case, claim: Claim) -> Option<Claim> {
    let status: Vec<i64> =
        case.events("nvshmem-heap-failed").filter_map(|event| event.number("status")).collect();
    if case.has("nvshmem-devx-uar") {
        return None;
    }
    if status.contains(&2) {
        return Some(claim);
    }
    let mut claim = claim;
    claim = saying(claim, "NVSHMEM's heap could not be allocated, with another status than out of memory.");
    Some(weigh(claim, Confidence::Possible).next(
        "The status before `cuMemCreate failed`: 2 is out of memory, 1 and 800 are rights or handle types.",
    ))
}

fn efa(case: &Case, mut claim: Claim) -> Option<Claim> {
    let on_efa = case.version("transport") == Some("efa")
        || case.version("nic") == Some("efa")
        || case.has("efa-in-use");
    let set = case.variable("NVSHMEM_REMOTE_TRANSPORT");
    if !on_efa || !failing(case) || case.has("remote-transport-libfabric") || set == Some("libfabric") {
        return None;
    }
    claim.subject = Some("NVSHMEM_REMOTE_TRANSPORT".to_owned());
    claim.evidence.extend(case.first("efa-in-use").map(|event| event.place));
    let unset = case.first("remote-transport-unset");
    claim.evidence.extend(unset.map(|event| event.place));
    // Several of NVSHMEM's and libfabric's variables are shown, and this is not among them.
    let shown =
        case.variables.keys().filter(|name| name.starts_with("NVSHMEM_") || name.starts_with("FI_")).count();
    if unset.is_some() || set.is_some() || case.environment_printed || shown > 2 {
        // A rank that failed otherwise leaves the others waiting on any transport.
        let elsewhere = Questions::of(case).is_some_and(|questions| questions.someone_else());
        let claim = if elsewhere { weigh(claim, Confidence::Possible) } else { claim };
        return Some(
            claim.not("DeepEP's kernels: with the transport of IBGDA they have no NIC to ring on EFA."),
        );
    }
    Some(
        weigh(claim, Confidence::Possible)
            .next("The environment of one rank: `env | grep -E 'NVSHMEM|FI_'`."),
    )
}
