//! Any bytes are read as logs, and every rule is asked about them: no panic, bounded events with places that exist, and counts that fit.
//!
//! A line `@FILE NAME` starts another file; what is before the first of them is `log`.
#![no_main]

use expertrail_cluster::diagnose::{Evidence, Input, conclude, read, rules, text};
use libfuzzer_sys::fuzz_target;

fn files(data: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![("log".to_owned(), Vec::new())];
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_prefix(b"@FILE ") {
            Some(name) if all.len() < 3 => all.push((String::from_utf8_lossy(name).trim().to_owned(), Vec::new())),
            _ => {
                if let Some((_, text)) = all.last_mut() {
                    text.extend_from_slice(line);
                }
            }
        }
    }
    all
}

fuzz_target!(|data: &[u8]| {
    let files = files(data);
    let lines: Vec<u64> =
        files.iter().map(|(_, text)| text.iter().filter(|byte| **byte == b'\n').count() as u64 + 1).collect();
    let inputs = files.into_iter().map(|(name, bytes)| Input::Text { name, bytes }).collect();
    // Bytes that are no text at all are refused.
    let Ok(case) = read(inputs, Evidence::default()) else { return };
    assert_eq!(case.files.len(), lines.len());
    for event in &case.events {
        let last = lines[event.place.file as usize];
        assert!((1..=last).contains(&event.place.line), "{event:?} of {last}");
        assert!(event.text.len() <= 600, "{}", event.text.len());
        assert!(event.time.is_none_or(f64::is_finite), "{event:?}");
    }
    for (signal, tally) in &case.tallies {
        assert!(tally.events.len() <= 64 + 2 * 512, "{signal}");
        assert!(tally.lines >= tally.events.len() as u64 && tally.lines > 0, "{signal}");
        assert!(tally.events.iter().all(|index| case.events[*index].signal == *signal), "{signal}");
    }
    if let (Some(world), Some(most)) = (case.world, case.ranks_seen.last()) {
        assert!(*most < world);
    }
    for rule in rules::rules() {
        if let Some(claim) = rule.apply(&case) {
            assert!(claim.evidence.iter().all(|place| (place.file as usize) < case.files.len()), "{claim:?}");
            assert!(!claim.because.is_empty(), "{claim:?}");
        }
    }
    let diagnosis = conclude(&case);
    assert!(matches!(diagnosis.exit_code(), 0 | 1 | 3));
    // Nothing of a log reaches a terminal raw.
    assert!(!text(&diagnosis).chars().any(|c| c.is_control() && c != '\n'));
    assert!(serde_json::to_string(&diagnosis).is_ok());
});
