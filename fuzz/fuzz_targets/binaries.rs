//! Any bytes are no library, or one of which no more is told than it holds.
#![no_main]

use std::fs::File;
use std::io::{Cursor, Seek, SeekFrom, Write};

use expertrail_cluster::userspace::{Binary, fatbin, read_binary};
use libfuzzer_sys::fuzz_target;

thread_local! {
    /// The reader takes a file, as it does of a node; one for all inputs, without a name.
    static FILE: File = tempfile();
}

fn tempfile() -> File {
    let path = std::env::temp_dir().join(format!("expertrail-fuzz-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fuzz_target!(|bytes: &[u8]| {
    FILE.with(|mut file| {
        file.set_len(0).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(bytes).unwrap();
        match read_binary(file.try_clone().unwrap()) {
            Ok(binary) => whole(&binary, bytes),
            Err(reason) => assert!(!reason.is_empty() && reason.len() < 256),
        }
    });
    // Ranges as a section's header may claim them, in and out of the file.
    let size = bytes.len() as u64;
    for (start, length) in [(0, size), (0, u64::MAX), (8, size), (size, 1), (u64::MAX - 8, u64::MAX), (4, 40)]
    {
        for arch in fatbin(&mut Cursor::new(bytes), start, length) {
            assert!((30..1000).contains(&arch.sm), "{arch:?}");
            assert!(holds(bytes, &arch.sm.to_le_bytes()));
        }
    }
});

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}

/// Every text is one of the file's.
fn whole(binary: &Binary, bytes: &[u8]) {
    let names = binary.wants.iter().chain(&binary.offers);
    for name in names {
        assert!(name.contains("nvshmem") && holds(bytes, name.as_bytes()), "{name:?}");
    }
    let texts = binary.needed.iter().chain(&binary.rpath).chain(&binary.runpath).chain(&binary.defines);
    for text in texts.chain(binary.requires.iter().flat_map(|(library, version)| [library, version])) {
        // What is no UTF-8 is shown with replacements.
        assert!(text.contains('\u{fffd}') || holds(bytes, text.as_bytes()), "{text:?}");
    }
    assert!(binary.rpath.iter().chain(&binary.runpath).all(|folder| !folder.is_empty()));
    if let Some(version) = &binary.nvshmem_device {
        assert_eq!(version.split('.').count(), 3);
        assert!(holds(bytes, b"nvshmemi_device_lib_version"));
    }
}
