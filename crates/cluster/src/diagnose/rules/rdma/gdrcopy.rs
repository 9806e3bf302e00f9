//! GDRCopy's module and device.

use crate::diagnose::Case;
use crate::diagnose::event::{Role, Signal};
use crate::diagnose::rule::{Claim, Confidence, Rule};
use crate::diagnose::rules::process::story::{line, text, unless_fine};

/// Kinds of lines.
pub(super) const SIGNALS: &[Signal] = &[
    text("gdrdrv-for-proprietary-driver", Role::Context, &["built for proprietary NVIDIA driver"]),
    text("gdrdrv-stand-in", Role::Context, &["nv-p2p-dummy", "nv_p2p_dummy"]),
    text("open-kernel-driver", Role::Context, &["Open Kernel Module", "Dual MIT/GPL"]),
    line(
        "gdr-pin-failed",
        Role::Failure,
        &["gdr_pin_buffer"],
        r"gdr_pin_buffer.*(?:failed|error|errno|ret(?:urned)?[ =:]+-?\d)",
    ),
    line(
        "gdr-version-ioctl-failed",
        Role::Failure,
        &["Error getting the gdrdrv driver version"],
        r"errno=(?P<errno>\d+)",
    ),
    text("gdr-open-failed", Role::Warning, &["gdr_open error: Is gdrdrv driver installed and loaded"]),
    line(
        "gdrdrv-loaded",
        Role::Context,
        &["gdrdrv"],
        r"(?:^|\s)gdrdrv\s+\d+\s+\d+\b|^\s*(?P<major>\d+) gdrdrv\s*$|\b\d+ gdrdrv\b|loading gdrdrv version|\bgdrdrv(?: v?\d[\d.]*)?,? (?:module )?(?:is |was )?(?:loaded|registered)\b",
    ),
    line("gdrdrv-node-absent", Role::Context, &["/dev/gdrdrv"], r"/dev/gdrdrv\W*: No such file"),
    line(
        "gdrdrv-node",
        Role::Context,
        &["/dev/gdrdrv"],
        r"^c[rwx-]{9}\S*\s.*?(?P<major>\d+),\s*\d+\s.*/dev/gdrdrv",
    ),
    line(
        "gdrcopy-version",
        Role::Context,
        &["gdrdrv", "gdrcopy", "GDRCopy", "GDRCOPY"],
        r"(?i)(?:gdrdrv|gdrcopy)\D{0,24}?(?P<version>\d+\.\d+(?:\.\d+)?)\b",
    ),
    line(
        "gdr-sanity-totals",
        Role::Context,
        &["Passed: "],
        r"Total: (?P<total>\d+), Passed: (?P<passed>\d+), Failed: (?P<failed>[1-9]\d*)",
    ),
    line(
        "nvidia-driver-version",
        Role::Context,
        &[
            "Driver Version",
            "Kernel Module",
            "driver version",
            "Driver version",
            "driver_version",
            "NVIDIA driver",
            "nvidia driver",
        ],
        r"(?i)(?:driver[ _]version\W*|nvidia driver\W+|Kernel Module\s+(?:for \S+\s+)?)(?P<major>\d{3})\.\d+",
    ),
];

/// Rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        cause: "gdrdrv-not-bound",
        needs: &["gdr-pin-failed"],
        any: &["gdrdrv-stand-in", "gdrdrv-for-proprietary-driver"],
        confidence: Confidence::Likely,
        because: "gdrdrv loads and pins nothing: it was built without the running driver's symbols (the other flavour of the driver, or GDRCopy's stand-in)",
        rules_out: &["the module is loaded, so lsmod and a look for /dev/gdrdrv pass"],
        refine: Some(not_bound),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gdrdrv-node-wrong",
        needs: &["gdr-version-ioctl-failed"],
        confidence: Confidence::Likely,
        because: "/dev/gdrdrv opens but another driver answers (errno {errno}): its major number is not that of gdrdrv",
        rules_out: &[
            "`might be too old` misleads: a gdrdrv that is old answers the call",
            "a node that is not there gives ENOENT when it is opened, not EINVAL of a call",
        ],
        refine: Some(other_driver),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gdrdrv-node-wrong",
        needs: &["gdr-open-failed"],
        unless: &["gdr-version-ioctl-failed"],
        confidence: Confidence::Likely,
        because: "gdrdrv is loaded and cannot be opened: modprobe makes no /dev/gdrdrv, or the node is of an earlier load",
        rules_out: &["the module is not missing: it is listed"],
        refine: Some(node),
        ..Rule::LIKELY
    },
    Rule {
        cause: "gdrdrv-too-old",
        needs: &["gdr-pin-failed"],
        unless: &["gdrdrv-stand-in", "gdrdrv-for-proprietary-driver"],
        confidence: Confidence::Certain,
        because: "GDRCopy before 2.4.2 with a driver of 560 or newer: pinning fails for some buffers",
        rules_out: &["only part of the sanity tests fails: the module is loaded, bound and reached"],
        refine: Some(too_old),
        ..Rule::LIKELY
    },
];

fn not_bound(case: &Case, mut claim: Claim) -> Option<Claim> {
    // Part of the tests passing means that it is bound.
    let totals = case.first("gdr-sanity-totals");
    let partly = totals.and_then(|event| Some((event.number("passed")?, event.number("failed")?)));
    // Those that pin nothing pass either way.
    if partly.is_some_and(|(passed, failed)| passed > 4 && passed * 3 > failed) {
        return None;
    }
    if !case.has("gdrdrv-stand-in") && !case.has("open-kernel-driver") {
        claim.confidence = Confidence::Possible;
        claim.next = Some("the flavour of the running driver, `modinfo -F license nvidia` (Dual MIT/GPL: open), beside `modinfo -F depends gdrdrv`".to_owned());
    } else if case.has("open-kernel-driver") && case.has("gdrdrv-for-proprietary-driver") {
        claim.confidence = Confidence::Certain;
    }
    claim.evidence.extend(case.first("open-kernel-driver").map(|event| event.place));
    unless_fine(case, claim)
}

fn other_driver(case: &Case, mut claim: Claim) -> Option<Claim> {
    let major = |signal: &str| case.events(signal).find(|event| event.field("major").is_some());
    let (device, driver) = (major("gdrdrv-node"), major("gdrdrv-loaded"));
    let shown = device.or(driver).or_else(|| case.first("gdrdrv-loaded"));
    match (device, driver) {
        (Some(device), Some(driver)) if device.field("major") == driver.field("major") => {
            claim.confidence = Confidence::Possible;
            claim.because = "the node and the driver have the same major number now, and the call is refused: the container may have another node, or library and module differ".into();
            claim.rules_out.clear();
            claim.next = Some("`ls -l /dev/gdrdrv` inside the container, and `modinfo -F version gdrdrv` beside the library's version".to_owned());
        }
        (Some(device), Some(driver)) => {
            claim.confidence = Confidence::Certain;
            claim.evidence.extend([device.place, driver.place]);
        }
        _ => {
            if let Some(shown) = shown {
                claim.evidence.push(shown.place);
                return unless_fine(case, claim);
            }
            let errno = case.first("gdr-version-ioctl-failed")?.field("errno").unwrap_or("?");
            claim.confidence = Confidence::Possible;
            claim.because = format!(
                "/dev/gdrdrv opens and refuses the first call (errno {errno}): its major number may be another driver's, or module and library are of different age"
            );
            claim.rules_out.clear();
            claim.next = Some(
                "`ls -l /dev/gdrdrv` beside `grep gdrdrv /proc/devices`: two major numbers are this cause"
                    .to_owned(),
            );
        }
    }
    unless_fine(case, claim)
}

fn node(case: &Case, mut claim: Claim) -> Option<Claim> {
    let loaded = case.first("gdrdrv-loaded");
    if let Some(loaded) = loaded {
        claim.evidence.push(loaded.place);
    } else {
        claim.confidence = Confidence::Possible;
        claim.because =
            "GDRCopy cannot open its device: the module is not loaded, or its node is missing or wrong"
                .into();
        claim.rules_out.clear();
        claim.next = Some(
            "`grep gdrdrv /proc/modules /proc/devices; ls -l /dev/gdrdrv` on that host, and in the container"
                .to_owned(),
        );
    }
    claim.evidence.extend(case.first("gdrdrv-node-absent").map(|event| event.place));
    unless_fine(case, claim)
}

/// The version in three numbers.
fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text
        .trim_start_matches('v')
        .split('.')
        .map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok());
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

fn too_old(case: &Case, mut claim: Claim) -> Option<Claim> {
    let of_log = case.first("gdrcopy-version").and_then(|event| version(event.field("version")?));
    let gdrdrv = case.version("gdrdrv").and_then(version).or(of_log);
    let driver = case
        .version("driver")
        .and_then(|text| Some(version(text)?.0))
        .or_else(|| u32::try_from(case.first("nvidia-driver-version")?.number("major")?).ok());
    match (gdrdrv, driver) {
        (Some(found), Some(driver)) if found < (2, 4, 2) && driver >= 560 => {
            claim.evidence.extend(
                ["gdrcopy-version", "nvidia-driver-version", "gdr-sanity-totals"]
                    .iter()
                    .filter_map(|signal| case.first(signal))
                    .map(|event| event.place),
            );
        }
        (Some(found), _) if found >= (2, 4, 2) => return None,
        (_, Some(driver)) if driver < 560 => return None,
        _ => {
            claim.confidence = Confidence::Possible;
            claim.rules_out.clear();
            claim.next = Some("the versions of gdrdrv and of the driver: `modinfo -F version gdrdrv; cat /proc/driver/nvidia/version`".to_owned());
        }
    }
    unless_fine(case, claim)
}
