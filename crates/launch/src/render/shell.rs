//! Command lines for torchrun, mpirun and ssh, with a host file.
