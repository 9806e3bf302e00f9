//! Where compiled kernels come from: embedded in the program, kept on disk, or compiled now.
//!
//! A release build embeds kernels for the architectures of [`Arch::GATED`], so it needs no NVRTC there. Other
//! devices, and builds of a working tree, use NVRTC through the disk cache.

use std::fmt;

use crate::arch::Arch;
use crate::cache::{Cache, CacheError};
use crate::context::Context;
use crate::cubin::Cubin;
use crate::error::{CudaError, LoadError, Result};
use crate::fnv::Fnv;
use crate::kernels;
use crate::launch::Module;
use crate::nvrtc::{BASE_OPTIONS, Nvrtc, Program};

/// What compiled kernels depend on, except for the compiler: architecture, options, source and headers.
///
/// [`crate::Key`] has NVRTC's version too, because the disk cache must not outlive a compiler's mistakes. Embedded
/// kernels were compiled and tested by whoever made the release: whichever NVRTC is here has no say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// Of `program` for `arch`.
    pub const fn new(program: &Program<'_>, arch: Arch) -> Self {
        Self(sources(program).bytes(&arch.number.to_le_bytes()).sum())
    }

    /// The number, as a list of compiled kernels has it.
    pub const fn number(self) -> u128 {
        self.0
    }

    /// The hash of a file of compiled kernels, as a list of them has it.
    pub const fn of_file(bytes: &[u8]) -> u128 {
        Fnv::new().bytes(bytes).sum()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The part that is the same for every architecture.
const fn sources(program: &Program<'_>) -> Fnv {
    let mut hash = Fnv::new().text(program.name).text(program.source);
    hash = list(list(hash, &BASE_OPTIONS), program.options);
    let mut at = 0;
    while at < program.headers.len() {
        let (name, text) = program.headers[at];
        hash = hash.text(name).text(text);
        at += 1;
    }
    hash
}

const fn list(mut hash: Fnv, texts: &[&str]) -> Fnv {
    hash = hash.bytes(&(texts.len() as u64).to_le_bytes());
    let mut at = 0;
    while at < texts.len() {
        hash = hash.text(texts[at]);
        at += 1;
    }
    hash
}

/// One program, compiled for one architecture, in the program's own file.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// The program's name.
    pub program: &'static str,
    /// What it was compiled for.
    pub arch: Arch,
    /// What it was compiled from.
    pub fingerprint: Fingerprint,
    /// The compiled kernels.
    pub cubin: &'static [u8],
}

#[allow(clippy::unreadable_literal, reason = "generated")]
#[allow(long_running_const_eval, reason = "hashing all sources takes a second, in release builds only")]
mod build {
    use super::{Arch, Embedded, Fingerprint, Fnv, equal, kernels, sources};

    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

    pub(super) static TABLE: &[Embedded] = &EMBEDDED;

    /// Each program's sources, hashed once for all architectures: the compiler takes seconds for a megabyte.
    #[allow(dead_code, reason = "used when kernels are embedded")]
    const SOURCES: [Fnv; kernels::ALL.len()] = {
        let mut all = [Fnv::new(); kernels::ALL.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = sources(&kernels::ALL[at]);
            at += 1;
        }
        all
    };

    /// Whether this build has `program`, and for `arch` it has this fingerprint.
    #[allow(dead_code, reason = "used when kernels are embedded")]
    const fn current(program: &str, arch: Arch, fingerprint: Fingerprint) -> bool {
        let mut at = 0;
        while at < kernels::ALL.len() {
            let own = SOURCES[at].bytes(&arch.number.to_le_bytes()).sum();
            if equal(kernels::ALL[at].name, program) && own == fingerprint.0 {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Whether `names` has every program of this build.
    #[allow(dead_code, reason = "used when kernels are embedded")]
    const fn complete(names: &[&str]) -> bool {
        let mut at = 0;
        while at < kernels::ALL.len() {
            let (mut index, mut there) = (0, false);
            while index < names.len() {
                there |= equal(names[index], kernels::ALL[at].name);
                index += 1;
            }
            if !there {
                return false;
            }
            at += 1;
        }
        true
    }
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Where a program's compiled kernels came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This program's own file.
    Embedded,
    /// The disk cache.
    Disk,
    /// NVRTC, now.
    Compiled,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "embedded",
            Self::Disk => "from the disk cache",
            Self::Compiled => "compiled",
        })
    }
}

/// Compiled kernels and where they came from.
#[derive(Debug)]
pub struct Found {
    /// The kernels.
    pub cubin: Cubin,
    /// Where they came from.
    pub from: Origin,
    /// Why compiled kernels could not be kept on disk, in which case every process compiles again.
    pub not_kept: Option<CacheError>,
}

/// The driver's codes for an image that it cannot load: invalid, for no device here, of an unknown PTX or of a newer
/// toolkit.
const REFUSED: [i32; 4] = [200, 209, 218, 222];

/// The sources of compiled kernels, in their order: embedded, disk cache, NVRTC.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    embedded: &'static [Embedded],
}

impl Kernels {
    /// With what this build embeds.
    pub fn of_this_build() -> Self {
        Self::embedding(build::TABLE)
    }

    /// With `embedded`.
    pub fn embedding(embedded: &'static [Embedded]) -> Self {
        Self { embedded }
    }

    /// What is embedded.
    pub fn embedded(&self) -> &'static [Embedded] {
        self.embedded
    }

    /// The architectures that anything is embedded for, each once, ascending.
    pub fn archs(&self) -> Vec<Arch> {
        let mut archs: Vec<Arch> = self.embedded.iter().map(|embedded| embedded.arch).collect();
        archs.sort_unstable();
        archs.dedup();
        archs
    }

    /// Compiled kernels of `program` for `arch`, the architecture of the device. `nvrtc` opens the compiler and is
    /// called only when nothing is embedded for this source and device; the disk cache too is looked at only then,
    /// since its entries are those of one NVRTC.
    ///
    /// # Errors
    /// When nothing is embedded, and NVRTC is missing or does not compile the program.
    pub fn find(
        &self,
        program: &Program<'_>,
        arch: Arch,
        cache: &Cache,
        nvrtc: impl FnOnce() -> std::result::Result<Nvrtc, LoadError>,
    ) -> Result<Found> {
        if let Some(cubin) = self.lookup(program, arch) {
            let cubin = Cubin::new(cubin.to_vec())?;
            return Ok(Found { cubin, from: Origin::Embedded, not_kept: None });
        }
        let nvrtc = nvrtc().map_err(|nvrtc| CudaError::NoKernels {
            program: program.name.to_owned(),
            arch,
            embedded: self.archs(),
            nvrtc: Box::new(nvrtc),
        })?;
        let compiled = nvrtc.compile_through(cache, program, arch)?;
        let from = if compiled.cached { Origin::Disk } else { Origin::Compiled };
        Ok(Found { cubin: compiled.cubin, from, not_kept: compiled.not_kept })
    }

    /// [`Kernels::find`]s `program` for the device of `context` and loads it. Embedded kernels that the driver refuses,
    /// because it is older than the compiler that made them, are compiled by NVRTC instead where there is one.
    ///
    /// # Errors
    /// As [`Kernels::find`], and when the driver refuses the kernels.
    pub fn load(
        &self,
        context: &Context,
        program: &Program<'_>,
        cache: &Cache,
        nvrtc: impl Fn() -> std::result::Result<Nvrtc, LoadError>,
    ) -> Result<(Module, Found)> {
        let arch = context.device().arch()?;
        let found = self.find(program, arch, cache, &nvrtc)?;
        match Module::load(context, &found.cubin) {
            Err(CudaError::Call(refused))
                if found.from == Origin::Embedded && REFUSED.contains(&refused.code) =>
            {
                // Without a compiler the refusal is what there is to say.
                let other = Self::embedding(&[]).find(program, arch, cache, &nvrtc);
                let other = other.map_err(|_| CudaError::Call(refused))?;
                Ok((Module::load(context, &other.cubin)?, other))
            }
            loaded => Ok((loaded?, found)),
        }
    }

    fn lookup(&self, program: &Program<'_>, arch: Arch) -> Option<&'static [u8]> {
        let mut named =
            self.embedded.iter().filter(|e| e.arch == arch && e.program == program.name).peekable();
        // Hashing the source is for those that may be found.
        named.peek()?;
        let fingerprint = Fingerprint::new(program, arch);
        named.find(|embedded| embedded.fingerprint == fingerprint).map(|embedded| embedded.cubin)
    }
}
