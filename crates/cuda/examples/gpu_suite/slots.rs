//! Hashes that the device computes while the host goes on, compared all at once.

use expertrail_cuda::{Context, DeviceMemory, DeviceSlice, Stream};

use crate::check::Checker;
use crate::gpu::{Outcome, during, upload};

/// Hashes between two comparisons.
const SLOTS: usize = 4096;

/// Words in device memory, and what must come to be in them.
#[derive(Debug)]
pub(crate) struct Slots<'a> {
    context: &'a Context,
    checker: &'a Checker,
    memory: DeviceMemory,
    wanted: Vec<(u64, String)>,
    compared: usize,
}

impl<'a> Slots<'a> {
    pub(crate) fn new(context: &'a Context, checker: &'a Checker) -> Result<Self, String> {
        let memory = upload(context, &vec![0; 8 * SLOTS])?;
        Ok(Self { context, checker, memory, wanted: Vec::new(), compared: 0 })
    }

    /// Whether so many more can be taken.
    pub(crate) fn have_room(&self, more: usize) -> bool {
        self.wanted.len() + more <= SLOTS
    }

    /// Outputs compared so far.
    pub(crate) fn compared(&self) -> usize {
        self.compared
    }

    /// Hashes the first rows of `slice` in stream order, to be compared later. The memory must not be freed before
    /// [`Slots::compare`], or its reuse must be ordered after `stream`.
    pub(crate) fn expect(
        &mut self,
        stream: &Stream,
        slice: DeviceSlice<'_>,
        (rows, row_words): (usize, usize),
        wanted: u64,
        what: impl FnOnce() -> String,
    ) -> Outcome {
        if slice.bytes() < 4 * rows * row_words {
            let what = what();
            return Err(format!("{what}: {} bytes for {rows} rows of {row_words} words", slice.bytes()));
        }
        if !self.have_room(1) {
            return Err("the suite took too many slots between two comparisons".to_owned());
        }
        let sum = self.memory.address() + 8 * self.wanted.len() as u64;
        // SAFETY: the slice holds the rows (checked above) and its owner keeps it as said above; the slot lies in
        // memory of `self`, which `compare` reads only after the device is idle.
        unsafe { self.checker.hash_rows(stream, slice, (rows, row_words), sum) }
            .map_err(during("hash_rows"))?;
        self.wanted.push((wanted, what()));
        Ok(())
    }

    /// Waits for the device and compares everything expected since the last time.
    pub(crate) fn compare(&mut self) -> Outcome {
        self.context.synchronize().map_err(during("waiting for the device"))?;
        let mut bytes = vec![0; 8 * self.wanted.len()];
        self.memory.read(0, &mut bytes).map_err(during("reading hashes"))?;
        let got = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let wrong: Vec<&str> = got
            .zip(&self.wanted)
            .filter(|(got, (want, _))| got != want)
            .map(|(_, (_, what))| &what[..])
            .collect();
        if let [first, ..] = &wrong[..] {
            let all = self.wanted.len();
            return Err(format!(
                "{} of {all} outputs differ from the oracle's, the first: {first}",
                wrong.len()
            ));
        }
        self.compared += self.wanted.len();
        self.wanted.clear();
        bytes.fill(0);
        self.memory.write(0, &bytes).map_err(during("clearing hashes"))?;
        self.context.synchronize().map_err(during("clearing hashes"))
    }
}
