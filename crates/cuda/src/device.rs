//! A GPU, before anything runs on it.

use std::ffi::{c_char, c_int};
use std::fmt::{self, Write as _};

use crate::arch::Arch;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::Result;

/// A property of a device, by the driver's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attribute(pub i32);

impl Attribute {
    /// Streaming multiprocessors.
    pub const SMS: Self = Self(16);
    /// 0 default, 2 prohibited, 3 one process only.
    pub const COMPUTE_MODE: Self = Self(20);
    /// PCI bus.
    pub const PCI_BUS: Self = Self(33);
    /// PCI device.
    pub const PCI_DEVICE: Self = Self(34);
    /// PCI domain.
    pub const PCI_DOMAIN: Self = Self(50);
    /// Compute capability before the point.
    pub const CAPABILITY_MAJOR: Self = Self(75);
    /// Compute capability after the point.
    pub const CAPABILITY_MINOR: Self = Self(76);
    /// Whether cooperative launches work.
    pub const COOPERATIVE_LAUNCH: Self = Self(95);
    /// The most shared memory that a block may ask for, in bytes.
    pub const SHARED_MEMORY_OPTIN: Self = Self(97);
    /// Whether virtual memory management works.
    pub const VIRTUAL_MEMORY: Self = Self(102);
    /// Whether memory can be shared by file descriptor.
    pub const HANDLE_FD: Self = Self(103);
    /// Whether the NIC can reach memory of virtual memory management (`GPUDirect` RDMA).
    pub const VIRTUAL_MEMORY_RDMA: Self = Self(110);
    /// Whether memory can be shared by fabric handle.
    pub const HANDLE_FABRIC: Self = Self(128);
}

/// What tells a device from the others in messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceIdentity {
    /// Its number in the process that names it.
    pub ordinal: usize,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Its identity, the same in every process.
    pub uuid: [u8; 16],
}

impl DeviceIdentity {
    /// Whether it is a slice of a device in MIG mode: the driver says so in the name alone.
    pub fn is_mig(&self) -> bool {
        self.name.split_whitespace().any(|word| word == "MIG")
    }
}

impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({}, {})", self.ordinal, self.name, uuid_text(&self.uuid, self.is_mig()))
    }
}

/// A uuid as `nvidia-smi -L` writes it.
pub(crate) fn uuid_text(uuid: &[u8; 16], mig: bool) -> String {
    let mut text = if mig { "MIG".to_owned() } else { "GPU".to_owned() };
    for (index, byte) in uuid.iter().enumerate() {
        let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        // Writing to a text cannot fail.
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Driver,
    ordinal: usize,
    raw: c_int,
}

impl Device {
    pub(crate) fn new(driver: Driver, ordinal: usize, raw: c_int) -> Self {
        Self { driver, ordinal, raw }
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The driver that showed it.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn raw(&self) -> c_int {
        self.raw
    }

    /// Its name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn name(&self) -> Result<String> {
        let mut bytes = [0_u8; 256];
        // SAFETY: the driver writes at most as many bytes as it is told of.
        let code = unsafe {
            (self.driver.api().device_name)(
                bytes.as_mut_ptr().cast::<c_char>(),
                bytes.len() as c_int,
                self.raw,
            )
        };
        self.driver.check("cuDeviceGetName", code)?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// One of its properties.
    ///
    /// # Errors
    /// When the driver does not know the property.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32> {
        let mut value: c_int = 0;
        // SAFETY: the driver writes one integer.
        let code = unsafe { (self.driver.api().device_attribute)(&raw mut value, attribute.0, self.raw) };
        self.driver.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// The architecture to compile for.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn arch(&self) -> Result<Arch> {
        Ok(Arch::of(
            self.attribute(Attribute::CAPABILITY_MAJOR)?,
            self.attribute(Attribute::CAPABILITY_MINOR)?,
        ))
    }

    /// Its identity, the same in every process: `GPU-...` of `nvidia-smi -L`, or that of its MIG slice.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = [0_u8; 16];
        // SAFETY: the driver writes 16 bytes.
        let code = unsafe { (self.driver.api().device_uuid)(&raw mut uuid, self.raw) };
        self.driver.check("cuDeviceGetUuid", code)?;
        Ok(uuid)
    }

    /// What names it in messages.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn identity(&self) -> Result<DeviceIdentity> {
        Ok(DeviceIdentity { ordinal: self.ordinal, name: self.name()?, uuid: self.uuid()? })
    }

    /// Whether kernels on this device can read and write memory of `peer`.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn can_access(&self, peer: &Device) -> Result<bool> {
        let mut can: c_int = 0;
        // SAFETY: the driver writes one integer.
        let code = unsafe { (self.driver.api().device_peer)(&raw mut can, self.raw, peer.raw) };
        self.driver.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Bytes of memory.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the driver writes one size.
        let code = unsafe { (self.driver.api().device_memory)(&raw mut bytes, self.raw) };
        self.driver.check("cuDeviceTotalMem", code)?;
        Ok(bytes)
    }

    /// Its primary context, which every library of this process shares.
    ///
    /// # Errors
    /// When the device cannot be used, for one because another process holds it.
    pub fn context(&self) -> Result<Context> {
        Context::retain(self.clone())
    }
}
