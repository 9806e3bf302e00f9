#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

//! Byte layouts between nodes: bytes written by hand here, round trips, and what a peer must not be able to say.

use std::ops::Range;

use expertrail_core::hop::call::HeaderBounds;
use expertrail_core::hop::chunk::{Bounds, Choices, CombineLayout, DispatchLayout, Entry};
use expertrail_core::hop::{CallError, CallHeader, ChunkError, Place, Status};
use expertrail_core::output::OutputKind;
use expertrail_core::{CountMatrix, Dtype, Layout, Placement, Plan, Routing};
use proptest::prelude::*;

const BF16: OutputKind = OutputKind { dtype: Dtype::Bf16, hidden: 8, top_k: 3, cached: false, weights: true };

/// 3 experts on each of 4 ranks; ranks 2 and 3, experts 6 to 11, are the node. Rank 0 sends what the test says.
fn columns(layout: Layout, to_rank: [u32; 2], to_expert: [u32; 6]) -> CountMatrix {
    let placement = Placement::new(12, 4).unwrap();
    let (mut ranks, mut experts) = (vec![0; 8], vec![0; 24]);
    ranks[..2].copy_from_slice(&to_rank);
    experts[..6].copy_from_slice(&to_expert);
    CountMatrix::of_node(placement, layout, 2..4, ranks, experts).unwrap()
}

fn record_bytes(slot: &[u8], range: Range<usize>) -> &[u8] {
    &slot[range]
}

#[test]
fn a_dispatch_chunk_byte_by_byte() {
    // Row 16, token and count 8, two destinations 24, ids 12, weights 12: 72 bytes, in lines 128.
    let layout = DispatchLayout::new(&BF16, 2, 64 + 2 * 128 + 100).unwrap();
    let frame = *layout.frame();
    assert_eq!((frame.stride(), frame.records_per_chunk()), (128, 2));
    assert_eq!([0, 1, 2, 3, 5].map(|tokens| frame.chunks(tokens)), [0, 1, 1, 2, 3]);
    assert_eq!((frame.tokens_of(2, 5), frame.tokens_of(3, 5)), (4..5, 5..5));

    let mut slot = vec![0xEE; 64 + 2 * 128];
    let place = Place { epoch: 0x0102_0304_0506_0708, sequence: 300, index: 2, tokens: 5 };
    assert_eq!(frame.write_head(&mut slot, &place).unwrap(), 64 + 128);
    slot[layout.row(0)].copy_from_slice(&[7; 16]);
    let entries = [
        Entry { local_rank: 0, expert: 2, slot: 4, first_slot: 1 },
        Entry { local_rank: 1, expert: 3, slot: 0, first_slot: 5 },
    ];
    let choices = Choices { ids: &[8, 1, 9], weights: Some(&[1.0, 2.0, -0.5]), experts: 6..12 };
    layout.write(&mut slot, 0, (77, &entries), &choices).unwrap();

    let mut want = vec![];
    want.extend(*b"ER\x01\x00"); // magic, version 1, operation 0
    want.extend(1u32.to_le_bytes()); // one record in the last chunk
    want.extend([8, 7, 6, 5, 4, 3, 2, 1]);
    want.extend([44, 1, 0, 0, 0, 0, 0, 0]); // 300
    want.extend([4, 0, 0, 0, 128, 0, 0, 0]); // first token 4, stride
    want.resize(64, 0);
    want.extend([7; 16]);
    want.extend([77, 0, 0, 0, 2, 0, 0, 0]);
    want.extend([0, 0, 2, 0, 4, 0, 0, 0, 1, 0, 0, 0]);
    want.extend([1, 0, 3, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
    want.extend([8, 0, 0, 0, 255, 255, 255, 255, 9, 0, 0, 0]); // expert 1 is elsewhere
    want.extend([0, 0, 0x80, 0x3F, 0, 0, 0, 0, 0, 0, 0, 0xBF]); // 1.0, none, -0.5
    assert_eq!(record_bytes(&slot, 0..64 + 72), want);

    let matrix = columns(Layout::ExpertMajor { alignment: 1 }, [5, 1], [0, 0, 2, 6, 0, 0]);
    let bounds = Bounds::new(&matrix, 0, 100);
    let chunk = layout.read(&slot, &place, &bounds).unwrap();
    assert_eq!(chunk.records(), 1);
    let record = chunk.record(0).unwrap();
    assert_eq!((record.token, record.row, record.scales.len()), (77, &[7u8; 16][..], 0));
    assert_eq!(record.entries().collect::<Vec<_>>(), entries);
    assert_eq!(record.ids().collect::<Vec<_>>(), [8, -1, 9]);
    assert_eq!(record.weights().collect::<Vec<_>>(), [1.0, 0.0, -0.5]);
    assert_eq!(chunk.record(1).unwrap_err(), ChunkError::Index { index: 1, chunks: 1 });
}

#[test]
fn deepseek_v3_chunks() {
    let v3 = |dtype, cached| OutputKind { dtype, hidden: 7168, top_k: 8, cached, weights: true };
    let strides = [
        // 14,336 + 8 + 96 + 32 + 32 = 14,504; cached 14,440.
        (v3(Dtype::Bf16, false), 14_528, 9),
        (v3(Dtype::Bf16, true), 14_464, 9),
        // 7,168 + 224 + 8 + 96 + 32 + 32 = 7,560.
        (v3(Dtype::Fp8E4m3, false), 7_616, 17),
    ];
    for (kind, stride, records) in strides {
        let layout = DispatchLayout::new(&kind, 8, 128 << 10).unwrap();
        assert_eq!(
            (layout.frame().stride(), layout.frame().records_per_chunk()),
            (stride, records),
            "{kind:?}"
        );
        assert_eq!(layout.row(1).start % 64, 0);
    }
    let combine = CombineLayout::new(7168, 8, 128 << 10).unwrap();
    assert_eq!((combine.frame().stride(), combine.frame().records_per_chunk()), (14_400, 9));
}

#[test]
fn a_slot_too_small_for_a_record_is_refused() {
    let error = DispatchLayout::new(&BF16, 2, 191).unwrap_err();
    assert_eq!(error, ChunkError::Slot { slot_bytes: 191, record: 128, least: 192 });
    assert!(DispatchLayout::new(&BF16, 2, 192).is_ok());
    assert!(CombineLayout::new(8, 0, 0).is_err() && CombineLayout::new(8, 0, 128).is_ok());
}

/// One chunk of two records that every check accepts.
fn good() -> (DispatchLayout, Vec<u8>, Place, CountMatrix) {
    let layout = DispatchLayout::new(&BF16, 2, 64 + 2 * 128).unwrap();
    let place = Place { epoch: 3, sequence: 9, index: 0, tokens: 2 };
    let mut slot = vec![0; 64 + 2 * 128];
    layout.frame().write_head(&mut slot, &place).unwrap();
    let choices = Choices { ids: &[6, 9, -1], weights: Some(&[1.0; 3]), experts: 6..12 };
    let entry = |slot| Entry { local_rank: 0, expert: 0, slot, first_slot: slot };
    layout.write(&mut slot, 0, (4, &[entry(0)]), &choices).unwrap();
    let second = Entry { local_rank: 1, expert: 3, slot: 0, first_slot: 0 };
    layout.write(&mut slot, 1, (6, &[entry(1), second]), &choices).unwrap();
    (layout, slot, place, columns(Layout::ExpertMajor { alignment: 1 }, [2, 1], [2, 0, 0, 2, 0, 0]))
}

#[test]
fn what_a_record_must_not_say() {
    let (layout, slot, place, matrix) = good();
    let check = |at: usize, bytes: &[u8]| {
        let mut slot = slot.clone();
        slot[at..at + bytes.len()].copy_from_slice(bytes);
        let bounds = Bounds::new(&matrix, 0, 7);
        let chunk = layout.read(&slot, &place, &bounds)?;
        chunk.record(0)?;
        chunk.record(1).map(|_| ())
    };
    assert_eq!(check(0, b"E"), Ok(()));
    // Record 1 starts at 64 + 128 = 192; its token at 208, count 212, destinations 216 and 228, ids 240.
    for (at, bytes, record, field, allowed) in [
        (80, &[7, 0, 0, 0][..], 0, "token", (0, 7)),
        (208, &[4, 0, 0, 0], 1, "token", (5, 7)),
        (212, &[0, 0, 0, 0], 1, "number of destinations", (1, 3)),
        (212, &[3, 0, 0, 0], 1, "number of destinations", (1, 3)),
        (212, &[255, 255, 255, 255], 1, "number of destinations", (1, 3)),
        (228, &[2, 0], 1, "local rank", (1, 2)),
        (228, &[0, 0], 1, "local rank", (1, 2)),
        (220, &[2, 0, 0, 0], 1, "slot", (0, 2)),
        (232, &[1, 0, 0, 0], 1, "slot", (0, 1)),
        // Expert 0 of the node is on its rank 0, not on rank 1.
        (230, &[0, 0], 1, "expert of the first choice", (3, 6)),
        (218, &[9, 0], 1, "expert of the first choice", (0, 3)),
        (224, &[2, 0, 0, 0], 1, "slot of the first choice", (0, 2)),
        (236, &[2, 0, 0, 0], 1, "slot of the first choice", (0, 2)),
        (240, &[5, 0, 0, 0], 1, "expert id", (6, 12)),
        (240, &[12, 0, 0, 0], 1, "expert id", (6, 12)),
        (240, &[0, 0, 0, 128], 1, "expert id", (6, 12)),
    ] {
        match check(at, bytes) {
            Err(ChunkError::Record { record: r, field: f, least, end, .. }) => {
                assert_eq!((r, f, (least, end)), (record, field, allowed), "at {at}");
            }
            other => panic!("{field} at {at}: {other:?}"),
        }
    }
}

#[test]
fn what_a_head_must_not_say() {
    let (layout, slot, place, matrix) = good();
    let bounds = Bounds::new(&matrix, 0, 7);
    for (at, field) in [
        (0, "magic"),
        (1, "magic"),
        (2, "version"),
        (3, "operation"),
        (4, "record count"),
        (7, "record count"),
        (8, "epoch"),
        (15, "epoch"),
        (16, "sequence"),
        (23, "sequence"),
        (24, "first token"),
        (31, "stride"),
    ] {
        let mut slot = slot.clone();
        slot[at] ^= 0x40;
        let error = layout.read(&slot, &place, &bounds).unwrap_err();
        assert!(matches!(error, ChunkError::Head { field: f, .. } if f == field), "{at}: {error}");
    }
    for (other, field) in [
        (Place { epoch: 5, ..place }, "epoch"),
        (Place { sequence: 9 + 1024, ..place }, "sequence"),
        (Place { tokens: 1, ..place }, "record count"),
        (Place { tokens: 4, index: 1, ..place }, "first token"),
    ] {
        let error = layout.read(&slot, &other, &bounds).unwrap_err();
        assert!(matches!(error, ChunkError::Head { field: f, .. } if f == field), "{error}");
    }
    let error = layout.read(&slot, &Place { index: 1, ..place }, &bounds).unwrap_err();
    assert_eq!(error, ChunkError::Index { index: 1, chunks: 1 });
    let error = layout.read(&slot[..319], &place, &bounds).unwrap_err();
    assert_eq!(error, ChunkError::Short { what: "the chunk", got: 319, want: 320 });
    // A combine chunk of the same size is not a dispatch chunk.
    let combine = CombineLayout::new(60, 0, 320).unwrap();
    assert_eq!(combine.frame().stride(), layout.frame().stride());
    let error = combine.read(&slot, &place).unwrap_err();
    assert_eq!(error, ChunkError::Head { field: "operation", got: 0, want: 1 });
}

#[test]
fn a_writer_cannot_leave_its_slot() {
    let (layout, mut slot, place, _) = good();
    let choices = Choices { ids: &[6, 9, -1], weights: Some(&[1.0; 3]), experts: 6..12 };
    let entry = [Entry::default(); 3];
    let mut write = |index, entries, choices: &Choices<'_>| {
        layout.write(&mut slot, index, (0, entries), choices).unwrap_err()
    };
    assert_eq!(write(2, &entry[..1], &choices), ChunkError::Index { index: 2, chunks: 2 });
    let destinations = |got| ChunkError::Values { what: "destinations", got, want: 2 };
    assert_eq!(write(0, &entry[..0], &choices), destinations(0));
    assert_eq!(write(0, &entry, &choices), destinations(3));
    let short = Choices { ids: &[6], ..choices.clone() };
    assert_eq!(write(0, &entry[..1], &short), ChunkError::Values { what: "ids", got: 1, want: 3 });
    let none = Choices { weights: None, ..choices.clone() };
    assert_eq!(write(0, &entry[..1], &none), ChunkError::Values { what: "weights", got: 0, want: 3 });
    assert!(layout.write(&mut slot[..200], 1, (0, &entry[..1]), &choices).is_err());
    assert!(layout.frame().write_head(&mut slot[..319], &place).is_err());
}

#[test]
fn a_combine_chunk_byte_by_byte() {
    let layout = CombineLayout::new(8, 2, 64 + 3 * 64).unwrap();
    let place = Place { epoch: 6, sequence: 2, index: 1, tokens: 5 };
    let mut slot = vec![0xEE; 256];
    assert_eq!(layout.frame().write_head(&mut slot, &place).unwrap(), 64 + 2 * 64);
    assert_eq!(slot[..32], *b"ER\x01\x01\x02\0\0\0\x06\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x40\0\0\0");
    slot[layout.row(1)].fill(9);
    layout.write_weights(&mut slot, 1, &[0.5, -2.0]).unwrap();
    assert_eq!(slot[128..144], [9; 16]);
    assert_eq!(slot[144..152], [0, 0, 0, 0x3F, 0, 0, 0, 0xC0]);
    let chunk = layout.read(&slot, &place).unwrap();
    assert_eq!(chunk.records(), 2);
    let record = chunk.record(1).unwrap();
    assert_eq!((record.place, record.row), (4, &[9u8; 16][..]));
    assert_eq!(record.weights().collect::<Vec<_>>(), [0.5, -2.0]);
    assert!(chunk.record(2).is_err());
    assert!(layout.write_weights(&mut slot, 0, &[0.5]).is_err());
    assert!(layout.write_weights(&mut slot, 3, &[0.5, 1.0]).is_err());
    assert!(layout.write_weights(&mut slot[..80], 0, &[0.5, 1.0]).is_err());
}

const BOUNDS: HeaderBounds = HeaderBounds { ranks: 2, experts: 3, max_tokens: 10, top_k: 4 };

fn header() -> CallHeader {
    CallHeader {
        epoch: 7,
        signature: 0x1122_3344_5566_7788,
        origin: 0,
        tokens_to_node: 5,
        fixed: false,
        to_rank: vec![5, 2],
        to_expert: vec![4, 3, 2],
    }
}

#[test]
fn a_header_byte_by_byte() {
    let mut region = vec![0xEE; 128];
    assert_eq!(CallHeader::encoded_bytes(2, 3), 48 + 20);
    assert_eq!(CallHeader::region_bytes(2, 3), 128);
    assert_eq!(header().encode(&mut region), Ok(68));
    let mut want = b"ER\x01\x10\x02\0\0\0\x03\0\0\0\x05\0\0\0\x07\0\0\0\0\0\0\0".to_vec();
    want.extend([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    want.extend([0; 16]);
    want.extend([5, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(region[..68], want);
    assert_eq!(CallHeader::decode(&region, 7, &BOUNDS), Ok(header()));
    assert!(matches!(header().encode(&mut region[..67]), Err(CallError::Short { got: 67, want: 68, .. })));
}

#[test]
fn what_a_header_must_not_say() {
    let decode = |header: &CallHeader| {
        let mut region = vec![0; 128];
        header.encode(&mut region).unwrap();
        CallHeader::decode(&region, 7, &BOUNDS)
    };
    let field = |header| match decode(&header).unwrap_err() {
        CallError::Field { field, .. } => field,
        CallError::Count { what, .. } => what,
        other => panic!("{other}"),
    };
    assert_eq!(field(CallHeader { epoch: 9, ..header() }), "epoch");
    assert_eq!(field(CallHeader { to_rank: vec![5], ..header() }), "number of ranks");
    assert_eq!(field(CallHeader { to_expert: vec![], ..header() }), "number of experts");
    assert_eq!(field(CallHeader { tokens_to_node: 11, ..header() }), "tokens");
    assert_eq!(field(CallHeader { to_rank: vec![6, 0], ..header() }), "tokens for one rank");
    assert_eq!(field(CallHeader { to_expert: vec![20, 1, 0], ..header() }), "choices");
    assert_eq!(field(CallHeader { to_expert: vec![u32::MAX; 3], ..header() }), "choices");
    assert_eq!(field(CallHeader { to_expert: vec![6, 0, 0], ..header() }), "copies");
    let error = decode(&CallHeader { to_rank: vec![2, 2], ..header() }).unwrap_err();
    assert_eq!(error, CallError::Copies { tokens: 5, copies: 4 });
    // Cached calls and combines have none.
    let cached = CallHeader { origin: 3, to_rank: vec![], to_expert: vec![], ..header() };
    assert_eq!(decode(&cached), Ok(cached));

    let mut region = vec![0; 128];
    header().encode(&mut region).unwrap();
    for at in (0..16).chain(16..24).chain(40..48) {
        let mut region = region.clone();
        region[at] ^= 0x40;
        assert!(CallHeader::decode(&region, 7, &BOUNDS).is_err(), "byte {at}");
    }
    for len in 0..68 {
        assert!(CallHeader::decode(&region[..len], 7, &BOUNDS).is_err(), "{len} bytes");
    }
}

#[test]
fn statuses() {
    let too_small = Status::TooSmall { rank: 258, needed: 1 << 40, given: 3 };
    let mut want =
        b"ER\x01\x20\x01\0\0\0\x02\x01\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\x03\0\0\0\0\0\0\0"
            .to_vec();
    want.resize(64, 0);
    assert_eq!(too_small.encode(9)[..], want);
    for status in [Status::Ready, too_small, Status::Failed(u64::MAX)] {
        let bytes = status.encode(9);
        assert_eq!(Status::decode(&bytes, 9), Ok(status));
        assert!(Status::decode(&bytes, 8).is_err());
        for len in 0..64 {
            assert!(Status::decode(&bytes[..len], 9).is_err());
        }
    }
    // Every bit says something or must be zero.
    let ready = Status::Ready.encode(9);
    for bit in 0..8 * 64 {
        let mut bytes = ready;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let decoded = Status::decode(&bytes, 9);
        // Tag 1 is "too small" with all values zero.
        let allowed = Ok(Status::TooSmall { rank: 0, needed: 0, given: 0 });
        assert!(decoded.is_err() || (bit == 32 && decoded == allowed), "bit {bit}: {decoded:?}");
    }
    assert!(Status::decode(&Status::Failed(0).encode(9), 9).is_err());
}

#[derive(Clone, Debug)]
struct Call {
    placement: Placement,
    layout: Layout,
    kind: OutputKind,
    routing: Routing,
    node: Range<usize>,
    records: usize,
}

fn calls() -> impl Strategy<Value = Call> {
    let sizes = (1usize..5, 1usize..5, 1usize..20, 1usize..5, 1usize..5);
    (sizes, prop_oneof![Just(0usize), 1usize..4], any::<[bool; 3]>()).prop_flat_map(
        |((nodes, local, experts, top_k, records), alignment, [fp8, cached, weights])| {
            let ids = prop::collection::vec(-1..experts as i32, 0..20 * top_k);
            (ids, 0..nodes).prop_map(move |(mut ids, node)| {
                ids.truncate(ids.len() / top_k * top_k);
                Call {
                    placement: Placement::new(experts, nodes * local).unwrap(),
                    layout: if alignment == 0 { Layout::BySource } else { Layout::ExpertMajor { alignment } },
                    kind: OutputKind {
                        dtype: if fp8 { Dtype::Fp8E4m3 } else { Dtype::Bf16 },
                        hidden: if fp8 { 256 } else { 24 },
                        top_k,
                        cached,
                        weights,
                    },
                    routing: Routing::new(ids, top_k, experts).unwrap(),
                    node: node * local..(node + 1) * local,
                    records,
                }
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A call's tokens for one node go through chunks and come out as the routing says.
    #[test]
    fn a_call_goes_through_chunks(call in calls()) {
        let Call { placement, layout, kind, routing, node, records } = call;
        let plan = Plan::new(&routing, &placement, layout).unwrap();
        let experts = placement.experts_of_ranks(node.clone());
        // The source is the last rank; nobody else sends.
        let source = placement.ranks() - 1;
        let mut to_rank = vec![0; source * node.len()];
        to_rank.extend(&plan.rank_counts()[node.clone()]);
        let mut to_expert = vec![0; source * experts.len()];
        to_expert.extend(&plan.expert_counts()[experts.clone()]);
        let matrix = CountMatrix::of_node(placement, layout, node.clone(), to_rank, to_expert).unwrap();

        let most = node.len().min(kind.top_k);
        let slot_bytes = 64 + records * DispatchLayout::record_bytes(&kind, most);
        let chunks = DispatchLayout::new(&kind, most, slot_bytes).unwrap();
        prop_assert_eq!(chunks.frame().records_per_chunk(), records);
        let tokens: Vec<_> = plan.tokens_to(node.clone()).collect();
        let weight = |token: usize, k: usize| (token * 8 + k) as f32 + 0.5;
        let bounds = Bounds::new(&matrix, source, routing.tokens());
        let mut seen = Vec::new();
        for index in 0..chunks.frame().chunks(tokens.len()) {
            let mut slot = vec![0xAB; slot_bytes];
            let place = Place { epoch: 5, sequence: 1000 + index as u64, index, tokens: tokens.len() };
            let bytes = chunks.frame().write_head(&mut slot, &place).unwrap();
            for (i, token) in tokens[chunks.frame().tokens_of(index, tokens.len())].iter().enumerate() {
                let entries: Vec<Entry> = token.destinations.iter().enumerate()
                    .map(|(d, to)| Entry::new(to, token.firsts.get(d), node.start, experts.start)).collect();
                let t = token.token as usize;
                let weights: Vec<f32> = (0..kind.top_k).map(|k| weight(t, k)).collect();
                let choices =
                    Choices { ids: routing.row(t), weights: Some(&weights), experts: experts.clone() };
                chunks.write(&mut slot, i, (token.token, &entries), &choices).unwrap();
                slot[chunks.row(i)].fill(t as u8);
                slot[chunks.scales(i)].fill(!t as u8);
            }
            let chunk = chunks.read(&slot[..bytes], &place, &bounds).unwrap();
            for i in 0..chunk.records() {
                let record = chunk.record(i).unwrap();
                let t = record.token as usize;
                seen.push(t);
                prop_assert_eq!(record.row.len(), kind.dtype.row_bytes(kind.hidden));
                prop_assert!(record.row.iter().all(|&b| b == t as u8));
                prop_assert_eq!(record.scales.len(), 4 * kind.dtype.scales_per_row(kind.hidden));
                prop_assert!(record.scales.iter().all(|&b| b == !t as u8));
                let here = |&id: &i32| id >= 0 && experts.contains(&(id as usize));
                let ranks: std::collections::BTreeSet<usize> = routing.row(t).iter()
                    .filter(|id| here(id)).map(|&id| placement.rank_of(id as usize) - node.start).collect();
                let got: Vec<usize> = record.entries().map(|e| e.local_rank as usize).collect();
                prop_assert_eq!(got, ranks.into_iter().collect::<Vec<_>>());
                if kind.cached {
                    prop_assert_eq!(record.ids().count() + record.weights().count(), 0);
                    continue;
                }
                let ids: Vec<i32> = routing.row(t).iter().map(|id| if here(id) { *id } else { -1 }).collect();
                prop_assert_eq!(record.ids().collect::<Vec<_>>(), ids.clone());
                if kind.weights {
                    let want: Vec<f32> =
                        ids.iter().enumerate().map(|(k, &id)| if id < 0 { 0.0 } else { weight(t, k) }).collect();
                    prop_assert_eq!(record.weights().collect::<Vec<_>>(), want);
                }
            }
        }
        // Every token with an expert on the node, once, ascending.
        let want: Vec<usize> = (0..routing.tokens())
            .filter(|&t| routing.row(t).iter().any(|&id| id >= 0 && experts.contains(&(id as usize)))).collect();
        prop_assert_eq!(seen, want);
    }

    /// Whatever a peer writes, what is read of it stays within the counts.
    #[test]
    fn damaged_chunks_are_read_within_bounds(damage in prop::collection::vec((64usize..320, any::<u8>()), 1..8)) {
        let (layout, mut slot, place, matrix) = good();
        for (at, byte) in damage {
            slot[at] = byte;
        }
        let bounds = Bounds::new(&matrix, 0, 7);
        let chunk = layout.read(&slot, &place, &bounds).unwrap();
        for i in 0..chunk.records() {
            let Ok(record) = chunk.record(i) else { continue };
            prop_assert!(record.token < 7);
            for entry in record.entries() {
                prop_assert!((entry.slot as usize) < matrix.count(0, 2 + entry.local_rank as usize));
                prop_assert!(entry.first_slot < [2, 0, 0, 2, 0, 0][entry.expert as usize]);
                prop_assert_eq!(entry.expert / 3, entry.local_rank);
            }
            prop_assert!(record.ids().all(|id| id == -1 || (6..12).contains(&id)));
        }
    }
}
