//! Where a worker's documents go: a folder, the log, or both.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::redact::{redact_json, redact_text};
use super::{WorkerError, frame, say};

/// Where documents go.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// Under this folder.
    pub folder: Option<PathBuf>,
    /// Into standard output, as [frames](super::frame).
    pub frames: bool,
}

impl Store {
    /// Keeps a document, without secrets.
    ///
    /// # Errors
    /// When a place refuses it.
    pub fn document(&self, name: &str, document: &impl Serialize) -> Result<(), WorkerError> {
        let wrong =
            |error: serde_json::Error| WorkerError::Access(format!("{name} cannot be written: {error}"));
        let mut value = serde_json::to_value(document).map_err(wrong)?;
        redact_json(&mut value);
        let mut text = serde_json::to_string_pretty(&value).map_err(wrong)?;
        text.push('\n');
        self.bytes(name, text.as_bytes())
    }

    /// Keeps a file as it is.
    ///
    /// # Errors
    /// When a place refuses it.
    pub fn bytes(&self, name: &str, bytes: &[u8]) -> Result<(), WorkerError> {
        if let Some(folder) = &self.folder {
            let path = folder.join(name);
            replace(&path, bytes)
                .map_err(|error| WorkerError::Access(format!("cannot write {}: {error}", path.display())))?;
        }
        if self.frames {
            let mut out = std::io::stdout().lock();
            frame::write(name, bytes, &mut out).map_err(|error| match error {
                frame::WriteError::System { .. } => WorkerError::Access(error.to_string()),
                _ => WorkerError::Usage(error.to_string()),
            })?;
        }
        Ok(())
    }

    /// Keeps the files that the ranks left, as `collected/node-N/NAME`. One that is missing or refused is named, and fails nothing.
    pub fn collect(&self, node: usize, files: &[String]) {
        let mut taken: Vec<String> = Vec::new();
        for path in files {
            let base = Path::new(path).file_name().map_or("file".into(), |name| name.to_string_lossy());
            let clean: String = base
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' })
                .take(150)
                .collect();
            let mut name = format!("collected/node-{node}/{clean}");
            let same = taken.iter().filter(|known| **known == name).count();
            taken.push(name.clone());
            if same > 0 {
                name = format!("collected/node-{node}/{}-{clean}", same + 1);
            }
            if let Err(reason) = self.take(path, &name) {
                say(&format!("node {node}: {path} is not collected: {reason}"));
            }
        }
    }

    fn take(&self, path: &str, name: &str) -> Result<(), String> {
        let meta = fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                "there is no such file (the rank that writes it did not come so far)".to_owned()
            }
            _ => error.to_string(),
        })?;
        // A pipe would be waited for.
        if !meta.is_file() {
            return Err("it is no regular file".to_owned());
        }
        if meta.len() > frame::FILE_LIMIT as u64 {
            return Err(format!("{} bytes; at most {} are taken", meta.len(), frame::FILE_LIMIT));
        }
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => {
                let clean = redact_text(&text);
                if clean != text {
                    say(&format!("{path}: secrets in it were replaced"));
                }
                clean.into_bytes()
            }
            Err(error) => error.into_bytes(),
        };
        self.bytes(name, &bytes).map_err(|error| error.to_string())
    }
}

/// Writes a file whole or not at all: a reader on a shared file system never sees half of it.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let beside = folder.join(format!(".{name}.{}", std::process::id()));
    let written = fs::File::create(&beside)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}
