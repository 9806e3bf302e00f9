//! The lines of `matrix.txt`.

use std::fmt;
use std::time::Duration;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Kill,
    Stop,
    Leave,
    Slow,
    Cut,
    CutBoth,
    Silence,
    Stall,
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Idle,
    Between,
    Header,
    Dispatch,
    Combine,
}

/// One run, and what must come of it.
#[derive(Clone, Debug)]
pub struct Line {
    pub number: usize,
    pub over: String,
    /// The rank that acts.
    pub victim: usize,
    /// The ranks that it happens to.
    pub hit: Vec<usize>,
    pub act: Act,
    pub when: When,
    /// Empty: no failure.
    pub causes: Vec<String>,
    pub culprits: Vec<usize>,
    /// Empty: any but idle.
    pub phases: Vec<String>,
    pub deadline: Duration,
    pub within: Duration,
    text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "matrix line {}: {}", self.number, self.text)
    }
}

/// All lines.
pub fn lines() -> Vec<Line> {
    let text = include_str!("matrix.txt");
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(i, line)| parse(i + 1, line)).collect()
}

fn parse(number: usize, text: &str) -> Line {
    let cells: Vec<&str> = text.split('|').map(str::trim).collect();
    let &[over, who, act, when, cause, culprit, phase, deadline, within] = &cells[..] else {
        panic!("matrix line {number} has {} cells", cells.len())
    };
    let list = |cell: &str| -> Vec<String> {
        cell.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let rank =
        |word: &str| -> usize { word.parse().unwrap_or_else(|_| panic!("line {number}: rank {word:?}")) };
    let millis = |cell: &str| Duration::from_millis(cell.parse().expect("milliseconds"));
    let hit = match who.strip_prefix("node ") {
        Some(node) => vec![2 * rank(node), 2 * rank(node) + 1],
        None => vec![rank(who)],
    };
    Line {
        number,
        over: over.to_owned(),
        victim: hit[hit.len() - 1],
        hit,
        act: match act {
            "kill" => Act::Kill,
            "stop" => Act::Stop,
            "leave" => Act::Leave,
            "slow" => Act::Slow,
            "cut" => Act::Cut,
            "cut-both" => Act::CutBoth,
            "silence" => Act::Silence,
            "stall" => Act::Stall,
            other => panic!("line {number}: act {other:?}"),
        },
        when: match when {
            "idle" => When::Idle,
            "between" => When::Between,
            "header" => When::Header,
            "dispatch" => When::Dispatch,
            "combine" => When::Combine,
            other => panic!("line {number}: when {other:?}"),
        },
        causes: if cause == "none" { Vec::new() } else { list(cause) },
        culprits: list(culprit).iter().map(|word| rank(word)).collect(),
        phases: if phase == "*" { Vec::new() } else { list(phase) },
        deadline: millis(deadline),
        within: millis(within),
        text: cells.join(" | "),
    }
}
