//! The kernels' sources, and the structures that they share with the host.

use std::ffi::CStr;

use crate::nvrtc::Program;

/// The smallest kernel, for finding out whether kernels run at all.
pub const PROBE: Program<'static> =
    Program { name: "probe.cu", source: include_str!("../kernels/probe.cu"), headers: &[], options: &[] };

/// The mangled name of `expertrail::probe(expertrail::Args)`.
pub const PROBE_NAME: &CStr = c"_ZN10expertrail5probeENS_4ArgsE";

/// What the communicator's programs include.
const HEADERS: &[(&str, &str)] = &[
    ("ptx.cuh", include_str!("../kernels/ptx.cuh")),
    ("protocol.cuh", include_str!("../kernels/protocol.cuh")),
];

/// Sums are plain adds and fused ones where the source says so (DESIGN 5.5); denormals are kept by default.
const OPTIONS: &[&str] = &["--fmad=false"];

/// Dispatch.
pub const DISPATCH: Program<'static> = Program {
    name: "dispatch.cu",
    source: include_str!("../kernels/dispatch.cu"),
    headers: HEADERS,
    options: OPTIONS,
};
/// Combine.
pub const COMBINE: Program<'static> = Program {
    name: "combine.cu",
    source: include_str!("../kernels/combine.cu"),
    headers: HEADERS,
    options: OPTIONS,
};
/// Barriers and refusals.
pub const MEET: Program<'static> = Program {
    name: "meet.cu",
    source: include_str!("../kernels/meet.cu"),
    headers: HEADERS,
    options: OPTIONS,
};
/// Counts and membership.
pub const LAYOUT: Program<'static> = Program {
    name: "layout.cu",
    source: include_str!("../kernels/layout.cu"),
    headers: HEADERS,
    options: OPTIONS,
};

/// What the benchmark runs beside the calls that it measures: rows made and checked, a common start, the link's ceiling.
pub const BENCH: Program<'static> = Program {
    name: "bench.cu",
    source: include_str!("../kernels/bench.cu"),
    headers: &[
        ("ptx.cuh", include_str!("../kernels/ptx.cuh")),
        ("rows.cuh", include_str!("../kernels/rows.cuh")),
    ],
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
