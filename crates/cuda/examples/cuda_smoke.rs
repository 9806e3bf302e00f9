//! Shows, step by step, whether kernels can be compiled and run here: `cargo run -p expertrail-cuda --example
//! cuda_smoke`. Ends with 0, or with the error's exit code (4 where the machine is at fault).

use std::process::ExitCode;
use std::time::Instant;

use expertrail_cuda::kernels::{PROBE, PROBE_NAME, ProbeArgs, probe_word};
use expertrail_cuda::{
    Attribute, Cache, CudaError, DeviceMemory, Driver, Event, FunctionAttribute, Launch, Module, Nvrtc,
    Search, Stream,
};

const WORDS: u32 = 1_000_003;
const SEED: u32 = 0x0e7_e27a;

fn main() -> ExitCode {
    match run() {
        Ok(true) => {
            println!("ok");
            ExitCode::SUCCESS
        }
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<bool, CudaError> {
    let start = Instant::now();
    let driver = Driver::load(&Search::driver())?;
    println!("driver: CUDA {} from {} ({:.1?})", driver.version(), driver.path().display(), start.elapsed());
    for device in driver.devices()? {
        let uuid = u128::from_be_bytes(device.uuid()?);
        println!(
            "device {}: {}, {}, {} SMs, {} MiB, cooperative {}, fd handles {}, fabric handles {}, uuid {uuid:032x}",
            device.ordinal(),
            device.name()?,
            device.arch()?,
            device.attribute(Attribute::SMS)?,
            device.memory()? >> 20,
            device.attribute(Attribute::COOPERATIVE_LAUNCH)?,
            device.attribute(Attribute::HANDLE_FD)?,
            device.attribute(Attribute::HANDLE_FABRIC)?,
        );
    }

    let start = Instant::now();
    let nvrtc = Nvrtc::load(&Search::nvrtc())?;
    println!("NVRTC: {} from {} ({:.1?})", nvrtc.version(), nvrtc.path().display(), start.elapsed());
    let cache = Cache::from_env();
    let device = driver.device(0)?;
    let arch = device.arch()?;
    let start = Instant::now();
    let compiled = nvrtc.compile_through(&cache, &PROBE, arch)?;
    let from = if compiled.cached { "from the cache" } else { "compiled" };
    println!("kernel: {} bytes for {arch}, {from} ({:.1?})", compiled.cubin.bytes().len(), start.elapsed());
    if let Some(reason) = compiled.not_kept {
        println!("warning: {reason}");
    }

    let context = device.context()?;
    let (free, total) = context.memory_info()?;
    println!("context: {} of {} MiB free", free >> 20, total >> 20);
    let module = Module::load(&context, &compiled.cubin)?;
    let function = module.function(PROBE_NAME)?;
    println!(
        "module: {} registers, {} bytes of local memory",
        function.attribute(FunctionAttribute::REGISTERS)?,
        function.attribute(FunctionAttribute::LOCAL)?
    );

    let memory = DeviceMemory::new(&context, WORDS as usize * 4)?;
    let stream = Stream::new(&context, 0)?;
    let (before, after) = (Event::new(&context, true)?, Event::new(&context, true)?);
    let args = ProbeArgs { out: memory.address(), count: WORDS, seed: SEED };
    let shape = Launch { blocks: 8, threads: 512, shared: 0, cooperative: true, cluster: 1 };
    // SAFETY: the memory has room for the words and lives until the stream is synchronised below.
    unsafe { stream.fill(memory.address(), 0xff, memory.bytes())? };
    before.record(&stream)?;
    // SAFETY: as above; `ProbeArgs` is the kernel's parameter.
    unsafe { function.launch(&stream, shape, &args)? };
    after.record(&stream)?;
    stream.synchronize()?;
    println!("launch: {WORDS} words by 8 cooperative blocks in {:.1} us", after.since(&before)? * 1e3);

    let mut bytes = vec![0_u8; memory.bytes()];
    memory.read(0, &mut bytes)?;
    let wrong = (0..WORDS)
        .zip(bytes.as_chunks::<4>().0)
        .find(|(index, word)| u32::from_ne_bytes(**word) != probe_word(*index, SEED));
    if let Some((index, word)) = wrong {
        eprintln!("error: word {index} is {:#x}", u32::from_ne_bytes(*word));
        return Ok(false);
    }
    println!("check: every word is right");
    Ok(true)
}
