//! From the devices with a link to the rails: fabric, rate, and what sets rails apart from the rest.

use super::assign::least_cost;
use super::classify::{Candidate, Decision, Fabric, RAIL_GBITS, bus_order, name, near_gpus, rate};
use super::distance::Distance;
use super::own::own;
use super::text::many;

/// A property in which rails are alike.
type Key = fn(&Candidate<'_>) -> String;

/// EFA or InfiniBand carries rails where either is there; Ethernet beside it is frontend, storage or management.
pub(super) fn fabric_of<'a>(
    active: Vec<Candidate<'a>>,
    down: Vec<Candidate<'a>>,
    gpus: usize,
    decision: &mut Decision<'a>,
) -> (Vec<Candidate<'a>>, Vec<Candidate<'a>>) {
    let all = || active.iter().chain(&down);
    let fast =
        |fabric| active.iter().any(|c| c.fabric == fabric && (c.gbits >= RAIL_GBITS || c.gbits == 0.0));
    let count = |fabric| all().filter(|c| c.fabric == fabric).count();
    // A set of InfiniBand devices that are all down is what was meant as rails; the Ethernet link that is left is the frontend.
    let meant = |fabric| count(fabric) > 0 && count(fabric) >= gpus && count(Fabric::Ethernet) < gpus;
    let fabric = if fast(Fabric::Efa) || meant(Fabric::Efa) {
        Fabric::Efa
    } else if beside(&active, &down, gpus) {
        Fabric::Ethernet
    } else if fast(Fabric::InfiniBand) || meant(Fabric::InfiniBand) {
        decision.unclear = outweighed(&active, gpus);
        Fabric::InfiniBand
    } else if fast(Fabric::Ethernet) || count(Fabric::InfiniBand) == 0 {
        Fabric::Ethernet
    } else {
        Fabric::InfiniBand
    };
    let count = count(fabric);
    let mut sort = |list: Vec<Candidate<'a>>| {
        let (kept, rest): (Vec<_>, Vec<_>) = list.into_iter().partition(|c| c.fabric == fabric);
        for other in rest {
            let reason = format!(
                "{} {}, while {count} {} {}{}",
                name(other.fabric),
                rate(other.gbits),
                if count == 1 { "device has" } else { "devices have" },
                name(fabric),
                if other.active { "" } else { "; its port is not active" }
            );
            decision.others.push((other.device.name.clone(), reason));
        }
        kept
    };
    let active = sort(active);
    (active, sort(down))
}

/// Whether Ethernet carries the rails though InfiniBand is there: a fast Ethernet device hangs by every GPU, and InfiniBand devices
/// are fewer than GPUs and hang by none (storage).
fn beside(active: &[Candidate<'_>], down: &[Candidate<'_>], gpus: usize) -> bool {
    let of = |fabric| active.iter().chain(down).filter(move |c| c.fabric == fabric);
    let by = |gpu: usize| {
        of(Fabric::Ethernet).any(|c| {
            c.distances.get(gpu).is_some_and(|distance| *distance <= Distance::Pxb)
                && (!c.active || c.gbits >= RAIL_GBITS)
        })
    };
    gpus > 0
        && (0..gpus).all(by)
        && of(Fabric::InfiniBand).count() < gpus
        && !of(Fabric::InfiniBand).any(near)
}

/// Why InfiniBand is not believed to carry the rails: fewer devices than GPUs, beside Ethernet for every GPU that carries more.
fn outweighed(active: &[Candidate<'_>], gpus: usize) -> Option<String> {
    let sum = |fabric: Fabric, physical: bool| {
        let all = active.iter().filter(|c| {
            c.fabric == fabric && c.gbits >= RAIL_GBITS && (!physical || c.device.physfn.is_none())
        });
        all.fold((0, 0.0), |(count, sum), c| (count + 1, sum + c.gbits))
    };
    let ((ib, carried), (ethernet, more)) = (sum(Fabric::InfiniBand, false), sum(Fabric::Ethernet, true));
    (ib < gpus && multiple(ethernet, gpus) && more > carried).then(|| {
        format!(
            "{ib} InfiniBand and {ethernet} Ethernet devices for {}: either may be the rails",
            many(gpus, "GPU")
        )
    })
}

/// Rails are as fast as any. The second list is slower: frontend or storage links, or rails whose link came up short.
pub(super) fn fastest<'a>(
    active: Vec<Candidate<'a>>,
    gpus: usize,
    decision: &mut Decision<'a>,
) -> (Vec<Candidate<'a>>, Vec<Candidate<'a>>) {
    let active = without_faster(active, gpus, decision);
    let best = active.iter().map(|c| c.gbits).fold(0.0, f64::max);
    if best > 0.0 && best < RAIL_GBITS {
        for other in active {
            let reason = format!("{}: no rail of a GPU node is that slow", rate(other.gbits));
            decision.others.push((other.device.name.clone(), reason));
        }
        return (Vec::new(), Vec::new());
    }
    active.into_iter().partition(|c| c.gbits >= best)
}

/// Takes away devices that are faster than the rails: too few for the GPUs, and farther from them than a whole set of slower ones
/// (storage links beside rails of an older kind).
fn without_faster<'a>(
    active: Vec<Candidate<'a>>,
    gpus: usize,
    decision: &mut Decision<'a>,
) -> Vec<Candidate<'a>> {
    let best = active.iter().map(|c| c.gbits).fold(0.0, f64::max);
    let (top, rest): (Vec<_>, Vec<_>) = active.into_iter().partition(|c| c.gbits >= best);
    let next = rest.iter().map(|c| c.gbits).fold(0.0, f64::max);
    let slower = || rest.iter().filter(|c| c.gbits >= next);
    if multiple(top.len(), gpus) || next < RAIL_GBITS || !multiple(slower().count(), gpus) {
        return top.into_iter().chain(rest).collect();
    }
    let farther = slower().map(Candidate::nearest).max() < top.iter().map(Candidate::nearest).min();
    if !farther {
        let sum = |rates: &mut dyn Iterator<Item = f64>| rates.sum::<f64>();
        if sum(&mut slower().map(|c| c.gbits)) > sum(&mut top.iter().map(|c| c.gbits)) {
            decision.unclear.get_or_insert(format!(
                "{} devices have {} and {} have {}, for {} and equally far: either may be the rails",
                top.len(),
                rate(best),
                slower().count(),
                rate(next),
                many(gpus, "GPU")
            ));
        }
        return top.into_iter().chain(rest).collect();
    }
    for other in top {
        let reason = format!(
            "{}, but {} to its nearest GPU, while {} devices have {} and are nearer",
            rate(other.gbits),
            other.nearest(),
            slower().count(),
            rate(next)
        );
        decision.others.push((other.device.name.clone(), reason));
    }
    rest
}

/// Where a set of devices hangs by GPUs of their own, and some of it is down or slow, that set is the rails: no frontend or storage link
/// stands in for one. Otherwise the devices come back, for the rules below.
pub(super) fn owned<'a>(
    active: Vec<Candidate<'a>>,
    down: Vec<Candidate<'a>>,
    gpus: usize,
    decision: &mut Decision<'a>,
) -> Option<(Vec<Candidate<'a>>, Vec<Candidate<'a>>)> {
    let set = {
        let twin = twin_of(&active);
        let all: Vec<&Candidate<'a>> = active.iter().chain(down.iter().filter(|c| !twin(c))).collect();
        own(&all, gpus)
    };
    let Some(set) = set else { return Some((active, down)) };
    let down = twins(&active, down, decision);
    let mut rails = Vec::new();
    let mut failed = Vec::new();
    let mut others = Vec::new();
    let mut tied = Vec::new();
    for (at, c) in active.into_iter().chain(down).enumerate() {
        if set.tied.contains(&at) {
            tied.push(c.device.name.clone());
        }
        match (set.chosen.contains(&at) || set.tied.contains(&at), c.active) {
            (true, true) => rails.push(c),
            (true, false) => failed.push(c),
            (false, true) => others.push(c),
            (false, false) => inactive(&c, decision),
        }
    }
    let best = rails.iter().map(|c| c.gbits).fold(0.0, f64::max);
    for other in others {
        let count = rails.len() + failed.len();
        let known = |c: &&Candidate<'a>| {
            c.device.hca_type == other.device.hca_type && c.partition() == other.partition()
        };
        let reason = if !near(&other) {
            format!(
                "{} to its nearest GPU, while {count} like devices hang by GPUs of their own",
                other.nearest()
            )
        } else if rails.iter().find(known).is_none() {
            format!(
                "partition and subnet {}, while {count} devices by GPUs of their own have others",
                other.partition()
            )
        } else {
            format!("{}, while {} hangs by the same GPU", rate(other.gbits), rate(best))
        };
        decision.others.push((other.device.name.clone(), reason));
    }
    let doubt = || {
        (!tied.is_empty()).then(|| {
            format!("{} are alike and hang by the same GPUs: any of them may be a rail", tied.join(", "))
        })
    };
    decision.unclear = decision.unclear.take().or_else(|| stateless(&failed)).or_else(doubt);
    for rail in rails {
        let reason = if rail.gbits < best { short_of(&rail, best) } else { as_found(&rail, gpus) };
        decision.rails.push((rail, reason));
    }
    decision.failed.extend(failed.into_iter().map(with_state));
    None
}

fn short_of(c: &Candidate<'_>, best: f64) -> String {
    format!("{} {}, while its siblings have {}", name(c.fabric), rate(c.gbits), rate(best))
}

fn as_found(rail: &Candidate<'_>, gpus: usize) -> String {
    let reason = format!("{} {}", name(rail.fabric), rate(rail.gbits));
    if gpus == 0 { reason } else { format!("{reason}, {} to {}", rail.nearest(), near_gpus(rail)) }
}

fn with_state(rail: Candidate<'_>) -> (Candidate<'_>, String) {
    let physical = rail.port.phys_state.as_deref().map_or(String::new(), |state| format!(", {state}"));
    let (port, state) = (rail.port.number, state(&rail));
    let reason = format!("like the rails, but port {port} is not active ({state}{physical})");
    (rail, reason)
}

/// Where more are left than GPUs need, what sets some apart is looked for; where fewer are, those that are slow or down.
pub(super) fn narrow<'a>(
    mut rails: Vec<Candidate<'a>>,
    slower: Vec<Candidate<'a>>,
    down: Vec<Candidate<'a>>,
    gpus: usize,
    decision: &mut Decision<'a>,
) {
    let best = rails.first().map_or(0.0, |rail| rail.gbits);
    let down = twins(&rails, down, decision);
    let (short, frontends) = fallen(&rails, slower, down.len(), gpus);
    if short.is_empty() {
        let doubt = two_rates(&rails, &frontends, gpus);
        decision.unclear = decision.unclear.take().or(doubt);
    }
    for other in frontends {
        let reason = format!("{}, while the fastest have {}", rate(other.gbits), rate(best));
        decision.others.push((other.device.name.clone(), reason));
    }
    let whole = rails.len() + short.len() + down.len();
    let lost = down.iter().filter(|c| like(&rails, c)).count();
    if lost > 0 && short.is_empty() && multiple(rails.len(), gpus) {
        // A frontend that is as fast may stand in the count for a rail that is down.
        let all = rails.len();
        let fits = |count: usize| {
            count < all && count * 2 > all && (1..=lost).any(|lost| multiple(count + lost, gpus))
        };
        rails = apart(rails, &fits, false, decision);
    }
    if gpus > 0 && rails.len() > gpus {
        rails = apart(rails, &|count| multiple(count, gpus), false, decision);
    } else if gpus > 0 && !even(rails.len(), gpus) && !multiple(whole, gpus) {
        rails = apart(rails, &|count| even(count, gpus), true, decision);
    }
    let reasons: Vec<String> = short.iter().map(|c| short_of(c, best)).collect();
    let failed = failed(&rails, down, gpus, decision);
    let whole = rails.len() + short.len() + failed.len();
    let doubt = || stateless(&failed).or_else(|| doubt(&rails, whole, gpus));
    decision.unclear = decision.unclear.take().or_else(doubt);
    for rail in rails {
        let reason = as_found(&rail, gpus);
        decision.rails.push((rail, reason));
    }
    decision.rails.extend(short.into_iter().zip(reasons));
    decision.rails.sort_by(|(a, _), (b, _)| bus_order(&a.pci.address).cmp(&bus_order(&b.pci.address)));
    decision.failed.extend(failed.into_iter().map(with_state));
}

/// One rail or several for each GPU.
fn multiple(count: usize, gpus: usize) -> bool {
    gpus > 0 && count > 0 && count.is_multiple_of(gpus)
}

/// One for each GPU, several, or as many GPUs for each.
fn even(count: usize, gpus: usize) -> bool {
    multiple(count, gpus) || count > 0 && gpus.is_multiple_of(count)
}

fn near(candidate: &Candidate<'_>) -> bool {
    candidate.nearest() <= Distance::Pxb
}

fn state<'a>(candidate: &Candidate<'a>) -> &'a str {
    candidate.port.state.as_deref().unwrap_or("no state")
}

fn inactive(candidate: &Candidate<'_>, decision: &mut Decision<'_>) {
    let reason = format!("port {} is not active ({})", candidate.port.number, state(candidate));
    decision.others.push((candidate.device.name.clone(), reason));
}

/// Function and maker as a rail's.
fn like(rails: &[Candidate<'_>], c: &Candidate<'_>) -> bool {
    rails.iter().any(|rail| {
        rail.device.hca_type == c.device.hca_type
            && rail.device.driver == c.device.driver
            && rail.device.physfn.is_some() == c.device.physfn.is_some()
    })
}

/// Whether a device is the second port of a card of which `rails` has the first, where every card uses its first only.
fn twin_of<'a>(rails: &[Candidate<'a>]) -> impl Fn(&Candidate<'a>) -> bool + use<'a> {
    let card = |c: &Candidate<'a>| c.pci.address.rsplit_once('.').map(|(card, _)| card.to_owned());
    let cards: Vec<Option<String>> = rails.iter().map(card).collect();
    let used = move |wanted: &Option<String>| cards.iter().filter(|known| *known == wanted).count();
    let both = rails.iter().map(card).any(|card| card.is_some() && used(&card) > 1);
    move |c| {
        let card = card(c);
        !both && card.is_some() && used(&card) > 0
    }
}

/// Takes away the ports that are down and meant to be.
fn twins<'a>(
    rails: &[Candidate<'a>],
    down: Vec<Candidate<'a>>,
    decision: &mut Decision<'a>,
) -> Vec<Candidate<'a>> {
    let twin = twin_of(rails);
    let (spare, rest): (Vec<_>, Vec<_>) = down.into_iter().partition(|c| twin(c));
    for other in spare {
        let reason = format!(
            "port {} is not active ({}), and the other port of its card is a rail",
            other.port.number,
            state(&other)
        );
        decision.others.push((other.device.name.clone(), reason));
    }
    rest
}

/// Of the slower devices those that fill the places of missing rails: alike, fewer than the rails, and as many as are missing.
fn fallen<'a>(
    rails: &[Candidate<'a>],
    slower: Vec<Candidate<'a>>,
    down: usize,
    gpus: usize,
) -> (Vec<Candidate<'a>>, Vec<Candidate<'a>>) {
    let sibling = |c: &Candidate<'a>| {
        like(rails, c)
            && rails.iter().any(|rail| rail.partition() == c.partition() && rail.nearest() >= c.nearest())
    };
    let (alike, mut rest): (Vec<_>, Vec<_>) = slower.into_iter().partition(sibling);
    let fill = |more: usize| multiple(rails.len() + more, gpus);
    let fills = alike.len() < rails.len()
        && !even(rails.len(), gpus)
        && (fill(alike.len()) || down > 0 && fill(alike.len() + down));
    if fills {
        return (alike, rest);
    }
    rest.extend(alike);
    (Vec::new(), rest)
}

/// Why rails of the best rate are not believed: with like devices of another rate there is one for every GPU, without them there is not,
/// and no switch says which hang by GPUs (in a virtual machine).
fn two_rates(rails: &[Candidate<'_>], slower: &[Candidate<'_>], gpus: usize) -> Option<String> {
    let alike =
        || slower.iter().filter(|c| like(rails, c) && rails.iter().all(|r| r.nearest() == c.nearest()));
    let same = |c: &Candidate<'_>| {
        rails.iter().any(|r| r.partition() == c.partition() && r.device.board_id == c.device.board_id)
    };
    let count = alike().filter(|c| same(c)).count();
    let first = alike().find(|c| same(c))?;
    let believed =
        multiple(rails.len(), gpus) || !multiple(rails.len() + count, gpus) || rails.iter().any(near);
    (!believed).then(|| {
        format!(
            "{} devices have {} and {count} like ones {}, for {} and equally far: all may be rails",
            rails.len(),
            rate(rails.first().map_or(0.0, |rail| rail.gbits)),
            rate(first.gbits),
            many(gpus, "GPU")
        )
    })
}

/// The rails among `rails`, where a property sets as many apart as `fits` takes; all of them where none does.
fn apart<'a>(
    mut rails: Vec<Candidate<'a>>,
    fits: &dyn Fn(usize) -> bool,
    few: bool,
    decision: &mut Decision<'a>,
) -> Vec<Candidate<'a>> {
    let steps: [(Step, Key); 4] = [
        (Step::Distance, |c| format!("{} to its nearest GPU", c.nearest())),
        (Step::Physical, |c| {
            if c.device.physfn.is_some() { "a virtual function".into() } else { "a physical function".into() }
        }),
        (Step::Class, |c| format!("partition and subnet {}", c.partition())),
        (Step::Class, |c| {
            let part = c.device.board_id.as_deref().or(c.device.hca_type.as_deref());
            format!("part {}", part.unwrap_or("unknown"))
        }),
    ];
    for (step, key) in steps {
        let kept = match step {
            Step::Distance => nearest(&rails, fits, few),
            Step::Physical => {
                let count = rails.iter().filter(|c| c.device.physfn.is_none()).count();
                (count < rails.len() && fits(count))
                    .then(|| rails.iter().map(|c| c.device.physfn.is_none()).collect())
            }
            Step::Class => largest(&rails, key, fits),
        };
        let Some(kept) = kept else { continue };
        let mut keep = kept.into_iter();
        let (chosen, rest): (Vec<_>, Vec<_>) = rails.into_iter().partition(|_| keep.next().unwrap_or(false));
        let mut others: Vec<String> = chosen.iter().map(key).collect();
        others.sort_unstable();
        others.dedup();
        for other in rest {
            let reason =
                format!("{}, while {} devices have: {}", key(&other), chosen.len(), others.join(" or "));
            decision.others.push((other.device.name.clone(), reason));
        }
        rails = chosen;
    }
    rails
}

/// How a property sets rails apart.
#[derive(Clone, Copy)]
enum Step {
    /// Rails are never farther from the GPUs than frontends.
    Distance,
    /// Virtual functions are made from physical ones, which are there too.
    Physical,
    /// Rails are the largest class.
    Class,
}

/// The nearest ones, as many classes of distance as are needed to fit; where `few`, only those that hang by a GPU.
fn nearest(rails: &[Candidate<'_>], fits: &dyn Fn(usize) -> bool, few: bool) -> Option<Vec<bool>> {
    let mut distances: Vec<Distance> = rails.iter().map(Candidate::nearest).collect();
    distances.sort_unstable();
    let farthest = distances.last().copied()?;
    distances.dedup();
    let within = |limit: Distance| rails.iter().filter(|c| c.nearest() <= limit).count();
    let limit = distances
        .into_iter()
        .find(|&limit| limit < farthest && fits(within(limit)) && (!few || limit <= Distance::Pxb))?;
    Some(rails.iter().map(|c| c.nearest() <= limit).collect())
}

/// The largest class of `key` where it fits, no other is as large and all together do not fit: then a difference says nothing.
fn largest(rails: &[Candidate<'_>], key: Key, fits: &dyn Fn(usize) -> bool) -> Option<Vec<bool>> {
    if fits(rails.len()) {
        return None;
    }
    let names: Vec<String> = rails.iter().map(key).collect();
    let mut classes: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for name in &names {
        *classes.entry(name).or_default() += 1;
    }
    let most = classes.values().copied().max()?;
    let mut largest = classes.iter().filter(|&(_, &count)| count == most && fits(count));
    let (chosen, _) = largest.next()?;
    if largest.next().is_some() || classes.len() < 2 {
        return None;
    }
    Some(names.iter().map(|name| name == chosen).collect())
}

/// Of the devices that are down, those whose place among the rails is empty. The rest is told to be down.
fn failed<'a>(
    rails: &[Candidate<'a>],
    down: Vec<Candidate<'a>>,
    gpus: usize,
    decision: &mut Decision<'a>,
) -> Vec<Candidate<'a>> {
    let (alike, spare): (Vec<_>, Vec<_>) = down.into_iter().partition(|c| rails.is_empty() || like(rails, c));
    for other in &spare {
        inactive(other, decision);
    }
    let missing = if multiple(rails.len(), gpus) { 0 } else { gpus - rails.len() % gpus.max(1) };
    let ethernet = alike.iter().any(|c| c.fabric == Fabric::Ethernet);
    let unlikely = gpus == 0 || rails.is_empty() && ethernet && alike.len() < gpus;
    if unlikely || missing == 0 {
        for other in &alike {
            inactive(other, decision);
        }
        return Vec::new();
    }
    if alike.len() <= missing {
        return alike;
    }
    // More are down than are missing: those nearest to the GPUs without a rail, of the function number that rails have.
    let places: Vec<&Candidate<'_>> = rails.iter().chain(&alike).collect();
    let function =
        |c: &Candidate<'_>| c.pci.address.rsplit_once('.').map(|(_, function)| function.to_owned());
    let first = rails.first().or(alike.first()).and_then(function);
    let wanted = rails.len() + missing;
    let per_gpu = wanted / gpus.max(1);
    let columns = least_cost(wanted, places.len(), |row, column| {
        let (Some(place), gpu) = (places.get(column), row / per_gpu.max(1)) else { return 0 };
        let distance = place.distances.get(gpu).map_or(0, |distance| distance.weight());
        let odd = i64::from(column >= rails.len() && function(place) != first);
        let used = if column < rails.len() { 0 } else { 1_000_000 };
        used + (distance * 2 + odd) * 1_000 + (column as i64)
    });
    let mut index = rails.len();
    let (failed, rest): (Vec<_>, Vec<_>) = alike.into_iter().partition(|_| {
        let chosen = columns.contains(&index);
        index += 1;
        chosen
    });
    for other in &rest {
        inactive(other, decision);
    }
    failed
}

/// Ports whose state nobody could read, or that no kernel has yet: they may be up.
fn stateless(failed: &[Candidate<'_>]) -> Option<String> {
    let names: Vec<&str> =
        failed.iter().filter(|c| c.port.active().is_none()).map(|c| c.device.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("the port state of {} is not known", names.join(", ")))
}

/// Why the rails are not believed.
fn doubt(rails: &[Candidate<'_>], whole: usize, gpus: usize) -> Option<String> {
    let count = rails.len();
    if gpus == 0 || count == 0 {
        return None;
    }
    if count > gpus && !multiple(whole, gpus) {
        return Some(format!(
            "{count} devices are alike in link layer, rate, distance, partition and part, for {}, which need {gpus} or a multiple",
            many(gpus, "GPU")
        ));
    }
    // Of Ethernet functions that hang by no GPU, frontend and storage links look like rails.
    if !rails.iter().any(|c| c.fabric == Fabric::Ethernet && !near(c)) {
        return None;
    }
    if whole > gpus {
        return Some(format!(
            "{count} Ethernet devices of one rate are equally far from {}: some may be frontend or storage links",
            many(gpus, "GPU")
        ));
    }
    if !even(whole, gpus) || whole * 4 <= gpus {
        return Some(format!(
            "{} for {}, and none hangs by a GPU: they may be frontend or storage links",
            many(count, "Ethernet device"),
            many(gpus, "GPU")
        ));
    }
    None
}
