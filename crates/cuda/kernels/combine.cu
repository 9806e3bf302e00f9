// Combine inside an NVLink domain: rows of an owner go back to their sources, which sum them. One kernel.
//
//   push     an owner's rows, ascending for each source, to the source's landing; a block's publisher says how far they are
//   reduce   a source's warps sum rows behind that, its own rows in place; rows that lie in symmetric memory are read there (pull)
//   finish   see protocol.cuh
//
// Warps: `pushers`, one publisher (where there are pushers), then reducers. Rows and tokens are claimed one by one in ascending order, so
// what is summed first is pushed first, however fast the SMs are. Each row has a flag at its source.
//
// Publishing is a fence at system scope, which waits for everything its thread has under way. One warp of each block does it for all
// pushers, over and over, so that no pusher waits.
#include "protocol.cuh"

namespace expertrail {

struct Args {
    const World* world;
    const char* rows;            // [arrivals], by source
    const float* weights;        // [arrivals, top_k] or null
    u64 route;                   // Route
    char* out;                   // [tokens]
    float* out_weights;          // [tokens, top_k] or null
    const char* biases[2];       // [tokens] each, or null
    u64 base;                    // offset of `rows` in the own heap, or NOWHERE: then they are pushed
    u64 stress_seed;
    u32 signature;
    u32 row_bytes;
    u32 pushers;
    u32 stages;
    u32 chunk;
    u32 pieces;
    u32 own_ahead;               // two ranks, one declared node, no bias: see OwnAhead
    u32 spare;
};
static_assert(sizeof(Args) == 112, "src/protocol.rs");

constexpr u32 MAX_PUSHERS = 16, MAX_STAGES = 8, MAX_WARPS = 20, QUEUE = 32, SETS = (MAX_RANKS + 31) / 32;

struct Peer {
    u64 staged;         // as owner: where this rank's first row goes at that source
    u64 staged_weights;
    u64 landed;         // as source: where that owner's first row is
    u64 landed_weights;
    u32 rows;           // as owner: how many go to that source
    u32 own_first;      // as owner: the first of them
    u32 pushed;         // as source: whether its rows, or their weights, pass through landing
    u32 spare;
};

// A row of the token that a warp sums.
struct Row {
    u64 at;
    u32 rank, slot;
};

struct alignas(128) Tables {
    Peer peer[MAX_RANKS];
    Row rows[MAX_WARPS][MAX_TOP_K];         // no token has more
    u64 full[MAX_PUSHERS * MAX_STAGES];
    u64 own_full[MAX_WARPS][2];             // of own rows that come ahead
    u64 queue[MAX_PUSHERS][QUEUE];          // rows that a pusher took, by turn: source above, slot below
    u32 done[MAX_PUSHERS];                  // turns complete
    u32 published[MAX_PUSHERS];             // turns told to their sources
    u32 most_rows;                          // that go to any source
    u32 finished;                           // pushers
};
static_assert(sizeof(Tables) == 19328, "src/protocol.rs");

enum Way : u32 { MOVES, IS_REFUSED, IS_OVER };

// From the counts of all ranks, where everything is.
__device__ __noinline__ void find_own(const Args& a, Tables& t) {
    const World* w = a.world;
    const u32* counts = route_counts(w, a.route);
    const auto count = [&](u32 source, u32 owner) { return counts[source * w->ranks + owner]; };
    for (u32 rank = threadIdx.x; rank < w->ranks; rank += blockDim.x) {
        Peer& p = t.peer[rank];
        u32 first = 0, before = 0, all = 0, landed = 0;
        for (u32 other = 0; other < w->ranks; other++) {
            if (other < rank) first += count(other, w->rank);
            if (other != rank) {
                if (other < w->rank) before += count(rank, other);
                all += count(rank, other);
            }
            if (other < rank && other != w->rank) landed += count(w->rank, other);
        }
        p.rows = rank == w->rank ? 0 : count(rank, w->rank);
        atomicMax(&t.most_rows, p.rows);
        p.own_first = first;
        p.staged = w->heap[rank] + w->landing + static_cast<u64>(before) * a.row_bytes;
        p.staged_weights = w->heap[rank] + w->landing + static_cast<u64>(all) * a.row_bytes + 4ull * before * w->top_k;
        p.landed = w->heap[w->rank] + w->landing + static_cast<u64>(landed) * a.row_bytes;
        p.landed_weights = 4ull * landed * w->top_k;  // behind all rows, added below
    }
    __syncthreads();
    for (u32 rank = threadIdx.x; rank < w->ranks; rank += blockDim.x) {
        u32 all = 0;
        for (u32 other = 0; other < w->ranks; other++)
            if (other != w->rank) all += count(w->rank, other);
        t.peer[rank].landed_weights += w->heap[w->rank] + w->landing + static_cast<u64>(all) * a.row_bytes;
    }
}

__device__ void post(const Args& a, const Wait& wait, u32 origin) {
    const World* w = a.world;
    // Whoever reads rows in place must see what earlier kernels wrote there.
    if (a.base != NOWHERE) fence_system();
    for (u32 rank = lane_id(); rank < w->ranks; rank += 32) {
        u64* words = notify_words(w, rank, w->rank);
        stress(wait.stress_seed, 8);
        store_relaxed_system(words + WORD_BASE_LOW, tagged(wait.epoch, static_cast<u32>(a.base)));
        store_relaxed_system(words + WORD_BASE_HIGH, tagged(wait.epoch, static_cast<u32>(a.base >> 32)));
    }
    announce(wait, a.signature, origin);
}

// Learns how each owner's rows come. Nothing is pushed before its source has started this call: until then its landing may be in use.
__device__ Way meet(const Args& a, const Wait& wait, Tables& t, u32 origin) {
    const World* w = a.world;
    const u32* counts = route_counts(w, a.route);
    bool over = false, refused = false;
    for (u32 owner = threadIdx.x; owner < w->ranks && !over; owner += blockDim.x) {
        stress(wait.stress_seed, 9);
        if (compare_call(wait, owner, a.signature, origin, over) != REFUSAL_NONE) {
            refused = true;
            continue;
        }
        const u64* words = notify_words(w, w->rank, owner);
        u32 word[2] = {};
        constexpr u32 WHICH[2] = {WORD_BASE_LOW, WORD_BASE_HIGH};
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            over |= !await(wait, owner, wait.epoch, [&](u64& seen) {
                const u64 v = load_relaxed_system(words + WHICH[i]);
                seen = v >> 32;
                word[i] = static_cast<u32>(v);
                return static_cast<u32>(v >> 32) == wait.epoch;
            });
        }
        if (over) break;
        Peer& p = t.peer[owner];
        const u64 base = static_cast<u64>(word[1]) << 32 | word[0];
        p.pushed = owner != w->rank && (base == NOWHERE || a.weights != nullptr);
        if (owner == w->rank) {
            p.landed = reinterpret_cast<u64>(a.rows) + static_cast<u64>(p.own_first) * a.row_bytes;
            p.landed_weights = reinterpret_cast<u64>(a.weights) + 4ull * p.own_first * w->top_k;
        } else if (base != NOWHERE) {
            u32 first = 0;
            for (u32 source = 0; source < w->rank && origin != 0; source++) first += counts[source * w->ranks + owner];
            p.landed = w->heap[owner] + base + static_cast<u64>(first) * a.row_bytes;
            fence_system();
        }
    }
    if (__syncthreads_or(over)) return IS_OVER;
    return __syncthreads_or(refused) || is_empty(wait, origin) ? IS_REFUSED : MOVES;
}

// ---- push

// A pushing warp: takes one row after another.
struct Pusher {
    const Args& a;
    Tables& t;
    char* ring;
    u64* full;
    u64* queue;
    u32 warp, lane;
    bool rows_too;  // or weights only, where sources read rows in place
    // What is being loaded; lane 0 knows.
    u32 loads, turn, piece;
    u64 row, claimed;

    __device__ u32 ahead() const { return a.stages - 1; }
    __device__ u32 piece_bytes(u32 of) const {
        const u32 from = of * a.chunk;
        return a.row_bytes - from < a.chunk ? a.row_bytes - from : a.chunk;
    }
    // The n-th row of all: slot by slot, each of all sources in turn, the next rank first. NOWHERE behind the last.
    __device__ u64 claim() const {
        const World* w = a.world;
        for (;;) {
            const u32 n = atomicAdd(&control(w)->sending, 1u), others = w->ranks - 1;
            if (others == 0 || n / others >= t.most_rows) return NOWHERE;
            u32 source = w->rank + 1 + n % others;
            if (source >= w->ranks) source -= w->ranks;
            if (n / others < t.peer[source].rows) return static_cast<u64>(source) << 32 | n / others;
        }
    }
    __device__ const char* from(u64 of) const {
        return a.rows + static_cast<u64>(t.peer[of >> 32].own_first + static_cast<u32>(of)) * a.row_bytes;
    }
    // By lane 0: the next piece, if there is one. A row is claimed one turn before it is wanted.
    __device__ void load() {
        if (piece == 0) {
            // The publisher is done with what was there.
            while (turn - load_acquire_block(&t.published[warp]) >= QUEUE) {}
            queue[turn % QUEUE] = row;
            if (row != NOWHERE) claimed = claim();
        }
        if (row == NOWHERE) return;
        if (rows_too) {
            const u32 stage = loads % a.stages, bytes = piece_bytes(piece);
            mbarrier_expect(full + stage, bytes);
            bulk_load(ring + static_cast<u64>(stage) * a.chunk, from(row) + static_cast<u64>(piece) * a.chunk, bytes, full + stage);
        }
        loads++;
        if (++piece == a.pieces) {
            piece = 0;
            turn++;
            row = claimed;
        }
    }
    __device__ void run();
};

__device__ void Pusher::run() {
    const World* w = a.world;
    if (lane == 0) {
        loads = turn = piece = 0;
        row = claim();
        for (u32 i = 0; i < ahead(); i++) load();
    }
    __syncwarp();
    // The newest stores are still under way when a row is marked; what is older is complete.
    constexpr u32 UNDER_WAY = 3;
    u32 now = 0, unit = 0;
    for (; queue[now % QUEUE] != NOWHERE; now++) {
        const u64 of = queue[now % QUEUE];
        const Peer& to = t.peer[of >> 32];
        const u32 slot = static_cast<u32>(of);
        if (a.weights) {
            if (lane < w->top_k)
                reinterpret_cast<float*>(to.staged_weights)[static_cast<u64>(slot) * w->top_k + lane] =
                    a.weights[static_cast<u64>(to.own_first + slot) * w->top_k + lane];
            __syncwarp();
        }
        for (u32 part = 0; part < a.pieces; part++, unit++) {
            if (lane == 0) {
                if (rows_too) {
                    const u32 stage = unit % a.stages;
                    await_load(full + stage, unit / a.stages & 1);
                    bulk_store(reinterpret_cast<void*>(to.staged + static_cast<u64>(slot) * a.row_bytes + static_cast<u64>(part) * a.chunk),
                               ring + static_cast<u64>(stage) * a.chunk, piece_bytes(part));
                    bulk_commit();
                    bulk_wait_read<1>();
                }
                load();
            }
            __syncwarp();
        }
        if (lane != 0) continue;
        if (rows_too) {
            bulk_wait<UNDER_WAY>();
            store_release_block(&t.done[warp], unit > UNDER_WAY ? (unit - UNDER_WAY) / a.pieces : 0);
        } else {
            store_release_block(&t.done[warp], now + 1);
        }
    }
    if (lane == 0) {
        bulk_wait<0>();
        store_release_block(&t.done[warp], now);
        __threadfence_block();
        atomicAdd(&t.finished, 1u);
    }
}

// Tells sources of the rows that the block's pushers have landed, until they are through.
__device__ void publish(const Args& a, const Wait& wait, Tables& t) {
    const World* w = a.world;
    const u32 lane = lane_id();
    u32 told = 0;  // turns of the pusher with this lane's number
    for (;;) {
        // In this order: rows marked before the last pusher finished are seen.
        const bool last = load_acquire_block(&t.finished) == a.pushers;
        const u32 done = lane < a.pushers ? load_acquire_block(&t.done[lane]) : 0;
        const u32 news = __ballot_sync(ALL_LANES, done != told);
        if (news != 0) {
            fence_system();
            for (u32 rest = news; rest != 0; rest &= rest - 1) {
                const u32 pusher = __ffs(rest) - 1;
                const u32 end = __shfl_sync(ALL_LANES, done, pusher), begin = __shfl_sync(ALL_LANES, told, pusher);
                // No more than QUEUE rows, a lane each.
                if (begin + lane < end) {
                    const u64 of = t.queue[pusher][(begin + lane) % QUEUE];
                    stress(wait.stress_seed, 10);
                    u32* landed = in_heap<u32>(w, static_cast<u32>(of >> 32), w->landed) + static_cast<u64>(w->rank) * w->max_tokens;
                    store_relaxed_system(landed + static_cast<u32>(of), wait.epoch);
                }
                __syncwarp();
                if (lane == 0) store_release_block(&t.published[pusher], end);
            }
            told = done;
        } else if (!last) {
            __nanosleep(50);
        }
        if (last) return;
    }
}

// ---- reduce

__device__ __forceinline__ void add(float* sum, uint4 v) {
    const u32 word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        sum[2 * i] = __fadd_rn(sum[2 * i], __uint_as_float(word[i] << 16));
        sum[2 * i + 1] = __fadd_rn(sum[2 * i + 1], __uint_as_float(word[i] & 0xffff0000u));
    }
}
__device__ __forceinline__ uint4 rounded(const float* sum) {
    return {round_bf16x2(sum[1], sum[0]), round_bf16x2(sum[3], sum[2]), round_bf16x2(sum[5], sum[4]), round_bf16x2(sum[7], sum[6])};
}


__device__ __forceinline__ uint4 row_pack(u64 row, u32 pack, u32 packs) {
    return pack < packs ? load_row(reinterpret_cast<const char*>(row) + 16ull * pack) : uint4{0, 0, 0, 0};
}

// A token with at most two rows and no bias, which is every token of two ranks: sums live in registers for one pack only.
__device__ __forceinline__ void sum_two(const Args& a, u32 token, const Row* rows, u32 count) {
    constexpr u32 PACKS = 4;
    const u32 packs = a.row_bytes / 16;
    char* out = a.out + static_cast<u64>(token) * a.row_bytes;
    const u64 one = count > 0 ? rows[0].at : 0, two = count > 1 ? rows[1].at : 0;
    for (u32 first = lane_id(); first < packs; first += 32 * PACKS) {
        uint4 v[PACKS], u[PACKS];
#pragma unroll
        for (u32 p = 0; p < PACKS; p++) v[p] = row_pack(one, first + 32 * p, count > 0 ? packs : 0);
#pragma unroll
        for (u32 p = 0; p < PACKS; p++) u[p] = row_pack(two, first + 32 * p, count > 1 ? packs : 0);
#pragma unroll
        for (u32 p = 0; p < PACKS; p++) {
            float total[8] = {};
            add(total, v[p]);
            add(total, u[p]);  // an absent row is +0, which changes no bit of a sum that started at +0
            if (first + 32 * p < packs) store_row(out + 16ull * (first + 32 * p), rounded(total));
        }
    }
}

// Own rows need no flag: a summing warp of two ranks loads them ahead, by bulk copies, while it sums and while it waits for the peer's.
// Registers alone hold too few loads under way for the SMs to sum as fast as they push.
struct OwnAhead {
    const Args& a;
    char* buffer;  // two pieces; null for none
    u64* full;
    u32 lane;
    u32 issued, used;

    __device__ u32 piece_bytes(u32 of) const {
        const u32 from = of * a.chunk;
        return a.row_bytes - from < a.chunk ? a.row_bytes - from : a.chunk;
    }
    __device__ bool room() const { return issued - used < 2; }
    __device__ void issue(u64 row, u32 piece) {
        if (lane == 0) {
            const u32 stage = issued & 1, bytes = piece_bytes(piece);
            mbarrier_expect(full + stage, bytes);
            bulk_load(buffer + static_cast<u64>(stage) * a.chunk, reinterpret_cast<const char*>(row) + static_cast<u64>(piece) * a.chunk, bytes, full + stage);
        }
        issued++;
    }
    __device__ const char* await() const {
        await_load(full + (used & 1), used >> 1 & 1);
        return buffer + static_cast<u64>(used & 1) * a.chunk;
    }
    __device__ void drain() {
        for (; used != issued; used++) await_load(full + (used & 1), used >> 1 & 1);
    }
};

// Sums a token whose own row comes ahead, with the peer's or alone. `begun` pieces of it are issued already; gives how many of the next
// token's are.
__device__ __forceinline__ u32 sum_own(const Args& a, OwnAhead& own, u32 token, const u64 (&row)[2], u32 begun, u64 next_row) {
    constexpr u32 PACKS = 7;  // a piece of 3,584 bytes
    u32 next_begun = 0;
    while (own.room() && begun < a.pieces) own.issue(row[0], begun++);
    for (u32 piece = 0; piece < a.pieces; piece++) {
        const u64 at = static_cast<u64>(piece) * a.chunk;
        const u32 packs = own.piece_bytes(piece) / 16;
        char* out = a.out + static_cast<u64>(token) * a.row_bytes + at;
        for (u32 first = own.lane; first - own.lane < packs; first += 32 * PACKS) {
            uint4 u[PACKS];
#pragma unroll
            for (u32 p = 0; p < PACKS; p++) u[p] = row_pack(row[1] + at, first + 32 * p, row[1] != 0 ? packs : 0);
            const char* mine = own.await();
#pragma unroll
            for (u32 p = 0; p < PACKS; p++) {
                const u32 pack = first + 32 * p;
                if (pack >= packs) continue;
                // Two addends: their order changes no bit.
                float total[8] = {};
                add(total, *reinterpret_cast<const uint4*>(mine + 16 * pack));
                add(total, u[p]);
                store_row(out + 16ull * pack, rounded(total));
            }
        }
        __syncwarp();
        own.used++;
        if (begun < a.pieces) own.issue(row[0], begun++);
        else if (next_row != 0 && next_begun < a.pieces) own.issue(next_row, next_begun++);
    }
    return next_begun;
}

// Sums a token: biases, then ranks ascending, from +0. One rounding at the end.
__device__ __forceinline__ void sum(const Args& a, u32 token, const Row* rows, u32 count) {
    constexpr u32 PACKS = 2, AT_ONCE = 2;
    const u32 packs = a.row_bytes / 16;
    const u64 at = static_cast<u64>(token) * a.row_bytes;
    for (u32 first = lane_id(); first < packs; first += 32 * PACKS) {
        float total[PACKS][8] = {};
        for (u32 b = 0; b < 2; b++) {
            if (!a.biases[b]) continue;
#pragma unroll
            for (u32 p = 0; p < PACKS; p++) add(total[p], row_pack(reinterpret_cast<u64>(a.biases[b]) + at, first + 32 * p, packs));
        }
        for (u32 i = 0; i < count; i += AT_ONCE) {
            uint4 v[AT_ONCE][PACKS];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++)
#pragma unroll
                for (u32 p = 0; p < PACKS; p++) v[j][p] = row_pack(rows[i + j < count ? i + j : i].at, first + 32 * p, packs);
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++)
                if (i + j < count)
#pragma unroll
                    for (u32 p = 0; p < PACKS; p++) add(total[p], v[j][p]);
        }
#pragma unroll
        for (u32 p = 0; p < PACKS; p++)
            if (first + 32 * p < packs) store_row(a.out + at + 16ull * (first + 32 * p), rounded(total[p]));
    }
}

// The same with several declared nodes: each node's sum starts at +0 and is rounded before it is added. Node by node, and no faster than
// it must be: nodes that share an NVLink domain are declared to compare results, not for speed.
__device__ __forceinline__ void sum_nodes(const Args& a, u32 token, const Row* rows, u32 count) {
    const World* w = a.world;
    const u32 packs = a.row_bytes / 16;
    const u64 at = static_cast<u64>(token) * a.row_bytes;
    for (u32 pack = lane_id(); pack < packs; pack += 32) {
        float total[8] = {};
        for (u32 b = 0; b < 2; b++)
            if (a.biases[b]) add(total, row_pack(reinterpret_cast<u64>(a.biases[b]) + at, pack, packs));
        for (u32 i = 0; i < count;) {
            const u32 node = rows[i].rank / w->ranks_per_node;
            float part[8] = {};
            for (; i < count && rows[i].rank / w->ranks_per_node == node; i++) add(part, row_pack(rows[i].at, pack, packs));
            add(total, rounded(part));
        }
        store_row(a.out + at + 16ull * pack, rounded(total));
    }
}

// Claims and sums tokens. `first` is the warp's own first token; warps that come later have none.
__device__ void reduce(const Args& a, const Wait& wait, Tables& t, char* buffer, u32 first, u32 claimed_before) {
    const World* w = a.world;
    const u32* slots = route_slots(w, a.route);
    const u32 lane = lane_id(), tokens = reinterpret_cast<const Route*>(a.route)->tokens;
    const bool nodes = w->ranks_per_node < w->ranks, plain = !nodes && !a.biases[0] && !a.biases[1];
    const u32 warp = threadIdx.x / 32;
    Row* rows = t.rows[warp];
    OwnAhead own{a, buffer, t.own_full[warp], lane, 0, 0};
    u32 begun = 0;
    if (buffer != nullptr) {
        if (lane == 0) {
            for (u32 stage = 0; stage < 2; stage++) mbarrier_init(own.full + stage, 1);
            fence_mbarrier_init();
        }
        __syncwarp();
    }
    // Where the own row of the token that `coming` describes lies; 0 for none.
    const u64 own_rows = t.peer[w->rank].landed;
    // Ahead: the slots of the next token, and the number of the one after.
    u32 coming[SETS];
    const auto fetch = [&](u32 token) {
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            const u32 rank = 32 * s + lane;
            coming[s] = token < tokens && rank < w->ranks ? slots[static_cast<u64>(token) * w->ranks + rank] : NO_ROW;
        }
    };
    const auto claim = [&] { return lane == 0 ? claimed_before + atomicAdd(&control(w)->summing, 1u) : 0; };
    u32 token = first == NO_ROW ? __shfl_sync(ALL_LANES, claim(), 0) : first, claimed = claim();
    fetch(token);
    const auto own_row = [&] {
        const u32 slot = __shfl_sync(ALL_LANES, coming[0], w->rank);
        return slot == NO_ROW ? 0 : own_rows + static_cast<u64>(slot) * a.row_bytes;
    };
    while (token < tokens) {
        const u64 own_at = buffer != nullptr ? own_row() : 0;
        // Before the peer's row is waited for.
        if (own_at != 0)
            while (own.room() && begun < a.pieces) own.issue(own_at, begun++);
        u32 count = 0;
        bool over = false;
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            const u32 slot = coming[s], owner = 32 * s + lane;
            const u32 members = __ballot_sync(ALL_LANES, slot != NO_ROW);
            if (slot != NO_ROW) {
                const Peer& p = t.peer[owner];
                rows[count + __popc(members & ((1u << lane) - 1))] = {p.landed + static_cast<u64>(slot) * a.row_bytes, owner, slot};
                if (p.pushed) {
                    const u32* landed = in_heap<u32>(w, w->rank, w->landed) + static_cast<u64>(owner) * w->max_tokens + slot;
                    stress(wait.stress_seed, 11);
                    over |= !await(wait, owner, wait.epoch, [&](u64& seen) { return (seen = load_acquire_system(landed)) == wait.epoch; });
                }
            }
            count += __popc(members);
        }
        const u32 next = __shfl_sync(ALL_LANES, claimed, 0);
        fetch(next);
        claimed = claim();
        // Orders all lanes behind those that saw the progress and wrote the list.
        if (__any_sync(ALL_LANES, over)) break;
        __syncwarp();
        stress(wait.stress_seed, 12);
        if (own_at != 0) {
            const u64 row[2] = {own_at, count > 1 ? rows[1 - w->rank].at : 0};
            begun = sum_own(a, own, token, row, begun, own_row());
        } else if (count <= 2 && plain) sum_two(a, token, rows, count);
        else if (nodes) sum_nodes(a, token, rows, count);
        else sum(a, token, rows, count);
        if (a.out_weights && lane < w->top_k) {
            // Each node's first, as the rows are; of one declared node that is all.
            float gathered = 0.0f;
            for (u32 i = 0; i < count;) {
                const u32 node = rows[i].rank / w->ranks_per_node;
                float part = 0.0f;
                for (; i < count && rows[i].rank / w->ranks_per_node == node; i++)
                    part = __fadd_rn(
                        part, reinterpret_cast<const float*>(t.peer[rows[i].rank].landed_weights)[static_cast<u64>(rows[i].slot) * w->top_k + lane]);
                gathered = __fadd_rn(gathered, part);
            }
            a.out_weights[static_cast<u64>(token) * w->top_k + lane] = gathered;
        }
        __syncwarp();
        token = next;
    }
    // Where the call is over, some may still be on their way.
    own.drain();
}

__global__ void __launch_bounds__(32 * MAX_WARPS, 1) combine(const __grid_constant__ Args a) {
    // Tables first: chunks are multiples of 16 only, which is what bulk copies ask for.
    extern __shared__ __align__(1024) char shared[];
    const World* w = a.world;
    if (block_has_failed(w)) return;
    Tables& t = *reinterpret_cast<Tables*>(shared);
    char* rings = shared + sizeof(Tables);
    const u32 warp = threadIdx.x / 32;
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
    if (first) clock(w, TIME_START);
    const Wait start{w, next_epoch(w), PHASE_COMBINE_NOTIFY, a.stress_seed};
    const u32 origin = reinterpret_cast<const Route*>(a.route)->origin;
    if (blockIdx.x == 0 && warp == blockDim.x / 32 - 1) post(a, start, origin);
    if (warp < a.pushers && lane_id() == 0) {
        for (u32 stage = 0; stage < a.stages; stage++) mbarrier_init(t.full + warp * a.stages + stage, 1);
        fence_mbarrier_init();
    }
    for (u32 i = threadIdx.x; i < MAX_PUSHERS; i += blockDim.x) t.done[i] = t.published[i] = 0;
    if (threadIdx.x == 0) t.finished = t.most_rows = 0;
    __syncthreads();
    if (origin != 0) find_own(a, t);
    __syncthreads();
    if (first) clock(w, TIME_COUNTED);
    const Way way = meet(a, start, t, origin);
    if (first) clock(w, TIME_NOTIFIED);
    if (way == MOVES) {
        const Wait wait{w, start.epoch, PHASE_COMBINE_STAGING, a.stress_seed};
        // Pushers and the publisher sum too once they are through.
        const u32 others = a.pushers ? a.pushers + 1 : 0, reducers = blockDim.x / 32 - others;
        if (warp < a.pushers)
            Pusher{a, t, rings + static_cast<u64>(warp) * a.stages * a.chunk, t.full + warp * a.stages, t.queue[warp], warp, lane_id(), a.base == NOWHERE,
                   0, 0, 0, 0, 0}
                .run();
        else if (warp < others)
            publish(a, wait, t);
        const bool reducer = warp >= others;
        char* buffers = rings + static_cast<u64>(a.pushers) * a.stages * a.chunk;
        char* buffer = reducer && a.own_ahead ? buffers + static_cast<u64>(warp - others) * 2 * a.chunk : nullptr;
        reduce(a, wait, t, buffer, reducer ? (warp - others) * gridDim.x + blockIdx.x : NO_ROW, reducers * gridDim.x);
    }
    if (first) clock(w, TIME_SENT);
    finish(Wait{w, start.epoch, PHASE_COMBINE_DONE, a.stress_seed});
}

}  // namespace expertrail
