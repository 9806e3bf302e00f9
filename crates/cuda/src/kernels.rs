//! The kernels' sources, and the structures that they share with the host.

use std::ffi::CStr;
use std::mem::offset_of;

use crate::nvrtc::Program;

/// The smallest kernel, for finding out whether kernels run at all.
pub const PROBE: Program<'static> =
    Program { name: "probe.cu", source: include_str!("../kernels/probe.cu"), headers: &[], options: &[] };

/// The mangled name of `expertrail::probe(expertrail::Args)`.
pub const PROBE_NAME: &CStr = c"_ZN10expertrail5probeENS_4ArgsE";

const PTX: (&str, &str) = ("ptx.cuh", include_str!("../kernels/ptx.cuh"));

/// Sums are plain adds and fused ones where the source says so (DESIGN 5.5); denormals are kept by default.
const OPTIONS: &[&str] = &["--fmad=false"];

/// A program that a communicator runs.
const fn of_communicator(name: &'static str, source: &'static str) -> Program<'static> {
    const HEADERS: &[(&str, &str)] = &[PTX, ("protocol.cuh", include_str!("../kernels/protocol.cuh"))];
    Program { name, source, headers: HEADERS, options: OPTIONS }
}

/// Dispatch.
pub const DISPATCH: Program<'static> = of_communicator("dispatch.cu", include_str!("../kernels/dispatch.cu"));
/// Combine.
pub const COMBINE: Program<'static> = of_communicator("combine.cu", include_str!("../kernels/combine.cu"));
/// Barriers and refusals.
pub const MEET: Program<'static> = of_communicator("meet.cu", include_str!("../kernels/meet.cu"));
/// Counts and membership.
pub const LAYOUT: Program<'static> = of_communicator("layout.cu", include_str!("../kernels/layout.cu"));

/// What the benchmark runs beside the calls that it measures: rows made and checked, a common start, the link's ceiling.
pub const BENCH: Program<'static> = Program {
    name: "bench.cu",
    source: include_str!("../kernels/bench.cu"),
    headers: &[PTX, ("rows.cuh", include_str!("../kernels/rows.cuh"))],
    options: OPTIONS,
};

/// A producer of the command ring that pushes what [`ring_command`] foretells.
pub const RING: Program<'static> = Program {
    name: "ring.cu",
    source: include_str!("../kernels/ring.cu"),
    headers: &[PTX, ("ring.cuh", include_str!("../kernels/ring.cuh"))],
    options: OPTIONS,
};

/// The mangled name of `expertrail::ring(expertrail::Args)`.
pub const RING_NAME: &CStr = c"_ZN10expertrail4ringENS_4ArgsE";

pub(crate) const DISPATCH_NAME: &CStr = c"_ZN10expertrail8dispatchENS_4ArgsE";
pub(crate) const COMBINE_NAME: &CStr = c"_ZN10expertrail7combineENS_4ArgsE";
pub(crate) const MEET_NAME: &CStr = c"_ZN10expertrail4meetENS_4ArgsE";
pub(crate) const LAYOUT_NAME: &CStr = c"_ZN10expertrail6layoutENS_4ArgsE";

/// Every program, for the gate that compiles them all and for releases that embed them.
pub const ALL: [Program<'static>; 7] = [PROBE, DISPATCH, COMBINE, MEET, LAYOUT, BENCH, RING];

/// `Args` of `probe.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProbeArgs {
    /// Where to write: `count` words on the device.
    pub out: u64,
    /// How many.
    pub count: u32,
    /// Goes into every word.
    pub seed: u32,
}
const _: () = assert!(size_of::<ProbeArgs>() == 16 && align_of::<ProbeArgs>() == 8);

/// What the probe writes at `index`.
pub fn probe_word(index: u32, seed: u32) -> u32 {
    index.wrapping_mul(2_654_435_761) ^ seed
}

/// `RingProducer` of `ring.cuh`: a producer's state, in memory that the device writes. All but the first three start at 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingProducer {
    /// Where the entries lie, as the device sees them: 16 bytes each, zeroed, in pinned host memory.
    pub entries: u64,
    /// Where the number of entries taken lies: 8 bytes, zeroed, in pinned host memory.
    pub taken: u64,
    /// How many entries; a power of two.
    pub capacity: u64,
    /// Commands pushed.
    pub pushed: u64,
    /// Entries taken when the device last looked.
    pub credit: u64,
    /// Pushes that found the ring full.
    pub stalls: u64,
}
const _: () = assert!(size_of::<RingProducer>() == 48 && align_of::<RingProducer>() == 8);
const _: () = assert!(offset_of!(RingProducer, taken) == 8 && offset_of!(RingProducer, capacity) == 16);
const _: () = assert!(offset_of!(RingProducer, pushed) == 24 && offset_of!(RingProducer, credit) == 32);
const _: () = assert!(offset_of!(RingProducer, stalls) == 40);

/// `Args` of `ring.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingArgs {
    /// Where the [`RingProducer`] lies.
    pub ring: u64,
    /// Where a 32-bit word lies that ends the wait for room when it is not 0.
    pub stop: u64,
    /// Where what became of the last push goes: 8 bytes; 0 when all were pushed, else a `RingPush` of `ring.cuh`.
    pub result: u64,
    /// How many commands to push.
    pub count: u64,
}
const _: () = assert!(size_of::<RingArgs>() == 32 && align_of::<RingArgs>() == 8);

/// Kind, channel, peer, sequence, epoch, slot and length of the `index`-th command that `ring.cu` pushes.
pub fn ring_command(index: u32) -> [u32; 7] {
    let of = |factor: u32, bound: u32| index.wrapping_mul(factor) % bound;
    [1 + of(1, 6), of(1, 8), of(7, 4096), of(1, 1024), of(1, 16), of(3, 1 << 20), of(5, 1 << 24)]
}
