//! Starting, watching, collecting and cleaning up.
