//! The result of a probe, `expertrail.fabric/1`.

use expertrail::fabric::ofi::Offer;
use serde::{Deserialize, Serialize};

use crate::schema::Tool;

/// The schema's id, which stands in every document's `schema`.
pub const FABRIC_SCHEMA_ID: &str = "expertrail.fabric/1";

/// The JSON Schema (draft 2020-12) of a document.
pub const FABRIC_SCHEMA: &str = include_str!("../../schema/expertrail.fabric.1.schema.json");

/// A pair is slow when it is this much worse than the median of its kind.
const SLOW: f64 = 2.0;

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricFile {
    /// [`FABRIC_SCHEMA_ID`].
    pub schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// When the probe began, RFC 3339.
    pub started_at: String,
    /// The library; absent where the network was simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<LibraryInfo>,
    /// What it offers on rank 0's machine.
    pub offers: Vec<OfferInfo>,
    /// What the ranks measured.
    pub measured: Measured,
    /// What is wrong, one line each: slow pairs and pairs that do not reach each other.
    pub findings: Vec<String>,
}

/// The library that was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryInfo {
    /// Name and version.
    pub name: String,
    /// Its file.
    pub path: String,
}

/// One provider on one domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfferInfo {
    /// The name to ask for it by.
    pub name: String,
    /// The provider.
    pub provider: String,
    /// The fabric.
    pub fabric: String,
    /// The domain (NIC).
    pub domain: String,
    /// This side's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Speed of the NIC in Gb/s (bits).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_gbits: Option<f64>,
    /// PCI address of the NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// NUMA node of the NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u64>,
    /// Whether it reaches processes of this machine only.
    pub local_only: bool,
    /// Why it cannot carry the protocol; absent when it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
}

impl From<&Offer> for OfferInfo {
    fn from(offer: &Offer) -> Self {
        Self {
            name: offer.name.clone(),
            provider: offer.provider.clone(),
            fabric: offer.fabric.clone(),
            domain: offer.domain.clone(),
            address: offer.address.clone(),
            link_gbits: offer.link_bits_per_second.map(|bits| bits as f64 / 1e9),
            pci: offer.pci.clone(),
            numa_node: offer.numa_node.map(u64::from),
            local_only: offer.local_only,
            lacks: offer.lacks.clone(),
        }
    }
}

/// The measurement of all pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was asked for.
    pub asked: String,
    /// Whether the network was simulated.
    pub simulated: bool,
    /// Bytes of a write of the bandwidth measurement.
    pub message_bytes: u64,
    /// Writes in flight.
    pub window: u64,
    /// How long each direction wrote, seconds.
    pub seconds: f64,
    /// Pings of each pair.
    pub pings: u64,
    /// Most pairs that were measured at once.
    pub pairs_at_once: u64,
    /// The ranks, each with its NIC.
    pub ranks: Vec<ProbedRank>,
    /// Every ordered pair.
    pub pairs: Vec<Pair>,
}

/// A rank and its NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedRank {
    /// The rank.
    pub rank: u64,
    /// Its host.
    pub host: String,
    /// Its node.
    pub node: u64,
    /// Its number there, which is its rail's.
    pub local_rank: u64,
    /// Provider.
    pub provider: String,
    /// Domain (NIC).
    pub domain: String,
    /// Why that one.
    pub chosen: String,
}

/// What went from one rank to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The writer.
    pub from: u64,
    /// The other.
    pub to: u64,
    /// Whether they are of one rail on two nodes: what the library's own traffic uses.
    pub same_rail: bool,
    /// Half the round trip of 8 bytes, median, microseconds; of the pair, both ways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p50_us: Option<f64>,
    /// Its 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p99_us: Option<f64>,
    /// GB/s (1e9 bytes a second) written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// Why something could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Measured {
    /// Whether both are on one host: such pairs are not compared with others.
    fn one_host(&self, pair: &Pair) -> bool {
        let host = |rank: u64| self.ranks.get(rank as usize).map(|rank| &rank.host);
        host(pair.from) == host(pair.to)
    }

    /// Pairs that do not reach each other, and pairs much worse than the others of their kind.
    pub fn findings(&self) -> Vec<String> {
        let name = |rank: u64| {
            let of = self.ranks.get(rank as usize).cloned().unwrap_or_default();
            format!("rank {rank} ({} {})", of.host, of.domain)
        };
        let mut found: Vec<String> = self
            .pairs
            .iter()
            .filter_map(|pair| {
                let error = pair.error.as_ref()?;
                Some(format!("unreachable: {} to {}: {error}", name(pair.from), name(pair.to)))
            })
            .collect();
        for one_host in [true, false] {
            let kind = || self.pairs.iter().filter(|pair| self.one_host(pair) == one_host);
            let rate = median(kind().filter_map(|pair| pair.gbps).collect());
            let time = median(kind().filter_map(|pair| pair.latency_p50_us).collect());
            for pair in kind() {
                let (from, to) = (name(pair.from), name(pair.to));
                if let (Some(gbps), Some(rate)) = (pair.gbps, rate)
                    && gbps * SLOW < rate
                {
                    found.push(format!(
                        "slow: {from} to {to}: {gbps:.2} GB/s, the median of such pairs is {rate:.2}"
                    ));
                }
                if let (Some(us), Some(time)) = (pair.latency_p50_us, time)
                    && us > time * SLOW
                    && pair.from < pair.to
                {
                    found.push(format!(
                        "slow: {from} and {to}: {us:.1} us half a round trip, the median of such pairs is {time:.1}"
                    ));
                }
            }
        }
        found
    }

    /// Whether every pair reached each other.
    pub fn all_reached(&self) -> bool {
        self.pairs.iter().all(|pair| pair.error.is_none())
    }
}

/// The middle value; `None` for fewer than three, of which none is unlike the others.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (values.len() > 2).then(|| values[values.len() / 2])
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::schema::conform::violations;

    /// Four ranks on two hosts; the pair of ranks 1 and 3 is slow, 0 does not reach 3.
    pub(in crate::fabric_probe) fn file() -> FabricFile {
        let ranks = (0..4).map(|rank| ProbedRank {
            rank,
            host: format!("host-{}", rank / 2),
            node: rank / 2,
            local_rank: rank % 2,
            provider: "verbs;ofi_rxm".to_owned(),
            domain: format!("mlx5_{}", rank % 2),
            chosen: "in turn, 1 of 2 equal ones".to_owned(),
        });
        let mut pairs = Vec::new();
        for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(a, b)| a != b) {
            let slow = (from, to) == (1, 3);
            let lost = (from, to) == (0, 3);
            pairs.push(Pair {
                from,
                to,
                same_rail: from % 2 == to % 2,
                latency_p50_us: (!lost).then_some(if from.min(to) == 1 && from.max(to) == 3 {
                    9.0
                } else {
                    2.0
                }),
                latency_p99_us: (!lost).then_some(3.0),
                gbps: (!lost).then_some(if slow { 1.0 } else { 40.0 }),
                error: lost.then(|| "no answer within the deadline".to_owned()),
            });
        }
        let measured = Measured {
            asked: "auto".to_owned(),
            simulated: false,
            message_bytes: 1 << 20,
            window: 8,
            seconds: 0.1,
            pings: 200,
            pairs_at_once: 1,
            ranks: ranks.collect(),
            pairs,
        };
        FabricFile {
            schema: FABRIC_SCHEMA_ID.to_owned(),
            tool: Tool { name: "expertrail".to_owned(), version: "0.1.0".to_owned(), commit: None },
            started_at: "2026-11-30T21:00:00Z".to_owned(),
            library: Some(LibraryInfo {
                name: "libfabric 1.17".to_owned(),
                path: "/lib/libfabric.so.1".to_owned(),
            }),
            offers: vec![OfferInfo {
                name: "verbs;ofi_rxm".to_owned(),
                provider: "verbs;ofi_rxm".to_owned(),
                fabric: "IB-0xfe80000000000000".to_owned(),
                domain: "mlx5_0".to_owned(),
                address: Some("10.0.0.1".to_owned()),
                link_gbits: Some(400.0),
                pci: Some("0000:36:00.0".to_owned()),
                numa_node: Some(0),
                local_only: false,
                lacks: Some("nothing <really>".to_owned()),
            }],
            findings: measured.findings(),
            measured,
        }
    }

    #[test]
    fn slow_and_unreachable_pairs_are_named() {
        let found = file().measured.findings();
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(
            found[0].starts_with("unreachable: rank 0 (host-0 mlx5_0) to rank 3 (host-1 mlx5_1): no answer")
        );
        assert_eq!(
            found[1],
            "slow: rank 1 (host-0 mlx5_1) to rank 3 (host-1 mlx5_1): 1.00 GB/s, the median of such pairs is 40.00"
        );
        assert!(found[2].contains("rank 1 (host-0 mlx5_1) and rank 3 (host-1 mlx5_1): 9.0 us half"));
        assert!(!file().measured.all_reached());
    }

    #[test]
    fn what_is_written_conforms_and_every_field_is_described() {
        let mut schema: Value = serde_json::from_str(FABRIC_SCHEMA).unwrap();
        let document = serde_json::to_value(file()).unwrap();
        close(&mut schema);
        assert_eq!(violations(&schema, &document), Vec::<String>::new());
        assert_eq!(serde_json::from_value::<FabricFile>(document.clone()).unwrap(), file());
        for place in ["/measured/pairs/3/gbps", "/offers/0/local_only", "/schema", "/measured/ranks/0/rank"] {
            let mut broken = document.clone();
            *broken.pointer_mut(place).unwrap() = json!([]);
            assert!(!violations(&schema, &broken).is_empty(), "{place}");
        }
    }

    fn close(schema: &mut Value) {
        match schema {
            Value::Object(map) => {
                map.values_mut().for_each(close);
                if map.get("type") == Some(&json!("object")) && map.contains_key("properties") {
                    map.insert("additionalProperties".to_owned(), Value::Bool(false));
                }
            }
            Value::Array(all) => all.iter_mut().for_each(close),
            _ => {}
        }
    }
}
