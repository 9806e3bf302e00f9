// A call that moves nothing: a barrier of the communicator, or a rank's word that it refuses its part of a call. The others go on.
#include "protocol.cuh"

namespace expertrail {

struct Args {
    const World* world;
    u64 stress_seed;
    u32 signature;
    u32 spare;
};
static_assert(sizeof(Args) == 24, "src/protocol.rs");

__global__ void __launch_bounds__(128, 1) meet(Args a) {
    const World* w = a.world;
    if (block_has_failed(w)) return;
    const Wait wait{w, next_epoch(w), PHASE_BARRIER, a.stress_seed};
    if (threadIdx.x == 0) clock(w, TIME_START);
    if (threadIdx.x < 32) announce(wait, a.signature, 0);
    for (u32 source = threadIdx.x; source < w->ranks; source += blockDim.x) {
        bool over;
        compare_call(wait, source, a.signature, 0, over);
    }
    finish(wait);
}

}  // namespace expertrail
