//! A matrix product that fills every SM, and is itself checked.

use std::time::Instant;

use expertrail_cuda::{DeviceMemory, DeviceSlice, Stream};

use crate::check::{Checker, hash};
use crate::gpu::{Outcome, Reader, during, f32_bytes, poisoned, upload};
use crate::slots::Slots;

/// Rows of the square matrices: 2 x 2048^3 operations, some milliseconds of a plain kernel on all SMs.
const SIDE: usize = 2048;

/// The matrices and the product's stream.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    checker: &'a Checker,
    stream: &'a Stream,
    a: DeviceMemory,
    b: DeviceMemory,
    c: DeviceMemory,
    wanted: u64,
    milliseconds: f64,
}

impl<'a> Product<'a> {
    /// Makes the matrices, and the product once with nothing beside.
    pub(crate) fn new(checker: &'a Checker, stream: &'a Stream) -> Result<Self, String> {
        let context = stream.context();
        // Small whole numbers: every sum is exact, so any element can be worked out.
        let values =
            |step: usize| -> Vec<f32> { (0..SIDE * SIDE).map(|i| (i * step % 7) as f32 - 3.0).collect() };
        let (a, b) = (values(3), values(5));
        let mut product = Self {
            checker,
            stream,
            a: upload(context, &f32_bytes(&a))?,
            b: upload(context, &f32_bytes(&b))?,
            c: poisoned(context, 4 * SIDE * SIDE)?,
            wanted: 0,
            milliseconds: 0.0,
        };
        let started = Instant::now();
        product.run()?;
        stream.synchronize().map_err(during("the matrix product"))?;
        product.milliseconds = started.elapsed().as_secs_f64() * 1e3;
        let c = Reader::new(stream).read(DeviceSlice::of(&product.c))?;
        for (row, column) in [(0, 0), (1, SIDE - 1), (SIDE / 2 + 3, 17), (SIDE - 1, SIDE - 1)] {
            let want: f32 = (0..SIDE).map(|k| a[row * SIDE + k] * b[k * SIDE + column]).sum();
            let at = 4 * (row * SIDE + column);
            if c[at..at + 4] != want.to_le_bytes() {
                return Err(format!("the matrix product alone is wrong at {row}, {column}: {want} wanted"));
            }
        }
        product.wanted = hash(&c, SIDE);
        Ok(product)
    }

    /// Multiplies once more.
    pub(crate) fn run(&self) -> Outcome {
        let matrices = [&self.a, &self.b, &self.c].map(DeviceMemory::address);
        // SAFETY: three matrices of SIDE x SIDE f32, which live until the stream has been synchronised: freeing
        // memory waits for the device.
        unsafe { self.checker.occupy(self.stream, SIDE as u32, matrices) }
            .map_err(during("the matrix product"))
    }

    /// Has the result compared with that of the product alone.
    pub(crate) fn expect(&self, slots: &mut Slots<'_>) -> Outcome {
        let c = DeviceSlice::of(&self.c);
        slots.expect(self.stream, c, (SIDE, SIDE), self.wanted, || "the matrix product".to_owned())
    }

    pub(crate) fn milliseconds(&self) -> f64 {
        self.milliseconds
    }
}
