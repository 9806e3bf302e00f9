//! torchrun, mpirun and DeepEP's tests: what their command lines leave out.

use super::finding::{Severity, Sink};
use super::script::{Command, Word};
use super::scripts;
use super::unit::{Kind, Scope, Unit, number};

pub(crate) fn check(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    torchrun(unit, sink);
    tests(unit, sink);
    mpirun(unit, sink);
    operator(unit, sink);
}

fn torchrun(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    for (_, command) in unit.torchruns() {
        let Some(nodes) = command.option(&["--nnodes"]) else { continue };
        // `2` and `$N` are several; `1` and `1:1` are not.
        if matches!(nodes.text.as_str(), "1" | "1:1") || command.has("--standalone") {
            continue;
        }
        let has = |names: &[&str]| command.option(names).is_some();
        let rendezvous = has(&["--rdzv_endpoint"]);
        let by_variable = |name: &str| unit.setting(name).is_some();
        if !rendezvous && !has(&["--master_addr"]) && !by_variable("PET_MASTER_ADDR") {
            let set = unit.settings.iter().any(|setting| setting.name == "MASTER_ADDR");
            let what = if set {
                "torchrun without --master_addr: it does not read MASTER_ADDR"
            } else {
                "torchrun on several nodes without --master_addr"
            };
            sink.add("N097", unit.at(command.line()), what)
                .fix("--master_addr=$MASTER_ADDR --master_port=29400");
        }
        if !rendezvous && !has(&["--node_rank"]) && !by_variable("PET_NODE_RANK") {
            sink.add("N098", unit.at(command.line()), "torchrun on several nodes without --node_rank")
                .fix("--node_rank=$JOB_COMPLETION_INDEX, --node_rank=$SLURM_NODEID");
        }
        let config = command.option(&["--rdzv_conf"]).map(|word| word.text).unwrap_or_default();
        let timeout = config.split(',').find_map(|part| {
            let (key, value) = part.split_once('=')?;
            matches!(key, "timeout" | "join_timeout").then(|| value.to_owned())
        });
        if timeout.is_none() && !config.contains('$') && !unit.pods.is_empty() {
            sink.add("N099", unit.at(command.line()), "torchrun without a time to wait for the other pods")
                .fix("--rdzv_conf=timeout=900");
        }
    }
}

fn tests(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    for (index, command, test) in unit.deepep_tests() {
        let chain = unit.chain(index);
        let handed = chain.iter().any(|link| {
            let word = |text: &str| text == "MASTER_ADDR" || text.starts_with("MASTER_ADDR=");
            link.words.iter().any(|own| word(&own.text))
                // This project's worker sets it in each process that it starts.
                || link.words.iter().any(|own| own.text == "worker") && link.has("--master")
                || link.sets.iter().any(|set| set.name == "MASTER_ADDR")
        });
        // What ssh starts has none of the script's own variables.
        let by_ssh = chain.iter().any(|link| over_ssh(unit, link));
        let set = handed
            || !by_ssh
                && unit.settings.iter().any(|setting| {
                    setting.name == "MASTER_ADDR" && !matches!(setting.scope, Scope::Local | Scope::Command)
                });
        if unit.across_nodes() && !set && !unit.open && test != "test_intranode.py" {
            sink.add(
                "N104",
                unit.at(command.line()),
                format!("{test} on several nodes, and MASTER_ADDR is not handed to it"),
            )
            .fix("MASTER_ADDR=FIRST_NODE MASTER_PORT=8361 RANK=NODE_INDEX WORLD_SIZE=NODES python3 ...");
        }
    }
}

/// Whether a command is an mpirun that starts processes on other hosts by ssh.
fn over_ssh(unit: &Unit<'_>, command: &Command) -> bool {
    let mpirun = matches!(command.program(), "mpirun" | "mpiexec" | "prterun" | "orterun");
    let hosts = ["--hostfile", "-hostfile", "--machinefile", "-machinefile", "-H", "--host"];
    mpirun && (unit.kind == Kind::MpiJob || hosts.iter().any(|name| command.has(name)))
}

/// Names that `-x` hands on.
fn passed(command: &Command) -> Vec<&str> {
    command
        .words
        .windows(2)
        .filter_map(|pair| match pair {
            [flag, word] if flag.text == "-x" || flag.text == "--x" => {
                Some(word.text.split('=').next().unwrap_or_default())
            }
            _ => None,
        })
        .collect()
}

fn mpirun(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    for (index, command) in unit.mpiruns() {
        let below = unit.commands.iter().filter(|other| other.outer == Some(index));
        let mut words = command.words.iter().chain(below.flat_map(|other| &other.words));
        let program = words.any(Word::python);
        // Probes such as `mpirun hostname` need nothing.
        if !program {
            continue;
        }
        let passed = passed(command);
        let efa = unit.pods.iter().any(|pod| pod.resources().contains(&"vpc.amazonaws.com/efa"))
            || unit.value("FI_PROVIDER") == Some("efa")
            || unit.value("NVSHMEM_REMOTE_TRANSPORT") == Some("libfabric");
        let mut wanted = vec!["PATH", "LD_LIBRARY_PATH"];
        let deepep = unit.uses_nvshmem() || unit.deepep_tests().next().is_some();
        if efa && deepep && unit.across_nodes() {
            wanted.extend([
                "FI_PROVIDER",
                "NVSHMEM_REMOTE_TRANSPORT",
                "NVSHMEM_LIBFABRIC_PROVIDER",
                "NVSHMEM_NETDEVS_POLICY",
            ]);
        }
        // What the launch sets for itself is meant for the ranks too.
        let own = unit.settings.iter().filter(|setting| {
            matches!(setting.scope, Scope::Exported)
                && ["NCCL_", "NVSHMEM_", "UCX_", "FI_"].iter().any(|stem| setting.name.starts_with(stem))
        });
        wanted.extend(own.map(|setting| setting.name.as_str()));
        let missing: Vec<&str> = wanted.into_iter().filter(|name| !passed.contains(name)).collect();
        let by_ssh = over_ssh(unit, command);
        if by_ssh
            && !missing.is_empty()
            && !(unit.kind != Kind::MpiJob && !unit.across_nodes() && unit.nodes.is_some())
        {
            let what = format!("mpirun does not hand on {}", missing.join(", "));
            let serious = missing.iter().any(|name| name.contains('_') && *name != "LD_LIBRARY_PATH");
            let finding = sink.add("N101", unit.at(command.line()), what);
            finding.fix(missing.iter().map(|name| format!("-x {name}")).collect::<Vec<_>>().join(" "));
            if !serious {
                finding.weigh(Severity::Warn);
            }
        }
        let each = scripts::option(&command.words, &["-N", "--npernode", "-npernode"])
            .and_then(|word| number(&word.text));
        let bound = command.option(&["--bind-to"]).map(|word| word.text);
        if each == Some(1)
            && bound.as_deref() != Some("none")
            && unit
                .deepep_tests()
                .any(|(test, ..)| unit.chain(test).iter().any(|link| std::ptr::eq(*link, command)))
        {
            sink.add(
                "N106",
                unit.at(command.line()),
                "one process on a node, bound to a core or a socket, starts all ranks of the node",
            )
            .fix("--bind-to none");
        }
        let user = unit.pods.first().and_then(|pod| {
            let own = pod.container.path(&["securityContext", "runAsUser"]);
            own.or_else(|| pod.spec.path(&["securityContext", "runAsUser"]))?.text()
        });
        let allowed = unit.setting("OMPI_ALLOW_RUN_AS_ROOT").is_some();
        if unit.kind == Kind::MpiJob
            && !command.has("--allow-run-as-root")
            && !allowed
            && user.is_none_or(|user| user == "0")
        {
            sink.add("N105", unit.at(command.line()), "mpirun as root without --allow-run-as-root")
                .fix("mpirun --allow-run-as-root ...");
        }
    }
}

/// The MPI operator's own fields.
fn operator(unit: &Unit<'_>, sink: &mut Sink<'_>) {
    let Some(doc) = unit.doc.filter(|_| unit.kind == Kind::MpiJob) else { return };
    let version = doc.text_at("apiVersion").unwrap_or_default();
    if version != "kubeflow.org/v2beta1" {
        sink.add("N100", unit.at(doc.line_of("apiVersion")), format!("apiVersion is {version}"))
            .fix("apiVersion: kubeflow.org/v2beta1");
        return;
    }
    let Some(spec) = doc.get("spec") else { return };
    let policy = spec.get("runPolicy").and_then(|policy| policy.text_at("cleanPodPolicy"));
    if !matches!(policy.as_deref(), Some("Running" | "All")) {
        let line = spec.get("runPolicy").map_or(spec.line_of("runPolicy"), |p| p.line_of("cleanPodPolicy"));
        let seen = policy.unwrap_or_else(|| "not set, which means None".to_owned());
        sink.add("N102", unit.at(line), format!("cleanPodPolicy is {seen}"))
            .fix("runPolicy: {cleanPodPolicy: Running}");
    }
    let waits = unit.text.contains("until ")
        || unit.text.contains("while ")
        || unit.text.contains("nslookup")
        || spec.text_at("launcherCreationPolicy").as_deref() == Some("WaitForWorkersReady")
        || unit.pods.first().is_some_and(|pod| pod.spec.get("initContainers").is_some());
    let Some((_, run)) = unit.mpiruns().next().filter(|_| unit.nodes.as_ref().is_some_and(|n| n.count > 0))
    else {
        return;
    };
    if !waits {
        let limit = spec.get("runPolicy").and_then(|policy| policy.number_at("backoffLimit"));
        let finding = sink.add(
            "N103",
            unit.at(run.line()),
            "the launcher starts mpirun without waiting for the workers' ssh",
        );
        finding.fix("for host in $(cut -d' ' -f1 /etc/mpi/hostfile); do until ssh -o BatchMode=yes -o ConnectTimeout=3 $host true; do sleep 2; done; done");
        if limit != Some(0) {
            finding.weigh(Severity::Warn);
        }
    }
}
