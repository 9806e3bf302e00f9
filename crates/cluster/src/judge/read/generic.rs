//! What any log may say: the GPU, versions, the transport, errors, exit codes.

use super::super::lines::{short, whole, word};
use super::super::model::{Exit, KEPT, MARKS, Mark, NicChoice, Place, Run, Said};
use super::{Line, Scan, sieve};

/// Names of GPUs, longest first.
const GPUS: &[&str] = &["GB300", "GB200", "B300", "B200", "H200", "H800", "H100", "A100", "H20"];

pub(super) fn line(scan: &mut Scan, line: &Line<'_>) {
    let text = line.text;
    let place = scan.place(line);
    let run = scan.current();
    nvshmem(run, line, &place);
    if let Some(gpu) = gpu(text) {
        match &run.gpu {
            // Said before the run began: it is of the run before.
            Some(known) if known.place.line >= run.place.line && known.text != gpu => {
                differs(run, "gpu", gpu, &place);
            }
            Some(known) if known.text == gpu => {}
            _ => run.gpu = Some(Said { text: gpu.to_owned(), place: place.clone() }),
        }
    }
    transport(run, text);
    if let Some(nodes) =
        whole(text, "--nnodes=").or_else(|| whole(text, "--nnodes ")).filter(|nodes| *nodes > 0)
    {
        run.settings.nodes = run.settings.nodes.or(Some(nodes));
    }
    if let Some(version) = word(text, "deep_ep==")
        .or_else(|| word(text, "deep_ep "))
        .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()) && version.contains('.'))
    {
        version_once(run, "deep_ep", version, &place);
    }
    // The guide's own parts have marks of theirs.
    let of_part = text.contains("INTRA ERROR:") || text.contains("INTER ERROR:");
    if !of_part && sieve::failure(text) || (text.contains("warmup ") && text.contains(" FAILED: ")) {
        let rank = whole(text, "[rank ").and_then(|rank| u32::try_from(rank).ok()).or(line.origin.task);
        run.mark(Mark { section: None, rank, text: short(text), place: place.clone() });
    }
    if text.contains("NVSHMEM_IBGDA_ENABLE_MULTI_PORT=1")
        || text.contains("NVSHMEM_IBGDA_ENABLE_MULTI_PORT = 1")
    {
        run.planes.get_or_insert_with(|| Said { text: short(text), place: place.clone() });
    }
    exits(run, line, &place);
    if text.contains("NVSHMEM_ENABLE_NIC_PE_MAPPING =")
        && let (Some(mapping), Some(device)) =
            (whole(text, "NVSHMEM_ENABLE_NIC_PE_MAPPING ="), whole(text, "setting dev_id ="))
        && run.nics.len() < KEPT
    {
        run.nics.push(NicChoice { mapping: mapping == 1, device, place });
    }
}

/// Keeps the first that a run says; another one is noted.
fn version_once(run: &mut Run, name: &str, version: &str, place: &Place) {
    match run.versions.get(name) {
        Some(known) if known.text == version => {}
        Some(known) if known.place.line >= run.place.line => differs(run, name, version, place),
        _ if run.versions.len() < MARKS => {
            run.versions.insert(name.to_owned(), Said { text: version.to_owned(), place: place.clone() });
        }
        _ => {}
    }
}

/// Notes what ranks of one run say differently, once for each pair.
fn differs(run: &mut Run, name: &str, version: &str, place: &Place) {
    let known = if name == "gpu" { run.gpu.as_ref() } else { run.versions.get(name) };
    let Some(known) = known else { return };
    let head = format!("{name} is {} at {} and {version} at ", known.text, known.place);
    if !run.notes.iter().any(|note| note.starts_with(&head)) {
        run.note(format!("{head}{place}"));
    }
}

/// `NVSHMEM v3.4.5`, once or several times in a line that ranks share; and what shows that NVSHMEM is in the build, or not.
fn nvshmem(run: &mut Run, line: &Line<'_>, place: &Place) {
    let text = line.text;
    if !text.contains("nvshmem") && !text.contains("NVSHMEM") {
        return;
    }
    for rest in text.split("NVSHMEM v").skip(1) {
        let end =
            rest.bytes().position(|byte| !(byte.is_ascii_digit() || byte == b'.')).unwrap_or(rest.len());
        let version = rest.get(..end).unwrap_or_default().trim_end_matches('.');
        if !version.contains('.') {
            continue;
        }
        run.nvshmem_lines += 1;
        if let Some(task) = line.origin.task
            && run.nvshmem_ranks.len() < KEPT
        {
            run.nvshmem_ranks.insert(task);
        }
        version_once(run, "nvshmem", version, place);
        run.internode_support.get_or_insert_with(|| Said { text: short(text), place: place.clone() });
    }
    if text.contains("libnvshmem") && text.contains("=> not found") {
        run.internode_missing.get_or_insert_with(|| Said { text: short(text), place: place.clone() });
    } else if text.contains("libnvshmem") && (text.contains("=> /") || text.contains("NEEDED")) {
        run.internode_support.get_or_insert_with(|| Said { text: short(text), place: place.clone() });
    }
    if ["DISABLE_NVSHMEM=1", "NVSHMEM is disabled", "without NVSHMEM", "-DDISABLE_NVSHMEM"]
        .iter()
        .any(|said| text.contains(said))
    {
        run.internode_missing.get_or_insert_with(|| Said { text: short(text), place: place.clone() });
    }
}

/// The GPU that a line names: `NVIDIA H100 80GB HBM3`.
pub(super) fn gpu(text: &str) -> Option<&'static str> {
    // The guide's images are of one GPU each.
    for (image, gpu) in [("deepep-tests:b200-", "B200"), ("deepep-tests:h200-", "H200")] {
        if text.contains(image) {
            return Some(gpu);
        }
    }
    text.match_indices("NVIDIA ").find_map(|(at, word)| {
        let rest = text.get(at + word.len()..)?;
        GPUS.iter().copied().find(|name| {
            rest.strip_prefix(name)
                .is_some_and(|after| !after.starts_with(|c: char| c.is_ascii_alphanumeric()))
        })
    })
}

fn transport(run: &mut Run, text: &str) {
    let found = if [
        "FI_PROVIDER=efa",
        "NVSHMEM_REMOTE_TRANSPORT=libfabric",
        "Selected provider is efa",
        "NVSHMEM_LIBFABRIC_PROVIDER=efa",
    ]
    .iter()
    .any(|said| text.contains(said))
    {
        "efa"
    } else if text.contains("NVSHMEM_IB_ENABLE_IBGDA=1") {
        "ibgda"
    } else {
        return;
    };
    run.settings.transport.get_or_insert_with(|| found.to_owned());
}

/// `exit code 1`, `exit=0`, `exitcode  : -6`, `Exited with exit code 1`, and Slurm's accounting: `COMPLETED  0:0`.
fn exits(run: &mut Run, line: &Line<'_>, place: &Place) {
    let text = line.text;
    let row = slurm_row(text);
    let (code, accounting) = match (exit_code(text), slurm_code(text)) {
        // A row of sacct has no word for its code.
        (_, Some(code)) if row.is_some() => (code, true),
        (Some(code), _) => (code, false),
        (None, Some(code)) => (code, true),
        (None, None) => return,
    };
    // The batch script and Slurm's own step are of the job again, and say nothing of tasks.
    if code == 0 && row.is_some_and(|(_, step)| matches!(step, Some("batch" | "extern" | "interactive"))) {
        return;
    }
    if run.exits.len() < KEPT {
        let step = row.is_some_and(|(_, step)| step.is_some_and(|step| step.parse::<u32>().is_ok()));
        let head = if accounting { text } else { text.split("xit").next().unwrap_or(text) };
        let task = line.origin.task.map_or(String::new(), |task| format!("{task} "));
        let who = match row {
            Some((job, _)) if accounting => job.to_owned(),
            _ => format!("{task}{} {}", line.origin.host.as_deref().unwrap_or_default(), short(head)),
        };
        run.exits.push(Exit { code, who: who.trim().to_owned(), accounting, step, place: place.clone() });
    }
}

fn exit_code(text: &str) -> Option<i64> {
    text.match_indices("xit").find_map(|(at, word)| {
        // `exit` or `Exit` or `EXIT_STATUS`, as a word.
        let before = text.get(..at)?;
        let head = before.strip_suffix(['e', 'E'])?;
        if head.ends_with(|c: char| c.is_ascii_alphanumeric()) {
            return None;
        }
        let mut rest = text.get(at + word.len()..)?;
        for part in ["ed", " with", " exit", "_", " ", "code", "status", "Code", "Status", " "] {
            rest = rest.strip_prefix(part).unwrap_or(rest);
        }
        let rest = rest.trim_start().trim_start_matches([':', '=']).trim_start();
        let end = rest
            .bytes()
            .enumerate()
            .position(|(index, byte)| !(byte.is_ascii_digit() || (index == 0 && byte == b'-')))
            .unwrap_or(rest.len());
        let after = rest.get(end..)?;
        if after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') {
            return None;
        }
        rest.get(..end)?.parse().ok()
    })
}

/// Job and step that a row of sacct begins with: `4711`, `4711.batch`, `4711_3.0`, `4711+1.0`.
fn slurm_row(text: &str) -> Option<(&str, Option<&str>)> {
    let id = text.trim_start().split([' ', '|', '\t']).next()?;
    let (job, step) = id.split_once('.').map_or((id, None), |(job, step)| (job, Some(step)));
    let whole = job.starts_with(|c: char| c.is_ascii_digit())
        && job.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'_' | b'+'));
    whole.then_some((job, step))
}

/// The code of a row of sacct. A state other than `COMPLETED` is never 0, whatever its code says (`TIMEOUT 0:0`).
fn slurm_code(text: &str) -> Option<i64> {
    let mut words = text.split(|c: char| c.is_whitespace() || c == '|').peekable();
    while let Some(state) = words.next() {
        // sacct cuts long states: `OUT_OF_ME+`.
        let state = state.trim_end_matches('+');
        if !matches!(
            state,
            "COMPLETED" | "FAILED" | "NODE_FAIL" | "OUT_OF_MEMORY" | "OUT_OF_ME" | "TIMEOUT" | "CANCELLED"
        ) {
            continue;
        }
        // Further columns may lie between.
        for word in words.by_ref() {
            if let Some((code, signal)) = word.split_once(':')
                && let (Ok(code), Ok(signal)) = (code.parse::<i64>(), signal.parse::<i64>())
            {
                return Some(match (code, signal) {
                    (0, 0) => i64::from(state != "COMPLETED"),
                    (0, signal) => 128_i64.saturating_add(signal),
                    _ => code,
                });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes() {
        for (text, code) in [
            ("srun: error: node-b: tasks 8-15: Exited with exit code 1", Some(1)),
            ("launcher node-03 exit=0", Some(0)),
            ("torchrun exit code: 0", Some(0)),
            ("  exitcode  : -6 (pid: 4711)", Some(-6)),
            ("EXIT_STATUS=0", None),
            ("exit 0", Some(0)),
            ("exit status 137", Some(137)),
            ("4711.0  bash  COMPLETED      0:0", Some(0)),
            ("4711  train  FAILED  1:0", Some(1)),
            ("4711  train  OUT_OF_MEMORY  0:125", Some(253)),
            ("4711.0|TIMEOUT|0:0", Some(1)),
            ("4711.0 OUT_OF_ME+ 0:9", Some(137)),
            ("the complexity of this", None),
            ("early exit 3rd layer", None),
            ("exited", None),
        ] {
            assert_eq!(exit_code(text).or_else(|| slurm_code(text)), code, "{text}");
        }
    }

    #[test]
    fn gpus() {
        assert_eq!(gpu("Driver: NVIDIA B200"), Some("B200"));
        assert_eq!(gpu("[0x18] NVIDIA H100 80GB HBM3"), Some("H100"));
        assert_eq!(gpu("NVIDIA GB200"), Some("GB200"));
        assert_eq!(gpu("NVIDIA H2000, NVIDIA Corporation"), None);
    }
}
