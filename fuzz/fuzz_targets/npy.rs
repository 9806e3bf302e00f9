//! Any bytes are a routing or an error, in memory proportional to them; a routing can be written and read.
#![no_main]

use expertrail_bench::routing_file::{parse_npy, write_npy_i32};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(read) = parse_npy(bytes) {
        assert_eq!(read.ids.len(), read.rows * read.cols);
        let again = parse_npy(&write_npy_i32(&read.ids, read.cols));
        assert!(again.is_ok_and(|again| again.ids == read.ids && again.cols == read.cols));
    }
});
