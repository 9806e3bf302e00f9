//! Rates of links, with where each is from.

use serde::{Deserialize, Serialize};

use super::PlanError;
use crate::profile::Profile;

/// Products and their rates.
const TABLE: &str = include_str!("../../data/links.json");

/// The product of a rate that was given as a number.
pub(super) const GIVEN: &str = "given";

/// Rates that are taken, GB/s: beyond them nothing real is planned, and times stay far from what a number can hold.
pub(super) const LEAST_RATE: f64 = 1e-3;
pub(super) const MOST_RATE: f64 = 1e6;

/// What kind of NIC, as far as limits depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicKind {
    /// NVIDIA's, driven by mlx5.
    Mlx5,
    /// AWS EFA: no GPU-initiated transport, a host proxy posts.
    Efa,
    /// Given as GB/s.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A product of the table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Product {
    /// `h200`, `cx7-400`.
    pub id: String,
    /// Its name.
    pub title: String,
    /// One-way GB/s of one GPU (1e9 bytes/s).
    pub gb_s: f64,
    /// SMs of a GPU.
    #[serde(default)]
    pub sms: Option<u32>,
    /// Provider profiles of nodes with this GPU.
    #[serde(default)]
    pub profiles: Vec<String>,
    /// Kind of a NIC.
    #[serde(default)]
    pub kind: NicKind,
    /// Where the rate is from.
    pub source: String,
    /// No document that gives it was read.
    pub assumed: bool,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Table {
    /// `expertrail.links/1`.
    pub schema: String,
    /// Date of the table, ISO 8601.
    pub date: String,
    /// What it holds.
    pub note: String,
    /// Scale-up rates by GPU.
    pub gpus: Vec<Product>,
    /// Scale-out rates by NIC.
    pub nics: Vec<Product>,
}

/// The table that is built in. A test reads it, so the empty table of the error path is never seen.
pub fn table() -> Table {
    serde_json::from_str(TABLE).unwrap_or_default()
}

/// A link's rate and where it is from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkRate {
    /// One-way GB/s of one GPU.
    pub gb_s: f64,
    /// Product, or `given`.
    pub product: String,
    /// Where the rate is from.
    pub source: String,
    /// No document that gives it was read.
    pub assumed: bool,
}

/// Links of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Links {
    /// Between the GPUs of a node.
    pub scale_up: LinkRate,
    /// Between nodes; none: the plan is of one node.
    pub scale_out: Option<LinkRate>,
    /// Id of the GPU's product, if it is known.
    pub gpu: Option<String>,
    /// SMs of a GPU, if they are known.
    pub device_sms: Option<u32>,
    /// Kind of the NIC.
    pub nic_kind: NicKind,
}

/// What the caller says of the links; rates win over products, products over the profile.
#[derive(Clone, Debug, Default)]
pub struct LinkArgs<'a> {
    /// A product of [`Table::gpus`].
    pub gpu: Option<&'a str>,
    /// A product of [`Table::nics`].
    pub nic: Option<&'a str>,
    /// One-way `NVLink` GB/s.
    pub nvlink_gb_s: Option<f64>,
    /// NIC GB/s for each GPU.
    pub nic_gb_s: Option<f64>,
    /// A provider's profile.
    pub profile: Option<&'a Profile>,
}

impl LinkArgs<'_> {
    /// The links.
    ///
    /// # Errors
    /// [`PlanError::Product`] for an unknown product, [`PlanError::Rate`] for a rate that is no positive number,
    /// [`PlanError::NoScaleUp`] when nothing says the scale-up rate.
    pub fn resolve(&self) -> Result<Links, PlanError> {
        let table = table();
        let gpu = self.gpu.map(|name| find("GPU", &table.gpus, name)).transpose()?;
        let nic = self.nic.map(|name| find("NIC", &table.nics, name)).transpose()?;
        let from_profile = |what: &'static str, gb_s: f64, profile: &Profile| {
            Ok::<_, PlanError>(LinkRate {
                gb_s: checked(what, gb_s)?,
                product: profile.id.clone(),
                source: format!("profile {}: {}", profile.id, profile.sources.join("; ")),
                // A profile's rates are nominal; its documents name products, not link rates.
                assumed: true,
            })
        };
        let profiled = self.profile;
        let scale_up = match (self.nvlink_gb_s, gpu) {
            (Some(gb_s), _) => Some(given("--nvlink-gb-s", gb_s)?),
            (None, Some(product)) => Some(rate(product)),
            (None, None) => match profiled.and_then(|p| Some((p, p.nvlink_gbytes?))) {
                Some((p, gb_s)) => Some(from_profile("nvlink_gbytes of the profile:", gb_s, p)?),
                None => None,
            },
        };
        let scale_out = match (self.nic_gb_s, nic) {
            (Some(gb_s), _) => Some(given("--nic-gb-s", gb_s)?),
            (None, Some(product)) => Some(rate(product)),
            (None, None) => {
                // None are 0; a NaN is no 0 and is refused.
                let rate = profiled.filter(|p| p.nic_gbytes_per_gpu != 0.0);
                rate.map(|p| from_profile("nic_gbytes_per_gpu of the profile:", p.nic_gbytes_per_gpu, p))
                    .transpose()?
            }
        };
        let profile_gpu = profiled.and_then(|p| table.gpus.iter().find(|gpu| gpu.profiles.contains(&p.id)));
        let known = gpu.or(profile_gpu);
        let nic_kind = match (nic, profiled) {
            (Some(product), _) => product.kind,
            (None, Some(profile)) if profile.efa_devices.is_some() => NicKind::Efa,
            (None, Some(_)) => NicKind::Mlx5,
            (None, None) => NicKind::Unknown,
        };
        Ok(Links {
            scale_up: scale_up.ok_or(PlanError::NoScaleUp)?,
            scale_out,
            gpu: known.map(|g| g.id.clone()),
            device_sms: known.and_then(|g| g.sms),
            nic_kind,
        })
    }
}

fn rate(product: &Product) -> LinkRate {
    LinkRate {
        gb_s: product.gb_s,
        product: product.id.clone(),
        source: product.source.clone(),
        assumed: product.assumed,
    }
}

fn given(option: &'static str, gb_s: f64) -> Result<LinkRate, PlanError> {
    let gb_s = checked(option, gb_s)?;
    Ok(LinkRate { gb_s, product: GIVEN.to_owned(), source: format!("{option} {gb_s}"), assumed: false })
}

/// A rate that can be one.
fn checked(option: &'static str, gb_s: f64) -> Result<f64, PlanError> {
    if (LEAST_RATE..=MOST_RATE).contains(&gb_s) { Ok(gb_s) } else { Err(PlanError::Rate { option, gb_s }) }
}

fn find<'a>(what: &'static str, products: &'a [Product], name: &str) -> Result<&'a Product, PlanError> {
    products.iter().find(|product| product.id == name).ok_or_else(|| PlanError::Product {
        what,
        name: name.to_owned(),
        known: products.iter().map(|product| product.id.as_str()).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads() {
        let table: Table = serde_json::from_str(TABLE).unwrap();
        assert_eq!((table.schema.as_str(), table.date.len()), ("expertrail.links/1", 10));
        for product in table.gpus.iter().chain(&table.nics) {
            assert!(
                product.gb_s > 0.0 && !product.source.is_empty() && !product.title.is_empty(),
                "{product:?}"
            );
        }
        assert!(table.gpus.iter().all(|gpu| gpu.sms.is_some()));
        // Every profile of a node with GPUs is of one of them.
        let named: Vec<&String> = table.gpus.iter().flat_map(|gpu| &gpu.profiles).collect();
        for profile in crate::profile::all() {
            let times = named.iter().filter(|name| ***name == profile.id).count();
            assert_eq!(times, usize::from(profile.id != "generic"), "{}", profile.id);
        }
        assert_eq!(named.len(), crate::profile::all().len() - 1);
        assert!(table.nics.iter().all(|nic| nic.kind != NicKind::Unknown));
    }

    #[test]
    fn rates_win_over_products_and_products_over_profiles() {
        let profile = crate::profile::get("aws-p6-b300").unwrap();
        let all = LinkArgs { profile: Some(&profile), ..LinkArgs::default() };
        let links = all.resolve().unwrap();
        assert_eq!((links.scale_up.gb_s, links.gpu.as_deref()), (900.0, Some("b300")));
        assert_eq!((links.scale_out.unwrap().gb_s, links.nic_kind), (100.0, NicKind::Efa));
        let links = LinkArgs { gpu: Some("h200"), nic: Some("cx7-400"), ..all.clone() }.resolve().unwrap();
        assert_eq!(
            (links.scale_up.gb_s, links.nic_kind, links.device_sms),
            (450.0, NicKind::Mlx5, Some(132))
        );
        let links = LinkArgs { gpu: Some("h200"), nvlink_gb_s: Some(160.0), ..all }.resolve().unwrap();
        assert_eq!((links.scale_up.gb_s, links.scale_up.source.as_str()), (160.0, "--nvlink-gb-s 160"));
    }

    #[test]
    fn rates_of_a_profile_are_checked() {
        let good = crate::profile::get("crusoe-h200").unwrap();
        let refused = |profile: &Profile| {
            LinkArgs { profile: Some(profile), ..LinkArgs::default() }.resolve().unwrap_err().to_string()
        };
        for gb_s in [-450.0, 0.0, f64::NAN, f64::INFINITY, 1e-9] {
            let text = refused(&Profile { nvlink_gbytes: Some(gb_s), ..good.clone() });
            assert!(text.contains("nvlink_gbytes") && text.contains("positive"), "{text}");
        }
        for gb_s in [-50.0, f64::NAN, 1e9] {
            let text = refused(&Profile { nic_gbytes_per_gpu: gb_s, ..good.clone() });
            assert!(text.contains("nic_gbytes_per_gpu"), "{text}");
        }
    }

    #[test]
    fn wrong_links() {
        let refused = |args: LinkArgs| args.resolve().unwrap_err().to_string();
        assert!(refused(LinkArgs { gpu: Some("h20"), ..LinkArgs::default() }).contains("h200"));
        for gb_s in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e7] {
            let text = refused(LinkArgs { nvlink_gb_s: Some(gb_s), ..LinkArgs::default() });
            assert!(text.contains("--nvlink-gb-s"), "{text}");
        }
        assert!(refused(LinkArgs::default()).contains("--gpu"));
    }
}
