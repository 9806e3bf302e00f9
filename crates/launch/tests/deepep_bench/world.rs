//! Ranks of the benchmark as processes of this machine, with made-up nodes.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A run takes a few seconds; one that takes this long hangs.
const DEADLINE: Duration = Duration::from_mins(2);

/// The benchmark.
pub(crate) fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/deepep_bench.py")
}

pub(crate) struct World {
    nodes: usize,
    local: usize,
    folder: TempDir,
    env: Vec<BTreeMap<String, String>>,
    args: Vec<Vec<String>>,
}

pub(crate) struct Ran {
    pub(crate) codes: Vec<i32>,
    /// Standard output and error of each rank.
    pub(crate) outputs: Vec<String>,
    folder: TempDir,
}

impl World {
    /// Nodes with a slow frontend, `mlx5_0`, and a rail for each rank from `mlx5_1` on.
    pub(crate) fn new(nodes: usize, local: usize) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("libnvshmem_host.so.3"), b"\x7fELF NVSHMEM v3.4.5\0").unwrap();
        // A port that was free a moment ago; ranks of other tests ask the system for theirs.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut world = Self { nodes, local, folder, env: Vec::new(), args: vec![Vec::new(); nodes * local] };
        for node in 0..nodes {
            for device in 0..=local {
                let folder = world.port_folder(node, &format!("mlx5_{device}"));
                fs::create_dir_all(folder.join("counters")).unwrap();
                fs::write(folder.join("state"), "4: ACTIVE\n").unwrap();
                fs::write(
                    folder.join("rate"),
                    if device == 0 { "100 Gb/sec (2X NDR)\n" } else { "400 Gb/sec (4X NDR)\n" },
                )
                .unwrap();
                fs::write(folder.join("counters/port_xmit_data"), "1000\n").unwrap();
            }
        }
        for rank in 0..nodes * local {
            let (node, local_rank) = (rank / local, rank % local);
            let own = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", (nodes * local).to_string()),
                ("LOCAL_RANK", local_rank.to_string()),
                ("LOCAL_WORLD_SIZE", local.to_string()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.to_string()),
                ("NVSHMEM_HCA_LIST", format!("mlx5_{}:1", local_rank + 1)),
                ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1".to_owned()),
                ("NVSHMEM_VERSION", "9.9.9".to_owned()),
                ("FAKE_SYSFS", world.sysfs(node).display().to_string()),
                ("FAKE_NVSHMEM", world.folder.path().join("libnvshmem_host.so.3").display().to_string()),
                ("FAKE_TOUCHED", world.folder.path().join("touched").display().to_string()),
                ("FAKE_SIZES", world.folder.path().join("sizes").display().to_string()),
            ];
            world.env.push(own.map(|(name, value)| (name.to_owned(), value)).into());
        }
        world
    }

    fn sysfs(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("sys{node}"))
    }

    fn port_folder(&self, node: usize, device: &str) -> PathBuf {
        self.sysfs(node).join("class/infiniband").join(device).join("ports/1")
    }

    /// A variable of every rank; empty takes it away.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        for rank in 0..self.env.len() {
            self = self.env_of(rank, name, value);
        }
        self
    }

    pub(crate) fn env_of(mut self, rank: usize, name: &str, value: &str) -> Self {
        if value.is_empty() {
            self.env[rank].remove(name);
        } else {
            self.env[rank].insert(name.to_owned(), value.to_owned());
        }
        self
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        for rank in 0..self.args.len() {
            self = self.args_of(rank, args);
        }
        self
    }

    pub(crate) fn args_of(mut self, rank: usize, args: &[&str]) -> Self {
        self.args[rank].extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    pub(crate) fn port(self, node: usize, device: &str, state: &str) -> Self {
        fs::write(self.port_folder(node, device).join("state"), state).unwrap();
        self
    }

    pub(crate) fn without_device(self, device: &str) -> Self {
        for node in 0..self.nodes {
            fs::remove_dir_all(self.sysfs(node).join("class/infiniband").join(device)).unwrap();
        }
        self
    }

    pub(crate) fn without_rails(self, node: usize) -> Self {
        fs::remove_dir_all(self.sysfs(node)).unwrap();
        self
    }

    /// Runs all ranks to their ends.
    pub(crate) fn run(self) -> Ran {
        let mut ranks: Vec<Child> = (0..self.env.len()).map(|rank| self.start(rank)).collect();
        let end = Instant::now() + DEADLINE;
        let mut codes = Vec::new();
        for (rank, child) in ranks.iter_mut().enumerate() {
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if Instant::now() > end {
                    child.kill().unwrap();
                    panic!("rank {rank} hangs: {}", fs::read_to_string(self.log(rank)).unwrap());
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            codes.push(status.code().unwrap_or_else(|| 128 + signal.unwrap()));
        }
        let outputs = (0..codes.len()).map(|rank| fs::read_to_string(self.log(rank)).unwrap()).collect();
        Ran { codes, outputs, folder: self.folder }
    }

    fn log(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("log.{rank}"))
    }

    fn start(&self, rank: usize) -> Child {
        let log = fs::File::create(self.log(rank)).unwrap();
        let small = [
            "--tokens",
            "12",
            "--hidden",
            "128",
            "--experts",
            "8",
            "--top-k",
            "3",
            "--warmup",
            "1",
            "--iters",
            "3",
        ];
        Command::new("python3")
            .arg(script())
            .arg("--sysfs")
            .arg(self.sysfs(rank / self.local))
            .arg("--json")
            .arg(self.folder.path().join("result.json"))
            .args(small)
            .args(&self.args[rank])
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_deepep"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .envs(&self.env[rank])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }
}

impl Ran {
    pub(crate) fn json(&self) -> PathBuf {
        self.folder.path().join("result.json")
    }

    pub(crate) fn result(&self) -> Value {
        serde_json::from_slice(&fs::read(self.json()).unwrap()).unwrap()
    }

    /// Whether any rank chose a GPU.
    pub(crate) fn touched(&self) -> bool {
        self.folder.path().join("touched").exists()
    }

    /// What rank 0 made DeepEP's buffers with.
    pub(crate) fn buffers(&self) -> Vec<String> {
        let sizes = fs::read_to_string(self.folder.path().join("sizes.0")).unwrap();
        sizes.lines().map(str::to_owned).collect()
    }
}
