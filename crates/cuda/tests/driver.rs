//! The driver's loading and wrappers, against fake drivers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use expertrail_cuda::kernels::{PROBE_NAME, ProbeArgs, probe_word};
use expertrail_cuda::{
    Arch, Attribute, Cubin, CudaError, DeviceMemory, Driver, Event, FunctionAttribute, Launch, LoadError,
    Module, OLDEST_DRIVER, Search, Stream, Version,
};
use libloading::Library;
use support::{cubin, fake, folder};

fn load(test: &str, defines: &[&str]) -> Result<Driver, LoadError> {
    let folder = folder(test);
    let result = Driver::load(&Search::only(fake(&folder, "libcuda.so.1", "driver.c", defines)));
    std::fs::remove_dir_all(folder).unwrap();
    result
}

/// The message, which must have every one of `parts`.
fn says(error: &impl ToString, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn a_missing_driver_names_the_places_and_the_loaders_reason() {
    let places = ["/nowhere/libcuda.so.1", "libcuda-of-no-machine.so.1"];
    let search = Search { places: places.iter().map(Into::into).collect() };
    let error = Driver::load(&search).unwrap_err();
    says(&error, &places);
    says(&error, &["cannot open shared object file", "install the NVIDIA driver", "EXPERTRAIL_LIBCUDA"]);
    assert!(matches!(&error, LoadError::Missing { tried, .. } if tried.len() == 2));
    assert_eq!(CudaError::from(error).exit_code(), 4);
}

#[test]
fn a_file_that_is_no_library_says_so() {
    let folder = folder("no-library");
    let path = folder.join("libcuda.so.1");
    std::fs::write(&path, "text").unwrap();
    let error = Driver::load(&Search::only(&path)).unwrap_err();
    says(&error, &[path.to_str().unwrap(), "file too short"]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_missing_symbol_names_library_symbol_and_version() {
    let error = load("missing-symbol", &["cuLaunchKernelEx=gone"]).unwrap_err();
    says(
        &error,
        &["libcuda.so.1", "cuLaunchKernelEx", "CUDA 11.8", "undefined symbol", "install the NVIDIA driver"],
    );
    assert!(matches!(error, LoadError::Symbol { symbol: "cuLaunchKernelEx", .. }));
}

#[test]
fn an_old_driver_is_called_old_even_where_symbols_lack_too() {
    let error = load("old", &["VERSION=11040", "cuLaunchKernelEx=gone"]).unwrap_err();
    says(&error, &["11.4", "12.0", "525"]);
    let LoadError::TooOld { found, needed, .. } = error else { panic!("{error}") };
    assert_eq!((found, needed), (Version { major: 11, minor: 4 }, OLDEST_DRIVER));
}

#[test]
fn a_driver_that_cannot_tell_its_version_is_no_use() {
    let error = load("no-version", &["VERSION_CODE=-77"]).unwrap_err();
    says(&error, &["cuDriverGetVersion", "-77"]);
    assert!(matches!(error, LoadError::Unusable { code: -77, .. }));
}

#[test]
fn no_device_says_what_to_look_at() {
    for defines in ["INIT=100", "COUNT=0"] {
        let error = load(defines, &[defines]).unwrap_err();
        says(&error, &["no CUDA device", "CUDA 13.0", "CUDA_VISIBLE_DEVICES", "--gpus all"]);
        assert!(matches!(error, LoadError::NoDevice { .. }));
    }
}

#[test]
fn failing_starts_say_what_to_do() {
    let cases = [
        (802, "CUDA_ERROR_SYSTEM_NOT_READY (802)", "nvidia-fabricmanager"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"),
        (34, "34", "stub"),
        (2_147_483_647, "code 2147483647, which the driver does not know", "nvidia-smi"),
        (-5, "code -5", "nvidia-smi"),
    ];
    for (code, name, next) in cases {
        let error = load(&format!("init{code}"), &[&format!("INIT={code}")]).unwrap_err();
        says(&error, &["cuInit", name, next]);
        assert!(matches!(error, LoadError::Start { error, .. } if error.code == code));
    }
}

#[test]
fn devices_tell_about_themselves() {
    let driver = load("devices", &[]).unwrap();
    assert_eq!(driver.version(), Version { major: 13, minor: 0 });
    let names: Vec<String> = driver.devices().unwrap().iter().map(|device| device.name().unwrap()).collect();
    assert_eq!(names, ["Fake A", "Fake B"]);
    let device = driver.device(1).unwrap();
    assert_eq!(device.arch().unwrap(), Arch::SM_90A);
    assert_eq!(device.attribute(Attribute::SMS).unwrap(), 132);
    assert_eq!(device.uuid().unwrap(), [41; 16]);
    assert_eq!(device.memory().unwrap(), 1 << 37);
    assert!(matches!(device.attribute(Attribute(1001)), Err(CudaError::Call(error)) if error.code == 1));
    let error = driver.device(2).unwrap_err();
    says(&error, &["no device 2", "2 visible"]);
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn a_kernel_runs_and_everything_is_given_back() {
    let folder = folder("runs");
    let path = fake(&folder, "libcuda.so.1", "driver.c", &[]);
    let driver = Driver::load(&Search::only(&path)).unwrap();
    // SAFETY: our own fake, with these functions.
    let library = unsafe { Library::new(&path) }.unwrap();
    // SAFETY: the types are those in driver.c.
    let (alive, current, set_current) = unsafe {
        (
            library.get::<unsafe extern "C" fn() -> i32>("fake_alive").unwrap(),
            library.get::<unsafe extern "C" fn() -> usize>("fake_current").unwrap(),
            library.get::<unsafe extern "C" fn(usize)>("fake_set_current").unwrap(),
        )
    };
    // Another library of the process works on another device.
    // SAFETY: a plain store.
    unsafe { set_current(0x99) };
    {
        let context = driver.device(0).unwrap().context().unwrap();
        context.synchronize().unwrap();
        assert_eq!(context.memory_info().unwrap(), (1 << 20, 1 << 21));
        let module = Module::load(&context, &Cubin::new(cubin(b"")).unwrap()).unwrap();
        assert!(module.function(c"nothing").is_err());
        let function = module.function(PROBE_NAME).unwrap();
        assert_eq!(function.attribute(FunctionAttribute::REGISTERS).unwrap(), 14);
        function.set_attribute(FunctionAttribute::MOST_DYNAMIC_SHARED, 99).unwrap();

        let mut memory = DeviceMemory::new(&context, 400).unwrap();
        let (stream, event) = (Stream::new(&context, 0).unwrap(), Event::new(&context, true).unwrap());
        let shape = Launch { blocks: 8, threads: 512, shared: 48, cooperative: true, cluster: 4 };
        let args = ProbeArgs { out: memory.address(), count: 100, seed: 5 };
        // SAFETY: the fake writes 100 words at `out` before it returns.
        unsafe { function.launch(&stream, shape, &args) }.unwrap();
        event.record(&stream).unwrap();
        stream.wait(&event).unwrap();
        assert!(event.is_done().unwrap() && !stream.is_done().unwrap());
        stream.synchronize().unwrap();
        event.synchronize().unwrap();
        assert_eq!(event.since(&event).unwrap(), 1.5);

        let mut bytes = [0; 400];
        memory.read(0, &mut bytes).unwrap();
        for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            assert_eq!(u32::from_ne_bytes(*word), probe_word(index as u32, 5));
        }
        memory.write(396, &[1, 2, 3, 4]).unwrap();
        // SAFETY: both ends lie in the allocation and do not overlap.
        unsafe { stream.copy(memory.address(), memory.address() + 396, 4) }.unwrap();
        memory.read(0, &mut bytes[..4]).unwrap();
        assert_eq!(bytes[..4], [1, 2, 3, 4]);
        for (offset, length) in [(397, 4), (401, 0), (usize::MAX, 2)] {
            let error = memory.read(offset, &mut bytes[..length]).unwrap_err();
            assert!(matches!(error, CudaError::Range { room: 400, .. }), "{error}");
        }
        assert!(matches!(memory.write(0, &[0; 401]), Err(CudaError::Range { .. })));
        let none = DeviceMemory::new(&context, 0).unwrap();
        none.read(0, &mut []).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { (alive(), current()) }, (5, 0x99), "context, module, memory, stream, event");
    }
    // SAFETY: as above.
    assert_eq!(unsafe { (alive(), current()) }, (0, 0x99));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn out_of_memory_names_the_call() {
    let context = load("memory", &["ALLOC=2"]).unwrap().device(0).unwrap().context().unwrap();
    let error = DeviceMemory::new(&context, 1 << 40).unwrap_err();
    says(
        &error,
        &["cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", "free device memory"],
    );
}

#[test]
fn cut_or_foreign_kernels_never_reach_the_driver() {
    let mut cut = cubin(&[0; 200]);
    // One section of 64 bytes at 64, whose bytes would lie at 200, 100 of them.
    (cut[40], cut[58], cut[60]) = (64, 64, 1);
    (cut[64 + 24], cut[64 + 32]) = (200, 100);
    assert!(Cubin::new(cut[..].to_vec()).is_err());
    cut[64 + 32] = 64;
    assert!(Cubin::new(cut.clone()).is_ok());
    assert!(Cubin::new(cut[..263].to_vec()).is_err());
    (cut[64 + 24 + 7], cut[64 + 32 + 7]) = (0xff, 0xff);
    assert!(Cubin::new(cut).is_err());
    for bytes in [&b""[..], b"PTX", &[0; 64]] {
        assert!(matches!(Cubin::new(bytes.to_vec()), Err(CudaError::Cubin { .. })));
    }
    let mut host = cubin(b"");
    host[18] = 62;
    says(&Cubin::new(host).unwrap_err(), &["not for a CUDA device"]);
}

#[test]
fn everything_may_pass_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<(Driver, DeviceMemory, Stream, Event, Module)>();
    shared::<(CudaError, expertrail_cuda::Nvrtc, expertrail_cuda::Function)>();
}
