//! Kubeflow's `MPIJob` for clusters with EFA.
