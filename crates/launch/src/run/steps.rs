//! What is started.

use super::{PRESETS, Run, RunError, Step};
use crate::platform::Fabric;
use crate::spec::{Benchmark, Contract, DeepepDriver, Engine, Spec, Workload, nearest};

/// The benchmarks, refused where they cannot run on so many nodes.
pub(super) fn benchmarks(spec: &Spec, nodes: u32) -> Result<Vec<Benchmark>, RunError> {
    if spec.engine == Engine::Command {
        if spec.benchmarks.is_some() {
            return Err(RunError::Conflict(
                "engine = \"command\" runs your program alone: leave benchmarks out".to_owned(),
            ));
        }
        return Ok(Vec::new());
    }
    let given = spec.benchmarks.clone().unwrap_or_else(|| match (spec.engine, nodes) {
        (Engine::Deepep, 2..) => vec![Benchmark::Intranode, Benchmark::Internode],
        _ => vec![Benchmark::Intranode],
    });
    if given.is_empty() {
        let reason = "name at least one of \"intranode\", \"internode\", \"low-latency\"".to_owned();
        return Err(RunError::Value { key: "benchmarks".to_owned(), given: "[]".to_owned(), reason });
    }
    if let Some(twice) =
        given.iter().enumerate().find(|(at, one)| given.iter().take(*at).any(|other| other == *one))
    {
        let reason = format!("`{}` is named twice", twice.1.name());
        return Err(RunError::Value {
            key: "benchmarks".to_owned(),
            given: format!("{:?}", given.iter().map(|b| b.name()).collect::<Vec<_>>()),
            reason,
        });
    }
    if nodes == 1 && given.contains(&Benchmark::Internode) {
        return Err(RunError::Conflict(
            "benchmark `internode` needs at least two nodes, and nodes = 1: set nodes = 2, or leave `internode` out".to_owned(),
        ));
    }
    if spec.engine == Engine::Expertrail
        && let Some(absent) = given.iter().find(|one| **one != Benchmark::Intranode)
    {
        return Err(RunError::NotBuilt {
                what: format!("benchmark `{}` of engine `expertrail`", absent.name()),
                instead: "engine = \"deepep\" with an image that has DeepEP, or benchmarks = [\"intranode\"], which measures every node by \
                          itself"
                    .to_owned(),
            });
    }
    Ok(given)
}

/// Sizes that no benchmark has.
fn sizes_are_sound(workload: &Workload) -> Result<(), RunError> {
    let wrong = |key: &str, given: &str, reason: &str| RunError::Value {
        key: format!("workload.{key}"),
        given: given.to_owned(),
        reason: reason.to_owned(),
    };
    for (key, given) in [
        ("hidden", workload.hidden),
        ("top_k", workload.top_k),
        ("experts", workload.experts),
        ("sms", workload.sms),
        ("iters", workload.iters),
        ("tokens", workload.tokens),
    ] {
        if given == Some(0) {
            return Err(wrong(key, "0", "wanted at least 1"));
        }
    }
    let experts = workload.experts.unwrap_or(u32::MAX);
    if let Some(top_k) = workload.top_k.filter(|top_k| *top_k > experts.min(32)) {
        return Err(wrong(
            "top_k",
            &top_k.to_string(),
            "wanted at most 32, and no more than there are experts",
        ));
    }
    if let Some(sms) = workload.sms.filter(|sms| *sms > 160) {
        return Err(wrong("sms", &sms.to_string(), "no GPU that these benchmarks run on has more than 160"));
    }
    if let Some(preset) = workload.preset.as_ref().filter(|preset| !PRESETS.contains(&preset.as_str())) {
        return Err(RunError::Unknown {
            what: "preset",
            given: preset.clone(),
            nearest: nearest(preset, &PRESETS),
            known: PRESETS.map(str::to_owned).to_vec(),
            otherwise: String::new(),
        });
    }
    Ok(())
}

/// Fills in the steps.
pub(super) fn fill(run: &mut Run, spec: &Spec) -> Result<(), RunError> {
    sizes_are_sound(&spec.workload)?;
    run.steps = match spec.engine {
        Engine::Expertrail => vec![expertrail(run, spec)],
        Engine::Command => vec![command(run, spec)?],
        Engine::Deepep => match spec.deepep.driver {
            DeepepDriver::Own => vec![own(run, &spec.workload)],
            DeepepDriver::UpstreamTests => {
                run.notes.extend(unused_by_tests(&spec.workload));
                run.benchmarks.clone().into_iter().map(|one| upstream(run, spec, one)).collect()
            }
        },
    };
    for step in &mut run.steps {
        if step.nodes == 0 {
            step.nodes = run.nodes;
        }
    }
    run.needs_deepep_file =
        run.steps.iter().any(|step| step.argv.iter().any(|word| word.ends_with("deepep_bench.py")));
    Ok(())
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Options for the sizes that the description gives.
fn sizes<const N: usize>(names: [(&str, Option<u32>); N]) -> Vec<String> {
    names
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| [name.to_owned(), value.to_string()]))
        .flatten()
        .collect()
}

fn expertrail(run: &Run, spec: &Spec) -> Step {
    let workload = &spec.workload;
    let mut argv = words(["{expertrail}", "bench", "--launched", "--scope", "node"]);
    // Nodes with GPUs are asked for them: left to itself the benchmark would pass on CPUs where the GPUs are gone.
    if run.platform.gpu.is_some() && spec.kubernetes.gpu_resource.as_deref() != Some("") {
        argv.extend(words(["--backend", "cuda"]));
    }
    argv.push("--preset".to_owned());
    argv.push(workload.preset.clone().unwrap_or_else(|| "guide-intranode".to_owned()));
    argv.extend(sizes([
        ("--tokens", workload.tokens),
        ("--hidden", workload.hidden),
        ("--top-k", workload.top_k),
        ("--experts", workload.experts),
        ("--sms", workload.sms),
        ("--warmup", workload.warmup),
        ("--iters", workload.iters),
    ]));
    argv.extend(words(["--json", "{out}/result-intranode.json"]));
    Step {
        name: "intranode".to_owned(),
        nodes: 0,
        contract: Contract::Ranks,
        argv,
        collect: words(["{out}/result-intranode.json"]),
        pinned: false,
    }
}

fn own(run: &Run, workload: &Workload) -> Step {
    let names: Vec<&str> = run.benchmarks.iter().map(|one| one.name()).collect();
    let mut argv = words(["python3", "{files}/deepep_bench.py", "--benchmarks"]);
    argv.push(names.join(","));
    argv.extend(sizes([
        ("--tokens", workload.tokens),
        ("--hidden", workload.hidden),
        ("--top-k", workload.top_k),
        ("--experts", workload.experts),
        ("--sms", workload.sms),
        ("--warmup", workload.warmup),
        ("--iters", workload.iters),
    ]));
    argv.extend(words(["--json", "{out}/result-deepep.json"]));
    Step {
        name: "deepep".to_owned(),
        nodes: 0,
        contract: Contract::Ranks,
        argv,
        collect: words(["{out}/result-deepep.json"]),
        pinned: run.nodes > 1 && run.fabric != Fabric::Efa,
    }
}

/// What the description asks for and `DeepEP`'s own tests have no option for: their figures are not of those settings.
fn unused_by_tests(workload: &Workload) -> Option<String> {
    let given: Vec<String> = [("sms", workload.sms), ("warmup", workload.warmup), ("iters", workload.iters)]
        .into_iter()
        .filter_map(|(key, value)| Some(format!("workload.{key} = {}", value?)))
        .collect();
    (!given.is_empty()).then(|| {
        format!(
            "{} {} no effect: DeepEP's own tests have no option for it and use numbers of their own. deepep.driver = \"own\" runs the benchmark \
             that takes them",
            given.join(", "),
            if given.len() == 1 { "has" } else { "have" }
        )
    })
}

fn upstream(run: &Run, spec: &Spec, one: Benchmark) -> Step {
    let path = spec.deepep.path.as_deref().unwrap_or("/DeepEP");
    let file = match one {
        Benchmark::Intranode => "test_intranode.py",
        Benchmark::Internode => "test_internode.py",
        Benchmark::LowLatency => "test_low_latency.py",
    };
    let mut argv = words(["python3"]);
    argv.push(format!("{path}/tests/{file}"));
    argv.extend(sizes([
        ("--num-tokens", spec.workload.tokens),
        ("--hidden", spec.workload.hidden),
        ("--num-topk", spec.workload.top_k),
        ("--num-experts", spec.workload.experts),
    ]));
    Step {
        name: one.name().to_owned(),
        nodes: if one == Benchmark::Intranode { 1 } else { run.nodes },
        contract: Contract::Nodes,
        argv,
        collect: Vec::new(),
        pinned: false,
    }
}

fn command(run: &Run, spec: &Spec) -> Result<Step, RunError> {
    let argv = spec.command.clone().filter(|argv| argv.first().is_some_and(|program| !program.is_empty()));
    let argv = argv.ok_or_else(|| RunError::Missing {
        key: "command".to_owned(),
        reason: "engine = \"command\" starts it: command = [\"python3\", \"-m\", \"my.training\"]".to_owned(),
    })?;
    let contract = spec.contract.unwrap_or_default();
    Ok(Step {
        name: "command".to_owned(),
        nodes: 0,
        contract,
        argv,
        collect: spec.collect.clone(),
        pinned: contract == Contract::Ranks && run.nodes > 1 && run.fabric != Fabric::Efa,
    })
}
