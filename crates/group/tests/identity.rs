//! Every launcher's variables, whole, partial, contradictory and garbage.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

use std::collections::HashMap;

use expertrail_group::identity::{FIRST_PORT, MAX_WORLD, PORTS};
use expertrail_group::{Endpoint, Identity, IdentityError, Launcher};
use proptest::prelude::*;

fn detect(vars: &[(&str, &str)]) -> Result<Identity, IdentityError> {
    let map: HashMap<&str, &str> = vars.iter().copied().collect();
    Identity::from_vars(|name| map.get(name).map(|value| (*value).to_owned()))
}

fn ok(vars: &[(&str, &str)]) -> Identity {
    detect(vars).unwrap()
}

fn error(vars: &[(&str, &str)]) -> String {
    detect(vars).unwrap_err().to_string()
}

fn with<'a>(base: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    base.iter().chain(more).copied().collect()
}

const TORCH: &[(&str, &str)] = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "1"),
    ("MASTER_ADDR", "n1.cluster"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "abc"),
];

const SLURM: &[(&str, &str)] = &[
    ("SLURM_PROCID", "9"),
    ("SLURM_NTASKS", "20"),
    ("SLURM_STEP_NUM_TASKS", "20"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_NODELIST", "gpu[08-09],login"),
    ("SLURM_STEP_TASKS_PER_NODE", "8(x2),4"),
    ("SLURM_JOB_ID", "77"),
    ("SLURM_STEP_ID", "0"),
    ("SLURMD_NODENAME", "gpu09"),
];

const OMPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("OMPI_COMM_WORLD_NODE_RANK", "3"),
    ("PMIX_RANK", "3"),
    ("PMIX_NAMESPACE", "prterun-n1-1234@1"),
];

const POD: &[(&str, &str)] =
    &[("JOB_COMPLETION_INDEX", "2"), ("EXPERTRAIL_WORLD_SIZE", "4"), ("EXPERTRAIL_ROOT", "ep-0.ep:4000")];

#[test]
fn nothing_is_a_world_of_one() {
    let identity = ok(&[("PATH", "/bin"), ("MASTER_PORT", "")]);
    assert_eq!((identity.rank, identity.world_size, identity.launcher), (0, 1, Launcher::Single));
    assert_eq!((identity.node, identity.local_rank, identity.local_size), (Some(0), Some(0), Some(1)));
}

#[test]
fn explicit() {
    let identity = ok(&[
        ("EXPERTRAIL_RANK", "3"),
        ("EXPERTRAIL_WORLD_SIZE", "8"),
        ("EXPERTRAIL_LOCAL_RANK", "1"),
        ("EXPERTRAIL_LOCAL_SIZE", "2"),
        ("EXPERTRAIL_NODE", "1"),
        ("EXPERTRAIL_ROOT", "[fd00::1]:4000"),
        ("EXPERTRAIL_JOB", "mine"),
        ("EXPERTRAIL_HOST", "h"),
    ]);
    assert_eq!((identity.rank, identity.world_size, identity.launcher), (3, 8, Launcher::Explicit));
    assert_eq!((identity.node, identity.local_rank, identity.local_size), (Some(1), Some(1), Some(2)));
    assert_eq!(identity.root, Endpoint { host: "fd00::1".into(), port: 4000 });
    assert_eq!(identity.host, "h");
    assert_eq!(identity.expected_host(7).as_deref(), Some("of node 3"));
}

#[test]
fn explicit_on_one_host_needs_no_root() {
    let base = [("EXPERTRAIL_RANK", "0"), ("EXPERTRAIL_WORLD_SIZE", "2")];
    assert!(error(&base).contains("EXPERTRAIL_ROOT"));
    let identity = ok(&with(&base, &[("EXPERTRAIL_LOCAL_SIZE", "2")]));
    assert_eq!(identity.root.host, "127.0.0.1");
    assert!((FIRST_PORT..FIRST_PORT + PORTS).contains(&identity.root.port));
}

#[test]
fn torchrun_keeps_away_from_its_store() {
    let identity = ok(TORCH);
    assert_eq!((identity.rank, identity.world_size, identity.launcher), (5, 8, Launcher::Torchrun));
    assert_eq!((identity.node, identity.local_rank, identity.local_size), (Some(1), Some(1), Some(4)));
    assert_eq!(identity.root, Endpoint { host: "n1.cluster".into(), port: 30_737 });
    // 65000 + 1237 passes 65535 and goes on from 1024: 1024 + (66237 - 65536).
    let high = with(&TORCH[..6], &[("MASTER_PORT", "65000")]);
    assert_eq!(ok(&high).root.port, 1725);
    assert_eq!(ok(&with(TORCH, &[("EXPERTRAIL_PORT", "4000")])).root.port, 4000);
    let other = with(&TORCH[..7], &[("TORCHELASTIC_RUN_ID", "abd")]);
    assert_ne!(ok(&other).job, identity.job);
}

#[test]
fn all_ranks_of_a_job_agree_on_token_and_root() {
    let one = ok(SLURM);
    let other =
        ok(&with(&SLURM[1..], &[("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_NODEID", "0")]));
    assert_eq!((one.job, &one.root), (other.job, &other.root));
    let next_step = with(SLURM, &[("SLURM_STEP_ID", "1")]);
    assert_ne!(ok(&next_step).job, one.job);
}

#[test]
fn slurm() {
    let identity = ok(SLURM);
    assert_eq!((identity.rank, identity.world_size, identity.launcher), (9, 20, Launcher::Slurm));
    assert_eq!((identity.node, identity.local_rank, identity.local_size), (Some(1), Some(1), Some(8)));
    assert_eq!((identity.root.host.as_str(), identity.host.as_str()), ("gpu08", "gpu09"));
    assert!((FIRST_PORT..FIRST_PORT + PORTS).contains(&identity.root.port));
    let hosts: Vec<_> = [0, 7, 8, 15, 16, 19].map(|rank| identity.expected_host(rank).unwrap()).into();
    assert_eq!(hosts, ["gpu08", "gpu08", "gpu09", "gpu09", "login", "login"]);
}

#[test]
fn slurm_in_another_distribution_promises_no_hosts() {
    let identity = ok(&with(SLURM, &[("SLURM_DISTRIBUTION", "cyclic")]));
    assert!(identity.expected_hosts.is_empty());
    // Rank 9 is not on node 0 if ranks go in blocks of eight.
    let identity = ok(&with(SLURM, &[("SLURM_NODEID", "0")]));
    assert!(identity.expected_hosts.is_empty());
}

#[test]
fn a_batch_script_is_not_mistaken_for_a_rank() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "7"), ("SLURM_NODEID", "0")];
    assert!(error(&batch).contains("srun"), "{}", error(&batch));
    assert_eq!(ok(&[("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "7")]).world_size, 1);
}

#[test]
fn slurm_on_one_host_uses_the_loopback() {
    let vars = with(
        &SLURM[..5],
        &[
            ("SLURM_NODEID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NODELIST", "gpu08"),
            ("SLURM_STEP_TASKS_PER_NODE", "20"),
        ],
    );
    assert_eq!(ok(&vars).root.host, "127.0.0.1");
}

#[test]
fn open_mpi() {
    let identity = ok(OMPI);
    assert_eq!((identity.rank, identity.world_size, identity.launcher), (3, 4, Launcher::OpenMpi));
    // OMPI_COMM_WORLD_NODE_RANK is no node index.
    assert_eq!((identity.node, identity.local_rank, identity.local_size), (None, Some(3), Some(4)));
    assert_eq!(identity.root.host, "127.0.0.1");
    let spread = with(OMPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")]);
    assert!(error(&spread).contains("-x EXPERTRAIL_ROOT="), "{}", error(&spread));
    assert_eq!(ok(&with(&spread, &[("EXPERTRAIL_ROOT", "n1")])).root.host, "n1");
}

#[test]
fn pmix_takes_its_size_elsewhere() {
    let base = [("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "x"), ("EXPERTRAIL_ROOT", "n1")];
    assert!(error(&base).contains("EXPERTRAIL_WORLD_SIZE"));
    let identity = ok(&with(&base, &[("EXPERTRAIL_WORLD_SIZE", "2")]));
    assert_eq!((identity.rank, identity.world_size, identity.launcher), (1, 2, Launcher::Pmix));
    // srun --mpi=pmix: both say rank 9.
    assert_eq!(ok(&with(SLURM, &[("PMIX_RANK", "9")])).launcher, Launcher::Slurm);
    let torn = error(&with(SLURM, &[("PMIX_RANK", "4")]));
    assert!(torn.contains("PMIX_RANK=4") && torn.contains("SLURM_PROCID=9"), "{torn}");
}

#[test]
fn kubernetes() {
    let identity = ok(POD);
    assert_eq!((identity.rank, identity.world_size, identity.launcher), (2, 4, Launcher::Kubernetes));
    assert_eq!((identity.node, identity.local_rank, identity.local_size), (Some(2), Some(0), Some(1)));
    assert_eq!(identity.expected_host(3).as_deref(), Some("ep-3"));
    let several = [
        ("JOB_COMPLETION_INDEX", "1"),
        ("NUM_NODES", "2"),
        ("EXPERTRAIL_LOCAL_SIZE", "8"),
        ("EXPERTRAIL_LOCAL_RANK", "3"),
        ("MASTER_ADDR", "ep-0.ep"),
    ];
    let identity = ok(&several);
    assert_eq!((identity.rank, identity.world_size, identity.node), (11, 16, Some(1)));
    assert!(error(&several[..3]).contains("EXPERTRAIL_LOCAL_RANK"));
    assert!(error(&POD[..1]).contains("EXPERTRAIL_WORLD_SIZE"));
    assert!(error(&POD[..2]).contains("JOB-0.SERVICE"));
    let torn = error(&with(&several, &[("EXPERTRAIL_WORLD_SIZE", "4")]));
    assert!(torn.contains("EXPERTRAIL_WORLD_SIZE=4") && torn.contains("NUM_NODES=2"), "{torn}");
}

#[test]
fn the_order_of_launchers() {
    let all = [SLURM, POD, OMPI, TORCH].concat();
    // POD's world size contradicts torchrun's.
    assert!(error(&all).contains("EXPERTRAIL_WORLD_SIZE=4"));
    assert_eq!(ok(&[SLURM, OMPI, TORCH].concat()).launcher, Launcher::Torchrun);
    assert_eq!(ok(&[SLURM, OMPI].concat()).launcher, Launcher::OpenMpi);
    let explicit =
        with(&[SLURM, OMPI, TORCH].concat(), &[("EXPERTRAIL_RANK", "1"), ("EXPERTRAIL_WORLD_SIZE", "2")]);
    let explicit = with(&explicit, &[("EXPERTRAIL_ROOT", "n1")]);
    let identity = ok(&explicit);
    assert_eq!((identity.launcher, identity.rank, identity.world_size), (Launcher::Explicit, 1, 2));
}

#[test]
fn what_is_wrong_is_named_with_its_value() {
    for (vars, wanted) in [
        (with(TORCH, &[("RANK", "five")]), "RANK=\"five\""),
        (with(TORCH, &[("RANK", "-1")]), "RANK=\"-1\""),
        (with(TORCH, &[("RANK", "+1")]), "RANK=\"+1\""),
        (with(TORCH, &[("RANK", "99999999999999999999")]), "RANK=\"99999999999999999999\""),
        (with(TORCH, &[("WORLD_SIZE", "0")]), "WORLD_SIZE=\"0\""),
        (with(TORCH, &[("RANK", "8")]), "rank 8 of 8 by torchrun"),
        (with(TORCH, &[("LOCAL_RANK", "4")]), "local rank 4 with a local size of 4"),
        (with(TORCH, &[("LOCAL_WORLD_SIZE", "9")]), "local size 9 with a world size of 8"),
        (with(TORCH, &[("GROUP_RANK", "8")]), "node 8"),
        (with(TORCH, &[("MASTER_PORT", "70000")]), "MASTER_PORT=\"70000\""),
        (with(TORCH, &[("MASTER_ADDR", "a b")]), "MASTER_ADDR=\"a b\""),
        (with(TORCH, &[("WORLD_SIZE", "5000")]), "world size 5000"),
        (with(TORCH, &[("EXPERTRAIL_ROOT", "n1:x")]), "EXPERTRAIL_ROOT=\"n1:x\""),
        (with(TORCH, &[("EXPERTRAIL_ROOT", "n1:5"), ("EXPERTRAIL_PORT", "6")]), "EXPERTRAIL_PORT=6"),
        (
            with(TORCH, &[("EXPERTRAIL_WORLD_SIZE", "4")]),
            "EXPERTRAIL_WORLD_SIZE=4 contradicts 8 ranks by torchrun",
        ),
        (with(SLURM, &[("SLURM_STEP_NODELIST", "n[1-")]), "SLURM_STEP_NODELIST=\"n[1-\""),
        (with(SLURM, &[("SLURM_STEP_TASKS_PER_NODE", "8(x")]), "SLURM_STEP_TASKS_PER_NODE=\"8(x\""),
        (vec![("RANK", "3")], "RANK=3 is set but WORLD_SIZE is not"),
        (vec![("WORLD_SIZE", "3")], "WORLD_SIZE=3 is set but RANK is not"),
        (vec![("EXPERTRAIL_RANK", "3")], "EXPERTRAIL_RANK=3 is set but EXPERTRAIL_WORLD_SIZE is not"),
        (vec![("EXPERTRAIL_WORLD_SIZE", "3")], "EXPERTRAIL_WORLD_SIZE=3 is set but EXPERTRAIL_RANK is not"),
        (vec![("OMPI_COMM_WORLD_RANK", "3")], "OMPI_COMM_WORLD_SIZE"),
    ] {
        let text = error(&vars);
        assert!(text.contains(wanted), "{text:?} should contain {wanted:?}");
    }
    let long = "x".repeat(100_000);
    assert!(error(&with(TORCH, &[("RANK", &long)])).len() < 400);
}

const NAMES: &[&str] = &[
    "EXPERTRAIL_RANK",
    "EXPERTRAIL_WORLD_SIZE",
    "EXPERTRAIL_LOCAL_RANK",
    "EXPERTRAIL_LOCAL_SIZE",
    "EXPERTRAIL_NODE",
    "EXPERTRAIL_ROOT",
    "EXPERTRAIL_PORT",
    "EXPERTRAIL_JOB",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NODEID",
    "SLURM_LOCALID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "JOB_COMPLETION_INDEX",
    "NUM_NODES",
];

proptest! {
    #[test]
    fn arbitrary_environments_never_panic_and_what_is_accepted_makes_sense(
        vars in proptest::collection::hash_map(
            proptest::sample::select(NAMES),
            prop_oneof!["[0-9]{1,3}", "n\\[[0-9]-[0-9]{1,3}\\]", "[0-9]\\(x[0-9]\\)", "\\PC{0,8}", "h[0-9]:[0-9]{1,5}"],
            0..20,
        )
    ) {
        if let Ok(identity) = Identity::from_vars(|name| vars.get(name).cloned()) {
            prop_assert!(identity.rank < identity.world_size && identity.world_size <= MAX_WORLD);
            prop_assert!(identity.root.port > 0 && !identity.root.host.is_empty());
            prop_assert!(identity.local_size.is_none_or(|size| size >= 1 && size <= identity.world_size));
            if let (Some(rank), Some(size)) = (identity.local_rank, identity.local_size) {
                prop_assert!(rank < size);
            }
            let _ = identity.expected_host(identity.world_size - 1);
        }
    }
}
