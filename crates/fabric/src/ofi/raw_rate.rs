//! The rate of this transport against a bare loop over the library's own calls: two processes, 1 MiB writes, 16 in flight,
//! both ways in turn. Run by hand: `cargo test --release -p expertrail-fabric --lib raw_rate -- --ignored --nocapture`.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::choose::choose;
use super::ffi::{self, entry};
use super::object::Object;
use super::offer::Infos;
use super::{Library, OpenOptions, Provider, endpoint::Endpoint, region};
use crate::transport::{Completion, Memory, PeerId, Posted, RegionId, RemoteRegion, Transport, Write};

const BYTES: usize = 1 << 20;
const WINDOW: usize = 16;
const WRITES: usize = 512;
const ROUNDS: usize = 5;
const PROVIDER: &str = "EXPERTRAIL_TEST_PROVIDER";

#[derive(Debug)]
struct Pages(*mut u8);
// SAFETY: the pages are never freed and touched by the provider only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}
// SAFETY: as above.
unsafe impl Memory for Pages {
    fn base(&self) -> *mut u8 {
        self.0
    }
    fn bytes(&self) -> usize {
        WINDOW * BYTES
    }
}

fn pages() -> Pages {
    // Touched, so that no run pays for the first touch.
    Pages(vec![1u8; WINDOW * BYTES].leak().as_mut_ptr())
}

/// What both loops do.
trait Loop {
    /// Writes the slot; whether it was taken.
    fn post(&mut self, slot: usize) -> bool;
    /// What has been sent and what has arrived.
    fn poll(&mut self) -> (usize, usize);
    fn card(&mut self) -> Vec<u8>;
    fn connect(&mut self, card: &[u8]);
}

/// The calls themselves, with a queue that nobody can wait on.
struct Bare {
    ep: Object<ffi::Ep>,
    mr: Object<ffi::Mr>,
    cq: Object<ffi::Cq>,
    av: Object<ffi::Av>,
    _domain: Object<ffi::Domain>,
    _fabric: Object<ffi::Fabric>,
    _info: Infos,
    pages: Pages,
    virtual_address: bool,
    contexts: Vec<[u64; 8]>,
    remote: RemoteRegion,
    to: u64,
}

impl Bare {
    fn open(library: &Library, options: &OpenOptions) -> Self {
        let found = choose(library, options).unwrap();
        let at = found.info.head();
        let pages = pages();
        // SAFETY: as in `Endpoint::open`.
        unsafe {
            let fabric: Object<ffi::Fabric> =
                Object::open(|place| library.fabric((*at).fabric, place)).unwrap();
            let domain: Object<ffi::Domain> = Object::open(|place| {
                (*(*fabric.at()).ops).domain.unwrap()(fabric.at(), at, place, null_mut())
            })
            .unwrap();
            let ops = &*(*domain.at()).ops;
            let mut attr = ffi::AvAttr {
                kind: 0,
                rx_ctx_bits: 0,
                count: 0,
                ep_per_node: 0,
                name: std::ptr::null(),
                map_address: null_mut(),
                flags: 0,
            };
            let av: Object<ffi::Av> =
                Object::open(|place| ops.av_open.unwrap()(domain.at(), &raw mut attr, place, null_mut()))
                    .unwrap();
            let mut attr = ffi::CqAttr {
                entries: 4096,
                flags: 0,
                format: ffi::CQ_FORMAT_DATA,
                wait: ffi::WAIT_NONE,
                signaling_vector: 0,
                wait_condition: 0,
                wait_set: null_mut(),
            };
            let cq: Object<ffi::Cq> =
                Object::open(|place| ops.cq_open.unwrap()(domain.at(), &raw mut attr, place, null_mut()))
                    .unwrap();
            let ep: Object<ffi::Ep> =
                Object::open(|place| ops.endpoint.unwrap()(domain.at(), at, place, null_mut())).unwrap();
            assert_eq!(ep.bind(&cq, ffi::TRANSMIT | ffi::RECV), 0);
            assert_eq!(ep.bind(&av, 0), 0);
            assert_eq!(ep.control(ffi::CONTROL_ENABLE, null_mut()), 0);
            let access = ffi::WRITE | ffi::REMOTE_WRITE;
            let mr = region::host(&domain, pages.base(), pages.bytes(), access, 1).unwrap();
            let virtual_address = found.offer.mr_mode.contains(&"virtual address");
            let remote = RemoteRegion { key: 0, base: 0, bytes: 0 };
            Self {
                ep,
                mr,
                cq,
                av,
                _domain: domain,
                _fabric: fabric,
                _info: found.info,
                pages,
                virtual_address,
                contexts: vec![[0; 8]; WINDOW],
                remote,
                to: 0,
            }
        }
    }
}

impl Loop for Bare {
    fn post(&mut self, slot: usize) -> bool {
        let at = slot * BYTES;
        let context = self.contexts[slot].as_mut_ptr().cast::<c_void>();
        // SAFETY: as in `Endpoint::write`.
        let code = unsafe {
            let write = (*(*self.ep.at()).rma).writedata.unwrap();
            let (base, descriptor) = (self.pages.base().add(at).cast(), (*self.mr.at()).descriptor);
            let remote = self.remote.base + at as u64;
            write(self.ep.at(), base, BYTES, descriptor, 7, self.to, remote, self.remote.key, context)
        };
        assert!(code == 0 || code == -(ffi::EAGAIN as isize), "{code}");
        code == 0
    }

    fn poll(&mut self) -> (usize, usize) {
        let empty = ffi::CqData { context: null_mut(), flags: 0, len: 0, buffer: null_mut(), data: 0 };
        let mut entries = [empty; 64];
        // SAFETY: as in `Queue::read`.
        let got =
            unsafe { (*(*self.cq.at()).ops).read.unwrap()(self.cq.at(), entries.as_mut_ptr().cast(), 64) };
        assert!(got >= 0 || got == -(ffi::EAGAIN as isize), "{got}");
        let entries = &entries[..got.max(0) as usize];
        let arrived = entries.iter().filter(|entry| entry.flags & ffi::REMOTE_CQ_DATA != 0).count();
        (entries.len() - arrived, arrived)
    }

    fn card(&mut self) -> Vec<u8> {
        let (mut address, mut bytes) = (vec![0u8; 256], 256usize);
        // SAFETY: as in `Endpoint::address`.
        unsafe {
            let getname = entry!((*self.ep.at()).cm, ffi::CmOps, getname).unwrap();
            assert_eq!(getname(self.ep.head(), address.as_mut_ptr().cast(), &raw mut bytes), 0);
            let base = if self.virtual_address { self.pages.base() as u64 } else { 0 };
            let region = RemoteRegion { key: (*self.mr.at()).key, base, bytes: self.pages.bytes() as u64 };
            [region.encode().as_slice(), &address[..bytes]].concat()
        }
    }

    fn connect(&mut self, card: &[u8]) {
        let (region, address) = card.split_at(RemoteRegion::ENCODED);
        self.remote = RemoteRegion::decode(region).unwrap();
        // SAFETY: as in `Endpoint::connect`.
        let got = unsafe {
            let insert = (*(*self.av.at()).ops).insert.unwrap();
            insert(self.av.at(), address.as_ptr().cast(), 1, &raw mut self.to, 0, null_mut())
        };
        assert_eq!(got, 1);
    }
}

struct Ours {
    transport: Box<dyn Transport>,
    own: (RegionId, RemoteRegion),
    remote: RemoteRegion,
    completions: Vec<Completion>,
}

impl Loop for Ours {
    fn post(&mut self, slot: usize) -> bool {
        let at = (slot * BYTES) as u64;
        let write = Write {
            peer: PeerId(0),
            local: self.own.0,
            local_offset: at,
            remote: self.remote,
            remote_offset: at,
            bytes: BYTES as u64,
            immediate: 7,
            context: slot as u64,
        };
        self.transport.write(&write).unwrap() == Posted::Yes
    }

    fn poll(&mut self) -> (usize, usize) {
        self.completions.clear();
        self.transport.poll(&mut self.completions).unwrap();
        let arrived = |completion: &&Completion| matches!(completion, Completion::Arrived { .. });
        let arrived = self.completions.iter().filter(arrived).count();
        (self.completions.len() - arrived, arrived)
    }

    fn card(&mut self) -> Vec<u8> {
        [self.own.1.encode().as_slice(), &self.transport.address().unwrap()].concat()
    }

    fn connect(&mut self, card: &[u8]) {
        let (region, address) = card.split_at(RemoteRegion::ENCODED);
        self.remote = RemoteRegion::decode(region).unwrap();
        self.transport.connect(&[address.to_vec()]).unwrap();
    }
}

fn both(provider: &str) -> [Box<dyn Loop>; 2] {
    let library = Library::open().unwrap();
    let options = OpenOptions { provider: Provider::Named(provider.to_owned()), ..OpenOptions::default() };
    let found = choose(&library, &options).unwrap();
    println!("\n{} of {}", found.offer.name, library.name());
    let mut transport: Box<dyn Transport> = Box::new(Endpoint::open(&library, found, &options).unwrap());
    let own = transport.register(Arc::new(pages())).unwrap();
    let ours = Ours { transport, own, remote: own.1, completions: Vec::with_capacity(64) };
    [Box::new(Bare::open(&library, &options)), Box::new(ours)]
}

/// Polls with a deadline until `done` says so.
fn until(side: &mut dyn Loop, mut done: impl FnMut(&mut dyn Loop) -> bool) {
    let started = Instant::now();
    while !done(side) {
        assert!(started.elapsed() < Duration::from_secs(30), "stuck");
    }
}

/// Sends one; gives how much arrived meanwhile, because the other side may have gone on.
fn one(side: &mut dyn Loop) -> usize {
    let (mut posted, mut sent, mut arrived) = (false, 0, 0);
    until(side, |side| {
        posted = posted || side.post(0);
        let (more, came) = side.poll();
        sent += more;
        arrived += came;
        sent == 1
    });
    arrived
}

/// Bytes a second, until the other side has said that all is there.
fn send(side: &mut dyn Loop) -> f64 {
    let (mut posted, mut sent, mut back) = (0, 0, 0);
    let started = Instant::now();
    until(side, |side| {
        while posted < WRITES && posted - sent < WINDOW && side.post(posted % WINDOW) {
            posted += 1;
        }
        let (more, arrived) = side.poll();
        sent += more;
        back += arrived;
        back == 1 && sent == WRITES
    });
    (WRITES * BYTES) as f64 / started.elapsed().as_secs_f64()
}

/// Takes a round, of which `early` arrived before; gives what arrived of the next.
fn take(side: &mut dyn Loop, early: usize) -> usize {
    let mut arrived = early;
    until(side, |side| {
        arrived += side.poll().1;
        arrived == WRITES
    });
    one(side)
}

/// Which goes first changes from round to round, so that what drifts falls on both.
fn turns(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut line, byte| {
        let _ = write!(line, "{byte:02x}");
        line
    })
}

fn unhex(line: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    (0..line.trim().len()).step_by(2).map(byte).collect()
}

#[test]
#[ignore = "measures for seconds"]
fn raw_rate() {
    for provider in ["tcp", "shm"] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "ofi::raw_rate::other_process"])
            .env(PROVIDER, provider)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut sides = both(provider);
        for side in &mut sides {
            writeln!(child.stdin.as_mut().unwrap(), "{}", hex(&side.card())).unwrap();
            let card = lines.find_map(|line| line.strip_prefix("card ").map(unhex)).unwrap();
            side.connect(&card);
        }
        let mut ratios = Vec::new();
        for round in 0..=ROUNDS {
            let mut rates = [0.0; 2];
            for which in turns(round) {
                rates[which] = send(&mut *sides[which]) / 1e9;
            }
            let [bare, ours] = rates;
            println!("{provider}: bare {bare:.2} GB/s, through the trait {ours:.2} GB/s: {:.3}", ours / bare);
            ratios.push(ours / bare);
        }
        // The first connects and warms up.
        ratios.remove(0);
        ratios.sort_by(f64::total_cmp);
        println!("{provider}: median of {ROUNDS}: {:.3}", ratios[ROUNDS / 2]);
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        drop(sides);
        assert!(ratios[ROUNDS / 2] >= 0.9, "{provider}: {ratios:?}");
    }
}

#[test]
#[ignore = "the other process of raw_rate"]
fn other_process() {
    let Ok(provider) = std::env::var(PROVIDER) else { return };
    let mut sides = both(&provider);
    for side in &mut sides {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        println!("\ncard {}", hex(&side.card()));
        side.connect(&unhex(&line));
    }
    let mut early = [0; 2];
    for round in 0..=ROUNDS {
        for which in turns(round) {
            early[which] = take(&mut *sides[which], early[which]);
        }
    }
    // The other side closes once it has all.
    let _ = std::io::stdin().read_line(&mut String::new());
}
