//! The verdict over a stack.

use serde::{Deserialize, Serialize};

use super::Question;
use super::matrix::{Effect, Row, holds, matrix, parts};

/// The name of the verdict document's version.
pub const SCHEMA: &str = "expertrail.stack/1";

/// The JSON Schema (draft 2020-12) of that document.
pub const JSON_SCHEMA: &str = include_str!("../../schema/expertrail.stack.1.schema.json");

/// What is known of a combination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// It was seen to work.
    KnownGood,
    /// It was seen to fail, and why is known.
    KnownBad,
    /// Neither, or what decides is not known.
    #[default]
    #[serde(other)]
    Unverified,
}

/// A row that applies, or may.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Match {
    /// The row.
    pub row: Row,
    /// Keys that would have to be known to decide it; empty where it applies.
    pub open: Vec<String>,
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// [`SCHEMA`].
    pub schema: String,
    /// The worst of what applies.
    pub judgement: Judgement,
    /// Rows that apply: bad first.
    pub applies: Vec<Match>,
    /// Rows that apply and stop no run: slower, or the tests only.
    pub cautions: Vec<Match>,
    /// Bad rows that may apply, as long as some key is not known.
    pub possible: Vec<Match>,
    /// Bad by the commit alone: a patched build of it is good.
    pub unless_patched: bool,
    /// What was judged.
    pub question: Question,
}

/// Judges a stack. One bad row decides; else one that is unverified; else one that is good, unless a bad one may still apply.
pub fn judge(question: &Question) -> Verdict {
    let mut verdict = Verdict { schema: SCHEMA.to_owned(), question: question.clone(), ..Verdict::default() };
    for row in &matrix().rows {
        let answers: Vec<(String, Option<bool>)> = row
            .when
            .iter()
            .map(|condition| {
                let key = parts(condition).map_or("", |(key, ..)| key).to_owned();
                // `!=` of a key that nobody knows holds: those conditions take exceptions out.
                let answer = holds(condition, |key| question.get(key).map(str::to_owned));
                // A good verdict is about some DeepEP: without its line there is none to be good.
                let exception =
                    condition.contains("!=") && !(row.verdict == Judgement::KnownGood && key == "line");
                (key, answer.or_else(|| exception.then_some(true)))
            })
            .collect();
        if answers.iter().any(|(_, answer)| *answer == Some(false)) {
            continue;
        }
        let open: Vec<String> =
            answers.into_iter().filter(|(_, answer)| answer.is_none()).map(|(key, _)| key).collect();
        if row.effect != Effect::Fails {
            if open.is_empty() {
                verdict.cautions.push(Match { row: row.clone(), open });
            }
        } else if open.is_empty() {
            verdict.applies.push(Match { row: row.clone(), open });
        } else if row.verdict == Judgement::KnownBad && concerns(row, &open) {
            verdict.possible.push(Match { row: row.clone(), open });
        }
    }
    let order = |found: &Match| match found.row.verdict {
        Judgement::KnownBad => 0,
        Judgement::Unverified => 1,
        Judgement::KnownGood => 2,
    };
    verdict.applies.sort_by_key(order);
    verdict.judgement = match verdict.applies.first().map(|found| found.row.verdict) {
        Some(Judgement::KnownGood) if !verdict.possible.is_empty() => Judgement::Unverified,
        Some(judgement) => judgement,
        None => Judgement::Unverified,
    };
    let bad: Vec<&Match> =
        verdict.applies.iter().filter(|found| found.row.verdict == Judgement::KnownBad).collect();
    verdict.unless_patched = question.commit_alone
        && !bad.is_empty()
        && bad.iter().all(|found| found.row.when.iter().any(|condition| condition == "564=no"));
    verdict
}

/// Whether a bad row that is not decided is worth naming: what is open decides between good and bad for this stack, and most of the row
/// holds already.
fn concerns(row: &Row, open: &[String]) -> bool {
    let decisive = ["564", "nvshmem", "transport", "efa_patch"];
    open.len() * 2 <= row.when.len() && open.iter().all(|key| decisive.contains(&key.as_str()))
}
