//! Times dispatch and combine on the GPUs of this host over SM counts, and checks every byte once: for whoever changes
//! a kernel. `cuda_tune [ranks] [sms,sms,...] [iterations]`. `expertrail bench --backend cuda` is the real benchmark.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a tool for developers fails by panicking"
)]

use std::fmt::Write as _;
use std::time::Instant;

use expertrail_core::{Bf16, Placement, Shape, Topology};
use expertrail_cuda::{
    Context, CudaCombine, CudaCommunicator, CudaConfig, CudaDispatch, CudaHandle, DeviceIds, DeviceMemory,
    DevicePayload, DeviceRows, DeviceSlice, Event, Scales,
};
use expertrail_group::Group;
use expertrail_group::spawn::{LocalLaunch, Prefix};

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

struct Case {
    name: &'static str,
    shape: Shape,
    replacement: bool,
}

fn ids(case: &Case, rank: usize) -> Vec<i32> {
    let Shape { max_tokens, top_k, experts, .. } = case.shape;
    let mut ids = Vec::with_capacity(max_tokens * top_k);
    for token in 0..max_tokens {
        let mut chosen: Vec<i32> = Vec::new();
        let mut draw = 0;
        while chosen.len() < top_k {
            draw += 1;
            let id = (mix(mix((rank << 32 | token) as u64) ^ draw) % experts as u64) as i32;
            if case.replacement || !chosen.contains(&id) {
                chosen.push(id);
            }
        }
        ids.extend(chosen);
    }
    ids
}

/// Word `i` of row `row` of `rank`: small BF16 numbers.
fn word(rank: usize, row: usize, i: usize, salt: u64) -> u32 {
    let bits = mix((rank as u64) << 50 ^ (row as u64) << 20 ^ i as u64 ^ salt << 60) as u32;
    bits & 0x807F_807F | 0x3F00_3F00
}

fn rows(rank: usize, count: usize, words: usize, salt: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * count * words);
    for row in 0..count {
        let seed = word(rank, row, 0, salt);
        for i in 0..words {
            bytes.extend(
                (seed.wrapping_add((i as u32).wrapping_mul(0x0003_0005)) & 0x807F_807F | 0x3F00_3F00)
                    .to_le_bytes(),
            );
        }
    }
    bytes
}

fn upload(context: &Context, bytes: &[u8]) -> DeviceMemory {
    let mut memory = DeviceMemory::new(context, bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

fn download(slice: DeviceSlice<'_>, context: &Context, comm: &CudaCommunicator) -> Vec<u8> {
    comm.synchronize().unwrap();
    let copy = DeviceMemory::new(context, slice.bytes()).unwrap();
    // SAFETY: both live and are as long.
    unsafe { comm.stream().copy(copy.address(), slice.address(), slice.bytes()) }.unwrap();
    comm.stream().synchronize().unwrap();
    let mut bytes = vec![0; slice.bytes()];
    copy.read(0, &mut bytes).unwrap();
    bytes
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ranks: usize = args.first().map_or(2, |a| a.parse().unwrap());
    if std::env::var("EXPERTRAIL_TUNE_RANK").is_err() {
        let outcome = LocalLaunch::new(std::env::current_exe().unwrap(), ranks)
            .args(&args)
            .env("EXPERTRAIL_TUNE_RANK", "1")
            .prefix(Prefix::None)
            .run()
            .unwrap();
        std::process::exit(i32::from(!outcome.is_success()));
    }
    let sms: Vec<u32> =
        args.get(1).map_or("8,12,16,20,24", |s| s).split(',').map(|n| n.parse().unwrap()).collect();
    let iterations: usize = args.get(2).map_or(30, |a| a.parse().unwrap());
    let group = Group::from_env().unwrap();
    let shape = |max_tokens, hidden, top_k, experts| Shape { max_tokens, hidden, top_k, experts };
    let only = args.get(3).map_or("", |s| s);
    for case in [
        Case { name: "deepseek-v3", shape: shape(4096, 7168, 8, 256), replacement: false },
        Case { name: "guide-intranode", shape: shape(65_536, 3072, 16, 128), replacement: true },
    ] {
        if case.name.contains(only) {
            run(&group, &case, &sms, iterations);
        }
    }
}

fn run(group: &Group, case: &Case, sms: &[u32], iterations: usize) {
    let (rank, ranks) = (group.rank(), group.size());
    let shape = case.shape;
    let topology = Topology::one_node(ranks).unwrap();
    let started = Instant::now();
    let config = CudaConfig { live_outputs: 6, ..CudaConfig::new(topology, shape) };
    let comm = CudaCommunicator::build(group, &config).unwrap_or_else(|e| panic!("{e}"));
    let context = comm.context().clone();
    if rank == 0 {
        println!(
            "{}: {shape}, {ranks} ranks, built in {:.2?}, kernels {}, heap {} MiB",
            case.name,
            started.elapsed(),
            comm.kernels_from(),
            comm.heap_bytes() >> 20
        );
    }
    let placement = Placement::new(shape.experts, ranks).unwrap();
    let all: Vec<Vec<i32>> = (0..ranks).map(|r| ids(case, r)).collect();
    let own: Vec<u8> = all[rank].iter().flat_map(|id| id.to_le_bytes()).collect();
    let (ids, weights) =
        (upload(&context, &own), upload(&context, &vec![0x3f; 4 * shape.max_tokens * shape.top_k]));
    let data = rows(rank, shape.max_tokens, shape.hidden / 2, 1);
    let x = upload(&context, &data);
    let scales = upload(&context, &rows(rank, shape.max_tokens, shape.hidden / 128, 2));
    // Destinations of every token, and what arrives here.
    let reaches = |source: usize, token: usize, to: usize| {
        all[source][token * shape.top_k..(token + 1) * shape.top_k]
            .iter()
            .any(|&id| id >= 0 && placement.rank_of(id as usize) == to)
    };
    let mut arrivals = Vec::new();
    for source in 0..ranks {
        arrivals.extend((0..shape.max_tokens).filter(|&t| reaches(source, t, rank)).map(|t| (source, t)));
    }
    let remote = arrivals.iter().filter(|a| a.0 != rank).count();
    let dispatch = |fp8: bool| {
        let rows = DeviceRows::new(DeviceSlice::of(&x));
        let payload = if fp8 {
            DevicePayload::Fp8 {
                codes: rows,
                scales: Scales::row_major(DeviceSlice::of(&scales), shape.hidden / 128),
            }
        } else {
            DevicePayload::Bf16(rows)
        };
        (payload, DeviceIds::I32(DeviceSlice::of(&ids)))
    };
    // Once, checked.
    let (payload, route) = dispatch(false);
    let args = CudaDispatch::new(payload, shape.max_tokens, route).weights(DeviceSlice::of(&weights));
    let received = comm.dispatch(&args).unwrap_or_else(|e| panic!("{e}"));
    let handle: CudaHandle = received.handle().clone();
    let got = download(received.data(), &context, &comm);
    assert_eq!(received.rows(), arrivals.len());
    let row = 2 * shape.hidden;
    let inputs: Vec<Vec<u8>> = (0..ranks).map(|r| rows(r, shape.max_tokens, shape.hidden / 2, 1)).collect();
    for (i, &(source, token)) in arrivals.iter().enumerate() {
        assert!(got[i * row..(i + 1) * row] == inputs[source][token * row..(token + 1) * row], "row {i}");
    }
    let experts: Vec<Vec<u8>> =
        (0..ranks).map(|r| rows(r, shape.max_tokens * ranks, shape.hidden / 2, 3)).collect();
    let y = upload(&context, &experts[rank][..arrivals.len() * row]);
    let shared = comm.alloc_rows(arrivals.len() * row, None).unwrap();
    let out = DeviceMemory::new(&context, shape.max_tokens * row).unwrap();
    // SAFETY: both live and are as long.
    unsafe { comm.stream().copy(shared.slice().address(), y.address(), arrivals.len() * row) }.unwrap();
    let value = |bytes: &[u8], at: usize| Bf16(u16::from_le_bytes([bytes[at], bytes[at + 1]])).to_f32();
    // Where this rank's rows lie at each owner.
    let mut next: Vec<usize> = (0..ranks)
        .map(|to| (0..rank).map(|s| (0..shape.max_tokens).filter(|&t| reaches(s, t, to)).count()).sum())
        .collect();
    let mut want = vec![0_u8; shape.max_tokens * row];
    for token in 0..shape.max_tokens {
        let mut sum = vec![0f32; shape.hidden];
        for to in (0..ranks).filter(|&to| reaches(rank, token, to)) {
            for (i, sum) in sum.iter_mut().enumerate() {
                *sum += value(&experts[to], next[to] * row + 2 * i);
            }
            next[to] += 1;
        }
        for (i, sum) in sum.iter().enumerate() {
            let at = token * row + 2 * i;
            want[at..at + 2].copy_from_slice(&Bf16::from_f32(*sum).0.to_le_bytes());
        }
    }
    for (name, rows) in [("push", DeviceSlice::of(&y)), ("pull", shared.slice())] {
        let args = CudaCombine::new(DeviceRows::new(rows), &handle).out(DeviceSlice::of(&out));
        comm.combine(&args).unwrap();
        let got = download(DeviceSlice::of(&out), &context, &comm);
        let wrong = got.iter().zip(&want).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "{name}: {wrong} bytes of {} differ", want.len());
    }
    if rank == 0 {
        println!("  checked: {} rows here, {remote} from peers", arrivals.len());
    }
    let gigabytes = |us: f64, bytes: usize| (remote * bytes) as f64 / us / 1e3;
    comm.barrier().unwrap();
    let clock = Instant::now();
    for _ in 0..200 {
        comm.barrier_on(comm.stream()).unwrap();
    }
    let launch = clock.elapsed().as_secs_f64() * 1e6 / 200.0;
    comm.synchronize().unwrap();
    let clock = Instant::now();
    for _ in 0..200 {
        comm.barrier().unwrap();
    }
    if rank == 0 {
        println!(
            "  barrier: {launch:.1} us of host, {:.1} us in all",
            clock.elapsed().as_secs_f64() * 1e6 / 200.0
        );
    }
    for &sms in sms {
        let mut line = format!("  {sms:2} SMs");
        let wanted = std::env::var("TUNE_WHAT").unwrap_or_else(|_| "bf16,fp8,cached,push,pull".to_owned());
        for what in wanted.split(',') {
            let bytes = if what == "fp8" { shape.hidden + shape.hidden / 32 } else { row };
            let (payload, route) = dispatch(what == "fp8");
            let (mut times, mut host) = (Vec::new(), Vec::new());
            let mut phases = Vec::new();
            for iteration in 0..iterations + 5 {
                let (start, end) = (Event::new(&context, true).unwrap(), Event::new(&context, true).unwrap());
                comm.barrier().unwrap();
                // All start at one moment of the host's clock: a barrier over sockets leaves tens of microseconds between them.
                let moment = group.broadcast("tune", 0, &(monotonic_ns() + 300_000).to_le_bytes()).unwrap();
                let moment = u64::from_le_bytes(moment.as_slice().try_into().unwrap());
                while monotonic_ns() < moment {
                    std::hint::spin_loop();
                }
                start.record(comm.stream()).unwrap();
                let clock = Instant::now();
                match what {
                    "cached" => {
                        drop(comm.dispatch(&CudaDispatch::cached(payload, &handle).sms(sms)).unwrap());
                    }
                    "push" | "pull" => {
                        let rows = if what == "push" { DeviceSlice::of(&y) } else { shared.slice() };
                        let args = CudaCombine::new(DeviceRows::new(rows), &handle)
                            .out(DeviceSlice::of(&out))
                            .sms(sms);
                        drop(comm.combine(&args).unwrap());
                    }
                    _ => {
                        let args = CudaDispatch::new(payload, shape.max_tokens, route);
                        drop(comm.dispatch(&args.weights(DeviceSlice::of(&weights)).sms(sms)).unwrap());
                    }
                }
                let returned = clock.elapsed().as_secs_f64() * 1e6;
                end.record(comm.stream()).unwrap();
                end.synchronize().unwrap();
                comm.synchronize().unwrap();
                if iteration >= 5 {
                    times.push(f64::from(end.since(&start).unwrap()) * 1e3);
                    host.push(returned);
                    phases.push(comm.last_phases());
                }
            }
            let all = group
                .all_gather("times", &times.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>())
                .unwrap();
            let mut most: Vec<f64> = (0..iterations)
                .map(|i| {
                    all.iter()
                        .map(|b| f64::from_le_bytes(b[8 * i..8 * i + 8].try_into().unwrap()))
                        .fold(0.0, f64::max)
                })
                .collect();
            most.sort_by(f64::total_cmp);
            host.sort_by(f64::total_cmp);
            let (median, host) = (most[iterations / 2], host[iterations / 2]);
            phases.sort_by_key(|p| p.end);
            let p = phases[iterations / 2];
            let _ = write!(
                line,
                "\n    {what:6} {median:.1} us {:.0} GB/s, host {host:.0}, kernel {} (counted {}, notified {}, sent {}, through {})",
                gigabytes(median, bytes),
                p.end / 1000,
                p.counted / 1000,
                p.notified / 1000,
                p.sent / 1000,
                p.through / 1000
            );
        }
        if rank == 0 {
            println!("{line}");
        }
    }
    comm.synchronize().unwrap();
    group.barrier("end").unwrap();
}
