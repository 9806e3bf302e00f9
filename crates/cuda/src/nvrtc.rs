//! NVRTC, the run-time compiler: sources in memory to compiled kernels in memory.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::arch::Arch;
use crate::cache::{Cache, CacheError, Key};
use crate::cubin::Cubin;
use crate::dynlib::{Opened, entry_points};
use crate::entry_points::Handle;
use crate::error::{LoadError, NvrtcError, Result};
use crate::resources::{self, Resources};
use crate::search::Search;
use crate::version::Version;

/// The oldest NVRTC that serves: 12.0 is the first with `sm_90a`.
pub const OLDEST_NVRTC: Version = Version { major: 12, minor: 0 };

const INSTALL: &str = "install it with `pip install nvidia-cuda-nvrtc` into the active Python environment, or a CUDA toolkit \
     12.8 or newer with CUDA_HOME set; EXPERTRAIL_NVRTC names the library or its folder";

/// The options of every program.
pub(crate) const BASE_OPTIONS: [&str; 2] = ["--std=c++17", "-default-device"];

entry_points! {
    /// NVRTC.
    NvrtcApi {
        archs_count = "nvrtcGetNumSupportedArchs", "NVRTC 11.2", (*mut c_int);
        archs = "nvrtcGetSupportedArchs", "NVRTC 11.2", (*mut c_int);
        create = "nvrtcCreateProgram", "NVRTC 7.0",
            (*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        destroy = "nvrtcDestroyProgram", "NVRTC 7.0", (*mut Handle);
        compile = "nvrtcCompileProgram", "NVRTC 7.0", (Handle, c_int, *const *const c_char);
        cubin_size = "nvrtcGetCUBINSize", "NVRTC 11.1", (Handle, *mut usize);
        cubin = "nvrtcGetCUBIN", "NVRTC 11.1", (Handle, *mut c_char);
        log_size = "nvrtcGetProgramLogSize", "NVRTC 7.0", (Handle, *mut usize);
        log = "nvrtcGetProgramLog", "NVRTC 7.0", (Handle, *mut c_char);
    }
}

/// What to compile. Everything is in memory: the compiler reads no file.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The source's name, for messages.
    pub name: &'a str,
    /// The source.
    pub source: &'a str,
    /// Names and texts of what it includes.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options beyond the architecture and the C++ version.
    pub options: &'a [&'a str],
}

/// NVRTC, open.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    api: NvrtcApi,
    path: PathBuf,
    version: Version,
    known: Vec<i32>,
}

/// Compiled kernels and where they came from.
#[derive(Debug)]
pub struct Compiled {
    /// The kernels.
    pub cubin: Cubin,
    /// Whether they came from the disk.
    pub cached: bool,
    /// Why they could not be kept on disk, in which case every process compiles again.
    pub not_kept: Option<CacheError>,
}

/// Compiled kernels and what they take of the device.
#[derive(Debug)]
pub struct Measured {
    /// The kernels.
    pub cubin: Cubin,
    /// Of every kernel, and every function that kernels call and that was not inlined.
    pub resources: Vec<Resources>,
}

impl Nvrtc {
    /// Opens NVRTC and its library of built-ins.
    ///
    /// # Errors
    /// When none of the places has both, of version [`OLDEST_NVRTC`] or newer and with every entry point.
    pub fn load(search: &Search) -> std::result::Result<Self, LoadError> {
        let (opened, (version, api, known)) =
            Opened::first("NVRTC (libnvrtc.so.13 or .12)", &search.places, INSTALL, |opened| {
                let version = nvrtc_version(opened)?;
                let api = NvrtcApi::resolve(opened)?;
                let known = known_archs(opened, &api)?;
                open_builtins(opened.path(), version)?;
                Ok((version, api, known))
            })?;
        let path = opened.keep();
        Ok(Self { inner: Arc::new(Inner { api, path, version, known }) })
    }

    /// Where the library was found.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.inner.version
    }

    /// The architectures it compiles for, as compute capabilities without their point.
    pub fn known_archs(&self) -> &[i32] {
        &self.inner.known
    }

    /// Compiles `program` for `arch`.
    ///
    /// # Errors
    /// When the architecture is unknown to this NVRTC, or the source is wrong; then the compiler's log is in the error.
    pub fn compile(&self, program: &Program<'_>, arch: Arch) -> Result<Cubin> {
        Ok(self.compile_with(program, arch, &options(program, arch, self.version()))?.0)
    }

    /// As [`Nvrtc::compile`], with what the kernels take of the device. The code is the same; a note in the file
    /// names one option more.
    ///
    /// # Errors
    /// As [`Nvrtc::compile`].
    pub fn compile_measured(&self, program: &Program<'_>, arch: Arch) -> Result<Measured> {
        let mut options = options(program, arch, self.version());
        options.push("--ptxas-options=-v".to_owned());
        let (cubin, log) = self.compile_with(program, arch, &options)?;
        Ok(Measured { cubin, resources: resources::from_log(&log) })
    }

    /// The kernels and the compiler's log.
    fn compile_with(&self, program: &Program<'_>, arch: Arch, options: &[String]) -> Result<(Cubin, String)> {
        self.needs(arch)?;
        let texts = Texts::new(program, options)?;
        let (headers, names, options) =
            (pointers(&texts.headers), pointers(&texts.header_names), pointers(&texts.options));
        let mut raw: Handle = 0;
        // SAFETY: all texts end in zero, the arrays are as long as said, and all live through the call.
        let code = unsafe {
            (self.inner.api.create)(
                &raw mut raw,
                texts.source.as_ptr(),
                texts.name.as_ptr(),
                headers.len() as c_int,
                headers.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        let open = OpenProgram { nvrtc: self, raw };
        // SAFETY: the program lives, and so do the options.
        let code = unsafe { (self.inner.api.compile)(open.raw, options.len() as c_int, options.as_ptr()) };
        if code != 0 {
            let (program, version) = (program.name.to_owned(), self.version());
            return Err(NvrtcError::Compile { program, arch, version, code, log: open.log() }.into());
        }
        Ok((Cubin::new(open.cubin()?)?, open.log()))
    }

    /// As [`Nvrtc::compile`], through `cache`. A cache that cannot be written does not stop the compilation.
    ///
    /// # Errors
    /// As [`Nvrtc::compile`].
    pub fn compile_through(&self, cache: &Cache, program: &Program<'_>, arch: Arch) -> Result<Compiled> {
        self.needs(arch)?;
        let key = Key::new(program, &options(program, arch, self.version()), arch, self.version());
        if let Some(cubin) = cache.get(&key) {
            return Ok(Compiled { cubin, cached: true, not_kept: None });
        }
        let cubin = self.compile(program, arch)?;
        let not_kept = cache.put(&key, &cubin).err();
        Ok(Compiled { cubin, cached: false, not_kept })
    }

    fn needs(&self, arch: Arch) -> std::result::Result<(), NvrtcError> {
        if self.inner.known.contains(&arch.number) {
            return Ok(());
        }
        Err(NvrtcError::Unsupported {
            path: self.inner.path.clone(),
            version: self.inner.version,
            arch,
            known: self.inner.known.clone(),
        })
    }

    fn check(&self, call: &'static str, code: i32) -> std::result::Result<(), NvrtcError> {
        if code == 0 {
            return Ok(());
        }
        Err(NvrtcError::Call { path: self.inner.path.clone(), version: self.inner.version, call, code })
    }
}

/// A program of NVRTC, destroyed when dropped.
struct OpenProgram<'a> {
    nvrtc: &'a Nvrtc,
    raw: Handle,
}

impl OpenProgram<'_> {
    /// The compiler's log.
    fn log(&self) -> String {
        let api = &self.nvrtc.inner.api;
        let mut bytes = 0;
        // SAFETY: the program lives and NVRTC writes one size.
        if unsafe { (api.log_size)(self.raw, &raw mut bytes) } != 0 || bytes == 0 {
            return "(no log)".to_owned();
        }
        let mut log = vec![0_u8; bytes];
        // SAFETY: the log is as long as NVRTC said.
        if unsafe { (api.log)(self.raw, log.as_mut_ptr().cast()) } != 0 {
            return "(no log)".to_owned();
        }
        String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
    }

    fn cubin(&self) -> std::result::Result<Vec<u8>, NvrtcError> {
        let api = &self.nvrtc.inner.api;
        let mut bytes = 0;
        // SAFETY: the program lives and NVRTC writes one size.
        let code = unsafe { (api.cubin_size)(self.raw, &raw mut bytes) };
        self.nvrtc.check("nvrtcGetCUBINSize", code)?;
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: the file is as long as NVRTC said.
        let code = unsafe { (api.cubin)(self.raw, cubin.as_mut_ptr().cast()) };
        self.nvrtc.check("nvrtcGetCUBIN", code)?;
        Ok(cubin)
    }
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { (self.nvrtc.inner.api.destroy)(&raw mut self.raw) };
    }
}

/// What NVRTC is told, as C texts.
struct Texts {
    name: CString,
    source: CString,
    headers: Vec<CString>,
    header_names: Vec<CString>,
    options: Vec<CString>,
}

impl Texts {
    fn new(program: &Program<'_>, options: &[String]) -> std::result::Result<Self, NvrtcError> {
        Ok(Self {
            name: text("the program's name", program.name)?,
            source: text(program.name, program.source)?,
            headers: program.headers.iter().map(|(name, source)| text(name, source)).collect::<Text<_>>()?,
            header_names: program
                .headers
                .iter()
                .map(|(name, _)| text("a header's name", name))
                .collect::<Text<_>>()?,
            options: options.iter().map(|option| text("an option", option)).collect::<Text<_>>()?,
        })
    }
}

type Text<T> = std::result::Result<T, NvrtcError>;

fn text(what: &str, text: &str) -> Text<CString> {
    CString::new(text).map_err(|_| NvrtcError::ZeroByte { what: what.to_owned() })
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

/// Every option of a compilation.
fn options(program: &Program<'_>, arch: Arch, version: Version) -> Vec<String> {
    let mut options = vec![format!("--gpu-architecture={arch}")];
    options.extend(BASE_OPTIONS.map(str::to_owned));
    if version.major >= 13 {
        // Our own cache knows what its entries depend on.
        options.push("--no-cache".to_owned());
    }
    options.extend(program.options.iter().map(|option| (*option).to_owned()));
    options
}

fn nvrtc_version(opened: &Opened) -> std::result::Result<Version, LoadError> {
    type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> i32;
    // SAFETY: the type is nvrtcVersion's.
    let get: GetVersion = unsafe { opened.symbol("nvrtcVersion", "NVRTC 7.0") }?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC writes two integers.
    let code = unsafe { get(&raw mut major, &raw mut minor) };
    opened.first_call("nvrtcVersion", code)?;
    opened.at_least(OLDEST_NVRTC, Version { major, minor })
}

/// Opens the built-ins that belong to the library at `path`. NVRTC opens them by name at its first compilation and
/// does not look in its own folder; but what is open already, the loader finds by name.
fn open_builtins(path: &Path, version: Version) -> std::result::Result<(), LoadError> {
    let name = format!("libnvrtc-builtins.so.{version}");
    let mut places = Vec::new();
    // A toolkit's libnvrtc.so may be a link into another folder.
    for library in [Some(path.to_owned()), std::fs::canonicalize(path).ok()].into_iter().flatten() {
        let folder = library.parent().filter(|folder| !folder.as_os_str().is_empty());
        places.extend(folder.map(|folder| folder.join(&name)));
    }
    places.dedup();
    places.push(PathBuf::from(&name));
    Opened::first(&format!("NVRTC's {name}"), &places, INSTALL, |_| Ok(()))?.0.keep();
    Ok(())
}

fn known_archs(opened: &Opened, api: &NvrtcApi) -> std::result::Result<Vec<i32>, LoadError> {
    let mut count: c_int = 0;
    // SAFETY: NVRTC writes one integer.
    let code = unsafe { (api.archs_count)(&raw mut count) };
    opened.first_call("nvrtcGetNumSupportedArchs", code)?;
    let mut known = vec![0; count.max(0) as usize];
    // SAFETY: the list is as long as NVRTC said.
    let code = unsafe { (api.archs)(known.as_mut_ptr()) };
    opened.first_call("nvrtcGetSupportedArchs", code)?;
    Ok(known)
}
