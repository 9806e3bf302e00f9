//! Any bytes that a peer can write between nodes are a message or an error: immediates, headers, statuses, chunks.
#![no_main]

use expertrail_core::hop::call::HeaderBounds;
use expertrail_core::hop::chunk::{Bounds, CombineLayout, DispatchLayout};
use expertrail_core::hop::{CallHeader, Immediate, Peers, Place, Receiver, Sender, Status};
use expertrail_core::output::OutputKind;
use expertrail_core::{CountMatrix, Dtype, Layout, Placement};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    immediates(bytes);
    let epoch = 3;
    let bounds = HeaderBounds { ranks: 2, experts: 6, max_tokens: 8, top_k: 3 };
    if let Ok(header) = CallHeader::decode(bytes, epoch, &bounds) {
        assert!(header.tokens_to_node <= 8 && header.to_rank.iter().all(|&count| count <= 8));
        let mut again = vec![0; bytes.len()];
        let length = header.encode(&mut again);
        assert!(length.is_ok_and(|length| again[..length] == bytes[..length]));
    }
    if let Ok(status) = Status::decode(bytes, epoch) {
        assert_eq!(status.encode(epoch)[..], bytes[..Status::ENCODED]);
    }
    chunks(bytes, epoch);
});

/// Every word is an immediate that has this encoding, or none; streams and peers take whatever it says.
fn immediates(bytes: &[u8]) {
    let (Ok(mut sender), Ok(mut receiver)) = (Sender::new(4), Receiver::new(4)) else { return };
    let mut peers = Peers::new(3, 0);
    for word in bytes.chunks_exact(4) {
        let word = word.iter().fold(0, |word, &byte| word << 8 | u32::from(byte));
        let Ok(immediate) = Immediate::decode(word) else { continue };
        assert_eq!(immediate.encode(), Ok(word));
        let node = immediate.source as usize;
        let _ = (peers.header(node, immediate.epoch), peers.status(node, immediate.epoch));
        let _ = (peers.chunk(node, immediate.epoch), peers.bye(node, immediate.epoch));
        let _ = (peers.finish(true), sender.send(), sender.credit(immediate.sequence));
        if let Ok(seq) = receiver.arrive(immediate.sequence) {
            assert!(receiver.readable(seq) && receiver.consume(seq).is_ok());
        }
        assert!(sender.in_flight() <= 4);
    }
}

/// A record that is accepted leads to rows within the counts. The head is made right, or hardly any input passes it.
fn chunks(bytes: &[u8], epoch: u64) {
    let mut slot = bytes.to_vec();
    let place = Place { epoch, sequence: 9, index: 0, tokens: 2 };
    let mut to_expert = vec![0; 24];
    to_expert[..6].copy_from_slice(&[2, 0, 1, 2, 0, 0]);
    let mut to_rank = vec![0; 8];
    to_rank[..2].copy_from_slice(&[3, 2]);
    let Ok(placement) = Placement::new(12, 4) else { return };
    for layout in [Layout::BySource, Layout::ExpertMajor { alignment: 2 }] {
        let matrix = CountMatrix::of_node(placement, layout, 2..4, to_rank.clone(), to_expert.clone());
        let Ok(matrix) = matrix else { return };
        for cached in [false, true] {
            let kind = OutputKind { dtype: Dtype::Bf16, hidden: 8, top_k: 3, cached, weights: true };
            let Ok(chunks) = DispatchLayout::new(&kind, 2, 320) else { return };
            let bounds = Bounds::new(&matrix, 0, 8);
            let _ = chunks.read(bytes, &place, &bounds);
            if chunks.frame().write_head(&mut slot, &place).is_err() {
                return;
            }
            let Ok(chunk) = chunks.read(&slot, &place, &bounds) else { continue };
            for record in (0..chunk.records()).filter_map(|i| chunk.record(i).ok()) {
                assert!(record.token < 8 && record.row.len() == 16);
                assert!(record.ids().all(|id| id == -1 || (6..12).contains(&id)));
                for entry in record.entries() {
                    assert!(entry.slot < to_rank[entry.local_rank as usize]);
                    if layout != Layout::BySource {
                        assert!(entry.first_slot < to_expert[entry.expert as usize]);
                        assert_eq!(entry.expert / 3, entry.local_rank);
                    }
                }
                let _ = record.weights().count();
            }
        }
    }
    if let Ok(combine) = CombineLayout::new(8, 3, 320)
        && combine.frame().write_head(&mut slot, &place).is_ok()
        && let Ok(chunk) = combine.read(&slot, &place)
    {
        for record in (0..chunk.records()).filter_map(|i| chunk.record(i).ok()) {
            assert!(record.place < 2 && record.row.len() == 16 && record.weights().count() == 3);
        }
    }
}
