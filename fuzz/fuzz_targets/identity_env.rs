//! Any environment gives an identity that makes sense or an error, never a panic.
//!
//! The input is a list of variables, one a line: the first byte picks the name, the rest is the value.
#![no_main]

use std::collections::HashMap;

use expertrail_group::Identity;
use expertrail_group::identity::{MAX_HOSTS, MAX_WORLD, parse_hostlist, parse_tasks_per_node};
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 40] = [
    "EXPERTRAIL_RANK",
    "EXPERTRAIL_WORLD_SIZE",
    "EXPERTRAIL_LOCAL_RANK",
    "EXPERTRAIL_LOCAL_SIZE",
    "EXPERTRAIL_NODE",
    "EXPERTRAIL_ROOT",
    "EXPERTRAIL_PORT",
    "EXPERTRAIL_JOB",
    "EXPERTRAIL_HOST",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_DISTRIBUTION",
    "SLURMD_NODENAME",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_orte_hnp_uri",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "JOB_COMPLETION_INDEX",
    "NUM_NODES",
    "SLURM_NODELIST",
];

fuzz_target!(|data: &[u8]| {
    let mut vars = HashMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        if let Some((pick, value)) = line.split_first() {
            // From '0' on, so that seeds can be written by hand.
            let name = NAMES[usize::from(pick.wrapping_sub(b'0')) % NAMES.len()];
            vars.insert(name, String::from_utf8_lossy(value).into_owned());
        }
    }
    match Identity::from_vars(|name| vars.get(name).cloned()) {
        Ok(identity) => {
            assert!(identity.rank < identity.world_size && identity.world_size <= MAX_WORLD);
            assert!(identity.root.port != 0 && !identity.root.host.is_empty());
            assert!(
                identity.expected_hosts.is_empty() || identity.expected_hosts.len() == identity.world_size
            );
            if let (Some(rank), Some(size)) = (identity.local_rank, identity.local_size) {
                assert!(rank < size && size <= identity.world_size);
            }
            let _ = identity.expected_host(identity.world_size - 1);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let text = String::from_utf8_lossy(data);
    if let Ok(hosts) = parse_hostlist(&text) {
        assert!(!hosts.is_empty() && hosts.len() <= MAX_HOSTS);
    }
    if let Ok(tasks) = parse_tasks_per_node(&text) {
        assert!(!tasks.is_empty() && tasks.iter().all(|tasks| *tasks > 0));
    }
});
