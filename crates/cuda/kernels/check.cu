// What the GPU suite (examples/gpu_suite) checks and disturbs with. It includes nothing, so NVRTC needs no headers.
namespace expertrail {

typedef unsigned int u32;
typedef unsigned long long u64;

// `CheckArgs` in examples/gpu_suite/check.rs. Each kernel uses its part.
struct Args {
    const u32* words;  // hash_rows: [rows, row_words]
    u64* sum;          // hash_rows: the hash of the rows is added here
    const float* a;    // occupy: [side, side] each
    const float* b;
    float* c;
    u64 nanoseconds;   // idle: how long
    u32 rows;
    u32 row_words;
    u32 side;          // a multiple of TILE
    u32 spare;
};
static_assert(sizeof(Args) == 64, "as in examples/gpu_suite/check.rs");

// SplitMix64's finaliser, as `check::mix`.
__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// `check::hash`: each word's hash has its place in the row, and each row's its place among the rows, so that sums may be taken in any
// order and rows or words that changed places are still noticed. A warp for each row.
__global__ void hash_rows(Args args) {
    const u32 lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
    u64 all = 0;
    for (u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < args.rows; row += warps) {
        // Memory that peers wrote: never by the non-coherent path, which `volatile` rules out.
        const volatile u32* words = args.words + (u64)row * args.row_words;
        u64 hash = 0;
        for (u32 i = lane; i < args.row_words; i += 32) hash += mix((u64)i << 32 | words[i]);
        for (u32 other = 16; other != 0; other /= 2) hash += __shfl_xor_sync(0xffffffffu, hash, other);
        if (lane == 0) all += mix(hash + mix(row));
    }
    if (all != 0) atomicAdd(args.sum, all);
}

// A stream that does nothing for a while.
__global__ void idle(Args args) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < args.nanoseconds);
}

constexpr u32 TILE = 16;

// A plain matrix product, c = a b: as many blocks as tiles, so that every SM is full for milliseconds. Launched with TILE x TILE threads.
__global__ void occupy(Args args) {
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    const u32 tiles = args.side / TILE, x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const u32 row = blockIdx.x / tiles * TILE + y, column = blockIdx.x % tiles * TILE + x;
    float sum = 0;
    for (u32 tile = 0; tile < tiles; tile++) {
        a[y][x] = args.a[(u64)row * args.side + tile * TILE + x];
        b[y][x] = args.b[(u64)(tile * TILE + y) * args.side + column];
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < TILE; k++) sum += a[y][k] * b[k][x];
        __syncthreads();
    }
    args.c[(u64)row * args.side + column] = sum;
}

}  // namespace expertrail
