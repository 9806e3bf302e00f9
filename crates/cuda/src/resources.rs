//! What kernels take of a multiprocessor, from the assembler's log.

/// What one kernel, or one function that kernels call, takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The mangled name.
    pub name: String,
    /// Registers of a thread. None for a function: its registers count into those of the kernels that call it.
    pub registers: Option<u32>,
    /// Bytes of a block's shared memory that are known at compilation, without what the driver reserves.
    pub shared: u32,
    /// Bytes of a thread's stack.
    pub stack: u32,
    /// Bytes written to memory for want of registers.
    pub spill_stores: u32,
    /// Bytes read back.
    pub spill_loads: u32,
}

impl Resources {
    /// Bytes moved because registers did not suffice.
    pub fn spilled(&self) -> u32 {
        self.spill_stores + self.spill_loads
    }

    /// Whether this is a kernel and not a function that kernels call.
    pub fn is_kernel(&self) -> bool {
        self.registers.is_some()
    }
}

/// Everything that the log of a compilation with `--ptxas-options=-v` tells, in its order.
pub(crate) fn from_log(log: &str) -> Vec<Resources> {
    let mut all: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            all.push(Resources { name: name.trim().to_owned(), ..Resources::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            last.stack = before(line, " bytes stack frame").unwrap_or(0);
            // A number that cannot be read must not pass for none.
            last.spill_stores = before(line, " bytes spill stores").unwrap_or(u32::MAX / 2);
            last.spill_loads = before(line, " bytes spill loads").unwrap_or(u32::MAX / 2);
        } else if line.contains(": Used ") {
            last.registers = before(line, " registers");
            last.shared = before(line, " bytes smem").unwrap_or(0);
        }
    }
    all
}

/// The number right before `unit`.
fn before(line: &str, unit: &str) -> Option<u32> {
    let (text, _) = line.split_once(unit)?;
    text.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As NVRTC 13.0 wrote it.
    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'shar' for 'sm_90a'
ptxas info    : Function properties for shar
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 512 bytes smem
ptxas info    : Compile time = 23.755 ms
ptxas info    : Compiling entry function 'spilly' for 'sm_90a'
ptxas info    : Function properties for spilly
ptxas         .     544 bytes stack frame, 964 bytes spill stores, 1080 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 544 bytes cumulative stack size
ptxas info    : Compile time = 65.567 ms
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
";

    #[test]
    fn the_log_is_read_kernel_by_kernel() {
        let all = from_log(LOG);
        let wanted = [
            ("shar", Some(32), 512, 0, 0, 0),
            ("spilly", Some(255), 0, 544, 964, 1080),
            ("helper", None, 0, 8, 4, 12),
        ]
        .map(|(name, registers, shared, stack, spill_stores, spill_loads)| Resources {
            name: name.to_owned(),
            registers,
            shared,
            stack,
            spill_stores,
            spill_loads,
        });
        assert_eq!(all, wanted);
        assert_eq!(all.iter().map(Resources::spilled).collect::<Vec<_>>(), [0, 2044, 16]);
        assert_eq!(from_log("probe.cu(3): warning: something\n"), []);
    }
}
