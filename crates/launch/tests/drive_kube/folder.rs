//! A folder with a program that stands for kubectl and what it answers.
#![allow(unreachable_pub, dead_code)] // a part of several tests, each of which uses some of it

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

/// The program, and the cluster that it makes believe.
pub struct Folder(pub TempDir);

impl Folder {
    /// A run of two nodes that goes well; with pods and nodes as given.
    pub fn new(running: &[Value], complete: &[Value], nodes: &[Value]) -> Self {
        let folder = Self(TempDir::new().unwrap());
        let job = |conditions: Value| json!({"kind": "Job", "metadata": {"name": "bringup-abc123", "labels": {"expertrail.dev/run": "bringup-abc123"}}, "status": {"conditions": conditions}});
        let list = |pods: &[Value], conditions: Value| {
            let mut items = pods.to_vec();
            items.push(job(conditions));
            // One a line, so that the program can give those of one kind.
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            format!("{{\"items\": [\n{}\n]}}\n", items.join("\n,\n"))
        };
        folder.write("running.json", &list(running, json!([])));
        folder.write("complete.json", &list(complete, json!([{"type": "Complete", "status": "True"}])));
        folder.write("nodes.json", &json!({ "items": nodes }).to_string());
        folder.write(
            "log",
            "2026-03-01T00:00:01.1Z worker: node INDEX of 2: starting ranks as true\n2026-03-01T00:00:02.1Z ::expertrail-file v1 a 1/1 0 x\n\
             2026-03-01T00:00:03.1Z [rank 0] dispatch 100 us\n2026-03-01T00:00:09.1Z worker: node INDEX: all ranks passed\n",
        );
        folder.write("kubectl", include_str!("kubectl"));
        std::fs::set_permissions(folder.program(), std::fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap_or_default()
    }

    pub fn program(&self) -> PathBuf {
        self.0.path().join("kubectl")
    }
}
