//! The kernels' sources, and the structures that they share with the host.

use std::ffi::CStr;

use crate::nvrtc::Program;

/// The smallest kernel, for finding out whether kernels run at all.
pub const PROBE: Program<'static> =
    Program { name: "probe.cu", source: include_str!("../kernels/probe.cu"), headers: &[], options: &[] };

/// The mangled name of `expertrail::probe(expertrail::Args)`.
pub const PROBE_NAME: &CStr = c"_ZN10expertrail5probeENS_4ArgsE";

/// Every program, for the gate that compiles them all.
pub const ALL: [Program<'static>; 1] = [PROBE];

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
