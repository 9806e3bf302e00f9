//! Variables that choose what moves the bytes between nodes.

use super::finding::{Severity, Sink};
use super::unit::{Kind, Scope, Setting, Unit, number};

/// DeepEP's Buffer writes these itself before it starts NVSHMEM.
const OVERWRITTEN: &[&str] = &[
    "NVSHMEM_MAX_TEAMS",
    "NVSHMEM_IBGDA_NUM_RC_PER_PE",
    "NVSHMEM_DISABLE_P2P",
    "NVSHMEM_DISABLE_NVLS",
    "NVSHMEM_DISABLE_MNNVL",
    "NVSHMEM_CUMEM_GRANULARITY",
];
const TRANSPORTS: &[&str] = &["ibrc", "ucx", "libfabric", "ibdevx", "none"];
const INTERFACES: &[&str] =
    &["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "TP_SOCKET_IFNAME"];
const FAMILIES: &[&str] = &["NCCL_SOCKET_FAMILY", "GLOO_SOCKET_FAMILY", "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY"];

pub(crate) fn check(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    transports(unit, sink);
    cures(unit, sink);
    levels(unit, sink);
    interfaces(unit, sink);
    local(unit, sink);
    depth(unit, sink);
}

fn known<'u>(unit: &'u Unit<'_>, name: &str) -> Option<&'u Setting> {
    unit.setting(name).filter(|setting| setting.decided)
}

fn transports(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let transport = known(unit, "NVSHMEM_REMOTE_TRANSPORT");
    if let Some(setting) = transport {
        let value = setting.value.as_str();
        if value == "libfabric"
            && unit.on("NVSHMEM_IB_ENABLE_IBGDA")
            && let Some(ibgda) = unit.setting("NVSHMEM_IB_ENABLE_IBGDA")
        {
            let what = "NVSHMEM_IB_ENABLE_IBGDA=1 beside NVSHMEM_REMOTE_TRANSPORT=libfabric";
            sink.add("N020", ibgda.at, what)
                .fix("on EFA: leave NVSHMEM_IB_ENABLE_IBGDA away; on InfiniBand: leave libfabric away");
        }
        if !TRANSPORTS.contains(&value.to_ascii_lowercase().as_str()) {
            sink.add("N021", setting.at, format!("NVSHMEM_REMOTE_TRANSPORT is `{value}`"))
                .fix(format!("one of {}", TRANSPORTS.join(", ")));
        }
    }
    let efa = known(unit, "FI_PROVIDER").filter(|setting| setting.value == "efa");
    let chosen = unit.setting("NVSHMEM_REMOTE_TRANSPORT").is_some();
    if let Some(setting) = efa.filter(|_| !chosen && !unit.open && unit.uses_nvshmem()) {
        sink.add("N022", setting.at, "FI_PROVIDER=efa, and NVSHMEM_REMOTE_TRANSPORT is not set")
            .fix("NVSHMEM_REMOTE_TRANSPORT=libfabric NVSHMEM_LIBFABRIC_PROVIDER=efa");
    } else if let Some(setting) = transport.filter(|setting| setting.value == "libfabric")
        && unit.setting("NVSHMEM_LIBFABRIC_PROVIDER").is_none()
        && !unit.open
    {
        let what = "NVSHMEM_REMOTE_TRANSPORT=libfabric, and NVSHMEM_LIBFABRIC_PROVIDER is not set";
        sink.add("N022", setting.at, what).fix("NVSHMEM_LIBFABRIC_PROVIDER=efa");
    }
    let off = known(unit, "NCCL_IB_DISABLE").filter(|setting| number(&setting.value).is_some_and(|n| n != 0));
    let efa = unit.pods.iter().any(|pod| pod.resources().contains(&"vpc.amazonaws.com/efa")) || efa.is_some();
    if let Some(setting) = off.filter(|_| !efa) {
        sink.add("N023", setting.at, format!("NCCL_IB_DISABLE={}", setting.value)).fix("NCCL_IB_DISABLE=0");
    }
}

fn cures(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    for name in ["NVSHMEM_IBGDA_NIC_HANDLER", "NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE"] {
        let Some(setting) = unit.setting(name) else { continue };
        // `gpu` lets missing driver parameters fail loudly instead of falling back to the CPU.
        let loud = name.ends_with("HANDLER") && setting.value == "gpu";
        let finding = sink.add("N024", setting.at, format!("{name}={}", setting.value));
        finding.fix("leave it away, and see to the driver: expertrail check --target deepep-ibgda");
        if loud {
            finding.weigh(Severity::Note);
        }
    }
    for name in OVERWRITTEN {
        if let Some(setting) = unit.setting(name).filter(|setting| setting.scope != Scope::Program)
            && unit.uses_nvshmem()
        {
            sink.add("N025", setting.at, format!("{name}={}", setting.value))
                .fix("leave it away; where another value is needed, change deep_ep/buffer.py");
        }
    }
}

fn levels(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let (nccl, nvshmem) = (known(unit, "NCCL_IB_SL"), known(unit, "NVSHMEM_IB_SL"));
    if let (Some(nccl), Some(nvshmem)) = (nccl, nvshmem)
        && nccl.value.trim() != nvshmem.value.trim()
    {
        let what = format!("NVSHMEM_IB_SL is {} and NCCL_IB_SL is {}", nvshmem.value, nccl.value);
        sink.add("N026", nvshmem.at, what).fix(format!("NVSHMEM_IB_SL={}", nccl.value));
    }
}

fn interfaces(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let set: Vec<&Setting> = INTERFACES.iter().filter_map(|name| known(unit, name)).collect();
    if let Some((first, rest)) = set.split_first()
        && let Some(other) = rest.iter().find(|other| other.value != first.value)
        // `^docker,lo` leaves out and does not choose.
        && !first.value.starts_with('^')
        && !other.value.starts_with('^')
    {
        let what = format!("{}={} and {}={}", other.name, other.value, first.name, first.value);
        sink.add("N027", other.at, what)
            .fix("the interface of the default route, in all: ip route get 1.1.1.1");
    }
    let families: Vec<&Setting> = FAMILIES.iter().filter_map(|name| known(unit, name)).collect();
    for setting in &families {
        if !matches!(setting.value.as_str(), "AF_INET" | "AF_INET6") {
            sink.add("N028", setting.at, format!("{}={}", setting.name, setting.value))
                .fix("AF_INET or AF_INET6");
        }
    }
    if let Some((first, rest)) = families.split_first()
        && let Some(other) = rest.iter().find(|other| other.value != first.value)
    {
        let what = format!("{}={} and {}={}", other.name, other.value, first.name, first.value);
        sink.add("N028", other.at, what).fix(format!("{}={}", other.name, first.value));
    }
    let boot = known(unit, "NVSHMEM_BOOTSTRAP").filter(|setting| setting.value.eq_ignore_ascii_case("uid"));
    let uid = "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";
    if unit.setting(uid).is_none()
        && !unit.open
        && let Some(nccl) = unit.setting("NCCL_SOCKET_IFNAME").filter(|_| unit.uses_nvshmem())
        // By name or by DeepEP: both use the UID bootstrap.
        && (boot.is_some() || unit.settings.iter().any(|setting| setting.name.starts_with("NVSHMEM_")))
    {
        // `^docker,lo` says which ones not to take; another library needs the name of one.
        let leaves_out = nccl.value.starts_with('^');
        // EFA's images leave out interfaces and nothing more, and both libraries find the one that is left.
        if leaves_out && on_efa(unit) {
            return;
        }
        let name =
            if leaves_out { "INTERFACE   # of the default route: ip route get 1.1.1.1" } else { &nccl.value };
        let what = format!("NCCL_SOCKET_IFNAME is set and {uid} is not");
        sink.add("N029", nccl.at, what).fix(format!("{uid}={name}"));
    }
}

/// Whether the NICs are EFA's.
fn on_efa(unit: &Unit<'_>) -> bool {
    unit.pods.iter().any(|pod| pod.resources().contains(&"vpc.amazonaws.com/efa"))
        || unit.value("FI_PROVIDER") == Some("efa")
        || unit.value("NVSHMEM_REMOTE_TRANSPORT") == Some("libfabric")
}

/// Variables that nobody gets, since they are not exported.
fn local(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    const STEMS: &[&str] = &["NCCL_", "NVSHMEM_", "UCX_", "FI_", "GLOO_", "OMPI_MCA_"];
    if !matches!(unit.kind, Kind::Batch | Kind::Shell | Kind::Job | Kind::MpiJob | Kind::Pods) {
        return;
    }
    for setting in &unit.settings {
        let ours = STEMS.iter().any(|stem| setting.name.starts_with(stem));
        if setting.scope != Scope::Local || !ours {
            continue;
        }
        // It may be handed on by hand: `-x A=$A`, `export B=$A`.
        let used = [format!("${}", setting.name), format!("${{{}", setting.name)];
        if used.iter().any(|used| unit.text.contains(used)) {
            continue;
        }
        sink.add("N030", setting.at, format!("{} is assigned and not exported", setting.name))
            .fix(format!("export {}={}", setting.name, setting.value));
    }
}

/// Queue entries of the low-latency kernels.
fn depth(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let Some((_, command, _)) = unit.deepep_tests().find(|(_, _, test)| *test == "test_low_latency.py")
    else {
        return;
    };
    let tokens = command.option(&["--num-tokens"]).and_then(|word| number(&word.text)).unwrap_or(128);
    let setting = known(unit, "NVSHMEM_QP_DEPTH");
    let Some(depth) = setting.map_or(Some(1024), |setting| number(&setting.value)) else { return };
    let wanted = tokens.saturating_add(1).saturating_mul(2);
    if depth < wanted {
        let at = setting.map_or(unit.at(command.line()), |setting| setting.at);
        let what = format!("queues of {depth} entries for {tokens} tokens of a rank, which take {wanted}");
        sink.add("N031", at, what).fix(format!("export NVSHMEM_QP_DEPTH={}", wanted.next_power_of_two()));
    }
}
