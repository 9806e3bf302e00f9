//! What each tool prints, at most and as seen.

use expertrail_core::Topology;
use expertrail_core::expect::Distinct;
use expertrail_core::roofline::{
    self, Figure as Counts, Load, Machine, Transfer, WireBytes, guide_total, rate_gb_s, time_floor_us,
    wire_bytes,
};

use super::PlanError;
use super::document::{Expected, Figure, Link, Operation, Reading};
use super::reference::{Case, Reference, Shares, shares};
use super::request::{Engine, Mode, Request, Sizes};

/// The two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Dispatch,
    Combine,
}

impl Op {
    const BOTH: [Self; 2] = [Self::Dispatch, Self::Combine];

    fn name(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Combine => "combine",
        }
    }
}

/// Everything that figures are computed from.
pub(super) struct Model<'a> {
    request: &'a Request,
    sizes: Sizes,
    distinct: Distinct,
    /// Links without the fixed time: ceilings are what large calls tend to.
    machine: Machine,
}

/// A figure before its ceiling.
struct Printed {
    id: &'static str,
    tool: &'static str,
    counts: &'static str,
    reference: Reference,
    /// Bytes that the tool divides by the time.
    bytes: f64,
    wire: WireBytes,
}

impl<'a> Model<'a> {
    pub(super) fn new(request: &'a Request, sizes: Sizes, distinct: Distinct) -> Self {
        let machine = Machine {
            scale_up_gb_s: request.links.scale_up.gb_s,
            scale_out_gb_s: request.links.scale_out.as_ref().map_or(0.0, |link| link.gb_s),
            alpha_us: 0.0,
        };
        Self { request, sizes, distinct, machine }
    }

    /// Bytes of a row of DeepEP V1's normal kernels, and of ours.
    fn row(&self, op: Op) -> usize {
        match op {
            Op::Dispatch => self.sizes.dispatch_row,
            Op::Combine => self.sizes.combine_row,
        }
    }

    /// Bytes of a row of DeepEP's low-latency kernels.
    fn ll_row(&self, op: Op) -> usize {
        match op {
            Op::Dispatch => self.request.ll_row_bytes(),
            Op::Combine => self.sizes.combine_row,
        }
    }

    fn load(&self, row_bytes: usize) -> Load {
        Load::new(self.request.tokens, row_bytes, self.request.top_k, &self.distinct)
    }

    /// Where copies of a low-latency call go: without `NVLink` every rank is a node of its own.
    fn ll_topology(&self) -> Result<Topology, PlanError> {
        if self.request.ll_without_nvlink {
            return Ok(Topology::new(self.sizes.topology.ranks(), 1)?);
        }
        Ok(self.sizes.topology)
    }

    /// How the engine's own operations move rows.
    fn engine_transfer(&self, op: Op) -> Result<(Topology, Transfer, usize, &'static str), PlanError> {
        let two_hop = "once per node along the rail, then over NVLink";
        Ok(match (self.request.mode, self.request.engine, op) {
            (Mode::Ht, _, _) => (self.sizes.topology, Transfer::TwoHop, self.row(op), two_hop),
            (Mode::Ll, Engine::Expertrail, Op::Dispatch) => {
                (self.ll_topology()?, Transfer::DirectPerRank, self.row(op), "one copy per (token, rank)")
            }
            (Mode::Ll, Engine::Expertrail, Op::Combine) => {
                let what = "one copy per (token, rank), rule P";
                (self.ll_topology()?, Transfer::DirectPerRank, self.row(op), what)
            }
            (Mode::Ll, _, _) => (
                self.ll_topology()?,
                Transfer::DirectPerExpert,
                self.ll_row(op),
                "one copy per (token, expert)",
            ),
        })
    }

    /// Bytes and floors of the engine's operations.
    pub(super) fn operations(&self) -> Result<Vec<Operation>, PlanError> {
        let machine = Machine { alpha_us: self.request.alpha_us, ..self.machine };
        let operation = |op: Op| {
            let (topology, transfer, row_bytes, words) = self.engine_transfer(op)?;
            let load = self.load(row_bytes);
            let wire = wire_bytes(&topology, &load, transfer);
            let floor = time_floor_us(&machine, &wire);
            if !floor.value.is_finite() {
                return Err(PlanError::NoScaleOut { nodes: self.request.nodes });
            }
            Ok(Operation {
                name: op.name().to_owned(),
                transfer: words.to_owned(),
                row_bytes,
                logical_node_bytes: load.logical_bytes(Counts::Nodes),
                logical_rank_bytes: load.logical_bytes(Counts::Ranks),
                logical_expert_bytes: load.logical_bytes(Counts::Experts),
                scale_up_bytes: wire.scale_up,
                scale_out_bytes: wire.scale_out,
                floor_us: floor.value,
                binds: floor.binds.map(Link::from),
            })
        };
        Op::BOTH.into_iter().map(operation).collect()
    }

    /// The figures of all tools that print one for this mode.
    pub(super) fn figures(&self) -> Result<Vec<Figure>, PlanError> {
        let mut out = Vec::new();
        for op in Op::BOTH {
            let printed = match self.request.mode {
                Mode::Ht => self.high_throughput(op),
                Mode::Ll => self.low_latency(op)?,
            };
            out.extend(printed.iter().map(|printed| self.figure(op == Op::Combine, op.name(), printed)));
        }
        // By tool, dispatch before combine; the guide's total follows its two.
        let order: Vec<String> = out.iter().map(|figure| figure.id.clone()).collect();
        out.sort_by_key(|figure| order.iter().position(|id| *id == figure.id));
        if self.request.mode == Mode::Ht {
            add_totals(&mut out);
        }
        out.extend(self.all_to_all().map(|printed| self.figure(false, "alltoall", &printed)));
        Ok(out)
    }

    fn high_throughput(&self, op: Op) -> Vec<Printed> {
        let topology = &self.sizes.topology;
        let (nodes, per_node, ranks) =
            (topology.nodes() as f64, topology.ranks_per_node() as f64, topology.ranks() as f64);
        let load = self.load(self.row(op));
        let wire = wire_bytes(topology, &load, Transfer::TwoHop);
        let (by_node, by_rank) = (load.logical_bytes(Counts::Nodes), load.logical_bytes(Counts::Ranks));
        let printed =
            |id, tool, counts, reference, bytes| Printed { id, tool, counts, reference, bytes, wire };
        let mut out = Vec::new();
        let many = topology.nodes() > 1;
        if many {
            out.push(printed(
                "deepep-v1-rdma",
                "DeepEP V1 (RDMA)",
                "a copy per node, own node counted",
                Reference::V1,
                by_node,
            ));
        }
        out.push(printed(
            "deepep-v1-nvl",
            "DeepEP V1 (NVL)",
            "a copy per rank, own rank counted",
            Reference::V1,
            by_rank,
        ));
        // The guide's script moves BF16 only.
        if !self.request.fp8 {
            out.push(if many {
                let counts = "a copy per node, own node counted, whole call";
                printed("guide-inter", "guide, inter-node", counts, Reference::GuideInter, by_node)
            } else {
                let counts = "a copy per rank, own rank not counted, whole call";
                let bytes = by_rank * (ranks - 1.0) / ranks;
                printed("guide-intra", "guide, intra-node", counts, Reference::GuideIntra, bytes)
            });
        }
        // V2's test counts a row's ids (64-bit, dispatch only) and weights, too; they travel with it.
        let more = self.request.top_k * if op == Op::Dispatch { 8 + 4 } else { 4 };
        let load = self.load(self.row(op) + more);
        let v2_wire = wire_bytes(topology, &load, Transfer::TwoHop);
        let (by_node, v2_ranks) = (load.logical_bytes(Counts::Nodes), load.logical_bytes(Counts::Ranks));
        let v2 = |id, tool, counts, bytes| Printed {
            wire: v2_wire,
            ..printed(id, tool, counts, Reference::V2, bytes)
        };
        if many {
            out.push(v2("deepep-v2-so", "DeepEP V2 (SO)", "a copy per node, own node counted", by_node));
            out.push(v2(
                "deepep-v2-so-remote",
                "DeepEP V2 (SO) --ignore-local-traffic",
                "a copy per other node",
                by_node * (nodes - 1.0) / nodes,
            ));
        }
        out.push(v2("deepep-v2-su", "DeepEP V2 (SU)", "a copy per rank, own rank counted", v2_ranks));
        out.push(v2(
            "deepep-v2-su-remote",
            "DeepEP V2 (SU) --ignore-local-traffic",
            "a copy per rank, but for sources of the same GPU index",
            v2_ranks * (per_node - 1.0) / per_node,
        ));
        let own = "a copy per rank, own rank counted";
        out.push(printed("expertrail-logical", "expertrail (logical)", own, Reference::OwnHt, by_rank));
        out.push(printed(
            "expertrail-wire",
            "expertrail (wire)",
            "bytes over NVLink and NIC together",
            Reference::OwnHt,
            wire.scale_up + wire.scale_out,
        ));
        out
    }

    fn low_latency(&self, op: Op) -> Result<Vec<Printed>, PlanError> {
        let topology = self.ll_topology()?;
        let per_expert = self.load(self.ll_row(op));
        let own = self.load(self.row(op));
        let direct = |load: &Load, transfer| wire_bytes(&topology, load, transfer);
        let flat = self.request.ll_without_nvlink;
        let mut out = vec![Printed {
            id: "deepep-v1-ll",
            tool: "DeepEP V1 LL",
            counts: "a copy per (token, expert), own rank counted",
            reference: Reference::LowLatency { flat },
            bytes: per_expert.logical_bytes(Counts::Experts),
            wire: direct(&per_expert, Transfer::DirectPerExpert),
        }];
        let per_rank = |id, tool, bytes: fn(&Load, &WireBytes) -> f64| {
            let wire = direct(&own, Transfer::DirectPerRank);
            let counts = if id == "expertrail-wire" {
                "bytes over NVLink and NIC together"
            } else {
                "a copy per (token, rank), own rank counted"
            };
            Printed { id, tool, counts, reference: Reference::OwnLl, bytes: bytes(&own, &wire), wire }
        };
        out.push(per_rank("expertrail-logical", "expertrail (logical)", |load, _| {
            load.logical_bytes(Counts::Ranks)
        }));
        out.push(per_rank("expertrail-wire", "expertrail (wire)", |_, wire| wire.scale_up + wire.scale_out));
        if op == Op::Combine {
            out.push(Printed {
                id: "expertrail-rule-k",
                tool: "expertrail (logical, rule K)",
                counts: "a copy per (token, expert), own rank counted",
                reference: Reference::OwnLl,
                bytes: own.logical_bytes(Counts::Experts),
                wire: direct(&own, Transfer::DirectPerExpert),
            });
        }
        Ok(out)
    }

    /// `alltoall_perf` at T x H BF16 elements: of S bytes a rank sends S/R to each rank, its own included, and the
    /// bus bandwidth is `S/t (R-1)/R` (nccl-tests, PERFORMANCE.md).
    fn all_to_all(&self) -> Option<Printed> {
        let topology = &self.sizes.topology;
        let (ranks, per_node) = (topology.ranks() as f64, topology.ranks_per_node() as f64);
        let sent = (self.request.tokens * self.request.hidden * 2) as f64;
        (ranks > 1.0 && sent > 0.0).then(|| Printed {
            id: "nccl-alltoall",
            tool: "nccl-tests alltoall (busbw)",
            counts: "bytes to other ranks",
            reference: Reference::AllToAll,
            bytes: sent * (ranks - 1.0) / ranks,
            wire: WireBytes {
                scale_up: sent * (per_node - 1.0) / ranks,
                scale_out: sent * (ranks - per_node) / ranks,
            },
        })
    }

    fn figure(&self, combine: bool, operation: &str, printed: &Printed) -> Figure {
        let Printed { id, tool, counts, reference, bytes, wire } = *printed;
        let floor = time_floor_us(&self.machine, &wire);
        let ceiling = (floor.value > 0.0 && bytes > 0.0).then(|| rate_gb_s(bytes, floor.value));
        let case = Case {
            reference,
            combine,
            nodes: self.sizes.topology.nodes(),
            per_node: self.sizes.topology.ranks_per_node(),
            gpu: self.request.links.gpu.as_deref(),
            nic: self.request.links.nic_kind,
            given_up: self.request.links.scale_up.product == super::links::GIVEN,
        };
        let (expected, basis) = match ceiling {
            Some(_) => self.expected(bytes, &wire, &shares(&case)),
            None => (None, "nothing crosses a link".to_owned()),
        };
        let per = |wire: f64| if bytes > 0.0 { wire / bytes } else { 0.0 };
        Figure {
            id: id.to_owned(),
            tool: tool.to_owned(),
            operation: operation.to_owned(),
            counts: counts.to_owned(),
            counted_bytes: bytes,
            ceiling_gb_s: ceiling,
            binds: floor.binds.map(Link::from),
            expected,
            basis,
            scale_out_per_printed: per(wire.scale_out),
            scale_up_per_printed: per(wire.scale_up),
        }
    }

    /// The figure with links slowed down to what was reached of them: the slower of the two, slowed down, binds.
    fn expected(&self, bytes: f64, wire: &WireBytes, shares: &Shares) -> (Option<Expected>, String) {
        let links = [
            (wire.scale_up, self.machine.scale_up_gb_s, shares.up.share, shares.up.basis),
            (wire.scale_out, self.machine.scale_out_gb_s, shares.out.share, shares.out.basis),
        ];
        for (at, (bytes, rate, share, basis)) in links.into_iter().enumerate() {
            if bytes <= 0.0 || share.is_some() {
                continue;
            }
            // A link without a reference may be the slower one, unless the other were slower still beside a quarter of
            // this one's rate.
            let (other_bytes, other_rate, other_share, _) = links[1 - at];
            let other =
                other_share.map_or(0.0, |share| roofline::time_us(other_bytes, other_rate * share[1]));
            if roofline::time_us(bytes, rate) * 4.0 > other {
                return (None, basis.to_owned());
            }
        }
        let at = |end: usize| {
            let rate = |gb_s: f64, share: Option<[f64; 2]>| gb_s * share.map_or(1.0, |share| share[end]);
            let machine = Machine {
                scale_up_gb_s: rate(self.machine.scale_up_gb_s, shares.up.share),
                scale_out_gb_s: rate(self.machine.scale_out_gb_s, shares.out.share),
                alpha_us: 0.0,
            };
            time_floor_us(&machine, wire)
        };
        let (slow, fast) = (at(0), at(1));
        let expected = Expected {
            low_gb_s: rate_gb_s(bytes, slow.value),
            high_gb_s: rate_gb_s(bytes, fast.value),
            scale_up_share: shares.up.share.filter(|_| wire.scale_up > 0.0),
            scale_out_share: shares.out.share.filter(|_| wire.scale_out > 0.0),
        };
        let mut basis = String::new();
        for binds in [slow.binds, fast.binds].into_iter().flatten().map(Link::from) {
            let text = shares.basis(binds);
            if !basis.contains(text) {
                basis = if basis.is_empty() { text.to_owned() } else { format!("{basis}; {text}") };
            }
        }
        (Some(expected), basis)
    }
}

/// The guide's `total`: twice the bytes over both times, layout not counted.
fn add_totals(figures: &mut Vec<Figure>) {
    let of = |name: &str| {
        figures.iter().position(|figure| figure.id.starts_with("guide-") && figure.operation == name)
    };
    let (Some(dispatch), Some(combine)) = (of("dispatch"), of("combine")) else { return };
    let (d, c) = (&figures[dispatch], &figures[combine]);
    let expected = d.expected.as_ref().zip(c.expected.as_ref()).map(|(d, c)| Expected {
        low_gb_s: guide_total(d.low_gb_s, c.low_gb_s),
        high_gb_s: guide_total(d.high_gb_s, c.high_gb_s),
        scale_up_share: None,
        scale_out_share: None,
    });
    let total = Figure {
        operation: "total".to_owned(),
        counts: "twice the bytes over both times; layout comes on top between nodes".to_owned(),
        ceiling_gb_s: d.ceiling_gb_s.zip(c.ceiling_gb_s).map(|(d, c)| guide_total(d, c)),
        binds: d.binds.or(c.binds),
        basis: "from its dispatch and combine".to_owned(),
        counted_bytes: d.counted_bytes + c.counted_bytes,
        expected,
        ..d.clone()
    };
    figures.insert(combine + 1, total);
}

impl Figure {
    /// What a printed number means, with this figure's own accounting and the plan's links. GB/s.
    pub fn reading(&self, printed_gb_s: f64, links: &super::document::PlannedLinks) -> Reading {
        let scale_out_gb_s = printed_gb_s * self.scale_out_per_printed;
        let scale_up_gb_s = printed_gb_s * self.scale_up_per_printed;
        Reading {
            printed_gb_s,
            time_us: roofline::time_us(self.counted_bytes, printed_gb_s),
            scale_out_gb_s,
            scale_out_share: links.scale_out.as_ref().map(|link| scale_out_gb_s / link.gb_s),
            scale_up_gb_s,
            scale_up_share: scale_up_gb_s / links.scale_up.gb_s,
            of_ceiling: self.ceiling_gb_s.map(|ceiling| printed_gb_s / ceiling),
        }
    }
}
