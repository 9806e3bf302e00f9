//! The conformance suite with ranks as processes, under the widest instruction set (or `EXPERTRAIL_SIMD`).
//!
//! No test harness: this program is the launcher, and with [`CASES`] set it is one rank. Ranks of one number share
//! a launch and run its cases in turn, because starting processes would take longer than the cases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use conformance::Case;
use expertrail::group::spawn::{LocalLaunch, Prefix};
use expertrail::{Group, Simd};

/// Tells a rank which cases to run: their numbers, in order.
const CASES: &str = "EXPERTRAIL_TEST_CASES";

/// What a rank prints before a case's number, and after it what went wrong (nothing if all is well).
const DONE: &str = "conformance-case ";

/// Far more than any launch takes; a rank that hangs must not hang the suite.
const LIMIT: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    match std::env::var(CASES) {
        Ok(numbers) => rank(&numbers),
        Err(_) => launcher(&Wanted::from_args(std::env::args().skip(1))),
    }
}

/// One rank: every case in turn, until one fails here.
fn rank(numbers: &str) -> ExitCode {
    let cases = conformance::cases();
    let group = Group::from_env().expect("the launcher's environment");
    let simd = Simd::from_env().expect("checked by the launcher");
    for number in numbers.split(',') {
        let case = &cases[number.parse::<usize>().expect("a case number")];
        let result = conformance::run(&group, case, simd, None);
        // One write for each line: ranks share the pipe's reader, which passes on whole lines.
        let text = result.as_ref().err().map_or_else(String::new, |e| e.replace('\n', " "));
        println!("{DONE}{number} {text}");
        if result.is_err() {
            // The others are elsewhere in this case by now: what followed would only say so again.
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn launcher(wanted: &Wanted) -> ExitCode {
    let cases: Vec<(usize, Case)> =
        conformance::cases().into_iter().enumerate().filter(|(_, case)| wanted.takes(&name(case))).collect();
    if wanted.list {
        for (_, case) in &cases {
            println!("{}: test", name(case));
        }
        return ExitCode::SUCCESS;
    }
    // A bad value of the variable is this program's mistake to report, not every rank's.
    let simd = Simd::from_env().expect("a usable EXPERTRAIL_SIMD");
    let started = Instant::now();
    println!("\nrunning {} tests under {simd}", cases.len());
    let mut by_ranks: BTreeMap<usize, Vec<(usize, Case)>> = BTreeMap::new();
    for (number, case) in cases {
        by_ranks.entry(case.ranks).or_default().push((number, case));
    }
    let (mut passed, mut failures) = (0, Vec::new());
    for (ranks, cases) in by_ranks {
        let problems = launch(ranks, &cases);
        for (case, problem) in cases.iter().map(|(_, case)| name(case)).zip(problems) {
            println!("test {case} ... {}", if problem.is_none() { "ok" } else { "FAILED" });
            match problem {
                None => passed += 1,
                Some(problem) => failures.push(format!("---- {case} ----\n{problem}")),
            }
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:\n\n{}", failures.join("\n\n"));
    }
    println!(
        "\ntest result: {}. {passed} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        if failures.is_empty() { "ok" } else { "FAILED" },
        failures.len(),
        conformance::cases().len() - passed - failures.len(),
        started.elapsed().as_secs_f64()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs cases of one number of ranks in one launch; gives what is wrong with each.
fn launch(ranks: usize, cases: &[(usize, Case)]) -> Vec<Option<String>> {
    let numbers: Vec<String> = cases.iter().map(|(number, _)| number.to_string()).collect();
    let (out, err) = (Shared::default(), Shared::default());
    let outcome = LocalLaunch::new(std::env::current_exe().expect("this program"), ranks)
        .env(CASES, numbers.join(","))
        .prefix(Prefix::All)
        .deadline(LIMIT)
        .run_to(out.clone(), err.clone());
    let (out, err) = (out.text(), err.text());
    let ending = match &outcome {
        Ok(outcome) if outcome.is_success() => None,
        Ok(outcome) => Some(format!("{outcome:?}\n{err}")),
        Err(error) => Some(error.to_string()),
    };
    let done: Vec<(&str, &str, &str)> = out.lines().filter_map(done_line).collect();
    let problem = |number: &String| {
        let of_case: Vec<_> = done.iter().filter(|(_, done, _)| done == number).collect();
        let wrong: Vec<String> = of_case
            .iter()
            .filter(|(_, _, text)| !text.is_empty())
            .map(|(rank, _, text)| format!("{rank} {text}"))
            .collect();
        if !wrong.is_empty() {
            return Some(wrong.join("\n"));
        }
        let ended = ending.as_deref().unwrap_or("every rank exited with 0");
        (of_case.len() != ranks).then(|| format!("{} of {ranks} ranks came through: {ended}", of_case.len()))
    };
    let mut problems: Vec<Option<String>> = numbers.iter().map(problem).collect();
    // All cases came through and yet a rank failed, at its end: the last case gets the blame.
    if let (Some(ending), true) = (ending, problems.iter().all(Option::is_none)) {
        problems.pop();
        problems.push(Some(format!("after the last case: {ending}")));
    }
    problems
}

/// `[rank 3] conformance-case 7 text` into its parts.
fn done_line(line: &str) -> Option<(&str, &str, &str)> {
    let (rank, rest) = line.split_once(DONE)?;
    let (number, text) = rest.split_once(' ')?;
    Some((rank.trim(), number, text))
}

/// A case's name as a test's: no spaces, so that it can be given as a filter without quotes.
fn name(case: &Case) -> String {
    let words: Vec<&str> =
        case.name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    format!("processes::{}", words.join("_"))
}

/// What the command line asks for, as far as test harnesses and their callers use it.
#[derive(Default)]
struct Wanted {
    list: bool,
    exact: bool,
    ignored: bool,
    filters: Vec<String>,
    skip: Vec<String>,
}

impl Wanted {
    fn from_args(mut args: impl Iterator<Item = String>) -> Self {
        let mut wanted = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--list" => wanted.list = true,
                "--exact" => wanted.exact = true,
                "--ignored" => wanted.ignored = true,
                "--skip" => wanted.skip.extend(args.next()),
                // Options of the usual harness that take a value and change nothing here.
                "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => {
                    let _ = args.next();
                }
                other if other.starts_with('-') => {}
                _ => wanted.filters.push(arg),
            }
        }
        wanted
    }

    fn takes(&self, name: &str) -> bool {
        let matches = |text: &String| if self.exact { name == text } else { name.contains(text.as_str()) };
        let named = self.filters.is_empty() || self.filters.iter().any(matches);
        // No case is ever ignored, so `--ignored` alone selects none.
        named && !self.ignored && !self.skip.iter().any(matches)
    }
}

/// Collects what the ranks print.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
