//! Files through a log: what comes out is what went in, whatever launchers put around it, and nothing else comes out.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::format_collect)]

use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine;
use expertrail_launch::worker::frame::{self, Collected, Found, Problem, Reader, WriteError, split};
use proptest::prelude::*;

fn framed(name: &str, bytes: &[u8]) -> String {
    let mut out = Vec::new();
    frame::write(name, bytes, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Bytes that do not shrink.
fn noise(count: usize, mut seed: u64) -> Vec<u8> {
    let step = |_| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    (0..count).map(step).collect()
}

fn found(name: &str, bytes: &[u8]) -> Found {
    Found { name: name.to_owned(), bytes: bytes.to_vec() }
}

#[test]
fn other_programs_read_the_frames() {
    let bytes = noise(20_000, 7);
    let text = framed("a/b.bin", &bytes);
    let data: Vec<&str> = text.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    // 20,000 bytes that do not shrink are 26.7 kB of base64: eight lines of 3.5 kB.
    assert_eq!(data.len(), 8);
    for (at, line) in text.lines().enumerate() {
        assert!(line.len() <= 3500, "{}", line.len());
        assert!(line.starts_with(&format!("::expertrail-file v1 a/b.bin {}/8 ", at + 1)), "{line}");
    }
    let script = "while read -r part; do printf %s \"$part\" | base64 -d; done | gzip -dc";
    let mut child =
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines = data.join("\n") + "\n";
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.stdout == bytes, "{} bytes came", output.stdout.len());
}

#[test]
fn launchers_mark_lines_and_the_rest_of_the_log_stays() {
    let facts = framed("facts/node-0.json", b"{\"a\": 1}\n");
    let facts = facts.trim_end();
    for mark in [
        "",
        "[rank 3] ",
        "3: ",
        "[1,3]<stdout>:",
        "2025-11-30T16:01:02.5Z ",
        "[pod/run-0/ranks] ",
        "2025-11-30T16:01:02Z stdout F [rank 0] ",
    ] {
        for end in ["\n", "\r\n"] {
            let log = format!("first{end}{mark}{facts}{end}{mark}loss 3.5{end}last");
            let (rest, collected) = split(&log);
            assert_eq!(rest, format!("first{end}{mark}loss 3.5{end}last"), "{mark:?}");
            assert_eq!(collected.files, [found("facts/node-0.json", b"{\"a\": 1}\n")], "{mark:?}");
            assert!(collected.problems.is_empty(), "{:?}", collected.problems);
        }
    }
    // A frame that was glued to a line without an end.
    let (rest, collected) = split(&format!("half a line{facts}\nnext\n"));
    assert_eq!((rest.as_str(), collected.files.len()), ("half a line\nnext\n", 1));
}

#[test]
fn interleaved_files_and_lines_read_twice() {
    let (a, b) = (noise(9_000, 1), noise(12_000, 2));
    let (one, two) = (framed("a", &a), framed("b", &b));
    let mut lines: Vec<&str> = Vec::new();
    let (mut one, mut two) = (one.lines().rev(), two.lines());
    loop {
        let (x, y) = (one.next(), two.next());
        if x.is_none() && y.is_none() {
            break;
        }
        // Each twice, as after a watch that was cut.
        for line in [x, x, y, y].into_iter().flatten() {
            lines.push(line);
        }
    }
    let (rest, collected) = split(&lines.join("\n"));
    assert_eq!(rest, "");
    assert_eq!(collected, Collected { files: vec![found("a", &a), found("b", &b)], problems: Vec::new() });
}

#[test]
fn damage_is_named() {
    let text = framed("r.json", &noise(9_000, 3));
    let lines: Vec<&str> = text.lines().collect();
    let problems = |log: String| split(&log).1;

    let without_second = problems([lines[0], lines[2], lines[3]].join("\n"));
    assert!(without_second.files.is_empty());
    assert_eq!(
        without_second.problems,
        [Problem::Missing { name: "r.json".to_owned(), missing: 1, parts: 4, first: 2 }]
    );

    // One letter of the second part is another.
    let mut second = lines[1].to_owned();
    let last = if second.ends_with('A') { 'B' } else { 'A' };
    second.pop();
    second.push(last);
    let changed = problems([lines[0], &second, lines[2], lines[3]].join("\n"));
    assert!(changed.files.is_empty());
    assert!(
        matches!(&changed.problems[..], [Problem::Damaged { name, .. }] if name == "r.json"),
        "{:?}",
        changed.problems
    );

    // A line that was cut is no base64 any more; it stays in the log.
    let cut = &lines[1][..lines[1].len() - 1];
    let (rest, collected) = split(&[lines[0], cut, lines[2], lines[3]].join("\n"));
    assert_eq!(rest, format!("{cut}\n"));
    assert!(matches!(collected.problems[..], [Problem::Line { line: 2, .. }, Problem::Missing { .. }]));
}

#[test]
fn two_attempts_of_a_node() {
    let log = framed("f", b"old") + "text\n" + &framed("f", b"new");
    let (rest, collected) = split(&log);
    assert_eq!(rest, "text\n");
    assert_eq!(collected.files, [found("f", b"new")]);
    assert_eq!(collected.problems, [Problem::Versions { name: "f".to_owned(), versions: 2 }]);
}

#[test]
fn names_that_lead_elsewhere_are_refused_on_both_sides() {
    let mut out = Vec::new();
    for name in ["../x", "/etc/passwd", "a/../../x", "a b", "", "a\nb"] {
        assert!(matches!(frame::write(name, b"", &mut out), Err(WriteError::Name(_))), "{name}");
    }
    assert!(out.is_empty());
    let good = framed("aaaa", b"x");
    for name in ["../x", "/abs", "a/..", "a\\..\\b", "~/../x"] {
        let (_, collected) = split(&good.replace("aaaa", name));
        assert!(collected.files.is_empty(), "{name}");
        assert!(
            matches!(&collected.problems[..], [Problem::Name { line: 1, .. }]),
            "{:?}",
            collected.problems
        );
    }
}

#[test]
fn what_unpacks_to_more_than_64_mib_is_not_kept() {
    // Made by hand: the writer refuses it.
    let zeros = vec![0_u8; (64 << 20) + 1];
    assert!(matches!(frame::write("z", &zeros, &mut Vec::new()), Err(WriteError::Size { .. })));
    // As much as is allowed packs into a few lines and comes out whole.
    let text = framed("z", &zeros[1..]);
    let (_, collected) = split(&text);
    assert_eq!(collected.files.len(), 1);
    assert_eq!(collected.files[0].bytes.len(), 64 << 20);

    let script = "head -c 67108865 /dev/zero | gzip -9n";
    let packed = Command::new("sh").args(["-c", script]).output().unwrap().stdout;
    let mut crc = flate2::Crc::new();
    crc.update(&packed);
    let coded = base64::engine::general_purpose::STANDARD.encode(&packed);
    let (_, collected) = split(&format!("::expertrail-file v1 z 1/1 {:08x} {coded}\n", crc.sum()));
    assert!(collected.files.is_empty());
    assert!(matches!(&collected.problems[..], [Problem::Large { .. }]), "{:?}", collected.problems);
}

#[test]
fn a_flood_of_files_is_bounded() {
    let mut reader = Reader::new();
    for number in 0..30_000 {
        assert_eq!(reader.line(&format!("::expertrail-file v1 f{number} 1/2 00000000 AAAA")), None);
    }
    let collected = reader.finish();
    assert!(collected.problems.len() < 300);
    assert!(collected.problems.iter().any(|problem| matches!(problem, Problem::Flood { line: 20_001 })));
}

proptest! {
    #[test]
    fn any_file_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..6000), name in "[a-z0-9_.-]{0,20}[a-z](/[a-z0-9]{1,9}){0,3}", mark in "(\\[rank [0-9]\\] |[0-9]: |\\[1,[0-9]\\]<stdout>:)?") {
        let framed = framed(&name, &bytes);
        let log: String = framed.lines().map(|line| format!("{mark}{line}\n{mark}between\n")).collect();
        let (rest, collected) = split(&log);
        prop_assert_eq!(rest, format!("{mark}between\n").repeat(framed.lines().count()));
        prop_assert_eq!(collected, Collected { files: vec![found(&name, &bytes)], problems: Vec::new() });
    }

    #[test]
    fn hostile_lines_never_panic_and_never_lead_elsewhere(lines in prop::collection::vec("(::expertrail-file v1 )?[a./ ]{0,12}( [0-9]{0,6}/?[0-9]{0,6})?( [0-9a-f]{0,9})?( [A-Za-z0-9+/=]{0,40})?|\\PC{0,60}|::expertrail-file v1 \\PC{0,60}", 0..40)) {
        let (rest, collected) = split(&lines.join("\n"));
        prop_assert!(rest.len() <= lines.iter().map(|line| line.len() + 1).sum::<usize>());
        for file in collected.files {
            prop_assert!(!file.name.starts_with('/') && !file.name.split('/').any(|part| part == ".."));
        }
    }

    #[test]
    fn one_changed_byte_never_gives_a_wrong_file(bytes in prop::collection::vec(any::<u8>(), 1..4000), at in any::<prop::sample::Index>(), to in "[A-Za-z0-9+/ ]") {
        let good = framed("f", &bytes);
        let at = at.index(good.len());
        let mut text = good.clone().into_bytes();
        text[at] = to.as_bytes()[0];
        let text = String::from_utf8(text).unwrap();
        let (_, collected) = split(&text);
        for file in &collected.files {
            prop_assert!(file.bytes == bytes, "{}", text);
        }
    }
}
