//! What a figure is on the wire, and the most that it could be.

use expertrail_core::expect::{self, Draw, GroupLimit};
use expertrail_core::placement::Placement;
use expertrail_core::roofline::{
    Figure as Logical, Link, Load, Machine, Transfer, alltoall_busbw_ceiling, logical_ceiling_gb_s,
    logical_to_wire,
};
use expertrail_core::topology::Topology;
use serde::{Deserialize, Serialize};

use super::model::{Counts, Figure, Settings};

/// The most that a figure could be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ceiling {
    /// In the figure's own counting, GB/s.
    pub logical_gb_s: f64,
    /// On the wire, GB/s.
    pub wire_gb_s: f64,
    /// `scale-up`, `scale-out`, `memory`.
    pub link: String,
    /// How it comes about.
    pub how: String,
    /// It was measured in the same run, and is no data sheet's.
    pub measured: bool,
    /// What a prior is a share of, where that is less: the push of as many SMs, measured in the same run.
    pub prior_of_gb_s: Option<f64>,
}

/// Links of the machine, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Links {
    pub(super) scale_up: Option<f64>,
    pub(super) scale_out: Option<f64>,
}

/// Wire GB/s of a figure; none: the settings that it takes are not known.
pub(super) fn wire(figure: &Figure, settings: &Settings) -> Option<f64> {
    let value = figure.value;
    let places = |count: u64| usize::try_from(count).ok();
    match figure.counts {
        Counts::OtherRanks | Counts::Wire => Some(value),
        Counts::Nodes => Some(logical_to_wire(value, places(settings.node_count()?)?)),
        Counts::Ranks => {
            Some(logical_to_wire(value, places(settings.rank_count().or(settings.ranks_per_node)?)?))
        }
        Counts::Experts => {
            let (ranks, per) = (settings.rank_count()? as f64, settings.ranks_per_node? as f64);
            if ranks <= 0.0 {
                return None;
            }
            let away = if ranks > per { ranks - per } else { per - 1.0 };
            Some(value * away.max(0.0) / ranks)
        }
        Counts::Bus => {
            let (ranks, per) = (settings.rank_count()? as f64, settings.ranks_per_node? as f64);
            if ranks <= 1.0 {
                return None;
            }
            Some(if ranks > per { value * (ranks - per) / (ranks - 1.0) } else { value })
        }
        Counts::Time => None,
    }
}

/// The ceiling of a figure; none: the machine or the settings are not known.
pub(super) fn of(figure: &Figure, settings: &Settings, links: Links) -> Option<Ceiling> {
    if let Some(measured) = figure.measured_ceiling {
        let memory = figure.memory_gb_s.is_some();
        let how = if memory {
            "plain copies of as many processes, measured in the same run"
        } else {
            "what the links carried in the same run"
        };
        return Some(Ceiling {
            logical_gb_s: measured,
            wire_gb_s: measured,
            link: if memory { "memory" } else { "scale-up" }.to_owned(),
            how: how.to_owned(),
            measured: true,
            prior_of_gb_s: figure.measured_push.map(|push| push.min(measured)),
        });
    }
    let inside = matches!(figure.counts, Counts::OtherRanks | Counts::Ranks);
    let nodes = match settings.node_count() {
        Some(nodes) => nodes,
        None if inside => 1,
        None => return None,
    };
    if nodes <= 1 {
        return one_node(figure, settings, links.scale_up?);
    }
    let out = links.scale_out?;
    let topology = topology(settings);
    match figure.counts {
        Counts::Bus => {
            let ceiling = alltoall_busbw_ceiling(out, &topology?)?;
            Some(made(ceiling, out, "scale-out", "NIC x (ranks - 1) / ranks on other nodes"))
        }
        Counts::OtherRanks | Counts::Ranks => one_node(figure, settings, links.scale_up?),
        Counts::Experts => {
            let up = links.scale_up.unwrap_or(f64::INFINITY);
            let load = Load { tokens: 1, row_bytes: 1, top_k: 1, ranks_per_token: 1.0, nodes_per_token: 1.0 };
            let machine = Machine { scale_up_gb_s: up, scale_out_gb_s: out, alpha_us: 0.0 };
            let bound = logical_ceiling_gb_s(
                &machine,
                &topology?,
                &load,
                (Transfer::DirectPerExpert, Logical::Experts),
            );
            Some(bound_of(bound.value, bound.binds, (up, out), "a copy for each expert, over NIC and NVLink"))
        }
        Counts::Nodes => Some(two_hop(settings, links, out)),
        // Bytes to ranks of the own node and of others are one figure there.
        Counts::Wire | Counts::Time => None,
    }
}

/// `min(B_n N/(N-1), B_v G/(G-1) U_N/U_R)`; the second needs top-k and experts.
fn two_hop(settings: &Settings, links: Links, out: f64) -> Ceiling {
    let nodes = settings.node_count().unwrap_or(2).max(2) as f64;
    let simple = made(out * nodes / (nodes - 1.0), out, "scale-out", "NIC x nodes / (nodes - 1)");
    let whole = || {
        let topology = topology(settings)?;
        let top_k = usize::try_from(settings.top_k?).ok()?;
        let experts = usize::try_from(settings.experts?).ok()?;
        let placement = Placement::new(experts, topology.ranks()).ok()?;
        let draw = match settings.groups.and_then(|groups| usize::try_from(groups).ok()) {
            _ if settings.with_replacement => Draw::WithReplacement,
            Some(chosen) if chosen < topology.nodes() => {
                Draw::GroupLimited(GroupLimit::new(topology.nodes(), chosen))
            }
            _ => Draw::WithoutReplacement,
        };
        let distinct = expect::distinct(&topology, &placement, top_k, draw).ok()?;
        let load = Load::new(1, 1, top_k, &distinct);
        let up = links.scale_up?;
        let machine = Machine { scale_up_gb_s: up, scale_out_gb_s: out, alpha_us: 0.0 };
        let bound = logical_ceiling_gb_s(&machine, &topology, &load, (Transfer::TwoHop, Logical::Nodes));
        Some(bound_of(
            bound.value,
            bound.binds,
            (up, out),
            "two hops: NIC x nodes / (nodes - 1), and NVLink behind it",
        ))
    };
    let mut ceiling = whole().unwrap_or(simple);
    ceiling.wire_gb_s = ceiling.logical_gb_s * (nodes - 1.0) / nodes;
    ceiling
}

fn one_node(figure: &Figure, settings: &Settings, up: f64) -> Option<Ceiling> {
    let ranks = match figure.counts {
        Counts::Ranks => settings.ranks_per_node.or(settings.rank_count())?,
        _ => settings.rank_count().or(settings.ranks_per_node).unwrap_or(2),
    } as f64;
    if ranks < 2.0 {
        return None;
    }
    let (factor, how) = match figure.counts {
        Counts::Ranks | Counts::Experts => (ranks / (ranks - 1.0), "NVLink x ranks / (ranks - 1)"),
        Counts::OtherRanks | Counts::Wire | Counts::Bus => (1.0, "NVLink"),
        Counts::Nodes | Counts::Time => return None,
    };
    Some(made(up * factor, up, "scale-up", how))
}

fn made(logical: f64, wire: f64, link: &str, how: &str) -> Ceiling {
    Ceiling {
        logical_gb_s: logical,
        wire_gb_s: wire,
        link: link.to_owned(),
        how: how.to_owned(),
        ..Ceiling::default()
    }
}

fn bound_of(value: f64, binds: Option<Link>, (up, out): (f64, f64), how: &str) -> Ceiling {
    match binds {
        Some(Link::ScaleUp) => made(value, up, "scale-up", how),
        _ => made(value, out, "scale-out", how),
    }
}

fn topology(settings: &Settings) -> Option<Topology> {
    let ranks = usize::try_from(settings.rank_count()?).ok()?;
    Topology::new(ranks, usize::try_from(settings.ranks_per_node?).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(nodes: u64, per: u64) -> Settings {
        Settings { nodes: Some(nodes), ranks_per_node: Some(per), ..Settings::default() }
    }

    fn figure(counts: Counts, value: f64) -> Figure {
        Figure { counts, value, ..Figure::default() }
    }

    const H200: Links = Links { scale_up: Some(450.0), scale_out: Some(50.0) };

    /// Arithmetic of the reference: two nodes print at most twice the NIC, four nodes 66.7, eight 57.1.
    #[test]
    fn two_hops() {
        for (nodes, wanted) in [(2, 100.0), (4, 66.667), (8, 57.143)] {
            let ceiling = of(&figure(Counts::Nodes, 50.0), &settings(nodes, 8), H200).unwrap();
            assert!((ceiling.logical_gb_s - wanted).abs() < 0.001, "{ceiling:?}");
            assert!((ceiling.wire_gb_s - 50.0).abs() < 1e-9 && ceiling.link == "scale-out");
        }
        // H800, 160 GB/s of NVLink, EP16 of 256 experts, top-8 drawn without replacement: U_N = 2 (1 - C(128,8)/C(256,8)) = 1.9965,
        // U_R = 16 (1 - C(240,8)/C(256,8)) = 6.535; NVLink binds, at 160 x 8/7 x 1.9965 / 6.535 = 55.87.
        let more = Settings { top_k: Some(8), experts: Some(256), groups: Some(2), ..settings(2, 8) };
        let links = Links { scale_up: Some(160.0), scale_out: Some(50.0) };
        let ceiling = of(&figure(Counts::Nodes, 43.0), &more, links).unwrap();
        assert!((ceiling.logical_gb_s - 55.87).abs() < 0.02 && ceiling.link == "scale-up", "{ceiling:?}");
    }

    #[test]
    fn wires() {
        let of = |counts, value, nodes, per| wire(&figure(counts, value), &settings(nodes, per)).unwrap();
        // 56.1 printed between two nodes is 28.05 on the wire; AWS's 331.77 with the own rank is 290.3 without.
        assert!((of(Counts::Nodes, 56.1, 2, 8) - 28.05).abs() < 1e-9);
        assert!((of(Counts::Ranks, 331.77, 1, 8) - 290.30).abs() < 0.01);
        assert!((of(Counts::OtherRanks, 276.9, 2, 8) - 276.9).abs() < 1e-9);
        // Low latency, 16 ranks: half of the copies leave the node.
        assert!((of(Counts::Experts, 63.0, 2, 8) - 31.5).abs() < 1e-9);
        // alltoall: 179.6 of 16 ranks at most 187.5 with 100 GB/s, that is 95.8 of 100 on the wire.
        assert!((of(Counts::Bus, 179.6, 2, 8) - 95.787).abs() < 0.001);
    }

    #[test]
    fn one_node_and_collectives() {
        let ceiling = of(&figure(Counts::Ranks, 331.77), &settings(1, 8), H200).unwrap();
        assert!((ceiling.logical_gb_s - 514.29).abs() < 0.01, "{ceiling:?}");
        let links = Links { scale_up: Some(900.0), scale_out: Some(100.0) };
        let ceiling = of(&figure(Counts::Bus, 179.6), &settings(2, 8), links).unwrap();
        assert!((ceiling.logical_gb_s - 187.5).abs() < 1e-9);
        assert!(of(&figure(Counts::Ranks, 1.0), &settings(1, 1), H200).is_none());
        assert!(of(&figure(Counts::Nodes, 1.0), &settings(1, 8), H200).is_none());
    }
}
