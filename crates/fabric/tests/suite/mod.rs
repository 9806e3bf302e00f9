//! What every transport must do, whatever stands behind it. `tests/transports.rs` runs it over the simulated fabric; a
//! real transport runs the same [`conforms`].

mod group;
mod slots;

use std::collections::{BTreeMap, BTreeSet};

use expertrail_fabric::{Completion, FabricError, PeerId, Posted, RegionId, Transport, Write};

pub(crate) use group::Group;
pub(crate) use slots::{Rule, slots};

/// Makes fresh endpoints, at least three, that are not yet connected. All live in this process and one thread polls them.
pub(crate) type Make<'a> = &'a mut dyn FnMut() -> Vec<Box<dyn Transport>>;

/// The whole suite; the error says which part failed and how.
pub(crate) fn conforms(make: Make<'_>) -> Result<(), String> {
    let named = |name: &str, result: Result<(), String>| result.map_err(|error| format!("{name}: {error}"));
    named("exact", exact(make()))?;
    named("counts", slots(make(), Rule::Counts))?;
    named("busy", busy(make()))?;
    named("bounds", bounds(make()))?;
    named("gone", gone(make()))
}

const SIZES: [usize; 6] = [1, 3, 16, 257, 4096, 20_000];
/// Bytes between two writes that nobody may touch.
const GUARD: usize = 16;
const UNTOUCHED: u8 = 0xA5;
const SCRIBBLE: u8 = 0xEE;

/// Where the write of `SIZES[index]` lies in the window of a peer, which has `window()` bytes.
fn place(index: usize) -> usize {
    GUARD + SIZES[..index].iter().map(|size| size + GUARD).sum::<usize>()
}

fn window() -> usize {
    place(SIZES.len())
}

/// Bytes that tell every write and every place in it apart.
fn pattern(from: usize, to: usize, index: usize) -> Vec<u8> {
    let start = (from * 31 + to * 17 + index * 7) as u32;
    (0..SIZES[index] as u32)
        .map(|at| (at.wrapping_add(start).wrapping_mul(0x9E37_79B1) >> 24) as u8)
        .collect()
}

/// Every payload and immediate arrives exactly, each write once, and nothing else is touched. Source memory is scribbled
/// over as soon as its write is `Sent`.
fn exact(ends: Vec<Box<dyn Transport>>) -> Result<(), String> {
    let mut group = Group::new(ends, 2 * ends_bytes())?;
    let count = group.ends();
    let mut expected = vec![BTreeMap::new(); count];
    let mut unsent = vec![BTreeMap::new(); count];
    for to in 0..count {
        group.buffer(to).put(0, &vec![UNTOUCHED; count * window()]).ok_or("region too small")?;
    }
    let mut number = 0u32;
    for (from, unsent) in unsent.iter_mut().enumerate() {
        for (to, index) in (0..count).flat_map(|to| (0..SIZES.len()).map(move |index| (to, index))) {
            if from == to {
                continue;
            }
            // The extremes, and numbers spread over all 32 bits: an odd factor keeps them apart.
            let immediate = [0, u32::MAX].get(number as usize).copied();
            let immediate = immediate.unwrap_or(number.wrapping_mul(0x9E37_79B1));
            number += 1;
            let (source, target) =
                (ends_bytes() + to * window() + place(index), from * window() + place(index));
            group.buffer(from).put(source, &pattern(from, to, index)).ok_or("region too small")?;
            expected[to].insert(immediate, (from, index, target));
            // Contexts come back whole too.
            let context = u64::from(immediate) << 32 | u64::from(!immediate);
            unsent.insert(context, (source, SIZES[index]));
            group.send(from, |group| Write {
                local_offset: source as u64,
                remote_offset: target as u64,
                bytes: SIZES[index] as u64,
                immediate,
                context,
                ..group.to(to)
            });
        }
    }
    let buffers = group.buffers();
    group.run(|at, completion, _| {
        match completion {
            Completion::Arrived { immediate } => {
                let known = expected[at].remove(&immediate);
                let (from, index, target) =
                    known.ok_or_else(|| format!("{immediate:#x} arrived at {at} unasked or twice"))?;
                if buffers[at].get(target..target + SIZES[index]) != Some(pattern(from, at, index)) {
                    return Err(format!("{immediate:#x} arrived at {at} before its {} bytes", SIZES[index]));
                }
            }
            Completion::Sent { context } => {
                let known = unsent[at].remove(&context);
                let (source, size) = known.ok_or_else(|| format!("{context:#x} sent by {at} twice"))?;
                buffers[at].put(source, &vec![SCRIBBLE; size]).ok_or("region too small")?;
            }
            Completion::Failed { error, .. } => return Err(format!("a write failed: {error}")),
        }
        Ok(expected.iter().all(BTreeMap::is_empty) && unsent.iter().all(BTreeMap::is_empty))
    })?;
    for (to, buffer) in buffers.iter().enumerate() {
        let mut left = buffer.get(0..count * window()).ok_or("region too small")?;
        for from in (0..count).filter(|&from| from != to) {
            for (index, size) in SIZES.iter().enumerate() {
                let start = from * window() + place(index);
                if left[start..start + size] != pattern(from, to, index) {
                    return Err(format!("payload {index} from {from} to {to} changed after its arrival"));
                }
                left[start..start + size].fill(UNTOUCHED);
            }
        }
        if let Some(at) = left.iter().position(|&byte| byte != UNTOUCHED) {
            return Err(format!("byte {at} of {to} was written to by nobody's order"));
        }
    }
    Ok(())
}

/// Room for the windows of eight endpoints.
fn ends_bytes() -> usize {
    8 * window()
}

/// Posts without a poll until the queue is full (or has taken what it says it has, and some): nothing is lost, nothing
/// comes twice.
fn busy(ends: Vec<Box<dyn Transport>>) -> Result<(), String> {
    let mut group = Group::new(ends, 64)?;
    let most = group.capabilities(0).queue_depth.min(4096) + 16;
    let mut posted = BTreeSet::new();
    for number in 0..most as u32 {
        let write = Write { bytes: 8, immediate: number, context: u64::from(number), ..group.to(1) };
        match group.post(0, &write)? {
            Posted::Yes => posted.insert(number),
            Posted::Busy => break,
        };
    }
    let (mut unsent, mut expected) = (posted.clone(), posted);
    // One more, which must wait its turn, shows that the queue takes writes again.
    let last = most as u32;
    unsent.insert(last);
    expected.insert(last);
    group.send(0, |group| Write { bytes: 8, immediate: last, context: u64::from(last), ..group.to(1) });
    group.run(|at, completion, _| {
        let known = match (at, &completion) {
            (1, Completion::Arrived { immediate }) => expected.remove(immediate),
            (0, Completion::Sent { context }) => unsent.remove(&(*context as u32)),
            _ => false,
        };
        if !known {
            return Err(format!("{completion:?} at {at} is of no write, or comes twice"));
        }
        Ok(expected.is_empty() && unsent.is_empty())
    })
}

/// A write outside of what was registered and connected is an error of the caller, and nothing of it is seen anywhere.
fn bounds(ends: Vec<Box<dyn Transport>>) -> Result<(), String> {
    let mut group = Group::new(ends, 64)?;
    let count = group.ends() as u32;
    let good = Write { bytes: 8, immediate: 77, context: 77, ..group.to(1) };
    let bad = [
        ("no bytes", Write { bytes: 0, ..good }),
        ("past the local end", Write { local_offset: 57, ..good }),
        ("past the remote end", Write { remote_offset: 57, ..good }),
        ("longer than both", Write { bytes: 65, ..good }),
        ("a local offset that wraps", Write { local_offset: u64::MAX - 3, ..good }),
        ("a remote offset that wraps", Write { remote_offset: u64::MAX - 3, ..good }),
        ("a length that wraps", Write { bytes: u64::MAX, local_offset: 1, remote_offset: 1, ..good }),
        ("no such region", Write { local: RegionId(99), ..good }),
        ("no such peer", Write { peer: PeerId(count), ..good }),
    ];
    for (what, write) in bad {
        match group.post(0, &Write { immediate: 66, context: 66, ..write }) {
            Err(error) if error.starts_with("argument: ") => {}
            other => return Err(format!("{what}: not refused as the caller's error: {other:?}")),
        }
    }
    let (mut sent, mut arrived) = (false, false);
    group.send(0, |_| good);
    group.run(|at, completion, _| {
        match (at, &completion) {
            (1, Completion::Arrived { immediate: 77 }) if !arrived => arrived = true,
            (0, Completion::Sent { context: 77 }) if !sent => sent = true,
            _ => return Err(format!("{completion:?} at {at} though it was refused")),
        }
        Ok(sent && arrived)
    })
}

/// A closed endpoint: who writes to it learns of it, by a failed write or a refused post, and the others go on.
fn gone(ends: Vec<Box<dyn Transport>>) -> Result<(), String> {
    let mut group = Group::new(ends, 64)?;
    let last = group.ends() - 1;
    let write = |group: &Group, to, number: u32| Write {
        bytes: 8,
        immediate: number,
        context: u64::from(number),
        ..group.to(to)
    };
    // Connections are made by the first write: the second meets one that was there.
    let (mut sent, mut arrived) = (false, false);
    group.send(0, |group| write(group, last, 1));
    group.run(|at, completion, _| {
        match (at, &completion) {
            (0, Completion::Sent { context: 1 }) if !sent => sent = true,
            (to, Completion::Arrived { immediate: 1 }) if to == last && !arrived => arrived = true,
            _ => return Err(format!("{completion:?} at {at} while all lived")),
        }
        Ok(sent && arrived)
    })?;
    group.close_last()?;
    let mut failed = false;
    let to_gone = write(&group, last, 2);
    match group.post_unless_busy(0, &to_gone) {
        Ok(()) => {}
        Err(error) if error.starts_with("argument: ") => return Err(error),
        Err(_) => failed = true,
    }
    let (mut sent, mut arrived) = (false, false);
    group.send(0, |group| write(group, 1, 3));
    group.run(|at, completion, _| {
        match (at, &completion) {
            (0, Completion::Sent { context: 3 }) if !sent => sent = true,
            (1, Completion::Arrived { immediate: 3 }) if !arrived => arrived = true,
            (0, Completion::Failed { context: 2, error }) if !failed => match error {
                FabricError::Peer { peer, .. } if *peer as usize == last => failed = true,
                other => return Err(format!("the failed write names no peer, or another: {other:?}")),
            },
            // It may have left before the peer was missed; what it must not do is to arrive.
            (0, Completion::Sent { context: 2 }) => failed = true,
            _ => return Err(format!("{completion:?} at {at} after {last} was closed")),
        }
        Ok(sent && arrived && failed)
    })
}
