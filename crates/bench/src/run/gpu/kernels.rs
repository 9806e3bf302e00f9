//! The benchmark's own kernels, behind functions that check every length. The one place of this crate that hands
//! addresses to the GPU.
#![allow(unsafe_code, reason = "kernels take addresses")]

use std::cell::Cell;
use std::ffi::CStr;

use expertrail::Dtype;
use expertrail::cuda::{
    Attribute, Cache, Context, CudaCommunicator, CudaError, CudaRows, DeviceMemory, DeviceSlice, Function,
    FunctionAttribute, Kernels, Launch, Nvrtc, Search, Stream, kernels,
};

use crate::workload::Tensor;

/// `Args` of `crates/cuda/kernels/bench.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Args {
    rows: u64,
    scales: u64,
    expected: u64,
    tally: u64,
    seed: u64,
    set: u64,
    count: u64,
    limit_ns: u64,
    hidden: u32,
    tensor: u32,
    rank: u32,
    ranks: u32,
    ranks_per_node: u32,
    fp8: u32,
    epoch: u32,
    hold_ns: u32,
}
const _: () = assert!(size_of::<Args>() == 96);

/// `Tally` there: rows, first, late.
const TALLY_BYTES: usize = 24;

/// Threads of the kernels that make and check rows.
const THREADS: u32 = 256;

/// Bytes of a plain row that is pushed for the ceiling, and of a chunk of it (`CHUNK`, `STAGES`, `MOST_WARPS` there).
pub(super) const PUSHED_ROW: usize = 14_336;
const CHUNK: u32 = 3584;
const STAGES: u32 = 3;
pub(super) const MOST_WARPS: u32 = 16;

/// After a meeting on the devices they wait this long, so that the hosts' next launches are queued by then.
const HOLD_NS: u32 = 40_000;

/// What received memory is filled with once it has been looked at: a row that does not arrive is not one of before.
const POISON: u8 = 0xA5;

/// Rows by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) seed: u64,
    pub(super) tensor: Tensor,
    /// Whose rows; for sums the first of the ranks.
    pub(super) rank: usize,
    pub(super) set: usize,
    pub(super) count: usize,
    pub(super) hidden: usize,
    pub(super) dtype: Dtype,
}

impl Named {
    fn args(&self) -> Args {
        Args {
            seed: self.seed,
            set: self.set as u64,
            count: self.count as u64,
            hidden: self.hidden as u32,
            tensor: self.tensor as u32,
            rank: self.rank as u32,
            fp8: u32::from(self.dtype == Dtype::Fp8E4m3),
            ..Args::default()
        }
    }

    fn row_bytes(&self) -> usize {
        self.count * self.dtype.row_bytes(self.hidden)
    }

    fn scale_bytes(&self) -> usize {
        4 * self.count * self.dtype.scales_per_row(self.hidden)
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Rows with a difference.
    pub(super) rows: u64,
    /// Row and element of the first.
    pub(super) first: Option<(u32, u32)>,
}

/// The benchmark's kernels, loaded, with a stream of their own.
#[derive(Debug)]
pub(super) struct BenchKernels {
    context: Context,
    stream: Stream,
    fill: Function,
    check_rows: Function,
    check_words: Function,
    check_sums: Function,
    push: Function,
    line_up: Function,
    tally: DeviceMemory,
    sms: u32,
    /// NVRTC's version if it was opened.
    pub(super) nvrtc: Option<String>,
}

impl BenchKernels {
    pub(super) fn load(context: &Context, nvrtc: &Search) -> Result<Self, CudaError> {
        let version = std::cell::RefCell::new(None);
        let nvrtc = || {
            let nvrtc = Nvrtc::load(nvrtc)?;
            *version.borrow_mut() = Some(nvrtc.version().to_string());
            Ok(nvrtc)
        };
        let kernels = Kernels::of_this_build();
        let (module, _) = kernels.load(context, &kernels::BENCH, &Cache::from_env(), nvrtc)?;
        let version = version.into_inner();
        let function = |name: &CStr| -> Result<Function, CudaError> {
            let function = module.function(name)?;
            // Asking loads the kernel now: a lazy load behind one that waits for peers could deadlock.
            function.attribute(FunctionAttribute::STATIC_SHARED)?;
            Ok(function)
        };
        let push = function(c"_ZN10expertrail9push_rowsENS_4ArgsE")?;
        push.set_attribute(FunctionAttribute::MOST_DYNAMIC_SHARED, (MOST_WARPS * STAGES * CHUNK) as i32)?;
        Ok(Self {
            stream: Stream::new(context, 0)?,
            fill: function(c"_ZN10expertrail9fill_rowsENS_4ArgsE")?,
            check_rows: function(c"_ZN10expertrail10check_rowsENS_4ArgsE")?,
            check_words: function(c"_ZN10expertrail11check_wordsENS_4ArgsE")?,
            check_sums: function(c"_ZN10expertrail10check_sumsENS_4ArgsE")?,
            push,
            line_up: function(c"_ZN10expertrail7line_upENS_4ArgsE")?,
            tally: DeviceMemory::new(context, TALLY_BYTES)?,
            sms: context.device().attribute(Attribute::SMS)? as u32,
            nvrtc: version,
            context: context.clone(),
        })
    }

    /// SMs of the device.
    pub(super) fn sms(&self) -> u32 {
        self.sms
    }

    /// Makes `named` rows, and waits.
    pub(super) fn fill(
        &self,
        to: DeviceSlice<'_>,
        scales: Option<DeviceSlice<'_>>,
        named: &Named,
    ) -> Result<(), CudaError> {
        let args = Args {
            rows: room(to, named.row_bytes())?,
            scales: scales.map_or(Ok(0), |scales| room(scales, named.scale_bytes()))?,
            ..named.args()
        };
        if named.count == 0 {
            return Ok(());
        }
        // SAFETY: `Args` is the kernel's parameter; it writes `count` rows (and scales), for which there is room, and
        // the memory is borrowed until the stream is synchronised below. The module lives in `self`.
        unsafe { self.fill.launch(&self.stream, self.shape(named.count), &args)? };
        self.stream.synchronize()
    }

    /// Compares received rows: `origins` says whose token each is (rank in the high half). The rows must be there.
    pub(super) fn check_rows(
        &mut self,
        rows: DeviceSlice<'_>,
        scales: Option<DeviceSlice<'_>>,
        origins: &DeviceMemory,
        named: &Named,
    ) -> Result<Differences, CudaError> {
        let scales = match (named.dtype, scales) {
            (Dtype::Bf16, _) => 0,
            (Dtype::Fp8E4m3, Some(scales)) => room(scales, named.scale_bytes())?,
            (Dtype::Fp8E4m3, None) => return Err(missing(named.scale_bytes())),
        };
        let args = Args {
            rows: room(rows, named.row_bytes())?,
            scales,
            expected: room(DeviceSlice::of(origins), 8 * named.count)?,
            ..named.args()
        };
        self.check(&self.check_rows.clone(), args)
    }

    /// Compares `count` rows of `words` 4-byte words.
    pub(super) fn check_words(
        &mut self,
        got: DeviceSlice<'_>,
        want: &DeviceMemory,
        (count, words): (usize, usize),
    ) -> Result<Differences, CudaError> {
        let args = Args {
            rows: room(got, 4 * count * words)?,
            expected: room(DeviceSlice::of(want), 4 * count * words)?,
            count: count as u64,
            hidden: words as u32,
            ..Args::default()
        };
        self.check(&self.check_words.clone(), args)
    }

    /// Compares combined rows with sums of rows made anew: `places` says at which row of each of `ranks` ranks a token
    /// is, or `u32::MAX`.
    pub(super) fn check_sums(
        &mut self,
        rows: DeviceSlice<'_>,
        places: &DeviceMemory,
        named: &Named,
        (ranks, ranks_per_node): (usize, usize),
    ) -> Result<Differences, CudaError> {
        if ranks > 128 {
            return Err(missing(ranks));
        }
        let args = Args {
            rows: room(rows, named.row_bytes())?,
            expected: room(DeviceSlice::of(places), 4 * named.count * ranks)?,
            ranks: ranks as u32,
            ranks_per_node: ranks_per_node as u32,
            ..named.args()
        };
        self.check(&self.check_sums.clone(), args)
    }

    fn check(&mut self, kernel: &Function, args: Args) -> Result<Differences, CudaError> {
        if args.count == 0 {
            return Ok(Differences::default());
        }
        let mut words = [0u8; TALLY_BYTES];
        words[8..16].fill(0xFF);
        self.tally.write(0, &words)?;
        let args = Args { tally: self.tally.address(), ..args };
        // SAFETY: `Args` is the kernels' parameter. They read `count` rows and what is expected of them, whose lengths
        // the callers checked and which they borrow until the stream is synchronised below, and write the tally.
        unsafe { kernel.launch(&self.stream, self.shape(args.count as usize), &args)? };
        self.stream.synchronize()?;
        self.tally.read(0, &mut words)?;
        let [rows, first, _] = tally_words(&words);
        Ok(Differences { rows, first: (rows > 0).then_some(((first >> 32) as u32, first as u32)) })
    }

    /// Fills memory that has been looked at with a pattern that is no row, and waits.
    pub(super) fn poison(&self, slice: DeviceSlice<'_>) -> Result<(), CudaError> {
        if slice.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the memory is the caller's for as long as the slice lives, no call is under way (the caller has
        // synchronised), and the fill is awaited here.
        unsafe { self.stream.fill(slice.address(), POISON, slice.bytes())? };
        self.stream.synchronize()
    }

    /// Copies `bytes` bytes from `offset` on to the host.
    pub(super) fn download(
        &self,
        slice: DeviceSlice<'_>,
        offset: usize,
        bytes: usize,
    ) -> Result<Vec<u8>, CudaError> {
        let mut out = vec![0; bytes];
        let Some(part) = slice.part(offset, bytes) else {
            return Err(CudaError::Range { offset, bytes, room: slice.bytes() });
        };
        if bytes == 0 {
            return Ok(out);
        }
        let scratch = DeviceMemory::new(&self.context, bytes)?;
        // SAFETY: both sides are `bytes` long, the source by `part`, and live until the copy is awaited here.
        unsafe { self.stream.copy(scratch.address(), part.address(), bytes)? };
        self.stream.synchronize()?;
        scratch.read(0, &mut out)?;
        Ok(out)
    }

    fn shape(&self, count: usize) -> Launch {
        let blocks = (count as u64).clamp(1, u64::from(self.sms) * 8) as u32;
        Launch { blocks, threads: THREADS, shared: 0, cooperative: false, cluster: 1 }
    }
}

/// Memory at every rank that the others know the address of, for measuring links and for starting together.
#[derive(Debug)]
pub(super) struct Links {
    /// Flags in front, then room for pushed rows.
    rows: CudaRows,
    room: usize,
    /// Plain rows to push.
    source: DeviceMemory,
    /// Every rank's flags, u64 by rank.
    flags: DeviceMemory,
    /// Where peers take rows, u64; the next rank's first.
    peers: DeviceMemory,
    peer_addresses: Vec<u64>,
    late: DeviceMemory,
    epoch: Cell<u32>,
    rank: u32,
    ranks: u32,
    limit_ns: u64,
}

/// Bytes in front for flags.
pub(super) const FLAG_BYTES: usize = 4096;

impl Links {
    /// With `rows`, which every rank has allocated alike; `room` bytes behind the flags are for pushed rows. The
    /// caller must let all ranks pass a barrier before the first use. `None` when a peer does not map the memory.
    pub(super) fn new(
        comm: &CudaCommunicator,
        kernels: &BenchKernels,
        rows: CudaRows,
        room: usize,
        limit: std::time::Duration,
    ) -> Result<Option<Self>, CudaError> {
        let (rank, ranks) = (comm.rank(), comm.topology().ranks());
        if rows.slice().bytes() < FLAG_BYTES + room || ranks > FLAG_BYTES / 4 {
            return Err(missing(FLAG_BYTES + room));
        }
        let mut addresses = Vec::with_capacity(ranks);
        for peer in 0..ranks {
            let address =
                if peer == rank { Some(rows.slice().address()) } else { comm.peer_address(peer, &rows) };
            let Some(address) = address else { return Ok(None) };
            addresses.push(address);
        }
        let peer_addresses: Vec<u64> =
            (1..ranks).map(|step| addresses[(rank + step) % ranks] + FLAG_BYTES as u64).collect();
        let upload = |values: &[u64]| -> Result<DeviceMemory, CudaError> {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let mut memory = DeviceMemory::new(comm.context(), bytes.len())?;
            memory.write(0, &bytes)?;
            Ok(memory)
        };
        let (flags, peers) = (upload(&addresses)?, upload(&peer_addresses)?);
        let mut late = DeviceMemory::new(comm.context(), TALLY_BYTES)?;
        late.write(0, &[0; TALLY_BYTES])?;
        let source = DeviceMemory::new(comm.context(), room)?;
        let plain = Named {
            seed: 0,
            tensor: Tensor::Tokens,
            rank,
            set: 0,
            count: room / PUSHED_ROW,
            hidden: PUSHED_ROW / 2,
            dtype: Dtype::Bf16,
        };
        kernels.fill(DeviceSlice::of(&source), None, &plain)?;
        // SAFETY: own memory of more than that length; nobody uses the flags before the caller's barrier, and the fill
        // is awaited here.
        unsafe { kernels.stream.fill(rows.slice().address(), 0, FLAG_BYTES)? };
        kernels.stream.synchronize()?;
        Ok(Some(Self {
            rows,
            room,
            source,
            flags,
            peers,
            peer_addresses,
            late,
            epoch: Cell::new(0),
            rank: rank as u32,
            ranks: ranks as u32,
            limit_ns: limit.as_nanos() as u64,
        }))
    }

    /// Bytes that one push sends, whole rows.
    pub(super) fn bytes(&self) -> usize {
        self.room / PUSHED_ROW * PUSHED_ROW
    }

    /// Puts on `stream` a wait for all ranks' devices to be here, and a little longer.
    pub(super) fn line_up(&self, kernels: &BenchKernels, stream: &Stream) -> Result<(), CudaError> {
        self.epoch.set(self.epoch.get().wrapping_add(1));
        let args = Args {
            expected: self.flags.address(),
            tally: self.late.address(),
            limit_ns: self.limit_ns,
            rank: self.rank,
            ranks: self.ranks,
            epoch: self.epoch.get(),
            hold_ns: HOLD_NS,
            ..Args::default()
        };
        let shape = Launch { blocks: 1, threads: 128, shared: 0, cooperative: false, cluster: 1 };
        // SAFETY: the kernel writes one word into each rank's flags, which every rank keeps until all have passed the
        // barrier at the end of the run (`measure`), and reads the own ones. `self` outlives the stream's work for the
        // same reason.
        unsafe { kernels.line_up.launch(stream, shape, &args) }
    }

    /// The rank that did not come in time to some `line_up`. The stream must be synchronised.
    pub(super) fn late(&self) -> Result<Option<usize>, CudaError> {
        let mut words = [0u8; TALLY_BYTES];
        self.late.read(0, &mut words)?;
        let [_, _, late] = tally_words(&words);
        Ok((late as usize).checked_sub(1))
    }

    /// Puts on `stream` a push of plain rows to the peers.
    pub(super) fn push(
        &self,
        kernels: &BenchKernels,
        stream: &Stream,
        sms: u32,
        warps: u32,
    ) -> Result<(), CudaError> {
        let args = Args {
            rows: self.source.address(),
            expected: self.peers.address(),
            count: self.bytes() as u64,
            ranks: self.ranks,
            ..Args::default()
        };
        let warps = warps.clamp(1, MOST_WARPS);
        let shape = Launch {
            blocks: sms.max(1),
            threads: 32 * warps,
            shared: warps * STAGES * CHUNK,
            cooperative: false,
            cluster: 1,
        };
        // SAFETY: the kernel reads `bytes` bytes of `source` and writes each of them at the same offset of one peer's
        // room, which all ranks allocated alike; as in `line_up` the memory lives until all are done.
        unsafe { kernels.push.launch(stream, shape, &args) }
    }

    /// Puts on `stream` copies of plain rows to the peers by the copy engines. Gives the bytes.
    pub(super) fn copy(&self, stream: &Stream) -> Result<usize, CudaError> {
        let share = self.bytes() / self.peer_addresses.len().max(1);
        for (index, &peer) in self.peer_addresses.iter().enumerate() {
            let offset = (index * share) as u64;
            // SAFETY: `share` bytes at the same offset of the own rows and the peer's room; the shares of different
            // sources go to different offsets there (a source's distance to the peer is its index).
            unsafe { stream.copy(peer + offset, self.source.address() + offset, share)? };
        }
        Ok(share * self.peer_addresses.len())
    }

    /// Keeps the memory until here.
    pub(super) fn end(self) {
        drop(self.rows);
    }
}

fn tally_words(bytes: &[u8; TALLY_BYTES]) -> [u64; 3] {
    let (words, _) = bytes.as_chunks::<8>();
    [0, 1, 2].map(|at| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word)))
}

/// The address of a slice that has `bytes` bytes.
fn room(slice: DeviceSlice<'_>, bytes: usize) -> Result<u64, CudaError> {
    if slice.bytes() >= bytes {
        Ok(slice.address())
    } else {
        Err(CudaError::Range { offset: 0, bytes, room: slice.bytes() })
    }
}

fn missing(bytes: usize) -> CudaError {
    CudaError::Range { offset: 0, bytes, room: 0 }
}
