//! NVRTC's loading, against fakes; and every kernel through a real one, where there is one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Instant;

use expertrail_cuda::kernels::{ALL, PROBE, PROBE_NAME};
use expertrail_cuda::{Arch, Cache, CudaError, LoadError, Nvrtc, NvrtcError, Program, Search};
use libloading::Library;
use support::{fake, folder};

/// A fake NVRTC with its built-ins beside it.
fn fake_nvrtc(folder: &Path, defines: &[&str]) -> PathBuf {
    fake(folder, "libnvrtc-builtins.so.12.8", "nvrtc.c", &["BUILTINS"]);
    fake(folder, "libnvrtc.so.12", "nvrtc.c", defines)
}

/// The real one, or none with a line that says so.
fn real() -> Option<Nvrtc> {
    match Nvrtc::load(&Search::nvrtc()) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) if std::env::var_os("EXPERTRAIL_NVRTC").is_some() => panic!("EXPERTRAIL_NVRTC: {error}"),
        Err(error) => {
            println!("NOT RUN: {error}");
            None
        }
    }
}

#[test]
fn a_missing_nvrtc_says_where_it_was_looked_for() {
    let variables = [("CUDA_HOME", "/no-toolkit"), ("VIRTUAL_ENV", "/no-environment")];
    let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
    let mut search = Search::nvrtc_in(get);
    search.places.retain(|place| place.starts_with("/no-toolkit") || place.starts_with("/no-environment"));
    let text = Nvrtc::load(&search).unwrap_err().to_string();
    for part in [
        "/no-toolkit/lib64/libnvrtc.so.13",
        "/no-toolkit/lib64/libnvrtc.so.12",
        "/no-environment/lib/python*/site-packages/nvidia/*/lib",
        "cannot open shared object file",
        "pip install nvidia-cuda-nvrtc",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn the_search_has_its_order() {
    let root = folder("search");
    let touch = |path: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        path
    };
    let old = touch("env/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    let new = touch("env/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    let toolkit = touch("toolkit/lib64/libnvrtc.so.13");
    let get = |name: &str| match name {
        "CUDA_HOME" => Some(root.join("toolkit").into_os_string()),
        "VIRTUAL_ENV" => Some(root.join("env").into_os_string()),
        _ => None,
    };
    let places = Search::nvrtc_in(get).places;
    let at = |path: &Path| places.iter().position(|place| place == path).expect("a place");
    let order =
        [at(&toolkit), at(&new), at(&old), at(Path::new("libnvrtc.so.13")), at(Path::new("libnvrtc.so.12"))];
    assert!(order.is_sorted(), "{places:?}");
    // An explicit path is the only place; a folder stands for the names in it.
    for explicit in [toolkit.clone(), toolkit.parent().unwrap().to_owned()] {
        let only = |name: &str| {
            if name == "EXPERTRAIL_NVRTC" { Some(explicit.clone().into_os_string()) } else { get(name) }
        };
        let places = Search::nvrtc_in(only).places;
        assert_eq!(places[0], toolkit);
        assert!(places.iter().all(|place| place.starts_with(root.join("toolkit"))));
    }
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn missing_builtins_are_named() {
    let folder = folder("builtins");
    let path = fake(&folder, "libnvrtc.so.12", "nvrtc.c", &[]);
    let error = Nvrtc::load(&Search::only(path)).unwrap_err();
    assert!(
        matches!(&error, LoadError::Missing { library, .. } if library.contains("libnvrtc-builtins.so.12.8"))
    );
    assert!(error.to_string().contains(folder.to_str().unwrap()), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn old_and_incomplete_libraries_are_named() {
    let folder = folder("old-nvrtc");
    let old = fake_nvrtc(&folder, &["MAJOR=11"]);
    let error = Nvrtc::load(&Search::only(old)).unwrap_err().to_string();
    assert!(error.contains("11.8") && error.contains("12.0"), "{error}");
    let incomplete = fake(&folder, "incomplete.so", "nvrtc.c", &["nvrtcGetCUBIN=gone"]);
    let error = Nvrtc::load(&Search::only(incomplete)).unwrap_err();
    assert!(matches!(error, LoadError::Symbol { symbol: "nvrtcGetCUBIN", .. }), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn unknown_architectures_list_the_known_ones() {
    let folder = folder("archs");
    let nvrtc = Nvrtc::load(&Search::only(fake_nvrtc(&folder, &[]))).unwrap();
    let error = nvrtc.compile(&PROBE, Arch::SM_103A).unwrap_err();
    assert!(matches!(&error, CudaError::Nvrtc(NvrtcError::Unsupported { known, .. }) if *known == [80, 90]));
    assert!(error.to_string().contains("sm_103a") && error.to_string().contains("sm_80, sm_90;"), "{error}");
    assert_eq!(error.exit_code(), 4);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_failing_compilation_shows_the_log_and_leaves_nothing_open() {
    let folder = folder("fails");
    let path = fake_nvrtc(&folder, &["CODE=6"]);
    let nvrtc = Nvrtc::load(&Search::only(&path)).unwrap();
    let error = nvrtc.compile(&PROBE, Arch::SM_90A).unwrap_err();
    assert!(error.to_string().ends_with("probe.cu(3): error: fake failure"), "{error}");
    assert!(matches!(error, CudaError::Nvrtc(NvrtcError::Compile { code: 6, .. })));
    let error = nvrtc.compile(&Program { source: "a\0b", ..PROBE }, Arch::SM_90A).unwrap_err();
    assert!(matches!(error, CudaError::Nvrtc(NvrtcError::ZeroByte { .. })), "{error}");
    // SAFETY: our own fake, with this function.
    let library = unsafe { Library::new(&path) }.unwrap();
    // SAFETY: the type is that in nvrtc.c.
    let open = unsafe { library.get::<unsafe extern "C" fn() -> i32>("fake_open") }.unwrap();
    // SAFETY: it reads a number.
    assert_eq!(unsafe { open() }, 0);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_second_compilation_comes_from_the_disk() {
    let folder = folder("through");
    let path = fake_nvrtc(&folder, &[]);
    let nvrtc = Nvrtc::load(&Search::only(&path)).unwrap();
    let program = Program { headers: &[("own.cuh", "// header")], ..PROBE };
    let cache = Cache::at(folder.join("cache"));
    let states: Vec<bool> =
        (0..3).map(|_| nvrtc.compile_through(&cache, &program, Arch::SM_90A).unwrap().cached).collect();
    assert_eq!(states, [false, true, true]);
    let nowhere = nvrtc.compile_through(&Cache::at(path.join("cache")), &program, Arch::SM_90A).unwrap();
    assert!(!nowhere.cached && nowhere.not_kept.is_some(), "a cache that cannot be written stops nothing");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let Some(nvrtc) = real() else { return };
    println!("NVRTC {} from {}", nvrtc.version(), nvrtc.path().display());
    for program in &ALL {
        for arch in Arch::GATED {
            let start = Instant::now();
            let cubin = nvrtc.compile(program, arch).unwrap_or_else(|error| panic!("{error}"));
            println!("{} {arch}: {} bytes in {:.1?}", program.name, cubin.bytes().len(), start.elapsed());
            assert!(cubin.bytes().starts_with(b"\x7fELF"));
        }
    }
    let cubin = nvrtc.compile(&PROBE, Arch::SM_90A).unwrap();
    let name = PROBE_NAME.to_bytes_with_nul();
    assert!(cubin.bytes().windows(name.len()).any(|window| window == name), "the host's name of the kernel");
}

#[test]
fn a_real_error_names_file_and_line() {
    let Some(nvrtc) = real() else { return };
    let program = Program {
        name: "main.cu",
        source: "#include \"own.cuh\"\n",
        headers: &[("own.cuh", "\nint broken = ;\n")],
        options: &[],
    };
    let error = nvrtc.compile(&program, Arch::SM_90A).unwrap_err().to_string();
    assert!(error.contains("own.cuh(2): error"), "{error}");
    let bad_option = Program { options: &["--no-such-option"], ..PROBE };
    assert!(nvrtc.compile(&bad_option, Arch::SM_90A).unwrap_err().to_string().contains("--no-such-option"));
    let unknown = nvrtc.compile(&PROBE, Arch::of(99, 9)).unwrap_err();
    assert!(matches!(unknown, CudaError::Nvrtc(NvrtcError::Unsupported { .. })));
}
