//! Any bytes are no facts document, or one that every judgement can be made of: text without control characters, documents that
//! read back as they were written.
#![no_main]

use expertrail_cluster::check::{self, Options, Report, Target};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::finding::Status;
use expertrail_cluster::topo::{self, Topology};
use expertrail_cluster::{causes, collect, compare, stack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match collect::parse(bytes) {
        Ok(facts) => {
            for target in Target::ALL {
                judged(&facts, target);
            }
            mapped(&facts);
            compared(&facts);
            plain(&stack::text(&stack::judge(&stack::Question::of(&facts.userspace, Some(&facts), None))));
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
});

/// Nothing of a document may steer a terminal.
fn plain(text: &str) {
    assert!(text.ends_with('\n') && text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

fn judged(facts: &Facts, target: Target) {
    let report = check::run(facts, &Options { target, ..Options::default() });
    for finding in &report.findings {
        if let Some(cause) = &finding.cause {
            assert!(causes::get(cause).is_some(), "{cause} is in no registry");
        }
        assert!(finding.status != Status::Fail || !finding.observed.is_empty(), "{finding:?}");
    }
    let counts = report.counts;
    let all = counts.fail + counts.warn + counts.unknown + counts.pass + counts.not_applicable;
    assert_eq!(all, report.findings.len());
    // One line a finding: the lines of what is shown begin with a status, and no text of the document can look like one.
    let all = report.text(true);
    let lines = all.lines().take_while(|line| !line.is_empty()).count();
    assert_eq!(lines, report.findings.len(), "{all}");
    plain(&all);
    plain(&report.text(false));
    let json = serde_json::to_vec(&report).unwrap();
    assert_eq!(serde_json::from_slice::<Report>(&json).unwrap(), report);
}

fn mapped(facts: &Facts) {
    let topology = topo::map(facts);
    plain(&topo::text(&topology));
    let json = serde_json::to_vec(&topology).unwrap();
    assert_eq!(serde_json::from_slice::<Topology>(&json).unwrap(), topology);
    let env = topo::env(&topology);
    assert_eq!(env.is_none(), topology.inconclusive.is_some() || topology.unranked.is_some());
    if let Some(env) = env {
        // A shell runs these lines: nothing of a document may end a quotation.
        plain(&env);
        assert_eq!(env.matches("case \"").count(), 1);
        assert!(env.ends_with("\nesac\n"), "{env}");
        for line in env.lines().filter(|line| line.starts_with("export NCCL_IB_HCA")) {
            assert_eq!(line.matches('\'').count(), 2, "{line}");
        }
        for line in env.lines().filter(|line| line.contains(") export NVSHMEM_HCA_LIST=")) {
            assert_eq!(line.matches([';', '#']).count(), 3, "{line}");
            assert!(!line.contains(['\'', '"', '$', '`', '|', '<', '>', '&']), "{line}");
        }
    }
    if let Some(xml) = topo::nccl_xml(&topology, facts) {
        plain(&xml);
        assert_eq!(xml.matches("<pci ").count(), xml.matches("/>").count() + xml.matches("</pci>").count());
        for rest in xml.split("<!--").skip(1) {
            // XML allows no `--` in a comment but at its end.
            assert!(rest.split_once("--").is_some_and(|(_, end)| end.starts_with('>')), "{xml}");
        }
    }
}

fn compared(facts: &Facts) {
    let nodes = ["a.json", "b.json"].map(|file| compare::Node::new(facts, file));
    let report = compare::run(&nodes, Vec::new());
    assert!(report.differences.is_empty(), "{report:?}");
    plain(&report.text());
}
