//! The directory of a run: settings, rendered files, facts, logs, results, verdict.
