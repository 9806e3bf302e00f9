//! What a file cannot show: probes that run.
