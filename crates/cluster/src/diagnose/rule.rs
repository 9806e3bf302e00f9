//! Rules: from signals to causes.

use serde::{Deserialize, Serialize};

use super::{Case, Event};
use crate::diagnose::event::Place;

/// How sure a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The signs fit, and so do those of other causes: a hypothesis, never an answer.
    Possible,
    /// The signs are those of this cause, and look-alikes are ruled out as far as the log goes.
    Likely,
    /// Nothing else writes this.
    Certain,
}

/// What a rule says of a case.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Cause id of the registry.
    pub cause: &'static str,
    /// How sure.
    pub confidence: Confidence,
    /// What was concluded from what, in one or two sentences.
    pub because: String,
    /// Lines that say so, most telling first.
    pub evidence: Vec<Place>,
    /// Look-alikes, and what rules each out.
    pub rules_out: Vec<String>,
    /// Rank, host, device, variable or package at fault.
    pub subject: Option<String>,
    /// The one fact to collect next where the log does not decide.
    pub next: Option<String>,
    /// It slows the run and stops nothing.
    pub caution: bool,
}

impl Claim {
    /// A claim whose evidence is `events`.
    pub fn new<'a>(
        cause: &'static str,
        confidence: Confidence,
        because: impl Into<String>,
        events: impl IntoIterator<Item = &'a Event>,
    ) -> Self {
        Self {
            cause,
            confidence,
            because: because.into(),
            evidence: events.into_iter().map(|event| event.place).collect(),
            rules_out: Vec::new(),
            subject: None,
            next: None,
            caution: false,
        }
    }

    /// What rules a look-alike out.
    #[must_use]
    pub fn not(mut self, why: impl Into<String>) -> Self {
        self.rules_out.push(why.into());
        self
    }

    /// What is at fault.
    #[must_use]
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// What to collect next.
    #[must_use]
    pub fn next(mut self, fact: impl Into<String>) -> Self {
        self.next = Some(fact.into());
        self
    }
}

/// A rule. The table part says which signals it takes; what a table cannot say is in `refine`.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Cause id of the registry.
    pub cause: &'static str,
    /// Signals that must all be there.
    pub needs: &'static [&'static str],
    /// Signals of which one must be there; empty: none need be.
    pub any: &'static [&'static str],
    /// Signals of which none may be there: those of look-alikes.
    pub unless: &'static [&'static str],
    /// How sure it is when these hold.
    pub confidence: Confidence,
    /// What that means; `{name}` is replaced by the field of the first event that has it.
    pub because: &'static str,
    /// Look-alikes, and what rules each out.
    pub rules_out: &'static [&'static str],
    /// Looks closer: changes the claim, or withdraws it.
    pub refine: Option<fn(&Case, Claim) -> Option<Claim>>,
}

impl Rule {
    /// A rule of which nothing is said yet: what tables fill in with `..Rule::LIKELY`.
    pub const LIKELY: Self = Self {
        cause: "",
        needs: &[],
        any: &[],
        unless: &[],
        confidence: Confidence::Likely,
        because: "",
        rules_out: &[],
        refine: None,
    };
    /// As [`Rule::LIKELY`], for lines that nothing else writes.
    pub const CERTAIN: Self = Self { confidence: Confidence::Certain, ..Self::LIKELY };

    /// A rule whose message says it all.
    pub const fn plain(cause: &'static str, any: &'static [&'static str], because: &'static str) -> Self {
        Self { cause, any, because, ..Self::CERTAIN }
    }

    /// The claim that this rule makes about `case`, if it applies.
    pub fn apply(&self, case: &Case) -> Option<Claim> {
        let there = |id: &&&str| case.has(id);
        if !self.needs.iter().all(|id| case.has(id))
            || !(self.any.is_empty() || self.any.iter().any(|id| case.has(id)))
            || self.unless.iter().any(|id| case.has(id))
        {
            return None;
        }
        let events: Vec<&Event> =
            self.needs.iter().chain(self.any.iter().filter(there)).filter_map(|id| case.first(id)).collect();
        let mut claim = Claim::new(self.cause, self.confidence, fill(self.because, &events), events);
        claim.rules_out = self.rules_out.iter().map(|why| (*why).to_owned()).collect();
        match self.refine {
            Some(refine) => refine(case, claim),
            None => Some(claim),
        }
    }
}

/// `template` with `{name}` replaced by the field of that name of the first event that has it.
fn fill(template: &str, events: &[&Event]) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let Some((name, tail)) = after.split_once('}') else {
            text.push('{');
            rest = after;
            continue;
        };
        text.push_str(events.iter().find_map(|event| event.field(name)).unwrap_or("?"));
        rest = tail;
    }
    text.push_str(rest);
    text
}
