//! Which GPUs there are, and whether they serve the ranks of this host.

use std::fmt;

use expertrail::cuda::{Attribute, CudaError, Device, Driver, Search};
use expertrail::{Backend, Group, Layout};

use crate::run::BenchError;

/// `CU_COMPUTEMODE_PROHIBITED`.
const PROHIBITED: i32 = 2;

/// Hopper: bulk copies between GPUs.
const LEAST_CAPABILITY: i32 = 9;

/// The GPUs that a process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// The CUDA version of the driver.
    pub driver: String,
    /// Identities of those that the GPU backend can use.
    pub usable: Vec<[u8; 16]>,
    /// Why each of the others cannot be used.
    pub others: Vec<String>,
}

impl Gpus {
    /// Opens the driver and looks.
    ///
    /// # Errors
    /// Without a driver or any device, saying what was looked for and where.
    pub fn look(search: &Search) -> Result<Self, CudaError> {
        let driver = Driver::load(search)?;
        let mut gpus = Self { driver: driver.version().to_string(), usable: Vec::new(), others: Vec::new() };
        for device in driver.devices()? {
            match objection(&device)? {
                None => gpus.usable.push(device.uuid()?),
                Some(reason) => gpus.others.push(format!("{} {reason}", device.identity()?)),
            }
        }
        Ok(gpus)
    }

    /// How many the driver shows.
    pub fn visible(&self) -> usize {
        self.usable.len() + self.others.len()
    }

    /// The one that a rank would use: that of its number on the host where there are enough for all, or the only one,
    /// as launchers show each rank its own. Nothing where they do not serve.
    fn of_rank(&self, local_rank: usize, local_ranks: usize) -> Option<[u8; 16]> {
        match self.usable.as_slice() {
            usable if usable.len() >= local_ranks && self.others.is_empty() => {
                usable.get(local_rank).copied()
            }
            [only] if self.others.is_empty() => Some(*only),
            _ => None,
        }
    }

    /// Checks that they are enough for `ranks` ranks of one host.
    ///
    /// # Errors
    /// [`BenchError::FewGpus`].
    pub fn enough_for(&self, ranks: usize) -> Result<(), BenchError> {
        if self.usable.len() >= ranks {
            return Ok(());
        }
        Err(BenchError::FewGpus { ranks, found: self.clone() })
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} usable of {} visible", self.usable.len(), self.visible())?;
        if !self.others.is_empty() {
            write!(f, " ({})", self.others.join("; "))?;
        }
        Ok(())
    }
}

/// Why the GPU backend cannot use `device`.
fn objection(device: &Device) -> Result<Option<String>, CudaError> {
    let capability = device.attribute(Attribute::CAPABILITY_MAJOR)?;
    let reason = if device.identity()?.is_mig() {
        "is a MIG slice, which reaches no other GPU".to_owned()
    } else if capability < LEAST_CAPABILITY {
        format!("has compute capability {capability}.x, {LEAST_CAPABILITY}.0 or later is needed")
    } else if device.attribute(Attribute::COMPUTE_MODE)? == PROHIBITED {
        "is in compute mode prohibited".to_owned()
    } else if device.attribute(Attribute::VIRTUAL_MEMORY)? == 0 {
        "has no virtual memory management".to_owned()
    } else if device.attribute(Attribute::COOPERATIVE_LAUNCH)? == 0 {
        "has no cooperative launches".to_owned()
    } else {
        return Ok(None);
    };
    Ok(Some(reason))
}

/// What `auto` stands for: GPUs when every rank has one of its own on this one host, and they can serve `layout`; or
/// else CPUs. The same at all ranks. Collective.
///
/// # Errors
/// When the ranks cannot tell each other.
pub fn choose(group: &Group, layout: Layout, search: &Search) -> Result<Backend, BenchError> {
    // Expert-major dispatch is not built for GPUs.
    let hosts = group.hosts();
    let wanted = layout == Layout::BySource && hosts.iter().all(|host| *host == hosts[0]);
    let own = if wanted {
        // Without a driver CPUs it is: not having one is no error here.
        Gpus::look(search).ok().and_then(|gpus| gpus.of_rank(group.rank(), group.size()))
    } else {
        None
    };
    let all = group.all_gather("GPU of each rank", own.as_ref().map_or(&[][..], |uuid| uuid))?;
    Ok(if each_has_its_own(&all) { Backend::Cuda } else { Backend::Host })
}

/// Whether all named a device, and no two the same.
fn each_has_its_own(uuids: &[Vec<u8>]) -> bool {
    let mut seen = std::collections::HashSet::new();
    uuids.iter().all(|uuid| !uuid.is_empty() && seen.insert(uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(usable: &[u8], others: usize) -> Gpus {
        Gpus {
            driver: "13.0".to_owned(),
            usable: usable.iter().map(|&n| [n; 16]).collect(),
            others: vec!["device 7 is old".to_owned(); others],
        }
    }

    #[test]
    fn a_rank_takes_its_number_or_the_only_one() {
        assert_eq!(gpus(&[1, 2, 3], 0).of_rank(1, 2), Some([2; 16]));
        assert_eq!(gpus(&[1, 2], 0).of_rank(1, 2), Some([2; 16]));
        assert_eq!(gpus(&[5], 0).of_rank(1, 2), Some([5; 16]));
        assert_eq!(gpus(&[1, 2], 0).of_rank(0, 3), None);
        assert_eq!(gpus(&[], 1).of_rank(0, 1), None);
        // Ordinals count the unusable ones too: which rank would get it is not worth guessing.
        assert_eq!(gpus(&[1, 2], 1).of_rank(0, 2), None);
    }

    #[test]
    fn all_must_have_one_and_no_two_the_same() {
        let named = |all: &[u8]| all.iter().map(|&n| if n == 0 { Vec::new() } else { vec![n; 16] }).collect();
        let check = |all: &[u8]| {
            let uuids: Vec<Vec<u8>> = named(all);
            each_has_its_own(&uuids)
        };
        assert!(check(&[1]) && check(&[1, 2, 3]));
        assert!(!check(&[1, 1]) && !check(&[1, 0]) && !check(&[0]));
    }

    #[test]
    fn too_few_says_how_many() {
        assert!(gpus(&[1, 2], 0).enough_for(2).is_ok());
        let error = gpus(&[1, 2], 1).enough_for(3).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        let text = error.to_string();
        assert!(
            text.contains("3 ranks") && text.contains("2 usable of 3 visible (device 7 is old)"),
            "{text}"
        );
    }
}
