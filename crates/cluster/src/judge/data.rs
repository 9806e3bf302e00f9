//! Whether the data was right, and totals follow from their parts.

use std::collections::BTreeSet;

use super::causes::{TOTAL, UNVERIFIED, WRONG};
use super::evidence::{At, finding, subject};
use super::model::{Kind, Section};
use super::weigh::Known;
use crate::finding::{Finding, Status};

/// What tests of correctness say, or that there are none.
pub(super) fn findings(known: &Known<'_>) -> Vec<Finding> {
    let tests = &known.run.tests;
    let mut all = Vec::new();
    if let Some(wrong) = tests.wrong.first() {
        let more = if tests.wrong.len() > 1 {
            format!(" and {} more", tests.wrong.len() - 1)
        } else {
            String::new()
        };
        all.push(
            finding("J011")
                .about(subject(known))
                .outcome(Status::Fail, &WRONG)
                .saw(format!("{}{more}", wrong.text), "no row wrong")
                .line(&wrong.place),
        );
    } else if let Some(mark) = known.run.marks.iter().find(|mark| {
        mark.text.contains("AssertionError")
            && matches!(known.run.kind, Kind::Intranode | Kind::Internode | Kind::LowLatency | Kind::V2)
    }) {
        // DeepEP's tests assert what they received.
        all.push(
            finding("J011")
                .about(subject(known))
                .outcome(Status::Fail, &WRONG)
                .saw(mark.text.clone(), "no assertion that fails")
                .line(&mark.place),
        );
    } else if let Some(partly) = &tests.partly {
        all.push(
            finding("J011")
                .about(subject(known))
                .outcome(Status::Unknown, &UNVERIFIED)
                .saw(partly.text.clone(), "every row compared")
                .line(&partly.place),
        );
    } else if let Some(unverified) = &tests.unverified {
        all.push(
            finding("J011")
                .about(subject(known))
                .outcome(Status::Warn, &UNVERIFIED)
                .saw(unverified.text.clone(), "verified data")
                .line(&unverified.place),
        );
    }
    if matches!(known.run.kind, Kind::Intranode | Kind::Internode) && tests.passed < tests.begun {
        all.push(
            finding("J011")
                .about(subject(known))
                .outcome(Status::Unknown, &UNVERIFIED)
                .saw(
                    format!("{} of {} tests of correctness say that they passed", tests.passed, tests.begun),
                    "all passed",
                )
                .line(&known.run.place),
        );
    }
    all.extend(untested(known));
    all
}

/// No test of correctness in the log, or none of a type that has figures.
fn untested(known: &Known<'_>) -> Option<Finding> {
    let run = known.run;
    let tests = &run.tests;
    let seen = match run.kind {
        Kind::Intranode | Kind::Internode if tests.begun == 0 => {
            "no test of correctness is in the log".to_owned()
        }
        Kind::Intranode | Kind::Internode => {
            let without: BTreeSet<&str> = run
                .figures
                .iter()
                .filter(|figure| figure.op == "dispatch" && !tests.dtypes.contains(&figure.dtype))
                .map(|figure| figure.dtype.as_str())
                .collect();
            if without.is_empty() {
                return None;
            }
            format!("no test of {} is in the log", without.into_iter().collect::<Vec<_>>().join(", "))
        }
        Kind::Alltoall if tests.passed < tests.begun && tests.wrong.is_empty() => {
            format!("{} of {} rows of the table were checked (#wrong)", tests.passed, tests.begun)
        }
        _ => return None,
    };
    if run.figures.is_empty() || tests.unverified.is_some() {
        return None;
    }
    Some(
        finding("J011")
            .about(subject(known))
            .outcome(Status::Warn, &UNVERIFIED)
            .saw(seen, "tests that pass")
            .line(run.figures.first().map_or(&run.place, |figure| &figure.place)),
    )
}

/// The guide's total is the harmonic mean of dispatch and combine inside a node, and no more than that between nodes.
pub(super) fn totals(known: &Known<'_>) -> Vec<Finding> {
    /// Of the mean, what layout leaves at least; in the guide's samples it leaves 0.97.
    const LAYOUT_MOST: f64 = 0.85;
    // Three figures with one decimal each.
    const ROUNDING: f64 = 0.005;
    let run = known.run;
    if run.kind != Kind::Guide {
        return Vec::new();
    }
    let mut all = Vec::new();
    for total in run.figures.iter().filter(|figure| figure.op == "total") {
        let of = |op: &str| {
            run.figures
                .iter()
                .find(|figure| figure.op == op && figure.place == total.place)
                .map(|figure| figure.value)
        };
        let (Some(dispatch), Some(combine)) = (of("dispatch"), of("combine")) else { continue };
        if dispatch <= 0.0 || combine <= 0.0 {
            continue;
        }
        let mean = expertrail_core::roofline::guide_total(dispatch, combine);
        let (low, high) = (mean * (1.0 - ROUNDING), mean * (1.0 + ROUNDING));
        // Layout is a few per cent of the time.
        let least = if total.section == Section::Intranode { low } else { mean * LAYOUT_MOST };
        if total.value > high || total.value < least {
            all.push(
                finding("J015")
                    .about(format!("{} total", total.section.label()))
                    .outcome(Status::Warn, &TOTAL)
                    .saw(
                        format!(
                            "{:.1} GB/s, and dispatch {dispatch:.1} with combine {combine:.1} make {mean:.1}",
                            total.value
                        ),
                        "figures of one run",
                    )
                    .line(&total.place),
            );
        }
    }
    all
}
