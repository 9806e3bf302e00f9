//! Which device each rank takes, and whether the devices can serve as one NVLink domain.

use expertrail_group::Group;

use crate::agreement::{agree, unreadable};
use crate::build_error::BuildError;
use crate::device::{Attribute, Device, DeviceIdentity};
use crate::driver::Driver;
use crate::vmm::handle_types;

/// `CU_COMPUTEMODE_PROHIBITED`. Exclusive mode is fine: every rank is a process with a device of its own.
const PROHIBITED: i32 = 2;

/// A rank's device, and everybody's.
#[derive(Clone, Debug)]
pub struct Placed {
    /// This rank's device.
    pub device: Device,
    /// Its number in this process.
    pub ordinal: usize,
    /// The devices of all ranks, in order of rank.
    pub uuids: Vec<[u8; 16]>,
}

/// Chooses this rank's device, together with all ranks of `group`: the one numbered as the rank is on its host, or the
/// only one that the launcher shows to this process.
///
/// Peer access is checked between devices that this process sees both of; between others it shows when memory is
/// mapped.
///
/// # Errors
/// On every rank, when one cannot have a device that serves, two share one, ranks are on different machines, or two
/// devices cannot reach each other. The rank at fault gets its own error, the others
/// [`BuildError::PeerBuild`].
pub fn choose(driver: &Driver, group: &Group) -> Result<Placed, BuildError> {
    // Which ranks share this machine, whatever nodes were declared.
    let machines = agree(group, "machines", Ok(()), |()| Card::of([0; 16]).encode())?.1;
    let machines = decode(group, &machines)?;
    let mine = |rank: usize| machines[rank].same_machine(&machines[group.rank()]);
    let local_rank = (0..group.rank()).filter(|&rank| mine(rank)).count();
    let local_size = (0..group.size()).filter(|&rank| mine(rank)).count();
    let chosen = pick(driver, local_rank, local_size).and_then(|device| {
        let identity = device.identity()?;
        serves(&device, &identity, group.size())?;
        Ok((device, identity))
    });
    let ((device, identity), given) =
        agree(group, "choice of devices", chosen, |(_, identity)| Card::of(identity.uuid).encode())?;
    let cards = decode(group, &given)?;
    // All ranks see the same cards and come to the same verdict.
    one_host(&cards)?;
    distinct(&cards)?;
    let reached = reaches(driver, &device, &identity, group.rank(), &cards);
    agree(group, "peer access", reached, |()| Vec::new())?;
    let uuids = cards.iter().map(|card| card.uuid).collect();
    Ok(Placed { ordinal: device.ordinal(), device, uuids })
}

fn pick(driver: &Driver, local_rank: usize, local_size: usize) -> Result<Device, BuildError> {
    let found = driver.device_count();
    if found < local_size && found != 1 {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").map_or_else(
            |_| "CUDA_VISIBLE_DEVICES is not set".to_owned(),
            |value| format!("CUDA_VISIBLE_DEVICES={value:?}"),
        );
        return Err(BuildError::Devices { ranks: local_size, found, visible });
    }
    // Two ranks that see one and the same device are found out by its uuid.
    Ok(driver.device(if found == 1 { 0 } else { local_rank })?)
}

/// Whether `device` has what the kernels and the heap need.
fn serves(device: &Device, identity: &DeviceIdentity, ranks: usize) -> Result<(), BuildError> {
    let named = || Box::new(identity.clone());
    if device.attribute(Attribute::COMPUTE_MODE)? == PROHIBITED {
        return Err(BuildError::Prohibited { device: named() });
    }
    // A single rank needs no peer.
    if ranks > 1 && identity.is_mig() {
        return Err(BuildError::Mig { device: named() });
    }
    let major = device.attribute(Attribute::CAPABILITY_MAJOR)?;
    let minor = device.attribute(Attribute::CAPABILITY_MINOR)?;
    if major < 9 {
        return Err(BuildError::Capability { device: named(), major, minor });
    }
    let features = [
        (device.attribute(Attribute::VIRTUAL_MEMORY)? != 0, "virtual memory management (cuMemCreate)"),
        (handle_types(device).fd, "memory that processes share by file descriptor"),
        (device.attribute(Attribute::COOPERATIVE_LAUNCH)? != 0, "cooperative launches"),
    ];
    match features.iter().find(|(offered, _)| !offered) {
        Some((_, feature)) => Err(BuildError::Lacks { device: named(), feature }),
        None => Ok(()),
    }
}

/// Whether `device` reaches the device of every rank, where this process sees that.
fn reaches(
    driver: &Driver,
    device: &Device,
    identity: &DeviceIdentity,
    rank: usize,
    cards: &[Card],
) -> Result<(), BuildError> {
    for other in driver.devices()? {
        let uuid = other.uuid()?;
        let owner = cards.iter().position(|card| card.uuid == uuid);
        let Some(peer) = owner.filter(|peer| *peer != rank) else { continue };
        if !device.can_access(&other)? {
            let (device, peer_device) = (Box::new(identity.clone()), Box::new(other.identity()?));
            return Err(BuildError::NoPeerAccess { rank, device, peer, peer_device });
        }
    }
    Ok(())
}

/// What a rank tells the others of its device and machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    uuid: [u8; 16],
    /// The machine's boot, the same in all of its containers; empty where the system hides it.
    boot: String,
    host: String,
}

impl Card {
    fn of(uuid: [u8; 16]) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let (boot, host) = (read("/proc/sys/kernel/random/boot_id"), read("/proc/sys/kernel/hostname"));
        Self { uuid, boot, host }
    }

    /// The uuid, then boot and host separated by a line's end, which neither has.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.uuid.to_vec();
        bytes.extend(format!("{}\n{}", self.boot, self.host).into_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (uuid, text) = bytes.split_first_chunk::<16>()?;
        let (boot, host) = std::str::from_utf8(text).ok()?.split_once('\n')?;
        Some(Self { uuid: *uuid, boot: boot.to_owned(), host: host.to_owned() })
    }

    /// Containers of one machine have host names of their own: the boot decides where both know it.
    fn same_machine(&self, other: &Self) -> bool {
        if self.boot.is_empty() || other.boot.is_empty() {
            return self.host == other.host;
        }
        self.boot == other.boot
    }
}

fn decode(group: &Group, given: &[Vec<u8>]) -> Result<Vec<Card>, BuildError> {
    let card =
        |(peer, bytes): (usize, &Vec<u8>)| Card::decode(bytes).ok_or_else(|| unreadable(group.rank(), peer));
    given.iter().enumerate().map(card).collect()
}

fn one_host(cards: &[Card]) -> Result<(), BuildError> {
    let Some(first) = cards.first() else { return Ok(()) };
    match cards.iter().position(|card| !card.same_machine(first)) {
        Some(b) => {
            let (a_host, b_host) = (first.host.clone(), cards[b].host.clone());
            Err(BuildError::NotOneHost { a: 0, a_host, b, b_host })
        }
        None => Ok(()),
    }
}

fn distinct(cards: &[Card]) -> Result<(), BuildError> {
    for (b, card) in cards.iter().enumerate() {
        if let Some(a) = cards[..b].iter().position(|earlier| earlier.uuid == card.uuid) {
            return Err(BuildError::SharedDevice { a, b, uuid: card.uuid });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(uuid: u8, boot: &str, host: &str) -> Card {
        Card { uuid: [uuid; 16], boot: boot.to_owned(), host: host.to_owned() }
    }

    #[test]
    fn the_boot_tells_machines_apart_and_containers_together() {
        assert!(one_host(&[card(1, "b1", "pod-a"), card(2, "b1", "pod-b")]).is_ok());
        assert!(one_host(&[card(1, "", "n1"), card(2, "b1", "n1")]).is_ok());
        assert!(one_host(&[]).is_ok());
        let error = one_host(&[card(1, "b1", "n1"), card(2, "b1", "n1"), card(3, "b2", "n2")]).unwrap_err();
        assert!(error.to_string().starts_with("ranks 0 (host n1) and 2 (host n2) are on different machines"));
        assert!(matches!(error, BuildError::NotOneHost { a: 0, b: 2, .. }));
        assert_eq!(error.exit_code(), 2);
        assert!(one_host(&[card(1, "b1", "localhost"), card(2, "b2", "localhost")]).is_err());
        assert!(one_host(&[card(1, "", "n1"), card(2, "b1", "n2")]).is_err());
    }

    #[test]
    fn a_device_for_each() {
        assert!(distinct(&[card(1, "", ""), card(2, "", "")]).is_ok());
        let error = distinct(&[card(1, "", ""), card(0xab, "", ""), card(0xab, "", "")]).unwrap_err();
        assert!(matches!(error, BuildError::SharedDevice { a: 1, b: 2, .. }));
        assert!(error.to_string().contains("GPU-abababab-abab-abab-abab-abababababab"), "{error}");
    }

    #[test]
    fn cards_survive() {
        for whole in [card(7, "boot", "host"), card(0, "", "")] {
            assert_eq!(Card::decode(&whole.encode()), Some(whole));
        }
        assert_eq!(Card::decode(&[0; 15]), None);
        assert_eq!(Card::decode(&[0; 16]), None);
        assert_eq!(Card::decode(&[0xff; 20]), None);
    }
}
