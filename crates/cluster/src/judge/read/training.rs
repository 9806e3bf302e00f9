//! Logs of training benchmarks: the iteration lines of `NeMo` Automodel's recipe, Megatron and `NeMo`.

use super::super::lines::{before, number, short, whole, word};
use super::super::model::{Kind, Said, Training};
use super::{Line, Scan};

pub(super) fn line(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    if text.contains("Running ") && text.contains(" iterations with ") && text.contains(" warmup") {
        let (steps, warmup) = (whole(text, "Running "), whole(text, " iterations with "));
        if steps.is_some() {
            let training = of(scan, line);
            (training.steps, training.warmup) = (steps, warmup);
            return true;
        }
    }
    if text.contains("DP size: ")
        && let Some(ranks) = whole(text, "DP size: ")
    {
        of(scan, line).data_parallel = Some(ranks);
        return true;
    }
    if text.contains("teration") && iteration(scan, line) {
        return true;
    }
    if text.contains("Benchmark summary saved to ") {
        let said = Said {
            text: word(text, "Benchmark summary saved to ").unwrap_or_default().to_owned(),
            place: scan.place(line),
        };
        of(scan, line).summary = Some(said);
        return true;
    }
    summary(scan, line)
}

/// The training of the file's run.
fn of<'a>(scan: &'a mut Scan, line: &Line<'_>) -> &'a mut Training {
    let place = scan.place(line);
    let training = scan.open(Kind::Training, line).training.get_or_insert_with(Training::default);
    training.place = place;
    training
}

fn iteration(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    // Automodel: `Rank 0 | Iteration 3` when it begins, with its loss when it has ended.
    if let Some(index) = whole(text, "| Iteration ") {
        let (loss, memory) = (number(text, "loss="), number(text, "Max Memory Allocated: "));
        let training = of(scan, line);
        keep(&mut training.begun, index);
        if let Some(loss) = loss {
            keep(&mut training.done, index);
            lost(training, loss, text);
            training.loss = Some(loss);
            training.memory_gb = match (training.memory_gb, memory) {
                (Some(most), Some(now)) => Some(most.max(now)),
                (most, now) => now.or(most),
            };
        }
        return true;
    }
    // Megatron: ` iteration        3/      30 | ... elapsed time per iteration (ms): 37114.0 | ... lm loss: 1.2253E+01 |`
    // NeMo: `Training epoch 0, iteration 3/29 | ... | reduced_train_loss: 12.25 | train_step_timing in s: 37.11`.
    let Some(rest) = text.find("iteration ").and_then(|at| text.get(at + "iteration ".len()..)) else {
        return false;
    };
    let (Some(index), Some(last)) = (whole(rest, ""), whole(rest, "/")) else { return false };
    let from_zero = text.contains("epoch");
    if !(from_zero || text.contains("elapsed time per iteration")) {
        return false;
    }
    let loss = ["lm loss: ", "reduced_train_loss: ", "train_loss: "].iter().find_map(|key| number(text, key));
    let seconds = number(text, "train_step_timing in s: ")
        .or_else(|| number(text, "elapsed time per iteration (ms): ").map(|ms| ms / 1e3));
    let training = of(scan, line);
    training.steps = training.steps.or(if from_zero { last.checked_add(1) } else { Some(last) });
    let index = if from_zero { index } else { index.saturating_sub(1) };
    keep(&mut training.begun, index);
    keep(&mut training.done, index);
    if let Some(loss) = loss {
        lost(training, loss, text);
    }
    training.loss = loss.or(training.loss);
    if !training.step_of_summary {
        training.step_s = seconds.or(training.step_s);
    }
    true
}

/// Notes an iteration whose loss is no number.
fn lost(training: &mut Training, loss: f64, text: &str) {
    if !loss.is_finite() {
        let place = training.place.clone();
        training.lost.get_or_insert_with(|| Said { text: short(text), place });
        training.losses_lost += 1;
    }
}

fn keep(set: &mut std::collections::BTreeSet<u64>, index: u64) {
    /// Iterations that are kept apart.
    const MOST: usize = 1 << 20;
    if set.len() < MOST {
        set.insert(index);
    }
}

fn summary(scan: &mut Scan, line: &Line<'_>) -> bool {
    let text = line.text;
    if let Some(seconds) = number(text, "Average iteration time: ") {
        let training = of(scan, line);
        (training.step_s, training.step_of_summary, training.summarised) = (Some(seconds), true, true);
        return true;
    }
    if let Some(mfu) = number(text, "Average MFU: ") {
        let training = of(scan, line);
        (training.mfu_percent, training.summarised) = (Some(mfu), true);
        return true;
    }
    if scan.current().kind != Kind::Training {
        return false;
    }
    if let Some(seconds) = number(text, "Max iter time: ") {
        let training = of(scan, line);
        training.iteration_s = Some(seconds);
        if !training.step_of_summary {
            training.step_s = Some(seconds);
        }
        return true;
    }
    if let Some(mfu) = number(text, "MFU: ") {
        let training = of(scan, line);
        training.mfu_percent = Some(mfu);
        return true;
    }
    let seconds = || before(text, " seconds");
    if text.contains("Total setup time") {
        of(scan, line).setup_s = seconds();
    } else if text.contains("Total warmup time") {
        of(scan, line).warmup_s = seconds();
    } else if text.contains("Total iteration time") {
        of(scan, line).measured_s = seconds();
    } else {
        return false;
    }
    true
}
