//! Secrets, kept out of everything that is written.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::run::Run;
use crate::worker::redact::{REDACTED, redact_json, redact_text};

/// The shortest value that is searched for by itself: shorter ones would blank words of the log.
const SHORTEST: usize = 6;

/// Values that must not be written, whatever stands beside them.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Those that the run's variables and arguments, and this process's own environment, hold under names of secrets.
    pub fn of(run: &Run) -> Self {
        let own = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let given = run.env.iter().map(|setting| (setting.name.clone(), setting.value.clone()));
        let mut secrets = Self::from_variables(own.chain(given));
        // In a list of arguments name and value are apart: `["--token", "..."]`.
        for pair in run.steps.iter().flat_map(|step| step.argv.windows(2)) {
            if let [option, value] = pair
                && option.starts_with('-')
                && !value.starts_with('-')
                && redact_text(&format!("{option} {value}")).contains(REDACTED)
            {
                secrets.add(value);
            }
        }
        secrets.sorted()
    }

    /// Those of `variables` whose names are of secrets.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut secrets = Self::default();
        for (name, value) in variables {
            if redact_text(&format!("{name}={value}")).contains(REDACTED) {
                secrets.add(&value);
            }
        }
        secrets.sorted()
    }

    fn add(&mut self, value: &str) {
        let whole = value.trim();
        if whole.len() < SHORTEST || whole == REDACTED {
            return;
        }
        self.0.push(STANDARD.encode(whole));
        // As it stands in JSON.
        let quoted = serde_json::Value::String(whole.to_owned()).to_string();
        self.0.push(quoted.trim_matches('"').to_owned());
        self.0.push(whole.to_owned());
    }

    /// The longest first: one may be a part of another.
    fn sorted(mut self) -> Self {
        self.0.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.0.dedup();
        self
    }

    /// `text` without secrets.
    pub fn text(&self, text: &str) -> String {
        redact_text(&self.values(text))
    }

    /// A file without secrets: JSON by its keys, text by its lines, anything else as it is unless a value stands in it.
    pub fn file(&self, name: &str, bytes: &[u8]) -> Vec<u8> {
        if Path::new(name).extension().is_some_and(|kind| kind == "json")
            && let Ok(mut value) = serde_json::from_slice::<serde_json::Value>(bytes)
        {
            let before = value.clone();
            redact_json(&mut value);
            // Untouched documents keep their bytes: sums that somebody took of them stay true.
            if value != before
                && let Ok(text) = serde_json::to_string_pretty(&value)
            {
                return self.values(&(text + "\n")).into_bytes();
            }
            return self.values(&String::from_utf8_lossy(bytes)).into_bytes();
        }
        self.text(&String::from_utf8_lossy(bytes)).into_bytes()
    }

    fn values(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.0 {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REDACTED);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_value_goes_wherever_it_stands() {
        let variables = [("HF_TOKEN", "zq-plain-words-7"), ("NCCL_DEBUG", "INFO"), ("X_TOKEN", "ab")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let secrets = Secrets::from_variables(variables);
        let coded = STANDARD.encode("zq-plain-words-7");
        let text = format!("login with zq-plain-words-7 ok, {coded}; NCCL_DEBUG=INFO about");
        let clean = secrets.text(&text);
        assert!(!clean.contains("zq-plain-words-7") && !clean.contains(&coded), "{clean}");
        assert!(clean.contains("NCCL_DEBUG=INFO about"), "{clean}");
        let json = br#"{"args":["--t","zq-plain-words-7"],"auths":{"ghcr.io":{"auth":"dXNlcjpwdw=="}}}"#;
        let clean = String::from_utf8(secrets.file("state/pods.json", json)).unwrap();
        assert!(!clean.contains("zq-plain") && !clean.contains("dXNlcjpwdw"), "{clean}");
        let same = br#"{"tokens":4096}"#;
        assert_eq!(secrets.file("a.json", same), same);
    }
}
