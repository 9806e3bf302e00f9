//! Checks of a Kubernetes cluster, through `kubectl`.
