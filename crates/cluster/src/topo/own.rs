//! Devices that each hang by a GPU of their own: they are rails whatever their rate or state, because no frontend hangs like that.

use std::collections::BTreeSet;

use super::assign::least_cost;
use super::classify::{Candidate, RAIL_GBITS};
use super::distance::Distance;

/// More like devices than any node has by its GPUs; the assignment takes the cube of their number.
const MOST: usize = 64;

/// A place that no switch joins to its GPU costs more than any state of a port.
const FAR: i64 = 1_000_000_000;

/// The set of devices that hang by GPUs of their own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Own {
    /// Positions of its devices, as many as GPUs, a multiple, or an equal share.
    pub(super) chosen: BTreeSet<usize>,
    /// Like devices that hang by the GPUs too, and are left over.
    pub(super) spare: BTreeSet<usize>,
    /// Devices of which it cannot be told which belong to the set.
    pub(super) tied: BTreeSet<usize>,
}

/// That set, where one of its devices is down or slower than its siblings; none where no set stands out, or all of it is well: then the
/// other rules see no less.
pub(super) fn own(all: &[&Candidate<'_>], gpus: usize) -> Option<Own> {
    let near: Vec<usize> = (0..all.len()).filter(|&at| by_a_gpu(all, at)).collect();
    let best = near.iter().filter_map(|&at| all.get(at)).filter(|c| c.active).map(|c| c.gbits);
    let best = best.fold(0.0, f64::max);
    if gpus == 0 || best > 0.0 && best < RAIL_GBITS {
        return None;
    }
    // Storage may hang by a GPU, be of the same part and differ in its partition only: the finer classes come first.
    let sets = [classes(all, &near, true), classes(all, &near, false)].into_iter().find_map(|classes| {
        let sets: Vec<Own> = classes.iter().filter_map(|class| set(all, class, gpus)).collect();
        (!sets.is_empty()).then_some(sets)
    })?;
    let [set]: [Own; 1] = physical(all, gpus, sets).try_into().ok()?;
    let members = || set.chosen.iter().filter_map(|&at| all.get(at));
    let active = || members().filter(|c| c.active);
    // A faster device of another part by a GPU may be the rail.
    let fastest = active().map(|c| c.gbits).fold(0.0, f64::max);
    let other = near.iter().any(|at| {
        !set.chosen.contains(at)
            && !set.spare.contains(at)
            && all.get(*at).is_some_and(|c| c.active && c.gbits > fastest)
    });
    let ill = members().any(|c| !c.active || c.gbits < fastest);
    (ill && !(other && active().next().is_some())).then_some(set)
}

fn by_a_gpu(all: &[&Candidate<'_>], at: usize) -> bool {
    all.get(at).is_some_and(|c| c.nearest() <= Distance::Pxb)
}

/// What identical devices have in common.
fn part(c: &Candidate<'_>) -> String {
    format!(
        "{:?} {:?} {:?} {}",
        c.device.driver,
        c.device.hca_type,
        c.device.board_id,
        c.device.physfn.is_some()
    )
}

/// Devices of one part, and of one partition where `partition`: a port that is down has none, and may belong to any.
fn classes(all: &[&Candidate<'_>], near: &[usize], partition: bool) -> Vec<Vec<usize>> {
    // Made once: a document may claim any number of keys.
    let known: Vec<(usize, String, Option<String>)> = near
        .iter()
        .filter_map(|&at| Some((at, all.get(at)?)))
        .map(|(at, c)| (at, part(c), (partition && c.active).then(|| c.partition())))
        .collect();
    let mut keys: Vec<(&String, &Option<String>)> =
        known.iter().map(|(_, part, group)| (part, group)).collect();
    keys.sort();
    keys.dedup();
    // A part of which nothing is active has one class; where something is, what is down joins it.
    let grouped = |wanted: &String| keys.iter().any(|(part, group)| *part == wanted && group.is_some());
    keys.iter()
        .filter(|(part, group)| group.is_some() || !grouped(part))
        .map(|(name, group)| {
            let member = |part: &String, other: &Option<String>| {
                part == *name && (group.is_none() || other.is_none() || other == *group)
            };
            known.iter().filter(|(_, part, other)| member(part, other)).map(|(at, ..)| *at).collect()
        })
        .collect()
}

/// The devices of `class` that serve every GPU from nearby, the active and the fast first; none where some GPU has none.
fn set(all: &[&Candidate<'_>], class: &[usize], gpus: usize) -> Option<Own> {
    if class.is_empty() || class.len() > MOST || gpus > MOST {
        return None;
    }
    let shared = class.len() < gpus;
    if shared && !gpus.is_multiple_of(class.len()) {
        return None;
    }
    let member = |column: usize| all.get(*class.get(column)?).copied();
    let best = class.iter().filter_map(|&at| all.get(at)).filter(|c| c.active).map(|c| c.gbits);
    let best = best.fold(0.0, f64::max);
    let first = function_of(all, class);
    let weight = |c: &Candidate<'_>| {
        if !c.active {
            1_000_000 + i64::from(function(c) != first) * 1_000
        } else if c.gbits < best {
            10_000
        } else {
            0
        }
    };
    let (per_gpu, share) = if shared { (1, gpus / class.len()) } else { (class.len() / gpus, 1) };
    let solve = |used: &BTreeSet<usize>| {
        let cost = |row: usize, column: usize| {
            let Some(c) = member(column / share) else { return FAR * 64 };
            let near = c.distances.get(row / per_gpu).is_some_and(|distance| *distance <= Distance::Pxb);
            (i64::from(!near) * FAR) + weight(c) + i64::from(used.contains(&(column / share)))
        };
        let columns = least_cost(gpus * per_gpu, class.len() * share, cost);
        let sum: i64 = columns.iter().enumerate().map(|(row, &column)| cost(row, column)).sum();
        (columns.into_iter().map(|column| column / share).collect::<BTreeSet<usize>>(), sum)
    };
    let (chosen, sum) = solve(&BTreeSet::new());
    if sum >= FAR {
        return None;
    }
    // Where another choice is as good, it is found when the first one is made a little dearer.
    let (other, dearer) = solve(&chosen);
    let kept = i64::try_from(other.intersection(&chosen).count()).unwrap_or(0);
    let mut tied: BTreeSet<usize> = BTreeSet::new();
    if !shared && dearer - kept == sum {
        tied = other.symmetric_difference(&chosen).copied().collect();
    }
    let spare: BTreeSet<usize> = (0..class.len()).filter(|column| !chosen.contains(column)).collect();
    // A device that is left over and as fast as the slow ones: then perhaps the fast one is no rail.
    let slow = |column: &usize| member(*column).filter(|c| c.active && c.gbits < best).map(|c| c.gbits);
    tied.extend(
        spare
            .iter()
            .filter(|&at| slow(at).is_some_and(|rate| chosen.iter().any(|at| slow(at) == Some(rate)))),
    );
    let places =
        |columns: &BTreeSet<usize>| columns.iter().filter_map(|&at| class.get(at).copied()).collect();
    Some(Own { chosen: places(&chosen), spare: places(&spare), tied: places(&tied) })
}

fn function<'a>(c: &Candidate<'a>) -> Option<&'a str> {
    c.pci.address.rsplit_once('.').map(|(_, function)| function)
}

/// The function number of most devices that are active, or of the first.
fn function_of<'a>(all: &[&Candidate<'a>], class: &[usize]) -> Option<&'a str> {
    let members = || class.iter().filter_map(|&at| all.get(at)).copied();
    let active = |wanted: Option<&str>| members().filter(|c| c.active && function(c) == wanted).count();
    let mut numbers: Vec<Option<&str>> = members().map(function).collect();
    numbers.sort_unstable();
    numbers.dedup();
    // Of equal counts the lowest number.
    numbers.into_iter().rev().max_by_key(|wanted| active(*wanted)).flatten()
}

/// Virtual functions are made from physical ones: where both are whole sets and those are up, the virtual ones are no rails. A set
/// with a device for every GPU comes before one that GPUs share.
fn physical(all: &[&Candidate<'_>], gpus: usize, mut sets: Vec<Own>) -> Vec<Own> {
    let members = |set: &Own| set.chosen.iter().filter_map(|&at| all.get(at)).copied().collect::<Vec<_>>();
    let made = |set: &Own| members(set).iter().any(|c| c.device.physfn.is_some());
    if sets.iter().any(|set| !made(set) && members(set).iter().any(|c| c.active)) {
        sets.retain(|set| !made(set));
    }
    if sets.iter().any(|set| set.chosen.len() >= gpus) {
        sets.retain(|set| set.chosen.len() >= gpus);
    }
    sets
}
