//! Any bytes are a routing or an error, in memory proportional to them.
#![no_main]

use expertrail_bench::routing_file::parse_safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for tensor in [None, Some("topk")] {
        if let Ok(read) = parse_safetensors(bytes, tensor) {
            assert_eq!(read.ids.len(), read.rows * read.cols);
        }
    }
});
