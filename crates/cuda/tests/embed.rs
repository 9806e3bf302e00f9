//! Where compiled kernels come from.
//!
//! `scripts/test` runs this again with kernels embedded and NVRTC hidden.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;

use expertrail_cuda::kernels::{ALL, PROBE};
use expertrail_cuda::{
    Arch, Cache, Context, CudaError, Driver, Embedded, Fingerprint, Kernels, LoadError, Nvrtc, Origin,
    Program, Search,
};
use support::{cubin, fake, folder};

/// A table of `programs` for `archs`, each with kernels that say which they are.
fn table(programs: &[Program<'static>], archs: &[Arch]) -> Kernels {
    let entries: Vec<Embedded> = programs
        .iter()
        .flat_map(|program| {
            archs.iter().map(|arch| Embedded {
                program: program.name,
                arch: *arch,
                fingerprint: Fingerprint::new(program, *arch),
                cubin: cubin(format!("{} {} {arch}", program.name, program.source.len()).as_bytes()).leak(),
            })
        })
        .collect();
    Kernels::embedding(entries.leak())
}

fn hidden() -> Result<Nvrtc, LoadError> {
    let hide = |name: &str| (name == "EXPERTRAIL_NVRTC").then(|| "/nowhere/libnvrtc.so.13".into());
    Nvrtc::load(&Search::nvrtc_in(hide))
}

const OTHER: Program<'static> = Program { name: "other.cu", source: "// other", headers: &[], options: &[] };

#[test]
fn embedded_kernels_need_no_nvrtc() {
    let kernels = table(&[OTHER, PROBE], &[Arch::SM_100A, Arch::SM_90A]);
    for arch in [Arch::SM_90A, Arch::SM_100A] {
        let found = kernels.find(&PROBE, arch, &Cache::off(), hidden).unwrap();
        assert_eq!(found.from, Origin::Embedded);
        let wanted = format!("probe.cu {} {arch}", PROBE.source.len());
        assert_eq!(&found.cubin.bytes()[64..], wanted.as_bytes());
    }
    let never = || -> Result<Nvrtc, LoadError> { panic!("NVRTC was opened") };
    kernels.find(&OTHER, Arch::SM_90A, &Cache::off(), never).unwrap();
}

#[test]
fn without_either_the_error_says_what_is_embedded_and_what_is_missing() {
    let kernels = table(&[PROBE], &[Arch::SM_100A, Arch::SM_90A]);
    let error = kernels.find(&PROBE, Arch::of(12, 0), &Cache::off(), hidden).unwrap_err();
    let text = error.to_string();
    for part in [
        "probe.cu",
        "embeds kernels for sm_90a, sm_100a only",
        "the device is sm_120a",
        "/nowhere/libnvrtc.so.13",
        "pip install nvidia-cuda-nvrtc",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert!(
        matches!(&error, CudaError::NoKernels { nvrtc, .. } if matches!(**nvrtc, LoadError::Missing { .. }))
    );
    assert_eq!(error.exit_code(), 4);
    let nothing = Kernels::embedding(&[]).find(&PROBE, Arch::SM_90A, &Cache::off(), hidden).unwrap_err();
    assert!(nothing.to_string().contains("embeds no kernels"), "{nothing}");
}

/// A driver older than the compiler of a release: what it refuses is compiled where that is possible.
#[test]
fn embedded_kernels_that_the_driver_refuses_are_compiled() {
    let folder = folder("refused");
    let compiler = fake(&folder, "libnvrtc.so.12", "nvrtc.c", &[]);
    fake(&folder, "libnvrtc-builtins.so.12.8", "nvrtc.c", &["BUILTINS"]);
    let kernels = table(&[PROBE], &[Arch::SM_90A]);
    // Each a library of its own: the count of loads is the library's.
    let context = |name: &str, code: u32| {
        let library = fake(&folder, name, "driver.c", &[&format!("MODULE={code}")]);
        Driver::load(&Search::only(library)).unwrap().device(0).unwrap().context().unwrap()
    };
    let load = |context: &Context, nvrtc: &dyn Fn() -> Result<Nvrtc, LoadError>| {
        kernels.load(context, &PROBE, &Cache::off(), nvrtc).map(|(_, found)| found.from)
    };
    let found = || Nvrtc::load(&Search::only(&compiler));
    assert_eq!(load(&context("a.so", 0), &found).unwrap(), Origin::Embedded);
    assert_eq!(load(&context("b.so", 222), &found).unwrap(), Origin::Compiled);
    let text = load(&context("c.so", 222), &hidden).unwrap_err().to_string();
    assert!(text.contains("222") && text.contains("580") && text.contains("EXPERTRAIL_NVRTC"), "{text}");
    // Another failure is not about the kernels.
    assert!(load(&context("d.so", 2), &found).is_err());
}

#[test]
fn kernels_of_other_sources_or_options_are_not_taken() {
    let kernels = table(&[PROBE], &[Arch::SM_90A]);
    let others = [
        Program { source: "// changed", ..PROBE },
        Program { headers: &[("own.cuh", "// header")], ..PROBE },
        Program { options: &["-DX"], ..PROBE },
        Program { name: "probe2.cu", ..PROBE },
    ];
    for other in others {
        let error = kernels.find(&other, Arch::SM_90A, &Cache::off(), hidden).unwrap_err();
        assert!(matches!(error, CudaError::NoKernels { .. }), "{other:?}");
    }
}

#[test]
fn every_input_changes_the_fingerprint() {
    let base = Program { name: "n", source: "s", headers: &[], options: &[] };
    let prints = [
        Fingerprint::new(&base, Arch::SM_90A),
        Fingerprint::new(&base, Arch::SM_100A),
        Fingerprint::new(&Program { options: &["-a"], ..base }, Arch::SM_90A),
        Fingerprint::new(&Program { options: &["-", "a"], ..base }, Arch::SM_90A),
        Fingerprint::new(&Program { name: "ns", source: "", ..base }, Arch::SM_90A),
        Fingerprint::new(&Program { source: "t", ..base }, Arch::SM_90A),
        Fingerprint::new(&Program { headers: &[("h", "x")], ..base }, Arch::SM_90A),
        Fingerprint::new(&Program { headers: &[("hx", "")], ..base }, Arch::SM_90A),
    ];
    for (i, a) in prints.iter().enumerate() {
        assert!(prints[..i].iter().all(|b| a != b), "fingerprint {i}");
    }
}

#[test]
fn the_order_is_embedded_then_disk_then_nvrtc() {
    let folder = folder("order");
    fake(&folder, "libnvrtc-builtins.so.12.8", "nvrtc.c", &["BUILTINS"]);
    let path = fake(&folder, "libnvrtc.so.12", "nvrtc.c", &[]);
    let opened = Cell::new(0);
    let nvrtc = || {
        opened.set(opened.get() + 1);
        Nvrtc::load(&Search::only(&path))
    };
    let cache = Cache::at(folder.join("cache"));
    let none = Kernels::embedding(&[]);
    let other_device = table(&[PROBE], &[Arch::SM_100A]);
    let same_device = table(&[PROBE], &[Arch::SM_100A, Arch::SM_90A]);
    let from = |kernels: &Kernels, cache: &Cache| {
        let found = kernels.find(&PROBE, Arch::SM_90A, cache, nvrtc).unwrap();
        assert!(found.not_kept.is_none());
        found.from
    };
    let seen = [
        from(&same_device, &cache),
        from(&other_device, &cache),
        from(&other_device, &cache),
        from(&none, &cache),
        from(&none, &Cache::off()),
        // The disk has them too, but what was released comes first.
        from(&same_device, &cache),
    ];
    assert_eq!(seen, {
        use Origin::{Compiled, Disk, Embedded};
        [Embedded, Compiled, Disk, Disk, Compiled, Embedded]
    });
    assert_eq!(opened.get(), 4, "NVRTC is opened only when nothing is embedded");
    let unwritable = Cache::at(path.join("cache"));
    let found = none.find(&PROBE, Arch::SM_90A, &unwritable, nvrtc).unwrap();
    assert!(found.from == Origin::Compiled && found.not_kept.is_some());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_this_build_embeds_is_found_without_nvrtc() {
    let kernels = Kernels::of_this_build();
    if kernels.embedded().is_empty() {
        // `scripts/test` sets this together with EXPERTRAIL_EMBED.
        assert!(std::env::var_os("EXPERTRAIL_EMBED").is_none_or(|folder| folder.is_empty()), "none embedded");
        println!("NOT RUN: this build embeds no kernels (EXPERTRAIL_EMBED was not set)");
        return;
    }
    assert_eq!(kernels.archs(), Arch::GATED);
    for program in &ALL {
        for arch in Arch::GATED {
            let found = kernels.find(program, arch, &Cache::off(), hidden).unwrap();
            assert_eq!(found.from, Origin::Embedded);
            assert!(!found.cubin.kernels().unwrap().is_empty(), "{} {arch}", program.name);
            println!("{} {arch}: {} bytes {}", program.name, found.cubin.bytes().len(), found.from);
        }
    }
}
