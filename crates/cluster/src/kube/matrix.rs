//! The matrix that `nvidia-smi topo -m` prints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// More devices than any node has; a longer first line is no such matrix.
const MOST: usize = 512;

/// How devices of a node reach each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Matrix {
    /// Devices in the order of columns: `GPU0`, and NICs by their names (`mlx5_0`) where the legend or the matrix tells.
    pub devices: Vec<String>,
    /// A row for each device: `X`, `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`; empty where a cell is missing.
    pub rows: Vec<Vec<String>>,
    /// NUMA nodes of GPUs, by their names, where the matrix tells.
    pub numa: BTreeMap<String, String>,
}

impl Matrix {
    /// Takes the output apart. Escape codes (the head is underlined), other text around it and missing cells are tolerated.
    ///
    /// # Errors
    /// When there is no line of column heads, or no row below it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = without_escapes(text);
        let mut lines = text.lines();
        let head = lines
            .by_ref()
            .find(|line| line.split_whitespace().next().is_some_and(|word| word == "GPU0"))
            .ok_or("no line begins with the column head GPU0")?;
        // The columns after the devices have heads of two words: CPU Affinity, NUMA Affinity, GPU NUMA ID.
        let mut devices: Vec<String> = head
            .split_whitespace()
            .take_while(|word| !["CPU", "NUMA"].contains(word))
            .take(MOST + 1)
            .map(str::to_owned)
            .collect();
        if devices.len() > MOST {
            return Err(format!("more than {MOST} columns"));
        }
        let mut rows = vec![Vec::new(); devices.len()];
        let mut numa = BTreeMap::new();
        let mut found = false;
        let mut names = BTreeMap::new();
        for line in lines {
            let mut words = line.split_whitespace();
            let Some(first) = words.next() else { continue };
            if let Some(nic) = first.strip_suffix(':') {
                if let (Some(name), None) = (words.next(), words.next()) {
                    names.insert(nic.to_owned(), name.to_owned());
                }
                continue;
            }
            let Some(at) = devices.iter().position(|device| device == first) else { continue };
            let words: Vec<&str> = words.take(devices.len() + 8).collect();
            let cells: Vec<String> = words.iter().take(devices.len()).map_while(|word| cell(word)).collect();
            if let (true, Some(node)) = (first.starts_with("GPU"), words.get(devices.len() + 1)) {
                numa.insert(first.to_owned(), (*node).to_owned());
            }
            if let Some(row) = rows.get_mut(at).filter(|row| row.is_empty()) {
                found |= !cells.is_empty();
                *row = cells;
                row.resize(devices.len(), String::new());
            }
        }
        if !found {
            return Err("no row below the column heads".to_owned());
        }
        for device in &mut devices {
            if let Some(name) = names.get(device.as_str()) {
                device.clone_from(name);
            }
        }
        Ok(Self { devices, rows, numa })
    }

    /// The cell of two devices, by place.
    pub fn cell(&self, row: usize, column: usize) -> Option<&str> {
        self.rows.get(row)?.get(column).map(String::as_str).filter(|cell| !cell.is_empty())
    }

    /// Places of the GPUs.
    pub fn gpus(&self) -> Vec<usize> {
        self.places(true)
    }

    /// Places of the other devices.
    pub fn nics(&self) -> Vec<usize> {
        self.places(false)
    }

    fn places(&self, gpu: bool) -> Vec<usize> {
        let all = self.devices.iter().enumerate();
        all.filter(|(_, name)| is_gpu(name) == gpu).map(|(at, _)| at).collect()
    }

    /// The nearest class that the NIC at place `nic` has to a GPU.
    pub fn nearest(&self, nic: usize) -> Option<&str> {
        let classes = self.gpus().into_iter().filter_map(|gpu| self.cell(gpu, nic));
        classes.filter(|class| rank(class) < 9).min_by_key(|class| rank(class))
    }

    /// Pairs of GPUs that no NVLink joins.
    pub fn without_nvlink(&self) -> Vec<(&str, &str)> {
        let gpus = self.gpus();
        let mut pairs = Vec::new();
        for (at, &one) in gpus.iter().enumerate() {
            for &other in gpus.iter().skip(at + 1) {
                let joined = self.cell(one, other).or_else(|| self.cell(other, one));
                if joined.is_some_and(|class| !class.starts_with("NV"))
                    && let (Some(a), Some(b)) = (self.devices.get(one), self.devices.get(other))
                {
                    pairs.push((a.as_str(), b.as_str()));
                }
            }
        }
        pairs
    }
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("GPU").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
}

/// Order of the classes, nearest first (the legend of `nvidia-smi topo -m`).
fn rank(class: &str) -> u8 {
    match class {
        "PIX" => 0,
        "PXB" => 1,
        "PHB" => 2,
        "NODE" => 3,
        "SYS" => 4,
        _ => 9,
    }
}

/// A word that can stand in a cell.
fn cell(word: &str) -> Option<String> {
    let bonded = word.strip_prefix("NV").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()));
    (word == "X" || bonded || rank(word) < 9).then(|| word.to_owned())
}

/// Text without terminal escape sequences (`ESC [ ... letter`), and without other control characters than white space.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.extend(Some(c).filter(|c| !c.is_control() || c.is_whitespace()));
            continue;
        }
        if chars.next() == Some('[') {
            let _ = chars.by_ref().find(|c| c.is_ascii_alphabetic() || *c == '\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: &str = "\t\u{1b}[4mGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\n\
        GPU0\t X \tNV18\tNODE\tPHB\tSYS\t0-87\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\tSYS\tPHB\t88-175\t1\t\tN/A\n\
        NIC0\tNODE\tSYS\t X \tNODE\tSYS\t\t\t\t\nNIC1\tPHB\tSYS\tNODE\t X \tSYS\nNIC2\tSYS\tPHB\tSYS\tSYS\t X \n\n\
        Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_2\n";

    #[test]
    fn a_virtual_machine_with_a_frontend() {
        let matrix = Matrix::parse(VM).unwrap();
        assert_eq!(matrix.devices, ["GPU0", "GPU1", "mlx5_0", "mlx5_1", "mlx5_2"]);
        assert_eq!(matrix.cell(0, 1), Some("NV18"));
        assert_eq!(matrix.cell(4, 1), Some("PHB"));
        assert_eq!(matrix.numa["GPU1"], "1");
        let nearest: Vec<_> = matrix.nics().into_iter().map(|nic| matrix.nearest(nic).unwrap()).collect();
        assert_eq!(nearest, ["NODE", "PHB", "PHB"]);
        assert!(matrix.without_nvlink().is_empty());
    }

    #[test]
    fn older_heads_name_the_devices_themselves() {
        let matrix = Matrix::parse("noise\n\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\tPIX\t0-31\nGPU1\tPHB\t X \tSYS\t0-31\n").unwrap();
        assert_eq!(matrix.devices, ["GPU0", "GPU1", "mlx5_0"]);
        assert_eq!(matrix.without_nvlink(), [("GPU0", "GPU1")]);
        assert_eq!(matrix.cell(2, 0), None);
        assert_eq!(matrix.nearest(2), Some("PIX"));
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        let text = "GPU0\tGPU1\tNIC0\u{7}\u{9b}2J\nGPU0\tX\tNV18\tPIX\nGPU1\tNV18\tX\tPIX\n\nNIC Legend:\n  NIC02J: mlx\u{8}5\u{1b}[1m_0\n";
        assert_eq!(Matrix::parse(text).unwrap().devices, ["GPU0", "GPU1", "mlx5_0"]);
    }

    #[test]
    fn what_is_no_matrix() {
        assert!(Matrix::parse("").is_err());
        assert!(Matrix::parse("GPU0 GPU1\n").is_err());
        assert!(Matrix::parse("Failed to initialize NVML: Driver/library version mismatch\n").is_err());
        assert!(Matrix::parse(&"GPU0 ".repeat(100_000)).is_err());
        // Rows that are cut, repeated or of other devices.
        let cut = Matrix::parse("GPU0 GPU1\nGPU0 X\nGPU0 X NV4\nGPU7 X X\n\u{1b}[").unwrap();
        assert_eq!(cut.cell(0, 1), None);
        assert!(cut.without_nvlink().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken(text in ".{0,400}", cut in 0usize..500) {
            let _ = Matrix::parse(&text);
            let cut = VM.char_indices().map(|(at, _)| at).take_while(|at| *at <= cut).last().unwrap_or(0);
            let _ = Matrix::parse(&format!("{}{text}", &VM[..cut]));
        }
    }
}
