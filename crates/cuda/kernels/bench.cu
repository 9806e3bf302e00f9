// What `expertrail bench` runs beside the calls it measures: it makes input rows, compares every row that came back with rows made anew
// from their names, lets all ranks start together, and pushes plain rows to peers for the link's ceiling.
#include "ptx.cuh"
#include "rows.cuh"

namespace expertrail {

// Counts what differs. The host sets `first` to all ones before a check.
struct Tally {
    u64 rows;   // rows with a difference
    u64 first;  // the first of them: row in the high half, element in the low one
    u64 late;   // a rank that did not come to `line_up` in time, plus one
};

struct Args {
    u8* rows;              // rows to make, check or push
    u32* scales;           // their scale words, [count, hidden / 128]; null without
    const void* expected;  // check_rows: u64 for each row; check_sums: u32 [count, ranks]; check_words: u32 [count, hidden]
                           // push_rows: u64 [ranks - 1], where peers take rows; line_up: u64 [ranks], the ranks' flags
    Tally* tally;
    u64 seed;
    u64 set;               // input set of the rows
    u64 count;             // rows; push_rows: bytes
    u64 limit_ns;          // line_up: how long to wait for the others
    u32 hidden;            // elements of a row; check_words: words
    u32 tensor;
    u32 rank;              // whose rows; check_sums: the first of the ranks; line_up: this rank among them
    u32 ranks;
    u32 ranks_per_node;
    u32 fp8;
    u32 epoch;
    u32 hold_ns;           // line_up: how long to stay after all have come
};
static_assert(sizeof(Args) == 96, "crates/bench/src/run/gpu/kernels.rs");

// A row that no rank sent.
constexpr u32 NONE = 0xffffffffu;
constexpr u32 MOST_RANKS = 128;

// Eight lanes, 16 bytes, of a row.
__device__ uint4 row_part(u32 lane_index, const LaneKeys& keys, bool fp8) {
    u32 words[4];
    for (u32 i = 0; i < 4; i++) {
        const u32 low = row_word(lane_index + 2 * i, keys, fp8), high = row_word(lane_index + 2 * i + 1, keys, fp8);
        words[i] = low | high << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ u32 lanes_of_row(const Args& a) { return a.fp8 ? a.hidden / 2 : a.hidden; }

__global__ void __launch_bounds__(256) fill_rows(Args a) {
    const u32 lanes = lanes_of_row(a), blocks = a.fp8 ? a.hidden / 128 : 0;
    for (u64 row = blockIdx.x; row < a.count; row += gridDim.x) {
        const LaneKeys keys = lane_keys(a.seed, a.tensor, a.rank, a.set << 32 | row);
        uint4* out = reinterpret_cast<uint4*>(a.rows + row * lanes * 2);
        for (u32 i = threadIdx.x; i < lanes / 8; i += blockDim.x) out[i] = row_part(8 * i, keys, a.fp8 != 0);
        for (u32 b = threadIdx.x; b < blocks; b += blockDim.x) a.scales[row * blocks + b] = scale_bits(b, keys);
    }
}

// Ends the check of a row: `bad` is the thread's first element that differs, or NONE. Every thread of the block calls it.
__device__ void count_row(const Args& a, u64 row, u32 bad) {
    __shared__ u32 first;
    if (threadIdx.x == 0) first = NONE;
    __syncthreads();
    if (bad != NONE) atomicMin(&first, bad);
    __syncthreads();
    if (threadIdx.x == 0 && first != NONE) {
        atomicAdd(&a.tally->rows, 1ull);
        atomicMin(&a.tally->first, row << 32 | first);
    }
    __syncthreads();
}

__device__ u32 least(u32 a, u32 b) { return a < b ? a : b; }

// Received rows. `expected` says for each whose token it is: rank in the high half, token in the low one.
__global__ void __launch_bounds__(256) check_rows(Args a) {
    const u32 lanes = lanes_of_row(a), blocks = a.fp8 ? a.hidden / 128 : 0;
    const u64* origins = static_cast<const u64*>(a.expected);
    for (u64 row = blockIdx.x; row < a.count; row += gridDim.x) {
        const u64 origin = origins[row];
        const LaneKeys keys = lane_keys(a.seed, a.tensor, static_cast<u32>(origin >> 32), a.set << 32 | (origin & 0xffffffffu));
        const u16* got = reinterpret_cast<const u16*>(a.rows + row * lanes * 2);
        u32 bad = NONE;
        for (u32 i = threadIdx.x; i < lanes / 8; i += blockDim.x) {
            const uint4 want = row_part(8 * i, keys, a.fp8 != 0), have = reinterpret_cast<const uint4*>(got)[i];
            if (want.x == have.x && want.y == have.y && want.z == have.z && want.w == have.w) continue;
            for (u32 j = 8 * i; j < 8 * i + 8; j++) {
                const u32 differ = row_word(j, keys, a.fp8 != 0) ^ got[j];
                if (differ == 0) continue;
                bad = least(bad, a.fp8 == 0 ? j : 2 * j + ((differ & 0xff) == 0 ? 1 : 0));
            }
        }
        for (u32 b = threadIdx.x; b < blocks; b += blockDim.x)
            if (a.scales[row * blocks + b] != scale_bits(b, keys)) bad = least(bad, a.hidden + b);
        count_row(a, row, bad);
    }
}

// Words beside the rows (ids, weights, source tokens), against a list.
__global__ void __launch_bounds__(256) check_words(Args a) {
    const u32* got = reinterpret_cast<const u32*>(a.rows);
    const u32* want = static_cast<const u32*>(a.expected);
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.count * a.hidden; i += static_cast<u64>(gridDim.x) * blockDim.x) {
        if (got[i] == want[i]) continue;
        // A row with several bad words counts for each: what matters is that the number is not zero.
        atomicAdd(&a.tally->rows, 1ull);
        atomicMin(&a.tally->first, i / a.hidden << 32 | i % a.hidden);
    }
}

// Combined rows, against sums of rows made anew. `expected` says at which row of each rank's expert output a token is, or NONE. Every
// node's sum is rounded when several are declared; ranks and nodes ascend (core::oracle::combine_token).
__global__ void __launch_bounds__(256) check_sums(Args a) {
    __shared__ LaneKeys keys[MOST_RANKS];
    __shared__ u32 owners[MOST_RANKS];
    const u32* places = static_cast<const u32*>(a.expected);
    const bool nodes = a.ranks_per_node < a.ranks;
    for (u64 token = blockIdx.x; token < a.count; token += gridDim.x) {
        for (u32 rank = threadIdx.x; rank < a.ranks; rank += blockDim.x) {
            owners[rank] = places[token * a.ranks + rank];
            keys[rank] = lane_keys(a.seed, a.tensor, a.rank + rank, a.set << 32 | owners[rank]);
        }
        __syncthreads();
        const u16* got = reinterpret_cast<const u16*>(a.rows) + token * a.hidden;
        u32 bad = NONE;
        for (u32 i = threadIdx.x; i < a.hidden; i += blockDim.x) {
            float sum = 0.0f;
            for (u32 node = 0; node < a.ranks; node += a.ranks_per_node) {
                float of_node = nodes ? 0.0f : sum;
                bool any = false;
                for (u32 rank = node; rank < a.ranks && rank < node + a.ranks_per_node; rank++) {
                    if (owners[rank] == NONE) continue;
                    any = true;
                    of_node = __fadd_rn(of_node, __uint_as_float(row_word(i, keys[rank], false) << 16));
                }
                if (!nodes) sum = of_node;
                else if (any) sum = __fadd_rn(sum, __uint_as_float(round_bits(__float_as_uint(of_node)) << 16));
            }
            if (round_bits(__float_as_uint(sum)) != got[i]) bad = least(bad, i);
        }
        count_row(a, token, bad);
    }
}

// Plain rows to the peers, as fast as this many SMs can: the same bulk copies as the calls, with nothing around them. Each warp has
// `STAGES` chunks of a quarter row of 14,336 bytes in flight. Chunks go round the peers, so that no two sources write the same place.
constexpr u32 CHUNK = 3584;
constexpr u32 STAGES = 3;
constexpr u32 MOST_WARPS = 16;

__global__ void __launch_bounds__(MOST_WARPS * 32, 1) push_rows(Args a) {
    extern __shared__ __align__(128) u8 chunks[];
    __shared__ u64 barriers[MOST_WARPS * STAGES];
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (lane_id() != 0 || a.ranks < 2) return;
    u8* stage = chunks + warp * STAGES * CHUNK;
    u64* loaded = barriers + warp * STAGES;
    for (u32 s = 0; s < STAGES; s++) mbarrier_init(&loaded[s], 1);
    fence_mbarrier_init();
    const u64* peers = static_cast<const u64*>(a.expected);
    const u64 first = static_cast<u64>(blockIdx.x) * warps + warp, step = static_cast<u64>(gridDim.x) * warps;
    const u64 all = a.count / CHUNK;
    const u64 mine = first < all ? (all - first + step - 1) / step : 0;
    auto load = [&](u64 k) {
        const u32 s = k % STAGES;
        mbarrier_expect(&loaded[s], CHUNK);
        bulk_load(stage + s * CHUNK, a.rows + (first + k * step) * CHUNK, CHUNK, &loaded[s]);
    };
    for (u64 k = 0; k < STAGES - 1 && k < mine; k++) load(k);
    for (u64 k = 0; k < mine; k++) {
        const u32 s = k % STAGES;
        while (!mbarrier_try_wait(&loaded[s], k / STAGES & 1)) {}
        const u64 chunk = first + k * step;
        u8* to = reinterpret_cast<u8*>(peers[chunk % (a.ranks - 1)]) + chunk * CHUNK;
        bulk_store(to, stage + s * CHUNK, CHUNK);
        bulk_commit();
        if (k + STAGES - 1 < mine) {
            // The chunk to overwrite is the one before: it has been read once all but the newest store have.
            bulk_wait_read<1>();
            load(k + STAGES - 1);
        }
    }
    bulk_wait<0>();
}

// All ranks are here, on their devices; then this block stays `hold_ns` longer, so that what the hosts put behind it is already queued.
__global__ void __launch_bounds__(MOST_RANKS, 1) line_up(Args a) {
    const u64* flags = static_cast<const u64*>(a.expected);
    const u64 begin = now_ns();
    if (threadIdx.x < a.ranks) {
        store_release_system(reinterpret_cast<u32*>(flags[threadIdx.x]) + a.rank, a.epoch);
        const u32* mine = reinterpret_cast<const u32*>(flags[a.rank]) + threadIdx.x;
        // Epochs wrap; a rank that is one ahead has come too.
        while (static_cast<i32>(load_acquire_system(mine) - a.epoch) < 0) {
            if (now_ns() - begin < a.limit_ns) continue;
            a.tally->late = threadIdx.x + 1;
            break;
        }
    }
    __syncthreads();
    const u64 met = now_ns();
    while (now_ns() - met < a.hold_ns) {}
}

}  // namespace expertrail
