// What callers of DeepEP ask for before a dispatch: tokens for each rank, choices of each expert, and which token goes to which rank.
// Dispatch finds all of it by itself and needs none of this. Counts must be zero at the start.
#include "protocol.cuh"

namespace expertrail {

struct Args {
    const World* world;
    const void* ids;       // [tokens, top_k]
    u32* rank_counts;      // [ranks]
    u32* expert_counts;    // [experts]
    u8* membership;        // [tokens, ranks]
    u32 tokens;
    u32 ids_are_64;
};
static_assert(sizeof(Args) == 48, "src/protocol.rs");

__global__ void __launch_bounds__(512) layout(Args a) {
    __shared__ u32 experts[MAX_EXPERTS];
    __shared__ u32 ranks[MAX_RANKS];
    const World* w = a.world;
    const Placement placement(w);
    for (u32 i = threadIdx.x; i < w->experts; i += blockDim.x) experts[i] = 0;
    for (u32 i = threadIdx.x; i < w->ranks; i += blockDim.x) ranks[i] = 0;
    __syncthreads();
    const u32 step = gridDim.x * blockDim.x;
    for (u64 token = blockIdx.x * blockDim.x + threadIdx.x; token < a.tokens; token += step) {
        u64 low = 0, high = 0;
        for (u32 k = 0; k < w->top_k; k++) {
            const u64 at = token * w->top_k + k;
            const i64 id = a.ids_are_64 ? static_cast<const i64*>(a.ids)[at] : static_cast<const i32*>(a.ids)[at];
            if (id < 0 || id >= static_cast<i64>(w->experts)) continue;
            atomicAdd(&experts[id], 1u);
            const u32 rank = placement.rank_of(static_cast<u32>(id));
            if (rank < 64) low |= 1ull << rank;
            else high |= 1ull << (rank - 64);
        }
        for (u32 rank = 0; rank < w->ranks; rank++) {
            const bool member = rank < 64 ? low >> rank & 1 : high >> (rank - 64) & 1;
            a.membership[token * w->ranks + rank] = member;
            if (member) atomicAdd(&ranks[rank], 1u);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < w->experts; i += blockDim.x)
        if (experts[i] != 0) atomicAdd(&a.expert_counts[i], experts[i]);
    for (u32 i = threadIdx.x; i < w->ranks; i += blockDim.x)
        if (ranks[i] != 0) atomicAdd(&a.rank_counts[i], ranks[i]);
}

}  // namespace expertrail
