//! The list beside compiled kernels in a folder: what each was compiled from, and what its file must be.
//!
//! `examples/cuda_compile.rs` writes it, the build script reads it; the build script includes this file, so it uses
//! nothing of this crate.

use std::collections::HashSet;

/// The list's file in the folder.
pub const MANIFEST: &str = "kernels.manifest";

/// Names the format: a change of it must change this.
const FIRST_LINE: &str = "expertrail-kernels 1";

/// One compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The program's name.
    pub program: String,
    /// The architecture's number: 90 for `sm_90a`.
    pub arch: i32,
    /// The architecture's name.
    pub arch_name: String,
    /// The fingerprint of what it was compiled from.
    pub fingerprint: u128,
    /// The hash of the file.
    pub hash: u128,
}

impl ManifestEntry {
    /// The file of compiled kernels.
    pub fn file_name(&self) -> String {
        format!("{}.{}.cubin", self.program, self.arch_name)
    }
}

/// The list of `entries` as text.
pub fn write_manifest(entries: &[ManifestEntry]) -> String {
    let lines = entries.iter().map(|entry| {
        let ManifestEntry { program, arch, arch_name, fingerprint, hash } = entry;
        format!("{program}\t{arch}\t{arch_name}\t{fingerprint:032x}\t{hash:032x}\n")
    });
    std::iter::once(format!("{FIRST_LINE}\n")).chain(lines).collect()
}

/// The entries of a list.
///
/// # Errors
/// When the text is not a list that [`write_manifest`] wrote, or names a program twice for one architecture; the
/// error says which line.
pub fn read_manifest(text: &str) -> Result<Vec<ManifestEntry>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(FIRST_LINE) {
        return Err(format!("its first line is not {FIRST_LINE:?}"));
    }
    let mut seen = HashSet::new();
    let mut entries = Vec::new();
    for (index, line) in lines.enumerate() {
        let entry = entry(line).ok_or_else(|| format!("line {} is not an entry: {line:?}", index + 2))?;
        if !seen.insert(entry.file_name()) {
            return Err(format!("line {} names {} again", index + 2, entry.file_name()));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn entry(line: &str) -> Option<ManifestEntry> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [program, arch, arch_name, fingerprint, hash] = fields[..] else { return None };
    // They become a file's name and a literal in generated code.
    let plain = |text: &str| {
        !text.is_empty()
            && !text.starts_with('.')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    if !plain(program) || !plain(arch_name) {
        return None;
    }
    let number = |text: &str| u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
    Some(ManifestEntry {
        program: program.to_owned(),
        arch: arch.parse().ok().filter(|arch| *arch > 0)?,
        arch_name: arch_name.to_owned(),
        fingerprint: number(fingerprint)?,
        hash: number(hash)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(program: &str, arch: i32) -> ManifestEntry {
        let arch_name = format!("sm_{arch}a");
        ManifestEntry { program: program.to_owned(), arch, arch_name, fingerprint: 1, hash: u128::MAX }
    }

    #[test]
    fn what_is_written_is_read() {
        let entries = vec![entry("a.cu", 90), entry("a.cu", 103), entry("b_2.cu", 90)];
        assert_eq!(read_manifest(&write_manifest(&entries)), Ok(entries));
        assert_eq!(entry("a.cu", 90).file_name(), "a.cu.sm_90a.cubin");
        assert_eq!(read_manifest("expertrail-kernels 1\n"), Ok(vec![]));
    }

    #[test]
    fn anything_else_is_refused_with_its_line() {
        let one = write_manifest(&[entry("a.cu", 90)]);
        let cases = [
            (String::new(), "first line"),
            (one.replace("kernels 1", "kernels 2"), "first line"),
            (format!("{one}\n"), "line 3"),
            (one.replace('\t', " "), "line 2"),
            (one.replace("a.cu", "../a.cu"), "line 2"),
            (one.replace("a.cu", "a\"b"), "line 2"),
            (one.replace("\t90\t", "\t-1\t"), "line 2"),
            (one.replace("ffff", "ff"), "line 2"),
            (write_manifest(&[entry("a.cu", 90), entry("a.cu", 90)]), "line 3 names a.cu.sm_90a.cubin again"),
        ];
        for (text, part) in cases {
            let error = read_manifest(&text).unwrap_err();
            assert!(error.contains(part), "{part:?} is not in {error:?} for {text:?}");
        }
    }
}
