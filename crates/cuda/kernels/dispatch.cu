// Dispatch inside an NVLink domain: one kernel, rows read once and written once, to their final places (DESIGN 5.1).
//
//   count    each block finds the destinations of its tokens and counts; block counts meet in device memory
//   notify   counts and output bases to all ranks, as tagged words: no fence, one way's latency
//   send     bulk copies through shared memory, a lane for each destination; ids, weights, source tokens and scales beside
//   finish   see protocol.cuh
//
// A cached dispatch takes slots and counts from its route and exchanges bases only.
//
// Warps: `senders`, then the rest carries what belongs to rows. Shared memory: tables, `senders` rings of `stages` chunks, counts.
#include "protocol.cuh"

namespace expertrail {

struct Args {
    const World* world;
    const char* rows;
    const float* scales;         // scale (token, block) at token * scale_token_stride + block * scale_block_stride; null for none
    i64 scale_token_stride;
    i64 scale_block_stride;
    const void* ids;             // [tokens, top_k]; null when cached
    const float* weights;        // [tokens, top_k] or null
    u64 route;                   // Route: written, or read when cached
    u64 base;                    // offset of the output slice in the own heap
    u64 room;                    // bytes there
    u64 stress_seed;
    u32 ids_are_64;
    u32 tokens;
    u32 row_bytes;
    u32 scales_per_row;
    u32 fixed_rows;              // or NOT_FIXED
    u32 cached;
    u32 signature;
    u32 ticket;                  // of the report; 0 for none
    u32 senders;
    u32 stages;
    u32 chunk;                   // most bytes of one bulk copy
    u32 pieces;                  // of a row
};
static_assert(sizeof(Args) == 136, "src/protocol.rs");

constexpr u32 MAX_SENDERS = 16, MAX_STAGES = 8, MAX_WARPS = 32, QUEUE = 16, SETS = (MAX_RANKS + 31) / 32;

// Parts of an output of `rows` rows (core::output): rows, scales, ids, weights, source tokens.
struct Output {
    u64 scales, ids, weights, tokens, bytes;
    __device__ Output(const Args& a, u32 top_k, u32 rows) {
        const auto part = [](u64 bytes) { return (bytes + 127) / 128 * 128; };
        const u64 choices = a.cached ? 0 : static_cast<u64>(rows) * top_k;
        scales = part(static_cast<u64>(rows) * a.row_bytes);
        ids = scales + part(4ull * rows * a.scales_per_row);
        weights = ids + part(4 * choices);
        tokens = weights + part(a.weights ? 4 * choices : 0);
        bytes = tokens + part(a.cached ? 0 : 4ull * rows);
    }
};

// What a block knows of one destination.
struct Target {
    u64 rows, scales, ids, weights, tokens;  // of this source's first row there
    u64 first_row;                           // that row's number
};

struct alignas(128) Tables {
    Target target[MAX_RANKS];
    u64 full[MAX_SENDERS * MAX_STAGES];
    u32 queue[MAX_SENDERS][QUEUE];
    u32 tile[2][MAX_WARPS][MAX_RANKS];  // tokens of a warp's 32 for each rank
    u32 own_counts[MAX_RANKS];          // tokens of this source for each rank
    u32 before[MAX_RANKS];              // those of earlier blocks
    u32 fallback;                       // the own output did not fit
    u32 own_rows;
};
static_assert(sizeof(Tables) == 24576, "src/protocol.rs");

// A choice of a token, or -1.
__device__ __forceinline__ i32 choice(const Args& a, u64 at) {
    // A caller's 64-bit id beyond 32 bits is no expert; it must not wrap into one.
    if (!a.ids_are_64) return static_cast<const i32*>(a.ids)[at];
    const i64 id = static_cast<const i64*>(a.ids)[at];
    return id >= 0 && id < 0x7fffffff ? static_cast<i32>(id) : -1;
}

// Finds destinations and slots of the block's tokens, and counts. Slots are counted from the block's first token.
__device__ void count(const Args& a, Tables& t, u32* histogram, u32 begin, u32 end) {
    const World* w = a.world;
    const Placement placement(w);
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = lane_id();
    u32* slots = route_slots(w, a.route);
    u32 running[SETS] = {};
    for (u32 first = begin, parity = 0; first < end; first += 32 * warps, parity ^= 1) {
        const u32 token = first + 32 * warp + lane;
        u32 set[SETS] = {};
        if (token < end) {
            for (u32 k = 0; k < w->top_k; k++) {
                const i32 id = choice(a, static_cast<u64>(token) * w->top_k + k);
                if (id < 0 || id >= static_cast<i32>(w->experts)) continue;
                const u32 rank = placement.rank_of(id);
#pragma unroll
                for (u32 s = 0; s < SETS; s++)
                    if (rank / 32 == s) set[s] |= 1u << rank % 32;
                atomicAdd(&histogram[id], 1u);
            }
        }
        for (u32 rank = 0; rank < w->ranks; rank++) {
            const u32 members = __ballot_sync(ALL_LANES, set[rank / 32] >> rank % 32 & 1);
            if (lane == rank % 32) t.tile[parity][warp][rank] = __popc(members);
        }
        __syncthreads();
        // Before this warp's tokens, and all of the tile's: a lane for each rank.
        u32 start[SETS];
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            const u32 rank = 32 * s + lane;
            start[s] = running[s];
            if (rank < w->ranks) {
                for (u32 other = 0; other < warps; other++) {
                    const u32 n = t.tile[parity][other][rank];
                    if (other < warp) start[s] += n;
                    running[s] += n;
                }
            }
        }
        for (u32 rank = 0; rank < w->ranks; rank++) {
            const u32 members = __ballot_sync(ALL_LANES, set[rank / 32] >> rank % 32 & 1);
            const u32 from = __shfl_sync(ALL_LANES, start[rank / 32], rank % 32);
            if (token < end) {
                const bool member = members >> lane & 1;
                slots[static_cast<u64>(token) * w->ranks + rank] = member ? from + __popc(members & ((1u << lane) - 1)) : NO_ROW;
            }
        }
    }
    if (warp == 0) {
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            const u32 rank = 32 * s + lane;
            if (rank < w->ranks) t.own_counts[rank] = running[s];
        }
    }
}

// How a call goes on, the same for all threads of a block.
enum Way : u32 { MOVES, IS_REFUSED, IS_OVER };

// Learns what all blocks of this rank counted. `own_counts` becomes the rank's.
__device__ Way meet_blocks(const Args& a, const Wait& wait, Tables& t) {
    const World* w = a.world;
    Control* c = control(w);
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = lane_id();
    __syncthreads();
    for (u32 rank = threadIdx.x; rank < w->ranks; rank += blockDim.x)
        store_relaxed_gpu(&c->block_counts[blockIdx.x * MAX_RANKS + rank], tagged(wait.epoch, t.own_counts[rank]));
    __syncthreads();
    bool over = false;
    for (u32 rank = warp; rank < w->ranks; rank += warps) {
        u32 all = 0, earlier = 0;
        for (u32 block = lane; block < gridDim.x; block += 32) {
            u32 n = 0;
            if (!await(wait, w->rank, wait.epoch, [&](u64& seen) {
                    const u64 v = load_relaxed_gpu(&c->block_counts[block * MAX_RANKS + rank]);
                    seen = v >> 32;
                    n = static_cast<u32>(v);
                    return static_cast<u32>(v >> 32) == wait.epoch;
                }))
                over = true;
            all += n;
            earlier += block < blockIdx.x ? n : 0;
        }
        all = __reduce_add_sync(ALL_LANES, all);
        earlier = __reduce_add_sync(ALL_LANES, earlier);
        if (lane == 0) t.own_counts[rank] = all, t.before[rank] = earlier;
    }
    return __syncthreads_or(over) ? IS_OVER : MOVES;
}

// Tells every rank this one's counts and output.
__device__ void post(const Args& a, const Wait& wait, const Tables& t) {
    const World* w = a.world;
    const u32 words = NOTIFY_WORDS + (a.cached ? 0 : w->ranks);
    for (u32 i = threadIdx.x; i < words * w->ranks; i += blockDim.x) {
        const u32 to = i / words, word = i % words;
        u32 value;
        switch (word) {
            case WORD_SIGNATURE: case WORD_ORIGIN: case WORD_SPARE: continue;  // announced already
            case WORD_BASE_LOW: value = static_cast<u32>(a.base); break;
            case WORD_BASE_HIGH: value = static_cast<u32>(a.base >> 32); break;
            case WORD_ROOM_LOW: value = static_cast<u32>(a.room); break;
            case WORD_ROOM_HIGH: value = static_cast<u32>(a.room >> 32); break;
            case WORD_FIXED: value = a.fixed_rows; break;
            default: value = t.own_counts[word - NOTIFY_WORDS];
        }
        stress(wait.stress_seed, 4);
        store_relaxed_system(notify_words(w, to, w->rank) + word, tagged(wait.epoch, value));
    }
}

// Waits for one of `source`'s notify words.
__device__ __forceinline__ u32 notified(const Wait& wait, u32 source, u32 word, bool& over) {
    const World* w = wait.world;
    const u64* p = notify_words(w, w->rank, source) + word;
    u32 value = 0;
    if (!await(wait, source, wait.epoch, [&](u64& seen) {
            const u64 v = load_relaxed_system(p);
            seen = v >> 32;
            value = static_cast<u32>(v);
            return static_cast<u32>(v >> 32) == wait.epoch;
        }))
        over = true;
    return value;
}

// Learns counts and outputs of all ranks, and from them where this source's rows go. Every source finds the same.
__device__ Way find_targets(const Args& a, const Wait& wait, Tables& t, u32* matrix) {
    const World* w = a.world;
    const u32 origin = a.cached ? reinterpret_cast<const Route*>(a.route)->origin : 0;
    bool over = false, refused = false;
    for (u32 source = threadIdx.x; source < w->ranks && !over; source += blockDim.x) {
        stress(wait.stress_seed, 5);
        refused |= compare_call(wait, source, a.signature, origin, over) != REFUSAL_NONE;
    }
    if (__syncthreads_or(over)) return IS_OVER;
    if (__syncthreads_or(refused) || (a.cached && is_empty(wait, origin))) return IS_REFUSED;
    for (u32 i = threadIdx.x; i < w->ranks * w->ranks && !over; i += blockDim.x)
        matrix[i] = a.cached ? route_counts(w, a.route)[i] : notified(wait, i / w->ranks, NOTIFY_WORDS + i % w->ranks, over);
    if (!a.cached) {
        for (u32 block = threadIdx.x; block < gridDim.x && !over; block += blockDim.x)
            over = !await(wait, w->rank, wait.epoch, [&](u64& seen) { return (seen = load_acquire_gpu(&control(w)->ready[block])) == wait.epoch; });
    }
    if (__syncthreads_or(over)) return IS_OVER;
    for (u32 rank = threadIdx.x; rank < w->ranks && !over; rank += blockDim.x) {
        u32 rows = 0, first = 0;
        for (u32 source = 0; source < w->ranks; source++) {
            const u32 n = matrix[source * w->ranks + rank];
            if (n > w->max_tokens) {
                fail(&wait, CAUSE_PROTOCOL, source, w->max_tokens, n);
                over = true;
            }
            first += source < w->rank ? n : 0;
            rows += n;
        }
        const u32 fixed = notified(wait, rank, WORD_FIXED, over);
        const u32 base_low = notified(wait, rank, WORD_BASE_LOW, over), base_high = notified(wait, rank, WORD_BASE_HIGH, over);
        const u32 room_low = notified(wait, rank, WORD_ROOM_LOW, over), room_high = notified(wait, rank, WORD_ROOM_HIGH, over);
        if (over) break;
        if (fixed < rows) {
            refused = true;
            const Refused record{REFUSAL_TOO_SMALL, rank, fixed, rows, 0, 0, rows};
            refuse(&wait, &record);
            continue;
        }
        const Output out(a, w->top_k, fixed == NOT_FIXED ? rows : fixed);
        u64 base = static_cast<u64>(base_high) << 32 | base_low;
        const bool fits = out.bytes <= (static_cast<u64>(room_high) << 32 | room_low);
        if (!fits) {
            base = w->landing;
            if (out.bytes > w->landing_bytes) {
                fail(&wait, CAUSE_PROTOCOL, rank, w->landing_bytes, out.bytes);
                over = true;
            }
        }
        base += w->heap[rank];
        Target& to = t.target[rank];
        to.rows = base + static_cast<u64>(first) * a.row_bytes;
        to.scales = base + out.scales + 4ull * first * a.scales_per_row;
        to.ids = base + out.ids + 4ull * first * w->top_k;
        to.weights = base + out.weights + 4ull * first * w->top_k;
        to.tokens = base + out.tokens + 4ull * first;
        to.first_row = first;
        if (rank == w->rank) t.fallback = !fits, t.own_rows = rows;
    }
    if (__syncthreads_or(over)) return IS_OVER;
    return __syncthreads_or(refused) ? IS_REFUSED : MOVES;
}

// ---- send: rows

// A sending warp: takes one token after another, its first by its number and the others as they are claimed.
struct Sender {
    const Args& a;
    char* ring;
    u64* full;
    u32* queue;  // tokens taken, by turn
    u32 lane;
    // What is being loaded; lane 0 knows.
    u32 loads, turn, piece, token, claimed;

    __device__ u32 ahead() const { return a.stages - 1; }
    __device__ u32 piece_bytes(u32 of) const {
        const u32 from = of * a.chunk;
        return a.row_bytes - from < a.chunk ? a.row_bytes - from : a.chunk;
    }
    __device__ u32 claim() const { return gridDim.x * a.senders + atomicAdd(&control(a.world)->sending, 1u); }
    // By lane 0: the next piece, if there is one. A token is claimed one turn before it is wanted.
    __device__ void load() {
        if (piece == 0) {
            queue[turn % QUEUE] = token;
            if (token < a.tokens) claimed = claim();
        }
        if (token >= a.tokens) return;
        const u32 stage = loads % a.stages, bytes = piece_bytes(piece);
        mbarrier_expect(full + stage, bytes);
        bulk_load(ring + static_cast<u64>(stage) * a.chunk, a.rows + static_cast<u64>(token) * a.row_bytes + static_cast<u64>(piece) * a.chunk, bytes,
                  full + stage);
        loads++;
        if (++piece == a.pieces) {
            piece = 0;
            turn++;
            token = claimed;
        }
    }
    __device__ void start(u32 number) {
        loads = turn = piece = 0;
        token = number;
        if (lane != 0) return;
        for (u32 stage = 0; stage < a.stages; stage++) mbarrier_init(full + stage, 1);
        fence_mbarrier_init();
        for (u32 i = 0; i < ahead(); i++) load();
    }
    // Loads that nobody wants any more.
    __device__ void drain() const {
        for (u32 i = 0; i < loads; i++) await_load(full + i % a.stages, 0);
    }
    __device__ void run(const Tables& t);
};

// A lane for each destination: each issues its own stores, in its own bulk groups, so that own and peers' do not wait for each other.
__device__ void Sender::run(const Tables& t) {
    const World* w = a.world;
    const u32* slots = route_slots(w, a.route);
    u32 coming[SETS], slot[SETS];
    u64 to[SETS];
    const auto fetch = [&](u32 next) {
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            const u32 rank = 32 * s + lane;
            coming[s] = next < a.tokens && rank < w->ranks ? slots[static_cast<u64>(next) * w->ranks + rank] : NO_ROW;
        }
    };
    __syncwarp();
    fetch(queue[0]);
    for (u32 now = 0, unit = 0; queue[now % QUEUE] < a.tokens; now++) {
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            slot[s] = coming[s];
            if (slot[s] != NO_ROW) to[s] = t.target[32 * s + lane].rows + static_cast<u64>(slot[s]) * a.row_bytes;
        }
        for (u32 part = 0; part < a.pieces; part++, unit++) {
            // With a stage to spare the next token is known by the last piece of this one.
            if (part + 1 == a.pieces) fetch(queue[(now + 1) % QUEUE]);
            const u32 stage = unit % a.stages, bytes = piece_bytes(part);
            await_load(full + stage, unit / a.stages & 1);
#pragma unroll
            for (u32 s = 0; s < SETS; s++)
                if (slot[s] != NO_ROW)
                    bulk_store(reinterpret_cast<void*>(to[s] + static_cast<u64>(part) * a.chunk), ring + static_cast<u64>(stage) * a.chunk, bytes);
            bulk_commit();
            // The stage of the next load was last read by the unit before this one.
            bulk_wait_read<1>();
            __syncwarp();
            if (lane == 0) load();
            __syncwarp();
        }
    }
    bulk_wait<0>();
}

// ---- send: what belongs to rows. By the warps that do not send.

constexpr u32 CARRIERS = 1;  // their named barrier

struct Carriers {
    u32 first, count;  // threads
    __device__ u32 thread() const { return threadIdx.x - first; }
    __device__ void meet() const { asm volatile("bar.sync %0, %1;" ::"n"(CARRIERS), "r"(count) : "memory"); }
    // The same, and whether `own` is true of any of them.
    __device__ bool any(bool own) const {
        u32 all;
        asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
                     : "=r"(all) : "r"(static_cast<u32>(own)), "n"(CARRIERS), "r"(count) : "memory");
        return all != 0;
    }
};

// Ids, weights and source tokens: as many tokens at once as a warp has lanes for their choices.
__device__ void carry_choices(const Args& a, const Tables& t, const Carriers& carriers, u32 begin, u32 end) {
    const World* w = a.world;
    const Placement placement(w);
    const u32* slots = route_slots(w, a.route);
    const u32 per_token = w->top_k <= 1 ? 1 : 1u << (32 - __clz(w->top_k - 1));
    const u32 at_once = 32 / per_token, lane = lane_id(), k = lane % per_token;
    const u32 warp = carriers.thread() / 32, warps = carriers.count / 32;
    for (u32 first = begin + warp * at_once; first < end; first += warps * at_once) {
        const u32 token = first + lane / per_token;
        const bool there = token < end && k < w->top_k;
        const u64 from = static_cast<u64>(token) * w->top_k + k;
        const i32 id = there ? choice(a, from) : -1;
        const float weight = there && a.weights ? a.weights[from] : 0.0f;
        for (u32 batch = 0; batch < w->ranks; batch += per_token) {
            const u32 many = w->ranks - batch < per_token ? w->ranks - batch : per_token;
            const u32 mine = token < end && k < many ? slots[static_cast<u64>(token) * w->ranks + batch + k] : NO_ROW;
            for (u32 j = 0; j < many; j++) {
                const u32 slot = __shfl_sync(ALL_LANES, mine, lane - k + j), rank = batch + j;
                if (slot == NO_ROW || !there) continue;
                const Target& to = t.target[rank];
                const u32 local = static_cast<u32>(id) - placement.first_of(rank);
                const bool here = id >= 0 && local < placement.count_of(rank);
                const u64 at = 4 * (static_cast<u64>(slot) * w->top_k + k);
                *reinterpret_cast<i32*>(to.ids + at) = here ? static_cast<i32>(local) : -1;
                if (a.weights) *reinterpret_cast<float*>(to.weights + at) = here ? weight : 0.0f;
                if (k == 0) *reinterpret_cast<u32*>(to.tokens + 4ull * slot) = token;
            }
        }
    }
}

// Scales of any strides: a few neighbouring tokens at once, which share sectors where scales are column-major.
__device__ void carry_scales(const Args& a, const Tables& t, const Carriers& carriers, u32 begin, u32 end) {
    constexpr u32 AT_ONCE = 4;
    const World* w = a.world;
    const u32* slots = route_slots(w, a.route);
    const u32 lane = lane_id(), warp = carriers.thread() / 32, warps = carriers.count / 32;
    for (u32 first = begin + warp * AT_ONCE; first < end; first += warps * AT_ONCE) {
        for (u32 block = lane; block - lane < a.scales_per_row; block += 32) {
            float scale[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (first + i < end && block < a.scales_per_row)
                    scale[i] = a.scales[static_cast<i64>(first + i) * a.scale_token_stride + block * a.scale_block_stride];
            for (u32 batch = 0; batch < w->ranks; batch += 32) {
#pragma unroll
                for (u32 i = 0; i < AT_ONCE; i++) {
                    const u32 mine = first + i < end && batch + lane < w->ranks ? slots[static_cast<u64>(first + i) * w->ranks + batch + lane] : NO_ROW;
                    for (u32 set = __ballot_sync(ALL_LANES, mine != NO_ROW); set != 0; set &= set - 1) {
                        const u32 j = __ffs(set) - 1, slot = __shfl_sync(ALL_LANES, mine, j);
                        if (block < a.scales_per_row)
                            *reinterpret_cast<float*>(t.target[batch + j].scales + 4 * (static_cast<u64>(slot) * a.scales_per_row + block)) = scale[i];
                    }
                }
            }
        }
    }
}

// Entries behind the last arrival of an output with a fixed number of rows.
__device__ void fill_rest(const Args& a, const Tables& t, const Carriers& carriers) {
    const World* w = a.world;
    const Target& own = t.target[w->rank];
    const u64 begin = static_cast<u64>(t.own_rows) * w->top_k, end = static_cast<u64>(a.fixed_rows) * w->top_k;
    const u64 before = 4ull * own.first_row * w->top_k;
    for (u64 i = begin + blockIdx.x * carriers.count + carriers.thread(); i < end; i += static_cast<u64>(gridDim.x) * carriers.count) {
        *reinterpret_cast<i32*>(own.ids - before + 4 * i) = -1;
        if (a.weights) *reinterpret_cast<float*>(own.weights - before + 4 * i) = 0.0f;
    }
}

// The block's choices to the rank's, and the rank's to the owners of the experts.
__device__ void send_expert_counts(const Args& a, const Wait& wait, u32* histogram, const Carriers& carriers) {
    __shared__ u32 last;
    const World* w = a.world;
    Control* c = control(w);
    for (u32 expert = carriers.thread(); expert < w->experts; expert += carriers.count)
        if (histogram[expert] != 0) atomicAdd(&c->histogram[expert], histogram[expert]);
    carriers.meet();
    if (carriers.thread() == 0) last = add_acquire_release_gpu(&c->counted, 1) == gridDim.x - 1;
    carriers.meet();
    if (!last) return;
    const Placement placement(w);
    for (u32 expert = carriers.thread(); expert < w->experts; expert += carriers.count) {
        const u32 rank = placement.rank_of(expert), n = load_relaxed_gpu(&c->histogram[expert]);
        store_relaxed_gpu(&c->histogram[expert], 0);
        stress(wait.stress_seed, 6);
        u64* counts = in_heap<u64>(w, rank, w->expert_counts) + w->rank * w->most_local_experts;
        store_relaxed_system(counts + (expert - placement.first_of(rank)), tagged(wait.epoch, n));
    }
}

// Sums the choices of this rank's experts over all sources. By block 0. False when the communicator is over.
__device__ bool receive_expert_counts(const Args& a, const Wait& wait, const Carriers& carriers, u32* report) {
    const World* w = a.world;
    bool over = false;
    for (u32 expert = carriers.thread(); expert < w->local_experts && !over; expert += carriers.count) {
        u32 sum = 0;
        for (u32 source = 0; source < w->ranks; source++) {
            const u64* p = in_heap<u64>(w, w->rank, w->expert_counts) + source * w->most_local_experts + expert;
            stress(wait.stress_seed, 7);
            over |= !await(wait, source, wait.epoch, [&](u64& seen) {
                const u64 v = load_relaxed_system(p);
                seen = v >> 32;
                sum += static_cast<u32>(v >> 32) == wait.epoch ? static_cast<u32>(v) : 0;
                return static_cast<u32>(v >> 32) == wait.epoch;
            });
        }
        route_experts(w, a.route)[expert] = sum;
        if (report) report[w->ranks * w->ranks + expert] = sum;
    }
    return !over;
}

// What the host waits for: counts of all ranks and of the local experts. By block 0.
__device__ void report(const Args& a, const Wait& wait, const Tables& t, const u32* matrix, const Carriers& carriers, Way way) {
    const World* w = a.world;
    Board* b = board(w);
    const bool moved = way == MOVES;
    bool over = way == IS_OVER;
    u32* to = a.ticket ? reinterpret_cast<u32*>(b + 1) : nullptr;
    if (moved && !a.cached) {
        over = !receive_expert_counts(a, wait, carriers, to);
        for (u32 i = carriers.thread(); i < w->ranks * w->ranks; i += carriers.count) {
            route_counts(w, a.route)[i] = matrix[i];
            if (to) to[i] = matrix[i];
        }
    }
    if (!to) return;
    fence_system();
    // Counts that never came are not reported, or the host would take what the last call left there for them. It finds the failure.
    if (carriers.any(over) || carriers.thread() != 0) return;
    b->report_refused = way == IS_REFUSED;
    b->report_fallback = moved && t.fallback;
    b->report_epoch = wait.epoch;
    fence_system();
    store_release_system(&b->ticket, a.ticket);
}

__global__ void __launch_bounds__(768, 1) dispatch(const __grid_constant__ Args a) {
    // Tables first: chunks are multiples of 16 only, which is what bulk copies ask for.
    extern __shared__ __align__(1024) char shared[];
    const World* w = a.world;
    if (block_has_failed(w)) return;
    Tables& t = *reinterpret_cast<Tables*>(shared);
    char* rings = shared + sizeof(Tables);
    u32* matrix = reinterpret_cast<u32*>(rings + static_cast<u64>(a.senders) * a.stages * a.chunk);
    u32* histogram = matrix + w->ranks * w->ranks;
    const u32 warp = threadIdx.x / 32;
    const bool first = blockIdx.x == 0 && threadIdx.x == 0;
    if (first) clock(w, TIME_START);
    const u32 begin = static_cast<u64>(a.tokens) * blockIdx.x / gridDim.x, end = static_cast<u64>(a.tokens) * (blockIdx.x + 1) / gridDim.x;
    Wait wait{w, next_epoch(w), PHASE_DISPATCH_NOTIFY, a.stress_seed};

    const bool sends = warp < a.senders;
    const u32 ring = sends ? warp : 0;
    Sender sender{a, rings + static_cast<u64>(ring) * a.stages * a.chunk, t.full + ring * a.stages, t.queue[ring], lane_id(), 0, 0, 0, 0, 0};
    // The first rows come while counts are exchanged.
    if (sends) sender.start(warp * gridDim.x + blockIdx.x);
    if (threadIdx.x == 0) t.fallback = 0;
    if (blockIdx.x == 0 && warp == blockDim.x / 32 - 1)
        announce(wait, a.signature, a.cached ? reinterpret_cast<const Route*>(a.route)->origin : 0);
    Way way = MOVES;
    if (!a.cached) {
        for (u32 i = threadIdx.x; i < w->experts; i += blockDim.x) histogram[i] = 0;
        for (u32 i = threadIdx.x; i < w->ranks; i += blockDim.x) t.own_counts[i] = 0;
        __syncthreads();
        count(a, t, histogram, begin, end);
        way = meet_blocks(a, wait, t);
    }
    if (first) clock(w, TIME_COUNTED);
    if (way == MOVES) {
        if (blockIdx.x == 0) post(a, wait, t);
        if (!a.cached) {
            // Slots so far count from the block's first token.
            u32* slots = route_slots(w, a.route) + static_cast<u64>(begin) * w->ranks;
            for (u32 i = threadIdx.x; i < (end - begin) * w->ranks; i += blockDim.x)
                if (slots[i] != NO_ROW) slots[i] += t.before[i % w->ranks];
            // Whoever claims a token of this block must find its slots.
            __syncthreads();
            if (threadIdx.x == blockDim.x - 1) store_release_gpu(&control(w)->ready[blockIdx.x], wait.epoch);
        }
        way = find_targets(a, wait, t, matrix);
    }
    if (first) clock(w, TIME_NOTIFIED);
    wait.phase = PHASE_DISPATCH_DATA;
    if (sends) {
        if (way == MOVES) sender.run(t);
        else if (lane_id() == 0) sender.drain();
    } else {
        const Carriers carriers{32 * a.senders, blockDim.x - 32 * a.senders};
        if (!a.cached && way != IS_OVER) send_expert_counts(a, wait, histogram, carriers);
        if (blockIdx.x == 0) report(a, wait, t, matrix, carriers, way);
        if (way == MOVES && !a.cached) {
            carry_choices(a, t, carriers, begin, end);
            if (a.fixed_rows != NOT_FIXED) fill_rest(a, t, carriers);
        }
        if (way == MOVES && a.scales) carry_scales(a, t, carriers, begin, end);
        if (!a.cached && blockIdx.x == 0 && carriers.thread() == 0) {
            Route* route = reinterpret_cast<Route*>(a.route);
            route->origin = way == MOVES ? wait.epoch : 0;
            route->tokens = a.tokens;
            route->top_k = w->top_k;
        }
    }
    if (first) clock(w, TIME_SENT);
    finish(wait);
}

}  // namespace expertrail
