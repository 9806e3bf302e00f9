//! The disk cache.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use expertrail_cuda::kernels::PROBE;
use expertrail_cuda::{Arch, Cache, Cubin, Key, Program, Version};
use support::{cubin, folder};

const VERSION: Version = Version { major: 13, minor: 0 };

fn key(source: &str) -> Key {
    Key::new(&Program { source, ..PROBE }, &["-x".to_owned()], Arch::SM_90A, VERSION)
}

fn kernels(tail: &[u8]) -> Cubin {
    Cubin::new(cubin(tail)).unwrap()
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn what_is_put_is_got() {
    let folder = folder("round");
    let cache = Cache::at(folder.join("a/b"));
    assert_eq!(cache.get(&key("1")), None);
    cache.put(&key("1"), &kernels(b"one")).unwrap();
    cache.put(&key("2"), &kernels(b"two")).unwrap();
    assert_eq!(cache.get(&key("1")), Some(kernels(b"one")));
    assert_eq!(cache.get(&key("2")), Some(kernels(b"two")));
    cache.put(&key("1"), &kernels(b"new")).unwrap();
    assert_eq!(cache.get(&key("1")), Some(kernels(b"new")));
    assert_eq!(files(&folder.join("a/b")).len(), 2, "nothing is left aside");
    let mode = std::fs::metadata(folder.join("a/b")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_input_changes_the_key() {
    let none: [String; 0] = [];
    let base = Program { name: "n", source: "s", headers: &[], options: &[] };
    let keys = [
        Key::new(&base, &none, Arch::SM_90A, VERSION),
        Key::new(&base, &none, Arch::SM_100A, VERSION),
        Key::new(&base, &none, Arch::SM_90A, Version { major: 13, minor: 1 }),
        Key::new(&base, &["-a".to_owned()], Arch::SM_90A, VERSION),
        Key::new(&base, &["-".to_owned(), "a".to_owned()], Arch::SM_90A, VERSION),
        Key::new(&Program { name: "ns", source: "", ..base }, &none, Arch::SM_90A, VERSION),
        Key::new(&Program { source: "t", ..base }, &none, Arch::SM_90A, VERSION),
        Key::new(&Program { headers: &[("h", "x")], ..base }, &none, Arch::SM_90A, VERSION),
        Key::new(&Program { headers: &[("hx", "")], ..base }, &none, Arch::SM_90A, VERSION),
    ];
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|b| a != b), "key {i}");
    }
}

#[test]
fn damaged_entries_are_no_hits_and_are_replaced() {
    let folder = folder("damage");
    let cache = Cache::at(&folder);
    cache.put(&key("1"), &kernels(b"one")).unwrap();
    let file = files(&folder).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    // Every byte counts, and so does every length.
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(cache.get(&key("1")), None, "byte {at}");
        std::fs::write(&file, &whole[..at]).unwrap();
        assert_eq!(cache.get(&key("1")), None, "length {at}");
    }
    std::fs::write(&file, [&whole[..], b"x"].concat()).unwrap();
    assert_eq!(cache.get(&key("1")), None, "a byte too many");
    // Two keys with one hash: the entry is another key's.
    cache.put(&key("2"), &kernels(b"two")).unwrap();
    let other = files(&folder).into_iter().find(|path| *path != file).unwrap();
    std::fs::copy(&other, &file).unwrap();
    assert_eq!(cache.get(&key("1")), None, "another key's entry");
    cache.put(&key("1"), &kernels(b"one")).unwrap();
    assert_eq!(cache.get(&key("1")), Some(kernels(b"one")));
    // A folder, or a huge file, in an entry's place.
    std::fs::File::options().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(cache.get(&key("1")), None);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert_eq!(cache.get(&key("1")), None);
    assert!(cache.put(&key("1"), &kernels(b"one")).is_err());
    assert_eq!(files(&folder).len(), 2, "the entry aside is removed when it cannot be renamed");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn readers_see_whole_entries_whoever_writes() {
    let folder = folder("writers");
    let cache = Cache::at(&folder);
    let versions: Vec<Cubin> = (0..4_u8).map(|i| kernels(&vec![i; 20_000 + 1000 * usize::from(i)])).collect();
    cache.put(&key("1"), &versions[0]).unwrap();
    std::thread::scope(|scope| {
        for version in &versions {
            scope.spawn(|| (0..100).for_each(|_| cache.put(&key("1"), version).unwrap()));
        }
        for _ in 0..200 {
            let got = cache.get(&key("1")).expect("an entry is always there");
            assert!(versions.contains(&got));
        }
    });
    assert_eq!(files(&folder).len(), 1);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = folder("unwritable");
    // A file where the folder should be: also root cannot write there.
    std::fs::write(folder.join("file"), "").unwrap();
    let cache = Cache::at(folder.join("file/cache"));
    assert_eq!(cache.get(&key("1")), None);
    let error = cache.put(&key("1"), &kernels(b"")).unwrap_err();
    assert!(
        error.to_string().contains("file/cache") && error.to_string().contains("EXPERTRAIL_CACHE"),
        "{error}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_environment_chooses_the_folder() {
    type Case = (&'static [(&'static str, &'static str)], Option<&'static str>);
    let cases: [Case; 7] = [
        (&[("EXPERTRAIL_CACHE", "/e"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/e")),
        (&[("EXPERTRAIL_CACHE", "off"), ("HOME", "/h")], None),
        (&[("EXPERTRAIL_CACHE", ""), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/expertrail")),
        (&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")], Some("/h/.cache/expertrail")),
        (&[("HOME", "/h")], Some("/h/.cache/expertrail")),
        (&[("HOME", "")], None),
        (&[], None),
    ];
    for (variables, wanted) in cases {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
        assert_eq!(Cache::from_variables(get).folder(), wanted.map(Path::new), "{variables:?}");
    }
    Cache::off().put(&key("1"), &kernels(b"")).unwrap();
    assert_eq!(Cache::off().get(&key("1")), None);
}

/// Sets the time of the entry's last use, `seconds` after 2001.
fn used(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000 + seconds);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// The file that a put of `name` makes.
fn put(cache: &Cache, folder: &Path, name: &str, length: usize) -> std::path::PathBuf {
    let before = files(folder);
    cache.put(&key(name), &kernels(&vec![1; length])).unwrap();
    files(folder).into_iter().find(|path| !before.contains(path)).expect("a new file")
}

#[test]
fn the_entries_used_longest_ago_go_when_there_are_too_many() {
    let folder = folder("count");
    let cache = Cache::at(&folder).bounded(1 << 20, 3);
    for (time, name) in ["a", "b", "c"].into_iter().enumerate() {
        used(&put(&cache, &folder, name, 10), time as u64);
    }
    // What is used again is not the oldest any more.
    assert!(cache.get(&key("a")).is_some());
    put(&cache, &folder, "d", 10);
    let there = |name: &str| cache.get(&key(name)).is_some();
    assert_eq!(["a", "b", "c", "d"].map(there), [true, false, true, true]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_entries_used_longest_ago_go_when_they_are_too_large() {
    let folder = folder("size");
    let unbounded = Cache::at(&folder);
    for (time, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        used(&put(&unbounded, &folder, name, 1000), time as u64);
    }
    let one = std::fs::metadata(&files(&folder)[0]).unwrap().len();
    // Room for three of five, and not for a byte more.
    let cache = unbounded.clone().bounded(3 * one, 100);
    put(&cache, &folder, "e", 1000);
    let there = |name: &str| cache.get(&key(name)).is_some();
    assert_eq!(["a", "b", "c", "d", "e"].map(there), [false, false, true, true, true]);
    // One that is larger than the bound stays until the next comes.
    let small = unbounded.bounded(1, 0);
    small.put(&key("f"), &kernels(&[1; 1000])).unwrap();
    assert_eq!(["c", "d", "e", "f"].map(there), [false, false, false, true]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn sweeping_takes_only_entries_and_what_dead_writers_left() {
    let folder = folder("sweep");
    let cache = Cache::at(&folder).bounded(0, 0);
    let entry = put(&cache, &folder, "a", 10).file_name().unwrap().to_str().unwrap().to_owned();
    let (dead, alive) = (folder.join(format!(".{entry}.1.0.0")), folder.join(format!(".{entry}.2.0.0")));
    let own =
        ["notes.txt", "my.cubin", ".hidden", &entry.replace(".cubin", ".txt")].map(|name| folder.join(name));
    for path in own.iter().chain([&dead, &alive]) {
        std::fs::write(path, "text").unwrap();
        used(path, 0);
    }
    std::fs::File::options()
        .write(true)
        .open(&alive)
        .unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    std::fs::create_dir(folder.join("0123456789abcdef0123456789abcdef.cubin")).unwrap();
    cache.put(&key("b"), &kernels(b"")).unwrap();
    assert!(own.iter().all(|path| path.exists()), "{:?}", files(&folder));
    assert!(alive.exists() && !dead.exists());
    assert_eq!((cache.get(&key("a")), cache.get(&key("b"))), (None, Some(kernels(b""))));
    assert_eq!(files(&folder).len(), 4 + 1 + 1 + 1);
    std::fs::remove_dir_all(folder).unwrap();
}
