//! What runs inside the job: preflight of the node, ranks, files in the log.
