//! Checks on trees. Every finding has a tree that raises it and a near miss that must not:
//! `trees/findings/ID.raise.tree` and `ID.near.tree`, or `ID-NAME.…` for further ways to raise it.
//!
//! Their first lines say what is checked: `# for TARGET`, where a provider's profile is asked for `# profile NAME`, then of a raised
//! one `# says STATUS OBSERVED`, in words taken from the tree and the documents.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used
)]

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use expertrail_cluster::check::{self, CHECKS, Options, Report, Target, Verdict};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::finding::{Finding, Manager, Status};
use expertrail_cluster::profile::{self, Profile};
use expertrail_cluster::root::Root;
use expertrail_cluster::{causes, collect, stack, topo};

fn facts(place: &std::path::Path) -> Facts {
    collect::facts(&Root::captured(place), &collect::Options::default())
}

fn report(place: &std::path::Path, target: Target) -> Report {
    check::run(&facts(place), &Options { target, ..Options::default() })
}

/// The checks that [`check::run`] makes.
fn checks() -> impl Iterator<Item = (&'static str, &'static str)> {
    [CHECKS, topo::CHECKS, stack::CHECKS].into_iter().flatten().copied()
}

fn bad(finding: &Finding) -> bool {
    matches!(finding.status, Status::Fail | Status::Warn)
}

struct Fixture {
    name: String,
    id: String,
    raises: bool,
    target: Target,
    profile: Option<Profile>,
    says: Option<(String, String)>,
    text: String,
}

fn fixtures() -> Vec<Fixture> {
    let mut all = Vec::new();
    for entry in fs::read_dir(tree::folder().join("findings")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(stem) = name.strip_suffix(".tree") else { panic!("{name} is no tree") };
        let (stem, kind) = stem.rsplit_once('.').unwrap();
        let raises = match kind {
            "raise" => true,
            "near" => false,
            other => panic!("{name}: {other} is neither raise nor near"),
        };
        let text = fs::read_to_string(&path).unwrap();
        let header = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(&format!("# {key} "))).map(str::to_owned)
        };
        let target = header("for").unwrap_or_else(|| panic!("{name}: no `# for`")).parse().unwrap();
        let profile = header("profile").map(|named| profile::get(&named).unwrap());
        let says = header("says").map(|says| {
            let (status, observed) = says.split_once(' ').unwrap();
            (status.to_owned(), observed.to_owned())
        });
        assert!(!raises || says.is_some(), "{name}: no `# says`");
        let id = stem.split('-').next().unwrap().to_owned();
        all.push(Fixture { name, id, raises, target, profile, says, text });
    }
    all
}

#[test]
fn every_check_has_a_tree_that_raises_it_and_a_near_miss() {
    let all = fixtures();
    for (id, title) in checks() {
        for raises in [true, false] {
            let kind = if raises { "raise" } else { "near" };
            assert!(
                all.iter().any(|fixture| fixture.id == id && fixture.raises == raises),
                "{id} ({title}) has no findings/{id}.{kind}.tree"
            );
        }
    }
    let known: BTreeSet<&str> = checks().map(|(id, _)| id).collect();
    let stray: Vec<&str> =
        all.iter().filter(|f| !known.contains(f.id.as_str())).map(|f| f.name.as_str()).collect();
    assert!(stray.is_empty(), "of no check: {stray:?}");
}

#[test]
fn trees_raise_what_they_should_and_near_misses_do_not() {
    let mut wrong = Vec::new();
    for fixture in fixtures() {
        let place = tree::unpack_text(&fixture.text);
        let options =
            Options { target: fixture.target, profile: fixture.profile.clone(), ..Options::default() };
        let report = check::run(&facts(place.path()), &options);
        let of_id: Vec<&Finding> =
            report.findings.iter().filter(|finding| finding.id == fixture.id).collect();
        // That something cannot be told may be the fault itself.
        let untold = fixture.says.as_ref().is_some_and(|(status, _)| status == "UNKNOWN");
        let counts = |finding: &Finding| bad(finding) || untold && finding.status == Status::Unknown;
        let raised: Vec<&&Finding> = of_id.iter().filter(|finding| counts(finding)).collect();
        let seen: Vec<String> = of_id
            .iter()
            .map(|finding| format!("{} {} ({})", finding.status, finding.observed, finding.wanted))
            .collect();
        match &fixture.says {
            Some((status, observed)) if fixture.raises => {
                let said = raised.iter().any(|finding| {
                    finding.status.to_string() == *status && finding.observed.contains(observed.as_str())
                });
                if !said {
                    wrong.push(format!("{}: wanted {status} {observed}, is {seen:?}", fixture.name));
                }
                for finding in &raised {
                    let cause = finding.cause.as_deref().unwrap_or_default();
                    let lacks = [
                        (causes::get(cause).is_none(), "a cause of the registry"),
                        (finding.remedies.is_empty(), "a remedy"),
                        (finding.evidence.is_empty(), "evidence"),
                        (finding.wanted.is_empty(), "what is wanted"),
                    ];
                    let lacks = lacks.iter().filter(|(lacks, _)| *lacks);
                    wrong.extend(lacks.map(|(_, what)| format!("{}: lacks {what}", fixture.name)));
                }
            }
            _ if raised.is_empty() && of_id.iter().all(|finding| finding.status != Status::Unknown) => {}
            _ => wrong.push(format!("{}: {seen:?}", fixture.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_healthy_node_passes_for_what_it_is_made_for() {
    let targets = [Target::DeepepIbgda, Target::Expertrail, Target::Nccl];
    let pairs = ["healthy", "healthy-nvml"].into_iter().flat_map(|name| targets.map(|target| (name, target)));
    for (name, target) in pairs {
        let place = tree::unpack(name);
        let report = report(place.path(), target);
        let wrong: Vec<String> =
            report.findings.iter().filter(|f| bad(f)).map(|f| format!("{} {}", f.id, f.observed)).collect();
        assert!(wrong.is_empty(), "{name} for {target}: {wrong:?}");
        assert!(matches!(report.verdict, Verdict::Pass), "{name} for {target}: {:?}", report.verdict);
        assert_eq!(report.exit_code(true), 0);
    }
}

#[test]
fn ids_and_causes_are_unique() {
    let mut seen = BTreeSet::new();
    for (id, title) in CHECKS {
        assert!(seen.insert(*id), "{id} twice");
        assert!(
            id.len() == 4
                && id.starts_with('P')
                && id[1..].parse::<u32>().is_ok_and(|n| (1..100).contains(&n))
        );
        assert!(!title.is_empty());
    }
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for cause in causes::all() {
        assert!(seen.insert(cause.id, cause.title).is_none(), "{} twice", cause.id);
        assert!(
            cause.id.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'),
            "{}",
            cause.id
        );
        assert!(!cause.title.is_empty() && cause.text.len() > 40, "{}", cause.id);
    }
}

/// The tree of issue 4's "Done when".
fn virtual_machine() -> Root {
    Root::captured(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/h200-vm-x2"))
}

#[test]
fn the_h200_virtual_machine() {
    let facts = collect::facts(&virtual_machine(), &collect::Options::default());
    let of = |target| check::run(&facts, &Options { target, ..Options::default() });
    let report = of(Target::DeepepIbgda);
    let failed = |report: &Report| -> Vec<String> {
        report.findings.iter().filter(|f| f.status == Status::Fail).map(|f| f.id.clone()).collect()
    };
    // Both keys, both modules; and it has no RDMA device at all.
    assert_eq!(failed(&report), ["P001", "P002", "P010", "P011", "P020"]);
    assert_eq!(report.managed.manager, Manager::Machine);
    let text = report.text(false);
    for line in [
        "options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"",
        "sudo update-initramfs -u",
        "sudo reboot",
        "sudo modprobe nvidia_peermem",
        "sudo modprobe gdrdrv",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // A virtual machine is told nothing of ConfigMaps.
    assert!(!text.contains("kubectl"), "{text}");
    let ours = of(Target::Expertrail);
    assert!(failed(&ours).is_empty(), "{:?}", failed(&ours));
    for id in ["P001", "P002", "P010", "P011", "P012", "P013", "P014"] {
        let finding = ours.findings.iter().find(|finding| finding.id == id).unwrap();
        assert_eq!(finding.status, Status::NotApplicable, "{id}");
    }
}

#[test]
fn with_no_evidence_of_the_environment_every_remedy_is_printed() {
    let mut facts = collect::facts(&virtual_machine(), &collect::Options::default());
    facts.kernel.hypervisor = expertrail_cluster::facts::Fact::default();
    let report = check::run(&facts, &Options { target: Target::DeepepIbgda, ..Options::default() });
    assert_eq!(report.managed.manager, Manager::Unknown);
    let text = report.text(false);
    for line in [
        "/etc/modprobe.d/zz-nvidia-expertrail.conf",
        "kubectl patch nvidiadriver",
        "Remedies of every kind of node are printed",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn an_empty_tree_is_inconclusive_and_says_what_is_missing() {
    let place = tempfile::tempdir().unwrap();
    for target in Target::ALL {
        let report = report(place.path(), target);
        assert!(
            matches!(report.verdict, Verdict::Fail | Verdict::Inconclusive),
            "{target}: {:?}",
            report.verdict
        );
        assert_ne!(report.exit_code(false), 0);
        for finding in report.findings.iter().filter(|finding| finding.status == Status::Unknown) {
            assert!(!finding.observed.is_empty(), "{}: unknown, and no reason", finding.id);
        }
    }
}

/// Every finding at once: none hides another, nothing is said twice, and the order is that of severity.
#[test]
fn a_host_on_which_everything_is_wrong() {
    let place = tree::unpack("broken");
    let report = report(place.path(), Target::DeepepIbgda);
    let raised: BTreeSet<&str> = report.findings.iter().filter(|f| bad(f)).map(|f| f.id.as_str()).collect();
    // From what the tree's lines say. (P002 and P003 stand for the keys, P040 for the lost GPU, P113 to P115 need other hardware.)
    for id in [
        "P001", "P002", "P003", "P005", "P006", "P007", "P008", "P009", "P010", "P013", "P015", "P017",
        "P018", "P022", "P023", "P028", "P030", "P031", "P033", "P034", "P040", "P041", "P042", "P043",
        "P045", "P046", "P047", "P048", "P049", "P051", "P060", "P061", "P062", "P063", "P064", "P070",
        "P071", "P072", "P073", "P200", "P202",
    ] {
        assert!(raised.contains(id), "{id} is not among {raised:?}");
    }
    assert!(matches!(report.verdict, Verdict::Fail));
    let text = report.text(false);
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    let order =
        |line: &&str| ["FAIL", "WARN", "UNKNOWN"].iter().position(|word| line.starts_with(word)).unwrap();
    assert!(lines.is_sorted_by_key(order), "{text}");
    let unique: BTreeSet<&&str> = lines.iter().collect();
    assert_eq!(unique.len(), lines.len(), "{text}");
    // Each advice stands once, whatever it mends.
    let blocks: Vec<&str> =
        text.split("\n\n").filter_map(|block| block.split_once(":\n")).map(|(_, body)| body).collect();
    let different: BTreeSet<&str> = blocks.iter().copied().collect();
    assert_eq!(different.len(), blocks.len(), "{text}");
    assert!(text.contains("nvidia-fabricmanager-570=570.86.15-1"), "{text}");
    assert!(text.contains("  why: A GPU that rings a NIC's doorbell needs both driver keys."), "{text}");
}

#[test]
fn no_text_of_a_document_reaches_the_terminal_as_control_characters() {
    use expertrail_cluster::facts::{Fact, Scope};
    let mut facts = collect::facts(&virtual_machine(), &collect::Options::default());
    facts.node = Fact::read("n\u{1b}[31m\nPASS".to_owned(), "x", Scope::Host);
    facts.environment.operator_signs =
        Fact::read(vec!["/run\u{1b}]0;\u{7}\nPASS".to_owned()], "x", Scope::Host);
    let text = check::run(&facts, &Options { target: Target::DeepepIbgda, ..Options::default() }).text(true);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.contains("\nn [31m PASS for deepep-ibgda: "), "{text}");
    assert!(
        text.contains("Remedies are those for a node of the GPU Operator: /run ]0;  PASS exists"),
        "{text}"
    );
}

fn of<'a>(report: &'a Report, id: &str) -> &'a Finding {
    report.findings.iter().find(|finding| finding.id == id).unwrap_or_else(|| panic!("no {id}"))
}

#[test]
fn values_that_nvml_does_not_tell_are_not_good() {
    use expertrail_cluster::facts::{Fact, NvmlGpu};
    let place = tree::unpack("healthy-nvml");
    let whole = facts(place.path());
    let nvml = whole.nvml.value().unwrap().clone();
    let with = |untold: std::ops::Range<usize>, root: &str| {
        let mut facts = whole.clone();
        let mut nvml = nvml.clone();
        for gpu in &mut nvml.gpus[untold] {
            let named = (gpu.index, gpu.name.clone(), gpu.pci.clone());
            *gpu = NvmlGpu { index: named.0, name: named.1, pci: named.2, ..NvmlGpu::default() };
        }
        facts.nvml = Fact::read(nvml, "NVML", expertrail_cluster::facts::Scope::Host);
        root.clone_into(&mut facts.root);
        check::run(&facts, &Options { target: Target::Expertrail, ..Options::default() })
    };
    let all = ["P041", "P043", "P045", "P047", "P048", "P049", "P051"];
    for (root, deciding) in [("/capture", &[][..]), ("/", &["P041", "P045", "P048"][..])] {
        let report = with(0..8, root);
        for id in all {
            let finding = of(&report, id);
            assert_eq!(finding.status, Status::Unknown, "{id} at {root}: {}", finding.observed);
            assert_eq!(finding.advisory, !deciding.contains(&id), "{id} at {root}");
        }
        let wanted = if deciding.is_empty() { Verdict::Pass } else { Verdict::Inconclusive };
        assert_eq!(report.verdict, wanted, "{root}");
    }
    let report = with(5..8, "/");
    for id in all.into_iter().filter(|id| *id != "P041") {
        let finding = of(&report, id);
        assert_eq!(finding.status, Status::Pass, "{id}: {}", finding.observed);
        assert!(finding.observed.contains("3 of 8"), "{id}: {}", finding.observed);
    }
    // Links of others are told, so these should have some.
    assert_eq!(of(&report, "P041").status, Status::Warn);
}

/// What a shell would take of `command` as words, expansions and operators of its own: all but single quotes' text and comments.
fn unquoted(command: &str) -> String {
    let mut rest = command.chars().peekable();
    let mut kept = String::from(" ");
    while let Some(c) = rest.next() {
        match c {
            // Double quotes keep expansions alive, but single quotes in them are text.
            '"' => {
                while let Some(c) = rest.next() {
                    match c {
                        '"' => break,
                        '\\' => kept.extend(rest.next()),
                        c => kept.push(c),
                    }
                }
            }
            '\\' => {
                rest.next();
            }
            '\'' => {
                let escapes = kept.ends_with('$');
                while let Some(c) = rest.next() {
                    match c {
                        '\'' => break,
                        '\\' if escapes => {
                            rest.next();
                        }
                        _ => {}
                    }
                }
            }
            '#' if kept.ends_with(char::is_whitespace) => while rest.next_if(|c| *c != '\n').is_some() {},
            c => kept.push(c),
        }
    }
    kept
}

#[test]
fn no_command_has_text_of_facts_outside_of_quotes() {
    assert_eq!(unquoted("a 'b; c' \"$d\" $'e\\'f' g # h"), " a  $d $ g ");
    let hostile =
        |start: &str| format!("{start}'; touch PWNED; echo $(touch PWNED) `touch PWNED` \"\nPWNED '");
    let mut quoted = BTreeSet::new();
    for place in [tree::unpack("broken"), tree::unpack("healthy")] {
        let mut facts = facts(place.path());
        let params = facts.driver.params.value_mut().unwrap();
        params.insert("RegistryDwords".to_owned(), format!("RMOther=0x2;{}", hostile("A=1")));
        params.insert("EnableStreamMemOPs".to_owned(), "0".to_owned());
        facts.driver.version.value_mut().unwrap().version = hostile("570.1");
        let mut options = facts.driver.configured.value().cloned().unwrap_or_default();
        options.push(expertrail_cluster::facts::ModprobeOption {
            file: hostile("/etc/modprobe.d/a"),
            line: 1,
            module: "nvidia".to_owned(),
            key: "NVreg_EnableStreamMemOPs".to_owned(),
            value: hostile("0"),
        });
        let host = expertrail_cluster::facts::Scope::Host;
        facts.driver.configured = expertrail_cluster::facts::Fact::read(options, "x", host);
        for device in facts.pci.devices.value_mut().unwrap() {
            if device.class.as_deref() == Some("0x060400") {
                device.address = hostile(&device.address);
                device.acs = Some(expertrail_cluster::facts::Acs {
                    request_redirect: true,
                    ..expertrail_cluster::facts::Acs::default()
                });
            }
        }
        for device in facts.rdma.value_mut().unwrap() {
            device.name = hostile(&device.name);
            for port in &mut device.ports {
                port.counters.insert("link_downed".to_owned(), 3);
            }
        }
        let limited = |soft| expertrail_cluster::facts::ProcessLimit {
            name: hostile("containerd"),
            memlock: expertrail_cluster::facts::Limit { soft, hard: soft },
            ..expertrail_cluster::facts::ProcessLimit::default()
        };
        facts.limits.daemons = expertrail_cluster::facts::Fact::read(vec![limited(Some(65_536))], "x", host);
        facts.limits.configured = expertrail_cluster::facts::Fact::read(vec![limited(None)], "x", host);
        for service in &mut facts.services {
            service.pid = expertrail_cluster::facts::Fact::absent("x", host);
        }
        // Nobody knows who manages it: all remedies stay.
        facts.environment = expertrail_cluster::facts::Environment {
            variables: facts.environment.variables,
            ..Default::default()
        };
        facts.kernel.hypervisor = expertrail_cluster::facts::Fact::default();
        for target in Target::ALL {
            let report = check::run(&facts, &Options { target, ..Options::default() });
            let ours = report.findings.iter().filter(|finding| finding.id.as_str() < "P100");
            for (finding, step) in
                ours.flat_map(|f| f.remedies.iter().flat_map(|r| &r.steps).map(move |step| (f, step)))
            {
                assert!(!unquoted(step).contains("PWNED"), "{}: {step}", finding.id);
                assert!(!step.chars().any(char::is_control), "{}: {step}", finding.id);
                if step.contains("PWNED") {
                    quoted.insert(finding.id.clone());
                }
                if step.contains("RegistryDwords=\"RM") {
                    assert!(step.contains("\"RMOther=0x2;PeerMappingOverride=1;\"") && !step.contains("A=1"));
                }
            }
        }
    }
    // The hostile text was there to be quoted: a file's name, a daemon twice, a version, an address. No such device is a rail.
    for id in ["P001", "P031", "P032", "P044", "P060"] {
        assert!(quoted.contains(id), "{id} is not among {quoted:?}");
    }
}

#[test]
fn what_cannot_be_seen_is_not_said_to_be_missing() {
    let of_tree = |more: &str| {
        let place = tree::unpack("healthy");
        tree::apply(place.path(), more);
        report(place.path(), Target::Expertrail)
    };
    let gone = "remove proc/2001\n";
    let user = "proc/4000/comm: bash\nproc/self/status <<<\nUid:\t1000\t1000\t1000\t1000\n>>>\n\
                proc/self/mountinfo <<<\n22 1 252:1 / / rw - ext4 /dev/vda1 rw\n23 22 0:5 / /proc rw - proc proc rw,hidepid=2\n>>>\n";
    for (id, tree, words) in [
        ("P044", gone.to_owned(), "the capture holds no processes"),
        ("P044", format!("{gone}{user}"), "hidepid"),
        ("P031", format!("{gone}{user}"), "hidepid"),
        ("P031", "proc/7/comm: containerd\n".to_owned(), "containerd"),
    ] {
        let report = of_tree(&tree);
        let finding = of(&report, id);
        assert_eq!(finding.status, Status::Unknown, "{id}: {}", finding.observed);
        assert!(finding.observed.contains(words), "{id}: {}", finding.observed);
    }
}

#[test]
fn a_capture_without_the_list_of_modules_says_of_none_that_it_is_missing() {
    let place = tree::unpack("healthy");
    tree::apply(place.path(), "remove proc/modules\nsys/module/nvidia_peermem/\n");
    let with = report(place.path(), Target::DeepepIbgda);
    // healthy.tree has the folder of gdrdrv.
    for id in ["P010", "P011"] {
        assert_eq!(of(&with, id).status, Status::Pass, "{id}: {}", of(&with, id).observed);
    }
    tree::apply(
        place.path(),
        "remove sys/module/nvidia_peermem\nremove sys/module/gdrdrv\nsys/module/nvidia/\n",
    );
    let without = report(place.path(), Target::DeepepIbgda);
    for id in ["P010", "P011"] {
        assert_eq!(of(&without, id).status, Status::Unknown, "{id}: {}", of(&without, id).observed);
    }
}

#[test]
fn without_sys_nothing_is_said_of_devices() {
    let place = tree::unpack_text("proc/sys/kernel/hostname: n\n");
    for target in Target::ALL {
        let report = report(place.path(), target);
        assert_eq!(of(&report, "P020").status, Status::Unknown, "{target}");
    }
}

#[test]
fn the_kernel_parameter_of_the_architecture() {
    let text = fs::read_to_string(tree::folder().join("findings/P061.raise.tree")).unwrap();
    let version = |machine: &str| {
        format!(
            "proc/driver/nvidia/version: NVRM version: NVIDIA UNIX Open Kernel Module for {machine}  580.105.08  Release Build\n"
        )
    };
    for (machine, word) in [("x86_64", "iommu=pt "), ("aarch64", "iommu.passthrough=1 ")] {
        let place = tree::unpack_text(&(text.clone() + &version(machine)));
        let report = report(place.path(), Target::DeepepIbgda);
        let steps: Vec<&String> = of(&report, "P061").remedies.iter().flat_map(|r| &r.steps).collect();
        assert!(!steps.is_empty() && steps.iter().all(|step| step.starts_with(word)), "{machine}: {steps:?}");
    }
}

#[test]
fn a_report_of_a_container_names_what_cannot_be_judged_there() {
    let place = tree::unpack("healthy");
    tree::apply(place.path(), ".dockerenv:\n");
    let text = report(place.path(), Target::DeepepIbgda).text(false);
    let line = text.lines().find(|line| line.starts_with("read inside a container")).unwrap();
    for id in ["P003", "P004", "P031", "P032", "P044"] {
        assert!(line.contains(id), "{id}: {line}");
    }
}
