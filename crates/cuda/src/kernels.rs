//! The kernels' sources, and the structures that they share with the host.

use std::ffi::CStr;

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

pub(crate) const DISPATCH_NAME: &CStr = c"_ZN10expertrail8dispatchENS_4ArgsE";
pub(crate) const COMBINE_NAME: &CStr = c"_ZN10expertrail7combineENS_4ArgsE";
pub(crate) const MEET_NAME: &CStr = c"_ZN10expertrail4meetENS_4ArgsE";
pub(crate) const LAYOUT_NAME: &CStr = c"_ZN10expertrail6layoutENS_4ArgsE";

/// Every program, for the gate that compiles them all and for releases that embed them.
pub const ALL: [Program<'static>; 6] = [PROBE, DISPATCH, COMBINE, MEET, LAYOUT, BENCH];

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
