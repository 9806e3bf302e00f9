//! Names, sizes, and which NIC belongs to which GPU.

use expertrail_cluster::facts::Facts;
use expertrail_cluster::profile::{self, Profile};
use expertrail_cluster::topo;

use super::{Pins, Run, RunError, profile_ids};
use crate::platform::Fabric;
use crate::spec::{Benchmark, Engine, Spec, nearest};

/// A Job's pods are named `ID-INDEX-xxxxx` and host names end at 63 characters.
const LONGEST_ID: usize = 45;

/// Nodes and GPUs of a node that a run may have.
pub(super) const NODES: u32 = 4096;
pub(super) const GPUS: u32 = 64;

/// The longest run, in seconds.
const LONGEST_S: u64 = 7 * 86_400;

/// Sees that a time limit is one.
pub(super) fn seconds(seconds: u64) -> Result<u64, RunError> {
    if (1..=LONGEST_S).contains(&seconds) {
        return Ok(seconds);
    }
    Err(RunError::Value {
        key: "timeout".to_owned(),
        given: format!("{seconds} s"),
        reason: "wanted 1 s to 7 days".to_owned(),
    })
}

/// Sees that `name` can begin a Kubernetes object's name.
pub(super) fn name(name: &str, key: &str) -> Result<(), RunError> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let first = name.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    if name.is_empty() {
        let reason = "it begins the names of all objects of the run, as name = \"bringup\"".to_owned();
        return Err(RunError::Missing { key: key.to_owned(), reason });
    }
    if name.len() > LONGEST_ID || !name.chars().all(good) || !first || !ends(name.chars().last()) {
        return Err(RunError::Value {
            key: key.to_owned(),
            given: format!("{name:?}"),
            reason: format!(
                "wanted a letter, then lower-case letters, digits and `-`, ending in a letter or digit, at most {LONGEST_ID} characters"
            ),
        });
    }
    Ok(())
}

/// A count between 1 and `most`.
pub(super) fn count(given: u32, key: &str, most: u32) -> Result<u32, RunError> {
    if (1..=most).contains(&given) {
        return Ok(given);
    }
    Err(RunError::Value {
        key: key.to_owned(),
        given: given.to_string(),
        reason: format!("wanted 1 to {most}"),
    })
}

/// Seconds of `90s`, `20m`, `2h`, `90`.
///
/// # Errors
/// When it is none of these, zero, or more than seven days.
pub fn duration(text: &str) -> Result<u64, RunError> {
    let wrong = || RunError::Value {
        key: "timeout".to_owned(),
        given: format!("{text:?}"),
        reason: "wanted a time of 1 s to 7 days, as \"90s\", \"20m\" or \"2h\"".to_owned(),
    };
    let (digits, unit) = match text.char_indices().find(|(_, c)| !c.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, "s"),
    };
    let factor = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).filter(|seconds| (1..=LONGEST_S).contains(seconds)).ok_or_else(wrong)
}

/// Bytes of a Kubernetes quantity of memory: `900Gi`, `32000Mi`, `1T`, `1000000`.
///
/// # Errors
/// When it is no such quantity.
pub fn quantity(text: &str, key: &str) -> Result<u64, RunError> {
    let wrong = || RunError::Value {
        key: key.to_owned(),
        given: format!("{text:?}"),
        reason: "wanted a Kubernetes quantity, as \"900Gi\" or \"32000Mi\"".to_owned(),
    };
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let factor: f64 = match unit {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * factor;
    if (1.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// The profile: as named, else the one whose signs the facts have, else none of a provider.
pub(super) fn profile(spec: &Spec, facts: Option<&Facts>) -> Result<Profile, RunError> {
    if let Some(name) = &spec.profile {
        return profile::get(name).map_err(|error| match error {
            profile::ProfileError::Unknown { .. } => RunError::Unknown {
                what: "profile",
                given: name.clone(),
                nearest: nearest(name, &profile_ids()),
                known: profile_ids(),
                otherwise: "; or run `expertrail facts -o node.json` on a node and give --facts node.json, or the path of a \
                            profile's JSON file"
                    .to_owned(),
            },
            other => RunError::Conflict(other.to_string()),
        });
    }
    if let Some((found, _)) = facts.and_then(profile::detect) {
        return Ok(found);
    }
    if facts.is_some() || spec.engine != Engine::Deepep {
        return profile::get("generic").map_err(|error| RunError::Conflict(error.to_string()));
    }
    Err(RunError::Missing {
        key: "profile".to_owned(),
        reason: format!(
            "it decides image, NICs and memory: one of {}; or give the facts of a node with --facts (made there by `expertrail facts -o \
             --json node.json`)",
            profile_ids().join(", ")
        ),
    })
}

/// GPUs that the facts show.
pub(super) fn gpus(facts: Option<&Facts>) -> Option<u32> {
    let found = facts?.pci.gpus().len();
    u32::try_from(found).ok().filter(|found| *found > 0)
}

/// RDMA devices in the order of GPUs: of the description, the facts, the profile. Facts and profile that differ make a note.
pub(super) fn hcas(
    spec: &Spec,
    profile: &Profile,
    facts: Option<&Facts>,
    gpus: u32,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, RunError> {
    if let Some(named) = &spec.network.hcas {
        let given = format!("{named:?}");
        let wrong =
            |reason: String| RunError::Value { key: "network.hcas".to_owned(), given: given.clone(), reason };
        if named.len() != gpus as usize {
            return Err(wrong(format!(
                "{} devices for {gpus} GPUs of a node: name one for each GPU, in order",
                named.len()
            )));
        }
        if let Some(bad) = named.iter().find(|name| {
            name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        }) {
            return Err(wrong(format!(
                "`{bad}` is no device's name: wanted names as in /sys/class/infiniband, without port and without `=`"
            )));
        }
        if let Some(bad) = named.iter().find(|name| profile.not_rails.contains(name)) {
            return Err(wrong(format!(
                "profile {} says that {bad} is no rail; leave profile out if it is on your nodes",
                profile.id
            )));
        }
        return Ok(named.clone());
    }
    let listed: Vec<String> = profile.rails.iter().take(gpus as usize).cloned().collect();
    if let Some(facts) = facts {
        let map = topo::map(facts);
        let found: Vec<String> =
            map.gpus.iter().filter_map(|gpu| gpu.rails.first()).map(|pin| pin.device.clone()).collect();
        if map.inconclusive.is_none() && found.len() == gpus as usize {
            if !listed.is_empty() && listed != found {
                notes.push(format!(
                    "the facts show rails {} where profile {} lists {}: the facts are used",
                    found.join(","),
                    profile.id,
                    listed.join(",")
                ));
            }
            return Ok(found);
        }
        if let Some(reason) = &map.inconclusive {
            notes.push(format!(
                "the facts do not show which devices are rails ({reason}); the profile's are used"
            ));
        }
    }
    if listed.len() < gpus as usize { Ok(Vec::new()) } else { Ok(listed) }
}

/// `N` where the devices are `PREFIX_(g+N)` for GPU `g`.
pub(super) fn offset(hcas: &[String]) -> Option<u32> {
    let split = |name: &str| {
        let at = name.rfind(|c: char| !c.is_ascii_digit())? + 1;
        let (prefix, digits) = name.split_at(at);
        Some((prefix.to_owned(), digits.parse::<u32>().ok()?))
    };
    let (prefix, first) = split(hcas.first()?)?;
    let row = |(index, name): (usize, &String)| {
        split(name)
            .is_some_and(|(other, number)| other == prefix && Some(number) == first.checked_add(index as u32))
    };
    hcas.iter().enumerate().all(row).then_some(first)
}

/// Sees that each step can have a port of its own.
pub(super) fn port(run: &Run) -> Result<(), RunError> {
    let wanted = run.steps.len().saturating_sub(1);
    let free = usize::from(u16::MAX - run.port);
    if run.port > 0 && wanted <= free {
        return Ok(());
    }
    Err(RunError::Value {
        key: "network.port".to_owned(),
        given: run.port.to_string(),
        reason: format!(
            "wanted 1 to {}: each step of the run has a port of its own, counted from this one",
            usize::from(u16::MAX) - wanted
        ),
    })
}

/// Sees that something tells `DeepEP` how to reach other nodes.
pub(super) fn reachable(run: &Run) -> Result<(), RunError> {
    let crosses = run.benchmarks.iter().any(|one| *one != Benchmark::Intranode);
    if run.engine != Engine::Deepep
        || run.nodes < 2
        || !crosses
        || run.fabric != Fabric::Unknown
        || !run.hcas.is_empty()
    {
        return Ok(());
    }
    Err(RunError::Conflict(format!(
        "nothing tells which NICs DeepEP is to use between nodes (profile {}): ranks would share one or find none. Give the facts of a node \
         with --facts (`expertrail facts -o node.json` there), or name the devices by network.hcas, or the kind of fabric by \
         network.fabric = \"infiniband\" (each node then finds its rails) or \"efa\", or a profile; or benchmarks = [\"intranode\"]",
        run.profile.id
    )))
}

/// How ranks get their NIC.
pub(super) fn pins(run: &Run) -> Pins {
    match (run.fabric, run.engine) {
        // Nothing crosses nodes yet.
        (_, Engine::Expertrail) | (Fabric::Efa, _) => Pins::None,
        (Fabric::Infiniband, _) if !run.hcas.is_empty() => {
            Pins::List(run.hcas.iter().map(|name| format!("{name}:1")).collect())
        }
        (Fabric::Infiniband, _) => Pins::Auto,
        (Fabric::Unknown, _) if !run.hcas.is_empty() => {
            Pins::List(run.hcas.iter().map(|name| format!("{name}:1")).collect())
        }
        (Fabric::Unknown, _) => Pins::None,
    }
}

/// The name and six digits of a hash of everything decided: the same description gives the same id.
pub(super) fn id(run: &Run) -> Result<String, RunError> {
    let text = serde_json::to_string(run).map_err(|error| RunError::Conflict(error.to_string()))?;
    // FNV-1a: any even hash does; the standard library's may change between versions of Rust, and golden files would with it.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let name: String = run.name.chars().take(LONGEST_ID - 7).collect();
    Ok(format!("{}-{:06x}", name.trim_end_matches('-'), hash & 0xff_ffff))
}
