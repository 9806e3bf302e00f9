//! A cluster as a folder of answers with a program beside them that stands for kubectl.
// Each test file uses a part; what a test helper does not expect is the test's failure.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::world::World;

/// The program.
const PROGRAM: &str = include_str!("kubectl");

pub struct Folder {
    folder: TempDir,
}

impl Folder {
    /// Writes the answers of `world`.
    pub fn new(world: &World) -> Self {
        let folder = Self { folder: tempfile::tempdir().unwrap() };
        folder.write("current-context", "script-context\n");
        folder.write("view.json", r#"{"clusters":[{"cluster":{"server":"https://k8s.test:6443"}}]}"#);
        folder.write("version.json", r#"{"serverVersion":{"gitVersion":"v1.31.4"}}"#);
        folder.write("can-i", "yes\n");
        folder.write("no-pods.json", r#"{"items":[]}"#);
        folder.write("usage", &(world.usage.join("\n") + "\n"));
        for kind in world.lists.keys() {
            folder.write(&format!("{kind}.json"), &world.list(kind).to_string());
        }
        for (name, config) in &world.configs {
            folder.write(&format!("configmap-{name}.json"), &config.to_string());
        }
        let names: Vec<String> =
            world.definitions.iter().map(|name| format!("customresourcedefinition/{name}\n")).collect();
        folder.write("definitions", &names.concat());
        for (pod, inside) in &world.inside {
            folder.write(&format!("inside-{pod}"), &inside.print());
            folder.write(&format!("topo-{pod}"), &inside.matrix);
        }
        let program = folder.program();
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn program(&self) -> PathBuf {
        self.path().join("kubectl")
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }
}
