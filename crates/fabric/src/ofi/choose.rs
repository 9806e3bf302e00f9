//! Choosing one offer.

use std::net::IpAddr;

use crate::error::{FabricError, Result};
use crate::ofi::library::Library;
use crate::ofi::offer::{Infos, Offer, Query};
use crate::ofi::{OpenOptions, Provider};

/// Providers that are never chosen unasked: `sockets` stalls for seconds on writes of a few KB, `ofi_rxd` moves a tenth of
/// what TCP does. Both were measured with 1.17 and 2.5.
const NEVER_UNASKED: [&str; 2] = ["sockets", "ofi_rxd"];

/// Everything that the library offers to this transport, usable or not.
///
/// # Errors
/// What the library says; nothing found is an empty list.
pub(crate) fn all(library: &Library, gpu: bool) -> Result<Vec<Offer>> {
    Ok(search(library, None, gpu)?.into_iter().map(|found| found.offer).collect())
}

/// An offer with what opens it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) offer: Offer,
    pub(crate) info: Infos,
}

fn search(library: &Library, provider: Option<&str>, gpu: bool) -> Result<Vec<Found>> {
    let plain = Query { provider, gpu, ..Query::default() };
    let mut found: Vec<Found> = Vec::new();
    for query in [plain, Query { receives: true, ..plain }, Query { receives: true, safe: true, ..plain }] {
        let infos = Infos::query(library, &query)?;
        for (at, offer) in infos.offers() {
            let same = |other: &Found| {
                (&other.offer.name, &other.offer.fabric, &other.offer.domain, &other.offer.address)
                    == (&offer.name, &offer.fabric, &offer.domain, &offer.address)
            };
            // Some list one domain twice, with and without the inject limit of other kinds of message.
            let known = found.iter().position(same);
            if known.is_some_and(|at| found[at].offer.lacks.is_none())
                || (known.is_some() && offer.lacks.is_some())
            {
                continue;
            }
            // SAFETY: `at` is of `infos`, which lives.
            let new = Found { info: unsafe { Infos::copy(library, at) }?, offer };
            match known {
                Some(at) => found[at] = new,
                None => found.push(new),
            }
        }
    }
    Ok(found)
}

/// The offer that the options ask for.
///
/// # Errors
/// [`FabricError::NoProvider`] with what is offered; [`FabricError::Unsuitable`] when nothing of what was asked for can
/// carry the protocol.
pub(crate) fn choose(library: &Library, options: &OpenOptions) -> Result<Found> {
    let mut found = match &options.provider {
        Provider::Auto => search(library, None, options.gpu)?,
        Provider::Named(name) => {
            // Some are offered only when named, and `tcp` of 1.17 is offered only as `tcp;ofi_rxm`.
            let mut found = search(library, Some(name), options.gpu)?;
            found.retain(|found| nearness(&found.offer, name).is_some());
            if found.is_empty() {
                found = search(library, None, options.gpu)?;
            }
            found
        }
    };
    let offered: Vec<Offer> = found.iter().map(|found| found.offer.clone()).collect();
    let chosen = pick(&offered, options).map_err(|refusal| refusal.error(library, options, &offered))?;
    Ok(found.swap_remove(chosen))
}

/// Why there is nothing to pick.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing is of that name.
    Unknown,
    /// What is of that name cannot carry the protocol: the first of them.
    Unsuitable(usize),
}

impl Refusal {
    fn error(&self, library: &Library, options: &OpenOptions, offers: &[Offer]) -> FabricError {
        if let Self::Unsuitable(first) = self
            && let Some(offer) = offers.get(*first)
        {
            let lacks = offer.lacks.clone().unwrap_or_default();
            return FabricError::Unsuitable { provider: label(offer), lacks };
        }
        let mut names: Vec<String> = offers.iter().map(label).collect();
        names.dedup();
        let wanted = match (&options.provider, &options.domain) {
            (Provider::Auto, None) => "provider between machines".to_owned(),
            (Provider::Auto, Some(domain)) => format!("provider on domain {domain}"),
            (Provider::Named(name), None) => format!("provider {name}"),
            (Provider::Named(name), Some(domain)) => format!("provider {name} on domain {domain}"),
        };
        FabricError::NoProvider {
            wanted: if options.gpu { format!("{wanted} for GPU memory") } else { wanted },
            library: library.name(),
            offered: if names.is_empty() { "nothing".to_owned() } else { names.join(", ") },
            hint: "name one of these, or check the driver of the NIC".to_owned(),
        }
    }
}

/// `tcp;ofi_rxm on eth0`.
pub(crate) fn label(offer: &Offer) -> String {
    format!("{} on {}", offer.name, offer.domain)
}

/// The place of the best of `offers`.
///
/// # Errors
/// Why there is none.
pub(crate) fn pick(offers: &[Offer], options: &OpenOptions) -> std::result::Result<usize, Refusal> {
    let asked: Vec<(usize, u8)> = offers
        .iter()
        .enumerate()
        .filter(|(_, offer)| options.domain.as_ref().is_none_or(|domain| *domain == offer.domain))
        .filter_map(|(place, offer)| match &options.provider {
            Provider::Named(name) => nearness(offer, name).map(|near| (place, near)),
            Provider::Auto => {
                let never = offer.provider.split(';').any(|part| NEVER_UNASKED.contains(&part));
                (!offer.local_only && !never).then_some((place, 0))
            }
        })
        .collect();
    let usable = asked.iter().filter(|(place, _)| offers[*place].lacks.is_none());
    match usable.min_by_key(|(place, near)| (*near, rank(&offers[*place]), *place)) {
        Some((place, _)) => Ok(*place),
        None => Err(asked.first().map_or(Refusal::Unknown, |(place, _)| Refusal::Unsuitable(*place))),
    }
}

/// How near an offer is to a name: 0 is itself, larger is farther, none is another.
fn nearness(offer: &Offer, name: &str) -> Option<u8> {
    if offer.name == name {
        Some(0)
    } else if offer.provider == name {
        Some(1)
    } else if offer.provider.split(';').next() == Some(name) && !offer.provider.contains("ofi_rxd") {
        Some(2)
    } else {
        None
    }
}

/// The order of preference, smallest first: hardware before sockets; a real network before the loopback; then as few layers
/// and as little software as may be.
fn rank(offer: &Offer) -> (bool, bool, bool, bool, bool, usize) {
    // Only a NIC's own registration makes keys or wants local memory registered.
    let hardware = offer.mr_mode.iter().any(|word| matches!(*word, "provider key" | "local"));
    let ip: Option<IpAddr> = offer.address.as_deref().and_then(|address| address.parse().ok());
    let loopback = ip.is_some_and(|ip| ip.is_loopback());
    // A link-local address needs a scope, which peers on other machines do not share.
    let version_six = ip.is_some_and(|ip| ip.is_ipv6());
    let tcp = offer.provider.split(';').next() == Some("tcp");
    (
        !hardware,
        loopback,
        version_six,
        offer.needs_receives,
        !hardware && !tcp,
        offer.provider.split(';').count() + usize::from(offer.name == "efa"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Addressing;

    fn offer(name: &str, domain: &str, mr_mode: &[&'static str], address: Option<&str>) -> Offer {
        let provider = name.strip_suffix("-direct").unwrap_or(name).to_owned();
        Offer {
            name: name.to_owned(),
            local_only: address.is_some_and(|address| address.starts_with("fi_shm://")),
            provider,
            fabric: "f".to_owned(),
            domain: domain.to_owned(),
            address: address.map(str::to_owned),
            mr_mode: mr_mode.to_vec(),
            addressing: Addressing::Offset,
            cq_data_bytes: 8,
            max_message: u64::MAX,
            inject_bytes: 0,
            queue_depth: 1024,
            threading: "safe",
            progress: "manual",
            context_bytes: 0,
            needs_receives: false,
            gpu_memory: false,
            link_bits_per_second: None,
            pci: None,
            numa_node: None,
            lacks: None,
        }
    }

    /// What Debian's 1.17 offers on a machine with one interface, in its order.
    fn debian() -> Vec<Offer> {
        vec![
            offer("tcp;ofi_rxm", "lo", &[], Some("127.0.0.1")),
            offer("tcp;ofi_rxm", "eth0", &[], Some("fe80::1")),
            offer("tcp;ofi_rxm", "eth0", &[], Some("10.0.0.2")),
            offer("shm", "shm", &["virtual address"], Some("fi_shm://12")),
            offer("udp;ofi_rxd", "eth0", &[], Some("10.0.0.2")),
            offer("net", "eth0", &[], Some("10.0.0.2")),
            offer("sockets", "eth0", &[], Some("10.0.0.2")),
        ]
    }

    fn picked(
        offers: &[Offer],
        provider: Provider,
        domain: Option<&str>,
    ) -> std::result::Result<usize, Refusal> {
        let domain = domain.map(str::to_owned);
        pick(offers, &OpenOptions { provider, domain, ..OpenOptions::default() })
    }

    fn named(name: &str) -> Provider {
        Provider::Named(name.to_owned())
    }

    #[test]
    fn unasked_it_is_tcp_on_a_real_interface_with_its_ipv4_address() {
        assert_eq!(picked(&debian(), Provider::Auto, None), Ok(2));
        assert_eq!(picked(&debian(), Provider::Auto, Some("lo")), Ok(0));
    }

    #[test]
    fn hardware_comes_first_and_what_takes_fewest_layers_before_others() {
        let mut offers = debian();
        offers.push(offer("verbs;ofi_rxm", "mlx5_0", &["local", "provider key"], Some("10.1.0.2")));
        assert_eq!(picked(&offers, Provider::Auto, None), Ok(7));
        let direct = ["local", "virtual address", "allocated", "provider key"];
        offers.push(offer("efa", "rdmap0s6", &direct[1..], None));
        offers.push(offer("efa-direct", "rdmap0s6", &direct, None));
        assert_eq!(picked(&offers, Provider::Auto, None), Ok(9));
        assert_eq!(picked(&offers, named("efa"), None), Ok(8));
        assert_eq!(picked(&offers, named("efa-direct"), None), Ok(9));
        assert_eq!(picked(&offers, named("verbs"), None), Ok(7));
    }

    #[test]
    fn a_name_takes_itself_before_its_layers() {
        assert_eq!(picked(&debian(), named("tcp"), None), Ok(2));
        assert_eq!(picked(&debian(), named("net"), None), Ok(5));
        assert_eq!(picked(&debian(), named("shm"), None), Ok(3));
        assert_eq!(picked(&debian(), named("sockets"), None), Ok(6));
        assert_eq!(picked(&debian(), named("udp;ofi_rxd"), None), Ok(4));
        let mut newer = debian();
        newer.push(offer("tcp", "eth0", &[], Some("10.0.0.2")));
        assert_eq!(picked(&newer, named("tcp"), None), Ok(7));
        assert_eq!(picked(&newer, named("tcp;ofi_rxm"), None), Ok(2));
        assert_eq!(picked(&newer, Provider::Auto, None), Ok(7));
    }

    #[test]
    fn what_is_not_there_and_what_cannot_serve_are_told_apart() {
        assert_eq!(picked(&debian(), named("psm9"), None), Err(Refusal::Unknown));
        assert_eq!(picked(&debian(), named("tcp"), Some("ib0")), Err(Refusal::Unknown));
        let mut offers = vec![offer("efa-direct", "rdmap0s6", &["local"], None)];
        offers[0].lacks = Some("it delivers 0 bytes".to_owned());
        assert_eq!(picked(&offers, named("efa-direct"), None), Err(Refusal::Unsuitable(0)));
    }
}
