// The smallest kernel there is: it shows that compiling, loading and launching work. Like every kernel here it
// includes nothing, so NVRTC needs no headers.
namespace expertrail {

typedef unsigned int u32;
typedef unsigned long long u64;

// `ProbeArgs` in src/kernels.rs.
struct Args {
    u32* out;
    u32 count;
    u32 seed;
};
static_assert(sizeof(Args) == 16, "as in src/kernels.rs");

__global__ void probe(Args args) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < args.count; i += stride) {
        args.out[i] = ((u32)i * 2654435761u) ^ args.seed;
    }
}

}  // namespace expertrail
