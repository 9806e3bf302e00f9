//! Every rule of lint: what raises it, what comes near, and what looks like it and is another.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

#[path = "lint/rules.rs"]
mod rules;

use std::collections::BTreeSet;

use expertrail_cluster::profile;
use expertrail_launch::lint::{
    Finding, Input, LintError, Options, RULES, Report, Severity, lint, rules_text,
};

fn base(name: &str) -> String {
    let path = format!("{}/tests/lint/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn judge(name: &str, text: &str) -> Report {
    let input = Input { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    lint(&[input], &Options::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn error(name: &str, bytes: &[u8]) -> LintError {
    let input = Input { name: name.to_owned(), bytes: bytes.to_vec() };
    lint(&[input], &Options::default()).map(|report| report.text()).unwrap_err()
}

/// `text` with each first of a pair in place of the second; each must be there.
fn edited(text: &str, edits: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (old, new) in edits {
        assert!(text.contains(old), "not in the base: {old}");
        text = text.replacen(old, new, 1);
    }
    text
}

fn of<'r>(report: &'r Report, id: &str) -> Vec<&'r Finding> {
    report.findings.iter().filter(|finding| finding.id == id).collect()
}

/// Number of the first line that contains `mark`.
fn line(text: &str, mark: &str) -> usize {
    1 + text.lines().position(|line| line.contains(mark)).unwrap_or_else(|| panic!("no line has {mark}"))
}

#[test]
fn every_rule_is_raised_on_its_line() {
    let mut wrong = Vec::new();
    for case in rules::cases() {
        let text = edited(&base(case.base), case.hit);
        let report = judge(case.base, &text);
        let found = of(&report, case.id);
        let wanted = line(&text, case.line);
        let at: Vec<_> = found.iter().map(|finding| (finding.line, finding.severity)).collect();
        if !at.contains(&(wanted, case.severity)) {
            wrong.push(format!(
                "{}: wanted {:?} on line {wanted}, got {at:?}\n{}",
                case.id,
                case.severity,
                report.text()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n=====\n"));
}

#[test]
fn every_rule_is_raised_in_its_other_forms() {
    let mut wrong = Vec::new();
    for (id, severity, file, edits, mark) in rules::MORE {
        let text = edited(&base(file), edits);
        let report = judge(file, &text);
        let at: Vec<_> = of(&report, id).iter().map(|finding| (finding.line, finding.severity)).collect();
        let wanted = line(&text, mark);
        if !at.contains(&(wanted, *severity)) {
            wrong.push(format!(
                "{id} on {mark}: wanted {severity:?} on line {wanted}, got {at:?}\n{}",
                report.text()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n=====\n"));
}

#[test]
fn what_comes_near_is_not_raised() {
    let mut wrong = Vec::new();
    for case in rules::cases() {
        let near = judge(case.base, &edited(&base(case.base), case.near));
        if let Some(finding) = of(&near, case.id).first() {
            wrong.push(format!("{} near: {finding:?}", case.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn look_alikes_are_told_apart() {
    let mut wrong = Vec::new();
    for case in rules::cases() {
        let (edits, other) = case.alike;
        let alike = judge(case.base, &edited(&base(case.base), edits));
        if let Some(finding) = of(&alike, case.id).first() {
            wrong.push(format!("{} look-alike: {finding:?}", case.id));
        }
        if of(&alike, other).is_empty() {
            wrong.push(format!("{} look-alike: {other} is not raised\n{}", case.id, alike.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_case_a_place_in_the_table_and_no_double() {
    let ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len());
    assert!(ids.is_sorted());
    let cases: BTreeSet<&str> = rules::cases().iter().map(|case| case.id).collect();
    assert_eq!(cases, unique);
    let text = rules_text();
    for rule in RULES {
        assert!(rule.id.len() == 4 && rule.id.starts_with('N'));
        assert!(text.contains(rule.id) && text.contains(rule.why), "{}", rule.id);
        assert!(!rule.title.is_empty() && !rule.why.is_empty() && !rule.source.is_empty(), "{}", rule.id);
    }
}

/// Ids of failures and warnings, and of all findings.
fn ids(report: &Report) -> (Vec<&str>, Vec<&str>) {
    let serious = report.findings.iter().filter(|finding| finding.severity != Severity::Note);
    (serious.map(|finding| finding.id).collect(), report.findings.iter().map(|finding| finding.id).collect())
}

/// The guide's manifests are right but for what the guide says of them itself: the label needs 1.28, logs go after an hour, the name is
/// fixed, and no selector names the pool.
#[test]
fn the_guides_manifests() {
    for (file, profile) in [("guide-b200.yaml", "crusoe-b200"), ("guide-h200.yaml", "crusoe-h200")] {
        let report = judge(file, &base(file));
        let (serious, all) = ids(&report);
        assert_eq!(serious, Vec::<&str>::new(), "{}", report.text());
        assert_eq!(
            all.iter().copied().collect::<BTreeSet<_>>(),
            BTreeSet::from(["N061", "N064", "N065", "N069"]),
            "{}",
            report.text()
        );
        assert!(report.profile.unwrap().starts_with(profile));
    }
}

#[test]
fn examples_for_aws_slurm_mpi_and_the_driver() {
    for (file, notes) in [
        ("eks-internode.yaml", &["N065"][..]),
        ("internode.sbatch", &[]),
        ("ranks.sbatch", &[]),
        ("torchrun.sbatch", &[]),
        ("launch.sh", &[]),
        ("ranks.env", &[]),
        ("driver.yaml", &[]),
    ] {
        let report = judge(file, &base(file));
        assert_eq!(ids(&report).1, notes, "{file}\n{}", report.text());
        assert_eq!(report.exit_code(true), 0);
    }
}

/// The examples' own variables are filled in by envsubst: nothing is said of them but that.
#[test]
fn templates_are_not_decided() {
    let edits = [
        ("p5en.48xlarge", "$INSTANCE_TYPE"),
        ("-np 2", "-np $NUM_NODES"),
        ("p5en.48xlarge", "$INSTANCE_TYPE"),
        ("replicas: 2", "replicas: $NUM_NODES"),
        ("efa: 16", "efa: $EFA_PER_NODE"),
        ("gpu: 8", "gpu: $GPU_PER_NODE"),
        ("efa: 16", "efa: $EFA_PER_NODE"),
        ("gpu: 8", "gpu: $GPU_PER_NODE"),
    ];
    let text = edited(&base("eks-internode.yaml"), &edits);
    let report = judge("a.yaml", &text);
    assert_eq!(ids(&report).1, ["N065", "N160"], "{}", report.text());
    let helm = text
        .replace("$NUM_NODES", "{{ .Values.nodes }}")
        .replace("$INSTANCE_TYPE", "{{ .Values.type | quote }}");
    let report = judge("a.yaml", &helm);
    assert_eq!(ids(&report).1, ["N065", "N160"], "{}", report.text());
    // Scripts have values that a shell fills in, which is no template.
    assert!(of(&judge("a.sbatch", &base("internode.sbatch")), "N160").is_empty());
}

#[test]
fn files_are_judged_together() {
    let text = base("guide-b200.yaml");
    let (service, job) = text.split_once("---\n").unwrap();
    let input = |name: &str, text: &str| Input { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    let alone = lint(&[input("job.yaml", job)], &Options::default()).unwrap();
    assert_eq!(ids(&alone).0, ["N090"], "{}", alone.text());
    let both = [
        input("job.yaml", job),
        input("service.yaml", &service.replace("clusterIP: None", "type: ClusterIP")),
    ];
    let report = lint(&both, &Options::default()).unwrap();
    let found = of(&report, "N091");
    assert_eq!((found[0].file.as_str(), found.len()), ("service.yaml", 1), "{}", report.text());
    assert_eq!(report.files[1].kinds, ["Service"]);
}

#[test]
fn a_profile_that_is_given_decides() {
    let text = base("guide-b200.yaml");
    let options = Options { profile: Some(profile::get("crusoe-h200").unwrap()), facts: None };
    let input = Input { name: "a.yaml".to_owned(), bytes: text.into_bytes() };
    let report = lint(&[input], &options).unwrap();
    let offset = of(&report, "N004");
    assert!(offset[0].what.contains("mlx5_(N+1)") && offset[0].fix.contains("\"1\""), "{}", report.text());
    // mlx5_9 to mlx5_12 do not exist there.
    assert!(
        of(&report, "N010").iter().all(|finding| finding.what.contains("mlx5_9, mlx5_10, mlx5_11, mlx5_12"))
    );
    assert_eq!(of(&report, "N010").len(), 2);
}

#[test]
fn json_and_lists_are_read_as_well() {
    let text = r#"{
  "apiVersion": "v1",
  "kind": "List",
  "items": [
    {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "n"},
     "spec": {
       "completions": 2,
       "parallelism": 1,
       "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x:1"}]}}}}
  ]
}
"#;
    let report = judge("a.json", text);
    let found = of(&report, "N040");
    assert_eq!((found.len(), found[0].line), (1, 8), "{}", report.text());
}

#[test]
fn bad_input_is_an_error() {
    assert!(matches!(error("a", &[0xff, 0xfe, 0x00]), LintError::NotText(_)));
    assert!(matches!(error("a", b"a\0b"), LintError::NotText(_)));
    assert!(matches!(error("a", &vec![b'a'; 10 << 20]), LintError::Large { .. }));
    assert!(matches!(error("a", b""), LintError::Unknown(_)));
    assert!(matches!(error("a", b"hello world, this is prose\n"), LintError::Unknown(_)));
    assert!(matches!(error("a", b"a: 1\nb: [2]\n"), LintError::Unknown(_)));
    let own = error("run.toml", b"name = \"x\"\n[nodes]\ncount = 2\n").to_string();
    assert!(own.contains("expertrail render"), "{own}");
    assert!(matches!(error("x", b"name = \"x\"\n[nodes]\ncount = 2\n"), LintError::OwnDescription(_)));
    let syntax = error("a.yaml", b"apiVersion: v1\nkind: Pod\n  bad: x\n").to_string();
    assert!(syntax.starts_with("a.yaml:3: "), "{syntax}");
    let deep = format!("kind: Job\napiVersion: v1\nspec: {}", "[".repeat(100_000));
    assert!(matches!(error("a", deep.as_bytes()), LintError::Syntax { .. }));
    let mut bomb = "apiVersion: v1\nkind: Pod\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..9 {
        let many = vec![format!("*a{}", n - 1); 10].join(", ");
        bomb = format!("{bomb}a{n}: &a{n} [{many}]\n");
    }
    assert!(matches!(error("a", bomb.as_bytes()), LintError::Syntax { .. }));
}

/// Rules compare what a file has with each other; large files end all the same, and soon.
#[test]
fn crowded_files_end() {
    let many = |line: &dyn Fn(usize) -> String, count: usize| (0..count).map(line).collect::<String>();
    let variables = many(&|n| format!("NCCL_A{n}=1\n"), 100_000);
    assert!(matches!(error("a", variables.as_bytes()), LintError::Crowded(_)));
    let runs = format!("#!/bin/bash\n{}", many(&|n| format!("srun torchrun --nnodes={n} a.py\n"), 40_000));
    assert!(matches!(error("a", runs.as_bytes()), LintError::Crowded(_)));
    let env = many(&|n| format!("    - {{name: A{n}, value: x}}\n"), 20_000);
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers:\n  - name: c\n    env:\n{env}"
    );
    assert!(lint(&[Input { name: "a".to_owned(), bytes: pod.into_bytes() }], &Options::default()).is_err());
    // As much as is allowed.
    let list: String = vec!["mlx5_1:1"; 1000].join(",");
    let most = format!(
        "#!/bin/bash\n{}",
        many(&|_| format!("export NCCL_IB_HCA={list}\nsrun bash -c 'torchrun --nnodes=2 a.py'\n"), 200)
    );
    assert!(!judge("a", &most).findings.is_empty());
}

/// Text of a file goes to a terminal.
#[test]
fn control_characters_do_not_reach_the_terminal() {
    let text = edited(
        &base("guide-b200.yaml"),
        &[(
            "value: \"UID\"",
            "value: \"UID\"\n        - name: NVSHMEM_REMOTE_TRANSPORT\n          value: \"\\e[31mred\"",
        )],
    );
    let report = judge("a.yaml", &text);
    assert_eq!(of(&report, "N021").len(), 1);
    assert!(!report.text().contains('\u{1b}'));
}

/// Parts of launch files in any order, with anything between them, are judged without a crash.
#[test]
fn mutilated_files_do_no_harm() {
    for file in
        ["guide-b200.yaml", "eks-internode.yaml", "internode.sbatch", "launch.sh", "ranks.env", "driver.yaml"]
    {
        let text = base(file);
        let lines: Vec<&str> = text.lines().collect();
        for skip in 0..lines.len() {
            let less: Vec<&str> =
                lines.iter().enumerate().filter(|(at, _)| *at != skip).map(|(_, line)| *line).collect();
            let bytes = less.join("\n").into_bytes();
            let _ = lint(&[Input { name: file.to_owned(), bytes }], &Options::default());
            let bytes = lines[..skip].join("\n").into_bytes();
            let _ = lint(&[Input { name: file.to_owned(), bytes }], &Options::default());
        }
        for stranger in ["'", "\"", "{{", "$(", "<<E", ": ", "\t", "é\u{301}", "- - -"] {
            for at in (0..text.len()).step_by(151).filter(|at| text.is_char_boundary(*at)) {
                let bytes = format!("{}{stranger}{}", &text[..at], &text[at..]).into_bytes();
                let _ = lint(&[Input { name: file.to_owned(), bytes }], &Options::default());
            }
        }
    }
}

/// `^docker,lo` tells NCCL what not to take. No library needs the same list, and another one needs the name of an interface.
#[test]
fn interfaces_that_are_left_out_are_no_names() {
    let without = edited(&base("ranks.env"), &[("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0\n", "")]);
    let named = judge("ranks.env", &without);
    assert_eq!(of(&named, "N029")[0].fix, "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0");
    let left_out = edited(&without, &[("NCCL_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME=^docker,lo,veth")]);
    let report = judge("ranks.env", &left_out);
    let found = of(&report, "N029");
    assert_eq!(found.len(), 1, "{}", report.text());
    assert!(!found[0].fix.contains('^') && found[0].fix.contains("ip route get"), "{}", found[0].fix);
    // EFA's own images have just this.
    let efa = format!(
        "{left_out}FI_PROVIDER=efa\nNVSHMEM_REMOTE_TRANSPORT=libfabric\nNVSHMEM_LIBFABRIC_PROVIDER=efa\n"
    );
    let report = judge("ranks.env", &efa);
    assert!(of(&report, "N029").is_empty(), "{}", report.text());
}

/// The worker sets `MASTER_ADDR` in what it starts; another program with such an option does not.
#[test]
fn the_workers_option_hands_on_the_address() {
    let script = |program: &str| {
        format!(
            "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n#SBATCH --exclusive\n\
             first=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1)\n\
             srun --mpi=none --cpu-bind=none {program} --master \"$first\" -- python3 /DeepEP/tests/test_internode.py\n"
        )
    };
    let found = |program: &str| of(&judge("run.sbatch", &script(program)), "N104").len();
    assert_eq!(found("expertrail worker rank --contract nodes"), 0);
    assert_eq!(found("wrapper"), 1);
}

/// A script in a ConfigMap is judged as one in a file: on its own line, and with the nodes of the pods that mount it.
#[test]
fn scripts_in_config_maps_are_judged() {
    let job = "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: a, namespace: ep}\nspec:\n  completions: 5\n  parallelism: 5\n  completionMode: \
               Indexed\n  backoffLimit: 0\n  template:\n    spec:\n      restartPolicy: Never\n      containers:\n        - name: ranks\n          image: \
               example/deepep:1\n          command: [bash, /scripts/run.sh]\n          resources: {limits: {nvidia.com/gpu: 8}}\n      volumes:\n        \
               - {name: scripts, configMap: {name: NAME}}\n";
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: scripts, namespace: ep}\ndata:\n  note.txt: |\n    NVSHMEM_REMOTE_TRANSPORT=none-such\n  \
               run.sh: |\n    #!/bin/bash\n    export NVSHMEM_REMOTE_TRANSPORT=none-such\n    RANK=$JOB_COMPLETION_INDEX python3 \
               /DeepEP/tests/test_internode.py --num-experts 320\n";
    let text = format!("{map}{}", job.replace("NAME", "scripts"));
    let report = judge("all.yaml", &text);
    let at = |report: &Report, id: &str| of(report, id).iter().map(|one| one.line).collect::<Vec<_>>();
    assert_eq!(at(&report, "N021"), [line(&text, "export NVSHMEM")], "{}", report.text());
    // Five nodes, which the Job says and the script does not.
    let menu: Vec<_> = of(&report, "N049").into_iter().filter(|one| one.what.contains("L003")).collect();
    assert!(matches!(&menu[..], [one] if one.line == line(&text, "test_internode.py")), "{}", report.text());
    // Another Job's script has no nodes.
    let report = judge("all.yaml", &format!("{map}{}", job.replace("NAME", "other")));
    assert_eq!((at(&report, "N021").len(), at(&report, "N049").len()), (1, 0), "{}", report.text());
    // Alone it is judged as well, and a program in another language is not.
    assert_eq!(at(&judge("map.yaml", map), "N021").len(), 1);
    let python = map.replace("#!/bin/bash", "#!/usr/bin/env python3");
    assert_eq!(at(&judge("map.yaml", &python), "N021").len(), 0);
}

/// Plan's rules over the shape of a launch: menus and limits of the engine, and nothing where the shape is not written out.
#[test]
fn limits_of_the_engine() {
    let judged = |edits: &[(&str, &str)]| {
        let report = judge("a.sbatch", &edited(&base("internode.sbatch"), edits));
        of(&report, "N049").iter().map(|one| one.what.clone()).collect::<Vec<_>>().join("\n")
    };
    let test = "test_internode.py";
    for (edits, rule) in [
        // 22 nodes are beyond the menu; 1408 = 22 * 64.
        (&[("--nodes=2", "--nodes=22"), (test, "test_internode.py --num-experts 1408")][..], "L003"),
        // The low-latency kernels are built for certain row lengths.
        (&[(test, "test_low_latency.py --hidden 2944")], "L031"),
        // FP8 has a scale for each 128 elements: no engine takes another length.
        (&[(test, "test_low_latency.py --hidden 3000")], "no multiple of 128"),
        (&[(test, "test_intranode.py --num-processes 6 --num-experts 240")], "L001"),
        (&[(test, "deepep_bench.py --benchmarks internode --sms 21")], "L006"),
    ] {
        assert!(judged(edits).contains(rule), "{rule}: {}", judged(edits));
    }
    for edits in [
        &[(test, "test_low_latency.py --hidden $HIDDEN")][..],
        &[("--nodes=2", "--nodes=$NODES"), (test, "test_internode.py --num-experts 320")],
        &[(test, "deepep_bench.py --benchmarks internode --sms 20")],
    ] {
        assert_eq!(judged(edits), "");
    }
}
