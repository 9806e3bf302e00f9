//! Committed files. `EXPERTRAIL_WRITE_GOLDEN=1` writes them anew; look at the difference before it is committed.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use expertrail_launch::engine::DEEPEP_TEXT;

use super::cases::{all, documents};

/// `text` without what is a file of its own elsewhere and would be in every golden file once more.
fn cut(text: &str) -> String {
    let mut out = String::new();
    let mut skipping = false;
    for line in text.lines() {
        let inner = line.is_empty() || line.starts_with("   ");
        skipping = skipping && inner;
        let key = line.split(':').next().unwrap_or_default();
        if matches!(key, "  run.json" | "  deepep_bench.py") {
            skipping = true;
            let _ = writeln!(out, "{key}: (not in golden files)");
        } else if !skipping {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[test]
fn files_are_those_that_were_looked_at() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let write = env::var_os("EXPERTRAIL_WRITE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for case in all() {
        let folder = root.join(case.folder);
        let files = case.files();
        let mut names = Vec::new();
        for file in files.files.iter().filter(|file| file.path != "run.json") {
            let path = folder.join(&file.path);
            let text = cut(&file.text);
            names.push(file.path.clone());
            if write {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &text).unwrap();
            }
            if fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
                wrong.push(path.display().to_string());
            }
        }
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !names.contains(&name) {
                wrong.push(format!("{} is not rendered any more", folder.join(name).display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "differ from what is rendered (EXPERTRAIL_WRITE_GOLDEN=1 writes them):\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_same_run_gives_the_same_files() {
    for case in all() {
        assert_eq!(case.files(), case.files());
        assert_eq!(case.files().files[0].path, "run.json");
    }
}

/// What golden files leave out.
#[test]
fn pods_get_the_benchmark_and_the_run_as_they_are() {
    for case in all() {
        let files = case.files();
        let map = documents(&files.get("manifest.yaml").unwrap().text)
            .into_iter()
            .find(|document| document["kind"] == "ConfigMap")
            .unwrap();
        assert_eq!(
            map["data"]["run.json"].as_str().unwrap(),
            files.get("run.json").unwrap().text,
            "{}",
            case.folder
        );
        let benchmark = map["data"].get("deepep_bench.py").map(|text| text.as_str().unwrap());
        let own = case.text.contains("\"deepep\"") && !case.text.contains("upstream-tests");
        assert_eq!(benchmark, own.then_some(DEEPEP_TEXT), "{}", case.folder);
    }
}
