//! The NVIDIA driver's parameters: through the GPU Operator, or on a host.
