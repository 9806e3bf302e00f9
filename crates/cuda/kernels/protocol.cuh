// Structures that kernels, peers and the host read, and how a kernel waits. The host's side is src/protocol.rs: the same fields, the same
// sizes asserted on both sides.
//
// One call of a communicator is one kernel on every rank. It reads its number (epoch) from device memory, so that a captured graph can be
// replayed; says at its start which call it is (notify words) and at its end, after its last access to anything shared, that it is done;
// and it ends only when all ranks are done. So nothing of one call can meet anything of another, and no record needs two generations.
//
// Notify words carry the epoch in their upper half: whoever sees the epoch has the value, without a fence between words.
#pragma once
#include "ptx.cuh"

namespace expertrail {

constexpr u32 MAX_RANKS = 72;     // an NVLink domain of today
constexpr u32 MAX_EXPERTS = 4096; // of all ranks: a histogram in shared memory
constexpr u32 MAX_TOP_K = 32;     // a lane for each choice
constexpr u32 MAX_BLOCKS = 160;
constexpr u32 NOTIFY_WORDS = 8;   // before the counts
constexpr u32 NO_ROW = 0xffffffffu;
constexpr u32 NOT_FIXED = 0xffffffffu;
constexpr u64 NOWHERE = ~0ull;

// Notify words of a source, in order; then one count for each rank.
enum NotifyWord : u32 {
    WORD_SIGNATURE = 0,  // which call, see src/protocol.rs
    WORD_ORIGIN = 1,     // the dispatch a handle came from; 0 for none
    WORD_BASE_LOW = 2,   // dispatch: where this rank's output lies in its heap. combine: where its rows do, or NOWHERE
    WORD_BASE_HIGH = 3,
    WORD_ROOM_LOW = 4,   // dispatch: bytes there
    WORD_ROOM_HIGH = 5,
    WORD_FIXED = 6,      // dispatch: rows the output has whatever arrives, or NOT_FIXED
    WORD_SPARE = 7,
};

// Host: core::failure::Phase.
enum Phase : u32 {
    PHASE_IDLE = 0,
    PHASE_DISPATCH_NOTIFY = 1,
    PHASE_DISPATCH_DATA = 2,
    PHASE_COMBINE_NOTIFY = 3,
    PHASE_COMBINE_STAGING = 4,
    PHASE_COMBINE_DONE = 5,
    PHASE_BARRIER = 6,
};

// Host: core::failure::Cause.
enum Cause : u32 {
    CAUSE_DIED = 1,
    CAUSE_LEFT = 2,
    CAUSE_DEADLINE = 3,
    CAUSE_CANCELLED = 4,
    CAUSE_PROTOCOL = 5,
};

// What ends a call without ending the communicator.
enum Refusal : u32 {
    REFUSAL_NONE = 0,
    REFUSAL_PEER = 1,      // a rank refused its arguments
    REFUSAL_MISMATCH = 2,  // ranks made different calls
    REFUSAL_TOO_SMALL = 3, // a fixed output has fewer rows than arrive
    REFUSAL_EMPTY = 4,     // the handle is of a dispatch that moved nothing
};

constexpr u32 SIGNATURE_REFUSED = 3;

// In pinned host memory.
struct Board {
    u32 abort;      // host: culprit + 1 in the low half, cause in the high half; 0 for none
    u32 failed;     // device: 1 once the record below is there
    u32 cause, culprit, reporter, phase, epoch, block;
    u64 expected, seen;
    u32 refused;    // device: a Refusal, once its record is there
    u32 refused_rank, refused_epoch, refused_own, refused_theirs, refused_own_origin, refused_their_origin, refused_rows;
    u32 ticket;     // device: of the last call whose report is there
    u32 report_refused, report_fallback, report_epoch;
    u64 times[6];   // device: of the last call, see Time
    // then the report: counts [ranks, ranks], choices of the local experts
};
static_assert(sizeof(Board) == 144, "src/protocol.rs");

// When a call passed a point, on the GPU's clock in nanoseconds: block 0, or the last block from TIME_THROUGH on.
enum Time : u32 { TIME_START, TIME_COUNTED, TIME_NOTIFIED, TIME_SENT, TIME_THROUGH, TIME_END };

// In device memory of one rank, zero at the start; only its own kernels touch it.
struct Control {
    u32 epoch;       // of the last call
    u32 arrived;     // blocks that are through
    u32 counted;     // blocks whose choices are in the histogram
    u32 failed;      // this communicator is over
    u32 refused_epoch;  // of the last refusal
    // Work is claimed one token or row at a time: SMs of one GPU differ in speed by an eighth.
    u32 sending;     // tokens claimed, beyond each warp's first; combine: rows
    u32 summing;     // combine: tokens claimed, beyond each warp's first
    u32 spare[25];
    u32 ready[MAX_BLOCKS];  // blocks whose slots are final: the epoch
    u32 histogram[MAX_EXPERTS];
    u64 block_counts[MAX_BLOCKS * MAX_RANKS];  // epoch above, tokens of a block for a rank below
};
static_assert(sizeof(Control) == 128 + 4 * MAX_BLOCKS + 4 * MAX_EXPERTS + 8 * MAX_BLOCKS * MAX_RANKS, "src/protocol.rs");

// What a communicator is, in device memory, constant.
struct World {
    u32 ranks, rank, experts, top_k;
    u32 ranks_per_node, max_tokens, local_experts, most_local_experts;
    u64 deadline_ns;
    u64 board;          // Board
    u64 control;        // Control
    u64 landing_bytes;  // a dispatch that does not fit its output, or staged rows of a combine
    // Offsets in every rank's heap.
    u64 notify;         // [source][NOTIFY_WORDS + ranks]
    u64 expert_counts;  // [source][most_local_experts]
    u64 landed;         // [owner][max_tokens]: the epoch in which that owner's row for this slot has landed
    u64 done;           // [source], a line each
    u64 poison;         // the first failure a peer told of
    u64 landing;
    u64 heap[MAX_RANKS];  // every rank's heap in this process
};
static_assert(sizeof(World) == 112 + 8 * MAX_RANKS, "src/protocol.rs");

constexpr u32 LINE = 128;

// The routing of one finished dispatch.
struct Route {
    u32 origin;  // its epoch; 0 while unfinished or refused
    u32 tokens;
    u32 top_k;
    u32 spare;
    // then: counts u32 [ranks][ranks] (source, destination), choices of local experts u32 [most_local_experts],
    // slots u32 [tokens][ranks]: how many earlier tokens of this source go to the rank, or NO_ROW
};
static_assert(sizeof(Route) == 16, "src/protocol.rs");

__device__ __forceinline__ u32* route_counts(const World* w, u64 route) { return reinterpret_cast<u32*>(route + sizeof(Route)); }
__device__ __forceinline__ u32* route_experts(const World* w, u64 route) { return route_counts(w, route) + w->ranks * w->ranks; }
__device__ __forceinline__ u32* route_slots(const World* w, u64 route) { return route_experts(w, route) + w->most_local_experts; }

template <class T>
__device__ __forceinline__ T* in_heap(const World* w, u32 rank, u64 offset) { return reinterpret_cast<T*>(w->heap[rank] + offset); }
__device__ __forceinline__ Control* control(const World* w) { return reinterpret_cast<Control*>(w->control); }
__device__ __forceinline__ Board* board(const World* w) { return reinterpret_cast<Board*>(w->board); }

__device__ __forceinline__ u64 tagged(u32 epoch, u32 value) { return static_cast<u64>(epoch) << 32 | value; }

// The words that `source` wrote to `at`.
__device__ __forceinline__ u64* notify_words(const World* w, u32 at, u32 source) {
    return in_heap<u64>(w, at, w->notify) + source * (NOTIFY_WORDS + w->ranks);
}

// Contiguous blocks of experts, the larger ones first: core::Placement.
struct Placement {
    u32 floor, larger, in_larger;
    __device__ explicit Placement(const World* w) : floor(w->experts / w->ranks), larger(w->experts % w->ranks), in_larger(larger * (floor + 1)) {}
    __device__ u32 rank_of(u32 expert) const {
        return expert < in_larger ? expert / (floor + 1) : larger + (expert - in_larger) / (floor ? floor : 1);
    }
    __device__ u32 first_of(u32 rank) const { return rank * floor + (rank < larger ? rank : larger); }
    __device__ u32 count_of(u32 rank) const { return floor + (rank < larger ? 1 : 0); }
};

// ---- stress: seeded delays before every publish, flag and read. Seed 0: none.

__device__ __forceinline__ u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
__device__ __forceinline__ void stress(u64 seed, u32 site) {
    if (seed == 0) return;
    const u64 h = mix(seed ^ mix(static_cast<u64>(site) << 40 ^ static_cast<u64>(blockIdx.x) << 20 ^ threadIdx.x ^ now_ns()));
    const u32 pick = static_cast<u32>(h) & 255;
    // Mostly none, often short, rarely long.
    if (pick < 24) __nanosleep(static_cast<u32>(h >> 32) & 4095);
    else if (pick == 24) __nanosleep(static_cast<u32>(h >> 32) & 65535);
}

__device__ __forceinline__ void clock(const World* w, Time point) { board(w)->times[point] = now_ns(); }

// ---- failure

struct Wait {
    const World* world;
    u32 epoch;
    u32 phase;
    u64 stress_seed;
};

__device__ __forceinline__ bool has_failed(const World* w) { return load_relaxed_gpu(&control(w)->failed) != 0; }

// At the start of a call, by all threads of a block: they must agree, or those that go on wait at a named barrier for those that ended,
// where another block fails in this very moment.
__device__ __forceinline__ bool block_has_failed(const World* w) { return __syncthreads_or(has_failed(w)) != 0; }

// The number of this call. Never 0, which is what words hold that nobody has written yet, and the origin of a dispatch that moved nothing.
__device__ __forceinline__ u32 next_epoch(const World* w) {
    const u32 next = load_relaxed_gpu(&control(w)->epoch) + 1;
    return next == 0 ? 1 : next;
}

// Writes the record that the host reads and tells all peers, unless this GPU has failed already.
__device__ __noinline__ void fail(const Wait* wait, u32 cause, u32 culprit, u64 expected, u64 seen) {
    const World* w = wait->world;
    if (compare_swap_gpu(&control(w)->failed, 0, 1) != 0) return;
    Board* b = board(w);
    b->cause = cause;
    b->culprit = culprit;
    b->reporter = w->rank;
    b->phase = wait->phase;
    b->epoch = wait->epoch;
    b->block = blockIdx.x;
    b->expected = expected;
    b->seen = seen;
    fence_system();
    store_release_system(&b->failed, 1);
    // Cause 3 bits, phase 3, culprit 12, reporter 12, epoch 32; the top bit is never zero.
    const u64 word = 1ull << 63 | static_cast<u64>(cause) << 60 | static_cast<u64>(wait->phase) << 56 | static_cast<u64>(culprit) << 44 |
                     static_cast<u64>(w->rank) << 32 | wait->epoch;
    for (u32 rank = 0; rank < w->ranks; rank++)
        if (rank != w->rank) store_relaxed_system(in_heap<u64>(w, rank, w->poison), word);
}

// A failure that a peer told of: the same culprit goes into this rank's record.
__device__ __noinline__ void fail_as_told(const Wait* wait, u64 word) {
    const World* w = wait->world;
    if (compare_swap_gpu(&control(w)->failed, 0, 1) != 0) return;
    Board* b = board(w);
    b->cause = static_cast<u32>(word >> 60) & 7;
    b->phase = static_cast<u32>(word >> 56) & 15;
    b->culprit = static_cast<u32>(word >> 44) & 0xfff;
    b->reporter = static_cast<u32>(word >> 32) & 0xfff;
    b->epoch = static_cast<u32>(word);
    b->block = blockIdx.x;
    b->expected = b->seen = 0;
    fence_system();
    store_release_system(&b->failed, 1);
}

// The slow part of a wait: has anything ended it? Started by the first look.
__device__ __noinline__ bool is_over(const Wait* wait, u64* started, u32 peer, u64 expected, u64 seen, u32 looks) {
    const World* w = wait->world;
    if (has_failed(w)) return true;
    const u64 told = load_relaxed_system(in_heap<u64>(w, w->rank, w->poison));
    if (told != 0) {
        fail_as_told(wait, told);
        return true;
    }
    const u64 now = now_ns();
    if (*started == 0) *started = now;
    // The board is across PCIe, a microsecond away: not at every look.
    if ((looks & 1023) == 0 || now - *started > w->deadline_ns) {
        const u32 abort = load_relaxed_system(&board(w)->abort);
        const u32 cause = abort >> 16, culprit = (abort & 0xffff) - 1;
        // Only waits for a rank that has left are over by that. A third rank's word may be on its way: that one left once it had it; and
        // where it left too early, a wait for itself says so.
        if (abort != 0 && (cause != CAUSE_LEFT || culprit == peer)) {
            fail(wait, cause, culprit, expected, seen);
            return true;
        }
    }
    if (now - *started > w->deadline_ns) {
        fail(wait, CAUSE_DEADLINE, peer, expected, seen);
        return true;
    }
    return false;
}

// Polls until `look(&seen)` is true. False when the communicator is over.
template <class Look>
__device__ __forceinline__ bool await(const Wait& wait, u32 peer, u64 expected, Look look) {
    u64 started = 0, seen = 0;
    for (u32 looks = 1;; looks++) {
        if (look(seen)) return true;
        if ((looks & 31) == 0 && is_over(&wait, &started, peer, expected, seen, looks)) return false;
    }
}

// A bulk load must land whatever has failed: its shared memory may not be given up before. It comes from this GPU's own memory or from
// mapped memory of a peer, which stays mapped, so it always lands.
__device__ __forceinline__ void await_load(u64* barrier, u32 parity) {
    while (!mbarrier_try_wait(barrier, parity)) {}
}

// ---- refusals

// What the record of a refusal says, beside what and where.
struct Refused {
    u32 what, rank, own, theirs, own_origin, their_origin, rows;
};

// Many threads may find the same; one writes.
__device__ __noinline__ void refuse(const Wait* wait, const Refused* refused) {
    Board* b = board(wait->world);
    if (exchange_gpu(&control(wait->world)->refused_epoch, wait->epoch) == wait->epoch) return;
    // The first that the host has not read yet stays: later ones may only follow from it.
    if (load_relaxed_system(&b->refused) != 0) return;
    b->refused_rank = refused->rank;
    b->refused_epoch = wait->epoch;
    b->refused_own = refused->own;
    b->refused_theirs = refused->theirs;
    b->refused_own_origin = refused->own_origin;
    b->refused_their_origin = refused->their_origin;
    b->refused_rows = refused->rows;
    fence_system();
    store_release_system(&b->refused, refused->what);
}

// Says which call this is, to all ranks. By one warp.
__device__ __forceinline__ void announce(const Wait& wait, u32 signature, u32 origin) {
    const World* w = wait.world;
    for (u32 rank = lane_id(); rank < w->ranks; rank += 32) {
        u64* words = notify_words(w, rank, w->rank);
        stress(wait.stress_seed, 1);
        store_relaxed_system(words + WORD_SIGNATURE, tagged(wait.epoch, signature));
        store_relaxed_system(words + WORD_ORIGIN, tagged(wait.epoch, origin));
    }
}

// Waits until `source` has said which call it makes. Gives a Refusal, with its record, if it is another than this rank's.
__device__ __forceinline__ u32 compare_call(const Wait& wait, u32 source, u32 signature, u32 origin, bool& over) {
    const World* w = wait.world;
    const u64* words = notify_words(w, w->rank, source);
    u64 call = 0, from = 0;
    over = !await(wait, source, tagged(wait.epoch, signature), [&](u64& seen) {
        call = load_relaxed_system(words + WORD_SIGNATURE);
        from = load_relaxed_system(words + WORD_ORIGIN);
        seen = call;
        return static_cast<u32>(call >> 32) == wait.epoch && static_cast<u32>(from >> 32) == wait.epoch;
    });
    const u32 theirs = static_cast<u32>(call), their_origin = static_cast<u32>(from);
    if (over || (theirs == signature && their_origin == origin)) return REFUSAL_NONE;
    // A rank that refuses knows why: its record is its own error, and the peers' that refuse too are no news to it.
    const u32 what = theirs == SIGNATURE_REFUSED ? REFUSAL_PEER : REFUSAL_MISMATCH;
    if (signature != SIGNATURE_REFUSED) {
        const Refused refused{what, source, signature, theirs, origin, their_origin, 0};
        refuse(&wait, &refused);
    }
    return what;
}

// A route without an origin is of a dispatch that moved nothing, on all ranks: so does this call. By all threads, after the calls were
// found to be alike.
__device__ __forceinline__ bool is_empty(const Wait& wait, u32 origin) {
    if (origin != 0) return false;
    if (threadIdx.x == 0) {
        const Refused refused{REFUSAL_EMPTY, wait.world->rank, 0, 0, 0, 0, 0};
        refuse(&wait, &refused);
    }
    return true;
}

// The end of every call, by all threads of all blocks: when the last block is through, tells all ranks and awaits them. The caller's
// bulk stores must be complete.
//
// Every block's accesses happen before its arrival (block barrier, then the atomic at gpu scope); the last arrival acquires them all, and
// the releases that follow publish them at system scope.
__device__ __forceinline__ void finish(const Wait& wait) {
    __shared__ u32 last;
    const World* w = wait.world;
    __syncthreads();
    if (threadIdx.x == 0) last = add_acquire_release_gpu(&control(w)->arrived, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last || threadIdx.x >= 32) return;
    if (threadIdx.x == 0) clock(w, TIME_THROUGH);
    // A failed call tells nobody that it is done.
    bool over = has_failed(w);
    if (!over) {
        fence_proxy_async();
        fence_system();
        for (u32 rank = lane_id(); rank < w->ranks; rank += 32) {
            stress(wait.stress_seed, 2);
            store_release_system(in_heap<u32>(w, rank, w->done + LINE * w->rank), wait.epoch);
        }
        for (u32 source = lane_id(); source < w->ranks && !over; source += 32) {
            const u32* flag = in_heap<u32>(w, w->rank, w->done + LINE * source);
            stress(wait.stress_seed, 3);
            over = !await(wait, source, wait.epoch, [&](u64& seen) {
                const u32 v = load_acquire_system(flag);
                seen = v;
                return static_cast<i32>(v - wait.epoch) >= 0;
            });
        }
        fence_proxy_async();
    }
    __syncwarp();
    if (threadIdx.x == 0) {
        control(w)->sending = control(w)->summing = 0;
        control(w)->arrived = 0;
        control(w)->counted = 0;
        control(w)->epoch = wait.epoch;
        clock(w, TIME_END);
    }
}

}  // namespace expertrail
