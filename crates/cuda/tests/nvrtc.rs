//! NVRTC's loading, against fakes; and every kernel through a real one, where there is one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use expertrail_cuda::kernels::{ALL, PROBE, PROBE_NAME};
use expertrail_cuda::{
    Arch, Cache, Cubin, CudaError, LoadError, Nvrtc, NvrtcError, Program, Search, Version,
};
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
fn a_library_that_does_not_serve_does_not_end_the_search() {
    let folder = folder("search-on");
    let sub = |name: &str| {
        let sub = folder.join(name);
        std::fs::create_dir_all(&sub).unwrap();
        sub
    };
    let old = fake_nvrtc(&sub("old"), &["MAJOR=11"]);
    let incomplete = fake_nvrtc(&sub("incomplete"), &["nvrtcGetCUBIN=gone"]);
    let alone = fake(&sub("alone"), "libnvrtc.so.12", "nvrtc.c", &["MAJOR=99"]);
    let missing = folder.join("missing/libnvrtc.so.12");
    let good = fake_nvrtc(&sub("good"), &[]);
    let mut search = Search {
        places: vec![missing.clone(), old.clone(), incomplete.clone(), alone.clone(), good.clone()],
    };
    let nvrtc = Nvrtc::load(&search).unwrap();
    assert_eq!((nvrtc.path(), nvrtc.version()), (&*good, Version { major: 12, minor: 8 }));
    // The first that serves is taken, whatever follows.
    search.places.rotate_right(1);
    assert_eq!(Nvrtc::load(&search).unwrap().path(), good);

    search.places.remove(0);
    let error = Nvrtc::load(&search).unwrap_err();
    let text = error.to_string();
    for part in [
        missing.to_str().unwrap(),
        "cannot open shared object file",
        &format!("{} (version 11.8, but 12.0 or newer is needed)", old.display()),
        &format!("{} (no symbol nvrtcGetCUBIN", incomplete.display()),
        &format!("{} (NVRTC's libnvrtc-builtins.so.99.8 not found", alone.display()),
        "pip install nvidia-cuda-nvrtc",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert!(matches!(&error, LoadError::NoneServes { tried, .. } if tried.len() == 4));
    assert_eq!(CudaError::from(error).exit_code(), 4);
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
fn every_kernel_compiles_for_every_architecture_and_keeps_the_contract() {
    let Some(nvrtc) = real() else { return };
    println!("NVRTC {} from {}", nvrtc.version(), nvrtc.path().display());
    let mut table = String::from("kernel arch registers static_shared_bytes stack_bytes spilled_bytes\n");
    let mut spilling = Vec::new();
    let mut kernels: BTreeMap<Arch, Vec<String>> = BTreeMap::new();
    for program in &ALL {
        for arch in Arch::GATED {
            let start = Instant::now();
            let measured = nvrtc.compile_measured(program, arch).unwrap_or_else(|error| panic!("{error}"));
            let bytes = measured.cubin.bytes();
            println!("{} {arch}: {} bytes in {:.1?}", program.name, bytes.len(), start.elapsed());
            assert!(bytes.starts_with(b"\x7fELF"));
            let mut inside = measured.cubin.kernels().unwrap();
            inside.sort();
            assert!(!inside.is_empty(), "{} has no kernel", program.name);
            let mut told: Vec<String> = Vec::new();
            for taken in &measured.resources {
                let name = plain(&taken.name).unwrap_or(&taken.name);
                let registers = taken.registers.map_or_else(|| "-".to_owned(), |count| count.to_string());
                let (shared, stack, spilled) = (taken.shared, taken.stack, taken.spilled());
                // Functions that kernels call are a line only where there is something to see.
                if taken.is_kernel() || stack + spilled > 0 {
                    writeln!(table, "{name} {arch} {registers} {shared} {stack} {spilled}").unwrap();
                }
                if spilled != 0 {
                    spilling.push(format!("{name} {arch}: {spilled} bytes"));
                }
                told.extend(taken.is_kernel().then(|| taken.name.clone()));
            }
            told.sort();
            assert_eq!(told, inside, "{} {arch}: the log tells of every kernel", program.name);
            kernels.entry(arch).or_default().extend(inside);
        }
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    std::fs::write(target.join("kernel-resources.txt"), &table).unwrap();
    print!("{table}");
    assert!(spilling.is_empty(), "kernels must not spill: {spilling:?}");

    for (arch, mangled) in kernels {
        let names: Vec<&str> = mangled
            .iter()
            .map(|name| {
                plain(name).unwrap_or_else(|| panic!("{name} is not expertrail::NAME(expertrail::Args)"))
            })
            .collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{arch}: two kernels are called {name}");
        }
        // Profilers and their scripts tell the phases apart by these words.
        for word in ["dispatch", "combine", "notify"] {
            let having: Vec<_> = names.iter().filter(|name| name.contains(word)).collect();
            assert!(having.len() <= 1, "{arch}: {word} is in the names of {having:?}");
        }
        assert!(names.contains(&"probe"), "the host's name of the kernel");
    }
    assert_eq!(plain(PROBE_NAME.to_str().unwrap()), Some("probe"));
}

/// The name of the kernel that is mangled to `_ZN10expertrail<length><name>ENS_4ArgsE`, which is
/// `expertrail::name(expertrail::Args)`; nothing else is a kernel here.
fn plain(mangled: &str) -> Option<&str> {
    let rest = mangled.strip_prefix("_ZN10expertrail")?.strip_suffix("ENS_4ArgsE")?;
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let length = &rest[..rest.len() - name.len()];
    (length.parse() == Ok(name.len()) && !length.starts_with('0')).then_some(name)
}

#[test]
fn only_plain_kernels_have_plain_names() {
    assert_eq!(plain("_ZN10expertrail8dispatchENS_4ArgsE"), Some("dispatch"));
    for other in [
        "dispatch",
        "_Z8dispatchN10expertrail4ArgsE",
        "_ZN10expertrail2ht8dispatchENS_4ArgsE",
        "_ZN10expertrail8dispatchENS_4ArgsEi",
        "_ZN10expertrail8dispatchENS_8SendArgsE",
        "_ZN10expertrail8dispatchILi8EEEvNS_4ArgsE",
        "_ZN10expertrail9dispatchENS_4ArgsE",
        "_ZN9expertrai8dispatchENS_4ArgsE",
    ] {
        assert_eq!(plain(other), None, "{other}");
    }
}

#[test]
fn measuring_tells_spills_stack_and_shared_memory() {
    let Some(nvrtc) = real() else { return };
    // 96 values that all live at once in the 32 registers that two blocks of 1024 threads leave.
    let source = "namespace expertrail {
        struct Args { float* out; int n; };
        __global__ void __launch_bounds__(1024, 2) spills(Args a) {
            float x[96];
            for (int i = 0; i < 96; i++) x[i] = a.out[i * 1024 + threadIdx.x];
            for (int k = 0; k < a.n; k++) {
                #pragma unroll
                for (int i = 0; i < 96; i++) x[i] = x[i] * x[(i * 7 + 1) % 96] + 1.f;
            }
            for (int i = 0; i < 96; i++) a.out[i * 1024 + threadIdx.x] = x[i];
        }
        __global__ void shares(Args a) {
            __shared__ float s[128];
            s[threadIdx.x] = a.out[threadIdx.x];
            __syncthreads();
            a.out[threadIdx.x] = s[127 - threadIdx.x];
        }
        template <int N> __global__ void many(Args a) { a.out[threadIdx.x] = N; }
        template __global__ void many<3>(Args);
    }";
    let program = Program { name: "spills.cu", source, headers: &[], options: &[] };
    for arch in Arch::GATED {
        let measured = nvrtc.compile_measured(&program, arch).unwrap();
        let of = |name: &str| {
            let found = measured.resources.iter().find(|taken| taken.name.contains(name));
            found.unwrap_or_else(|| panic!("{name} in {:?}", measured.resources))
        };
        let (spills, shares) = (of("spills"), of("shares"));
        assert_eq!(spills.registers, Some(32));
        assert!(spills.spill_stores > 0 && spills.spill_loads > 0 && spills.stack > 0, "{spills:?}");
        assert_eq!((shares.shared, shares.spilled(), shares.stack), (512, 0, 0));
        let mut names = measured.cubin.kernels().unwrap();
        names.sort();
        let wanted = ["4manyILi3EEEvNS_4ArgsE", "6sharesENS_4ArgsE", "6spillsENS_4ArgsE"];
        assert_eq!(names, wanted.map(|name| format!("_ZN10expertrail{name}")));
    }
}

#[test]
fn a_damaged_table_of_symbols_is_an_error_and_no_panic() {
    let Some(nvrtc) = real() else { return };
    let whole = nvrtc.compile(&PROBE, Arch::SM_90A).unwrap();
    assert_eq!(whole.kernels().unwrap(), [PROBE_NAME.to_str().unwrap()]);
    for at in 0..whole.bytes().len() {
        for value in [0, 0x7f, 0xff] {
            let mut bytes = whole.bytes().to_vec();
            bytes[at] = value;
            if let Ok(cubin) = Cubin::new(bytes) {
                // Any answer, but an answer.
                let _ = cubin.kernels();
            }
        }
    }
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
