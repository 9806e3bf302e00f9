// Pushes commands that the host can foretell: shows that the ring works between this GPU and this host, and how fast.
#include "ring.cuh"

namespace expertrail {

struct Args {
    RingProducer* ring;
    const u32* stop;  // a word in pinned host memory: not 0 ends the wait
    u64* result;      // the first word: what became of the last push
    u64 count;
};
static_assert(sizeof(Args) == 32, "src/kernels.rs");

__global__ void __launch_bounds__(32, 1) ring(Args a) {
    if (threadIdx.x != 0) return;
    RingProducer own = *a.ring;
    u32 became = RING_PUSHED;
    for (u64 i = 0; i < a.count && became == RING_PUSHED; i++) {
        const u32 n = static_cast<u32>(own.pushed);
        // Host: kernels::ring_command.
        const Command c{RING_WRITE + n % 6, n % 8, n * 7 % 4096, n % 1024, n % 16, n * 3 % (1u << RING_SLOT_BITS),
                        n * 5 % (1u << RING_LENGTH_BITS)};
        became = ring_push(own, c, [&] { return load_relaxed_system(a.stop) == 0; });
    }
    *a.ring = own;
    *a.result = became;
}

}  // namespace expertrail
