//! The verdict over real NVSHMEM wheels: 3.4.5 and a newer one. `scripts/test` downloads them and names their folder in
//! `EXPERTRAIL_NVSHMEM_WHEELS`; without it these tests say so and check nothing.

#![allow(clippy::format_collect, clippy::format_push_string, clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use expertrail_cluster::facts::{Facts, Scope, Userspace};
use expertrail_cluster::root::Root;
use expertrail_cluster::stack::{Judgement, Question, Transport, judge};
use expertrail_cluster::userspace::{Options, collect, read_binary, unknown_variables};
use tempfile::TempDir;

fn wheels() -> Option<PathBuf> {
    let folder = std::env::var_os("EXPERTRAIL_NVSHMEM_WHEELS").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("NOT RUN: EXPERTRAIL_NVSHMEM_WHEELS is not set (scripts/test sets it)");
    }
    folder
}

/// Python folders as roots of packages, and nothing of this machine.
fn read(folders: &[&Path]) -> Userspace {
    let empty = TempDir::new().unwrap();
    let options = Options {
        python_roots: folders.iter().map(|folder| folder.to_path_buf()).collect(),
        ..Options::default()
    };
    collect(&Root::captured(empty.path()), &options)
}

fn newer(folder: &Path) -> String {
    let info = fs::read_dir(folder.join("newer"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap());
    let info = info.into_iter().find(|name| name.ends_with(".dist-info")).unwrap();
    info.trim_start_matches("nvidia_nvshmem_cu13-").trim_end_matches(".dist-info").to_owned()
}

#[test]
fn each_alone_is_known_by_its_own_text() {
    let Some(folder) = wheels() else { return };
    for (name, version) in [("3.4.5", "3.4.5".to_owned()), ("newer", newer(&folder))] {
        let mut question = Question::of(&read(&[&folder.join(name)]), None, Some(Transport::Ibgda));
        assert_eq!(question.get("nvshmem"), Some(version.as_str()));
        assert!(question.known["nvshmem"].source.contains("text inside the library"), "{:?}", question.known);
        // Nothing good is said of a DeepEP that is not there.
        assert!(
            matches!(question.notes.as_slice(), [note] if note.contains("no DeepEP")),
            "{:?}",
            question.notes
        );
        assert_eq!(judge(&question).judgement, Judgement::Unverified, "{name}");
        question.set("line", "hybrid-ep", "given");
        let expected = if name == "3.4.5" { Judgement::KnownGood } else { Judgement::Unverified };
        assert_eq!(judge(&question).judgement, expected, "{name}");
    }
}

#[test]
fn both_at_once_are_named_with_their_places() {
    let Some(folder) = wheels() else { return };
    let userspace = read(&[&folder.join("3.4.5"), &folder.join("newer")]);
    let library = userspace.libraries.iter().find(|library| library.name == "libnvshmem_host.so.3").unwrap();
    assert_eq!(library.copies.len(), 2);
    let question = Question::of(&userspace, None, Some(Transport::Ibgda));
    let note = question.notes.iter().find(|note| note.contains("2 copies")).unwrap();
    assert!(note.contains("3.4.5") && note.contains(&newer(&folder)), "{note}");
    // Neither is on a path of the loader, so none is said to load.
    assert_eq!(question.get("nvshmem"), None);
}

#[test]
fn a_wheel_that_lies_is_found_out() {
    let Some(folder) = wheels() else { return };
    let place = TempDir::new().unwrap();
    // The newer library under the metadata of the older.
    let lib = place.path().join("nvidia/nvshmem/lib");
    fs::create_dir_all(&lib).unwrap();
    let name = "libnvshmem_host.so.3";
    fs::copy(folder.join("newer/nvidia/nvshmem/lib").join(name), lib.join(name)).unwrap();
    let info = place.path().join("nvidia_nvshmem_cu13-3.4.5.dist-info");
    fs::create_dir_all(&info).unwrap();
    fs::write(info.join("METADATA"), "Metadata-Version: 2.1\nName: nvidia-nvshmem-cu13\nVersion: 3.4.5\n\n")
        .unwrap();
    let question = Question::of(&read(&[place.path()]), None, Some(Transport::Ibgda));
    assert_eq!(question.get("nvshmem"), Some(newer(&folder).as_str()));
}

#[test]
fn a_false_variable_is_named_as_such() {
    let Some(folder) = wheels() else { return };
    let mut facts = Facts { userspace: read(&[&folder.join("newer")]), ..Facts::default() };
    let variables = [("NVSHMEM_VERSION".to_owned(), "3.4.5".to_owned())].into();
    facts.environment.variables =
        expertrail_cluster::facts::Fact::read(variables, "environ", Scope::Container);
    let question = Question::of(&facts.userspace, Some(&facts), Some(Transport::Ibgda));
    let note = question.notes.iter().find(|note| note.contains("NVSHMEM_VERSION")).unwrap();
    assert!(note.contains("says 3.4.5") && note.contains(&format!("says {}", newer(&folder))), "{note}");
    assert_eq!(question.get("nvshmem"), Some(newer(&folder).as_str()));
}

#[test]
fn variables_and_symbols_of_both() {
    let Some(folder) = wheels() else { return };
    let library = |name: &str| folder.join(name).join("nvidia/nvshmem/lib/libnvshmem_host.so.3");
    // `strings` shows this variable in the newer library only, and the other in both.
    let names = ["NVSHMEM_NETDEVS_POLICY", "NVSHMEM_HCA_LIST", "NVSHMEM_NO_SUCH_THING"].map(str::to_owned);
    assert_eq!(
        unknown_variables(&library("3.4.5"), &names).unwrap(),
        ["NVSHMEM_NETDEVS_POLICY", "NVSHMEM_NO_SUCH_THING"]
    );
    assert_eq!(unknown_variables(&library("newer"), &names).unwrap(), ["NVSHMEM_NO_SUCH_THING"]);
    // The symbol whose absence stops an import, as `readelf` shows it.
    let has = |name: &str| {
        read_binary(fs::File::open(library(name)).unwrap())
            .unwrap()
            .offers
            .contains("nvshmem_selected_device_transport")
    };
    assert!(!has("3.4.5"));
    assert!(has("newer"));
    let archs: Vec<u32> = read_binary(fs::File::open(library("3.4.5")).unwrap())
        .unwrap()
        .archs
        .iter()
        .map(|arch| arch.sm)
        .collect();
    assert!(archs.contains(&90) && archs.contains(&100), "{archs:?}");
}
