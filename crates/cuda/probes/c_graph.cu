// Risk (c): a captured cooperative kernel whose epoch, parity and bases live in device memory, replayed and launched
// eagerly in random order on two GPUs. Every call is checked by a kernel that counts calls on its own.
// Build: nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o c_graph c_graph.cu -lcuda
// Usage: c_graph [calls=1000] [seed=1]
#include "cde.cuh"
#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

static const int BLOCKS = 16, THREADS = 512, CHECK_BLOCKS = 16;
static const u32 SLOT_VEC = 16384;            // 256 KiB a slot
static const u32 SLOTS = 5, STEP = 3;         // per parity; the base advances by STEP slots a generation
static const u32 POISON = 0xEEEEEEEEu;
static const u32 MAXCALLS = 20000;

struct Rec { u64 epoch, base, count, pad; };  // receiver tells the sender where; sender tells how much
struct Sym {                                  // symmetric memory, written by the peer
    u64 notify[2][16];
    u64 done[2][16];
    Rec rec[2];
    u64 pad[8];
    uint4 slot[2][SLOTS][SLOT_VEC];
};
struct Err { u32 code, phase; u64 epoch, expected, seen; };  // code 1 deadline, 2 flag ahead of us, 3 bad record
struct Ctx {  // device memory of one rank: the whole call state
    Sym* own;
    Sym* peer;
    uint4* src;
    u32 rank, arrive;
    u64 epoch;        // last finished call
    u32 base_slot[2]; // next base of each parity
    Err err;
    u32 err_lock;
    // the checker's own state
    u32 check_arrive;
    u64 checked;      // calls checked so far; independent of epoch
    u32* bad;         // mismatching words of call n
    u32* seen;        // how often call n was checked
};
// What a naive capture would freeze; bits: 1 epoch, 2 base. lenient: flags compared with >= as some protocols do.
struct Frozen { u32 bits, base_slot; u64 epoch; u32 lenient, jitter; u64 deadline_ns; };

__host__ __device__ static inline u64 src_key(u32 rank) { return 0xC0FFEE00ull + rank * 0x1000193ull; }
__host__ __device__ static inline u32 count_of(u32 rank, u64 e) {
    if ((e + rank) % 17 == 0) return 0;  // a call with zero rows still exchanges flags
    return 1 + (u32)(mix64(e * 2 + rank) % SLOT_VEC);
}
__host__ __device__ static inline u32 slot_of(u64 e) { return (u32)(((e >> 1) * STEP) % SLOTS); }
__device__ __forceinline__ uint4 stamp(uint4 v, u64 e) {
    u64 h = mix64(e ^ 0x5EEDull);
    return make_uint4(v.x ^ (u32)h, v.y ^ (u32)(h >> 32), v.z ^ (u32)e, v.w ^ (u32)(h >> 16));
}

__device__ void fail(Ctx* c, u32 code, u32 phase, u64 e, u64 want, u64 got) {
    if (atomicCAS(&c->err_lock, 0u, 1u) == 0) {
        c->err.phase = phase;
        c->err.epoch = e;
        c->err.expected = want;
        c->err.seen = got;
        __threadfence();
        *(volatile u32*)&c->err.code = code;
    }
}
// One thread. Bounded: returns false on deadline, on a flag from the future and on another block's failure.
__device__ bool await(Ctx* c, const u64* f, u64 e, u32 phase, const Frozen& z) {
    u64 t0 = gtime();
    for (u32 s = 0;; ++s) {
        u64 v = ld_acq_sys(f);
        if (v == e || (z.lenient && v > e)) return true;
        if (v > e) {
            fail(c, 2, phase, e, e, v);
            return false;
        }
        if ((s & 31) == 31) {
            if (*(volatile u32*)&c->err.code) return false;
            if (gtime() - t0 > z.deadline_ns) {
                fail(c, 1, phase, e, e, v);
                return false;
            }
        }
    }
}

namespace probe {
__global__ void __launch_bounds__(THREADS) dispatch(Ctx* c, Frozen z) {
    __shared__ u32 go;
    __shared__ u64 sh_base;
    const u64 e = (z.bits & 1) ? z.epoch : *(volatile u64*)&c->epoch + 1;
    const u32 p = (u32)(e & 1);
    const u32 n = count_of(c->rank, e);
    if (threadIdx.x == 0) {
        const bool alive = *(volatile u32*)&c->err.code == 0;
        if (alive && blockIdx.x == 0) {
            u32 b = (z.bits & 2) ? z.base_slot : *(volatile u32*)&c->base_slot[p];
            st_rlx_sys(&c->peer->rec[p].epoch, e);
            st_rlx_sys(&c->peer->rec[p].base, b);
            st_rlx_sys(&c->peer->rec[p].count, n);
            fence_sys();
            st_rel_sys(&c->peer->notify[p][0], e);
        }
        go = alive && await(c, &c->own->notify[p][0], e, 1, z);
        u64 base = ld_rlx_sys(&c->own->rec[p].base), re = ld_rlx_sys(&c->own->rec[p].epoch);
        if (go && !z.lenient && (re != e || base >= SLOTS)) {
            fail(c, 3, 1, e, e, re);
            go = 0;
        }
        sh_base = base % SLOTS;
        if (go && z.jitter && mix64(e * 64 + blockIdx.x * 2 + c->rank) % 16 == 0)
            __nanosleep((u32)(mix64(e + blockIdx.x) % 20000));
    }
    __syncthreads();
    if (!go) return;
    uint4* out = c->peer->slot[p][sh_base];
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS) out[i] = stamp(c->src[i], e);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x) return;
    if (add_acqrel_gpu(&c->arrive, 1) != BLOCKS - 1) return;
    // The last block: all payload of this rank is out.
    c->arrive = 0;
    fence_sys();
    st_rel_sys(&c->peer->done[p][0], e);
    if (!await(c, &c->own->done[p][0], e, 2, z)) return;
    c->base_slot[p] = (c->base_slot[p] + STEP) % SLOTS;
    c->epoch = e;
}

// Counts calls by itself: call n must have left the peer's payload of epoch n at the base of epoch n, nothing behind it.
__global__ void __launch_bounds__(THREADS) verify(Ctx* c) {
    __shared__ u32 sh_bad;
    if (*(volatile u32*)&c->err.code) return;
    const u64 n = *(volatile u64*)&c->checked + 1;
    const u32 p = (u32)(n & 1), peer = 1 - c->rank, cnt = count_of(peer, n);
    if (threadIdx.x == 0) sh_bad = 0;
    __syncthreads();
    u32 bad = 0;
    uint4* in = c->own->slot[p][slot_of(n)];
    const uint4 poison = make_uint4(POISON, POISON, POISON, POISON);
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < SLOT_VEC; i += CHECK_BLOCKS * THREADS) {
        uint4 v = ld4_vol(in + i);
        bad += !same4(v, i < cnt ? stamp(pat4(src_key(peer), i), n) : poison);
        in[i] = poison;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        bad += ld_rlx_sys(&c->own->rec[p].epoch) != n;
        bad += ld_rlx_sys(&c->own->rec[p].count) != cnt;
        bad += *(volatile u64*)&c->epoch != n;
    }
    if (bad) atomicAdd(&sh_bad, bad);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (sh_bad && n < MAXCALLS) atomicAdd(&c->bad[n], sh_bad);
        __threadfence();
        if (add_acqrel_gpu(&c->check_arrive, 1) == CHECK_BLOCKS - 1) {
            c->check_arrive = 0;
            if (n < MAXCALLS) c->seen[n] += 1;
            c->checked = n;
        }
    }
}

__global__ void fill(uint4* src, u64 key) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < SLOT_VEC; i += gridDim.x * blockDim.x) src[i] = pat4(key, i);
}
}  // namespace probe

enum Kind : char { EAGER = 'E', R1 = '1', R3 = '3' };
struct Rank {
    int dev;
    Sym* sym;
    uint4* src;
    Ctx* ctx;
    u32 *bad, *seen;
    cudaStream_t s[2];
    cudaEvent_t ev[2];
    cudaGraphExec_t g1, g3;
};
static Rank R[2];

struct Barrier {  // two host threads
    std::atomic<int> n{0}, gen{0};
    void wait() {
        int g = gen.load();
        if (n.fetch_add(1) == 1) {
            n = 0;
            gen.fetch_add(1);
        } else
            while (gen.load() == g) std::this_thread::yield();
    }
} g_bar;

static void launch(Rank& r, cudaStream_t s, Frozen z) {
    void* a[] = {&r.ctx, &z};
    CK(cudaLaunchCooperativeKernel((const void*)probe::dispatch, dim3(BLOCKS), dim3(THREADS), a, 0, s));
}
static void check(Rank& r, cudaStream_t s) {
    probe::verify<<<CHECK_BLOCKS, THREADS, 0, s>>>(r.ctx);
    CK(cudaGetLastError());
}
static cudaGraphExec_t capture(Rank& r, int calls, Frozen z, int* coop) {
    cudaGraph_t g;
    cudaGraphExec_t x;
    CK(cudaStreamBeginCapture(r.s[0], cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) {
        launch(r, r.s[0], z);
        check(r, r.s[0]);
    }
    CK(cudaStreamEndCapture(r.s[0], &g));
    size_t n = 0;
    CK(cudaGraphGetNodes(g, nullptr, &n));
    std::vector<cudaGraphNode_t> v(n);
    CK(cudaGraphGetNodes(g, v.data(), &n));
    *coop = 0;
    for (auto nd : v) {
        cudaLaunchAttributeValue a;
        memset(&a, 0, sizeof a);
        CK(cudaGraphKernelNodeGetAttribute(nd, cudaLaunchAttributeCooperative, &a));
        *coop += a.cooperative != 0;
    }
    CK(cudaGraphInstantiate(&x, g, 0));
    CK(cudaGraphUpload(x, r.s[0]));
    CK(cudaStreamSynchronize(r.s[0]));
    CK(cudaGraphDestroy(g));
    return x;
}
static void reset() {  // both GPUs idle
    for (int k = 0; k < 2; ++k) {
        CK(cudaSetDevice(k));
        CK(cudaDeviceSynchronize());
    }
    for (int k = 0; k < 2; ++k) {
        CK(cudaSetDevice(k));
        CK(cudaMemset(R[k].sym, 0, offsetof(Sym, slot)));
        CK(cudaMemset(R[k].sym->slot, 0xEE, sizeof R[k].sym->slot));
        CK(cudaMemset(R[k].bad, 0, MAXCALLS * 4));
        CK(cudaMemset(R[k].seen, 0, MAXCALLS * 4));
        Ctx c;
        memset(&c, 0, sizeof c);
        c.own = R[k].sym;
        c.peer = R[1 - k].sym;
        c.src = R[k].src;
        c.rank = k;
        c.base_slot[0] = slot_of(2);  // first call of parity 0 is epoch 2
        c.base_slot[1] = slot_of(1);
        c.bad = R[k].bad;
        c.seen = R[k].seen;
        CK(cudaMemcpy(R[k].ctx, &c, sizeof c, cudaMemcpyHostToDevice));
        CK(cudaDeviceSynchronize());
    }
}
// A sequence of items that adds up to n calls.
static std::string make_seq(u64 seed, u32 n) {
    Rng g{seed};
    std::string s;
    while (n) {
        u32 k = g.below(10);
        if (k < 4) s += (char)EAGER, n -= 1;
        else if (k < 8 || n < 3) s += (char)R1, n -= 1;
        else s += (char)R3, n -= 3;
    }
    return s;
}
static std::string complement(const std::string& a) {  // replay here where the other launches, and the reverse
    std::string s;
    for (char k : a) s += k == EAGER ? "1" : k == R1 ? "E" : "EEE";
    return s;
}
// Plays one sequence on one rank: random stream for every item, ordered by an event when the stream changes.
static void play(int k, const std::string& seq, u64 seed, Frozen z, bool pauses) {
    Rank& r = R[k];
    CK(cudaSetDevice(k));
    Rng g{seed * 77 + k};
    int last = 0;
    for (char it : seq) {
        int st = pauses ? (int)g.below(2) : 0;
        if (st != last) {
            CK(cudaEventRecord(r.ev[last], r.s[last]));
            CK(cudaStreamWaitEvent(r.s[st], r.ev[last], 0));
            last = st;
        }
        if (it == EAGER) {
            launch(r, r.s[st], z);
            check(r, r.s[st]);
        } else
            CK(cudaGraphLaunch(it == R1 ? r.g1 : r.g3, r.s[st]));
        if (pauses && g.below(20) == 0) usleep(g.below(400));
        if (pauses && g.below(50) == 0) CK(cudaStreamSynchronize(r.s[st]));
    }
    CK(cudaDeviceSynchronize());
}
static u32 count_kind(const std::string& s, char k) {
    u32 n = 0;
    for (char c : s) n += c == k;
    return n;
}
static const char* code_name(u32 c) { return c == 0 ? "none" : c == 1 ? "deadline" : c == 2 ? "flag_ahead" : "bad_record"; }

// Returns true when every call of both ranks was checked once and matched.
static bool variant(const char* name, const std::string& a, const std::string& b, u32 calls, u64 seed, Frozen z) {
    reset();
    double t0 = now_ms();
    const std::string* q[2] = {&a, &b};
    std::thread t[2];
    for (int k = 0; k < 2; ++k)
        t[k] = std::thread([&, k] {
            g_bar.wait();
            play(k, *q[k], seed, z, true);
        });
    for (auto& x : t) x.join();
    double ms = now_ms() - t0;
    bool ok = true;
    for (int k = 0; k < 2; ++k) {
        CK(cudaSetDevice(k));
        Ctx c;
        CK(cudaMemcpy(&c, R[k].ctx, sizeof c, cudaMemcpyDeviceToHost));
        std::vector<u32> bad(MAXCALLS), seen(MAXCALLS);
        CK(cudaMemcpy(bad.data(), R[k].bad, MAXCALLS * 4, cudaMemcpyDeviceToHost));
        CK(cudaMemcpy(seen.data(), R[k].seen, MAXCALLS * 4, cudaMemcpyDeviceToHost));
        u32 mism = 0, unchecked = 0, first = 0;
        for (u32 n = 1; n <= calls; ++n) {
            if (bad[n]) mism++, first = first ? first : n;
            unchecked += seen[n] != 1;
        }
        bool good = !mism && !unchecked && !c.err.code && c.epoch == calls && c.checked == calls;
        ok &= good;
        printf("C variant=%s rank=%d calls=%u eager=%u replay1=%u replay3=%u mismatched_calls=%u first_bad=%u unchecked=%u epoch=%llu checked=%llu "
               "error=%s phase=%u at_epoch=%llu expected=%llu seen=%llu wall_ms=%.1f verdict=%s\n",
               name, k, calls, count_kind(*q[k], EAGER), count_kind(*q[k], R1), count_kind(*q[k], R3), mism, first, unchecked, c.epoch, c.checked,
               code_name(c.err.code), c.err.phase, c.err.epoch, c.err.expected, c.err.seen, ms, good ? "pass" : "FAIL");
    }
    fflush(stdout);
    return ok;
}
// Negative control: what freezes is passed in launch arguments. One call at a time until the check notices.
// Eager launches pass the true value, so only a replay can be wrong. Returns the call at which it was noticed (0: never).
static u32 control(const char* name, u32 bits, u32 lenient, const std::string& a, const std::string& b, bool expect = true) {
    reset();
    Frozen z{bits, slot_of(1), 1, lenient, 0, 300000000ull};
    cudaGraphExec_t gx[2];
    for (int k = 0; k < 2; ++k) {
        CK(cudaSetDevice(k));
        int coop;
        gx[k] = capture(R[k], 1, z, &coop);
    }
    u32 noticed = 0, words = 0;
    const char* how = "nothing";
    for (u32 n = 1; n <= a.size() && !noticed; ++n) {
        for (int k = 0; k < 2; ++k) {
            CK(cudaSetDevice(k));
            Frozen y = z;
            y.epoch = n;
            y.base_slot = slot_of(n);
            if ((k ? b : a)[n - 1] == EAGER) {
                launch(R[k], R[k].s[0], y);
                check(R[k], R[k].s[0]);
            } else
                CK(cudaGraphLaunch(gx[k], R[k].s[0]));
        }
        for (int k = 0; k < 2; ++k) {
            CK(cudaSetDevice(k));
            CK(cudaDeviceSynchronize());
        }
        for (int k = 0; k < 2; ++k) {
            Ctx c;
            u32 bad;
            CK(cudaMemcpy(&c, R[k].ctx, sizeof c, cudaMemcpyDeviceToHost));
            CK(cudaMemcpy(&bad, R[k].bad + n, 4, cudaMemcpyDeviceToHost));
            if (c.err.code) noticed = n, how = code_name(c.err.code);
            else if (bad) noticed = n, how = "payload_check", words = bad;
        }
    }
    for (int k = 0; k < 2; ++k) {
        CK(cudaSetDevice(k));
        CK(cudaGraphExecDestroy(gx[k]));
    }
    printf("C control=%s seq0=%s seq1=%s noticed_at_call=%u by=%s bad_vectors=%u verdict=%s\n", name, a.c_str(), b.c_str(), noticed, how, words,
           (noticed != 0) == expect ? "as_expected" : "FAIL");
    fflush(stdout);
    return noticed;
}
// Chained calls per span, both ranks alike; the check kernel is part of every call.
static void timing(const char* name, char kind, u32 items, u32 calls_per_item, Frozen z) {
    double best = 1e30;
    for (int rep = 0; rep < 5; ++rep) {
        reset();
        std::string s(items, kind);
        double us[2];
        std::thread t[2];
        for (int k = 0; k < 2; ++k)
            t[k] = std::thread([&, k] {
                CK(cudaSetDevice(k));
                g_bar.wait();
                double t0 = now_ms();
                play(k, s, 1, z, false);
                us[k] = (now_ms() - t0) * 1e3 / (items * calls_per_item);
            });
        for (auto& x : t) x.join();
        best = std::fmin(best, std::fmax(us[0], us[1]));
    }
    printf("C timing=%s calls=%u us_per_call=%.2f (best of 5, chained, dispatch+check, random size up to 256 KiB)\n", name, items * calls_per_item, best);
    fflush(stdout);
}

int main(int argc, char** argv) {
    deadline_s(58);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // no module load while a kernel spins
    setvbuf(stdout, nullptr, _IOLBF, 0);
    u32 calls = argc > 1 ? (u32)atoi(argv[1]) : 1000;
    u64 seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : 1;
    if (calls < 10 || calls >= MAXCALLS) die("calls must be in 10..%u", MAXCALLS - 1);
    need_two_peers();
    for (int k = 0; k < 2; ++k) {
        CK(cudaSetDevice(k));
        CK(cudaDeviceEnablePeerAccess(1 - k, 0));
        Rank& r = R[k];
        r.dev = k;
        CK(cudaMalloc(&r.sym, sizeof(Sym)));
        CK(cudaMalloc(&r.src, SLOT_VEC * 16));
        CK(cudaMalloc(&r.ctx, sizeof(Ctx)));
        CK(cudaMalloc(&r.bad, MAXCALLS * 4));
        CK(cudaMalloc(&r.seen, MAXCALLS * 4));
        for (int i = 0; i < 2; ++i) {
            CK(cudaStreamCreateWithFlags(&r.s[i], cudaStreamNonBlocking));
            CK(cudaEventCreateWithFlags(&r.ev[i], cudaEventDisableTiming));
        }
        probe::fill<<<16, 256>>>(r.src, src_key(k));
        CK(cudaDeviceSynchronize());
    }
    Frozen z{0, 0, 0, 0, 1, 5000000000ull};
    reset();
    for (int k = 0; k < 2; ++k) {
        CK(cudaSetDevice(k));
        int c1, c3;
        R[k].g1 = capture(R[k], 1, z, &c1);
        R[k].g3 = capture(R[k], 3, z, &c3);
        printf("C capture rank=%d cooperative_nodes=%d,%d of 1,3\n", k, c1, c3);
        if (c1 != 1 || c3 != 3) die("cooperative attribute lost in capture");
    }
    bool ok = true;
    ok &= variant("eager_only", std::string(20, EAGER), std::string(20, EAGER), 20, seed, z);
    std::string s = make_seq(seed, calls);
    ok &= variant("same_order", s, s, calls, seed, z);
    ok &= variant("complementary", s, complement(s), calls, seed + 1, z);
    ok &= variant("independent", make_seq(seed * 3 + 10, calls), make_seq(seed * 5 + 20, calls), calls, seed + 2, z);
    bool ctl = true;
    u32 n;
    n = control("frozen_epoch_lenient_wait", 1, 1, "EE1E1E1E1E1E", "EE1E1E1E1E1E"), ctl &= n && n <= 6;
    n = control("frozen_epoch_strict_wait", 1, 0, "EE1E1E1E1E1E", "EE1E1E1E1E1E"), ctl &= n && n <= 6;
    n = control("frozen_epoch_one_rank", 1, 0, "EE1E1E1E1E1E", "EEEEEEEEEEEE"), ctl &= n && n <= 6;
    n = control("frozen_base", 2, 0, "EE1E1E1E1E1E", "EE1E1E1E1E1E"), ctl &= n && n <= 6;
    u32 none = control("nothing_frozen", 0, 0, "EE1E1E1E1E1E", "EE1E1E1E1E1E", false);  // the control's own control
    ctl &= none == 0;
    Frozen q = z;
    q.jitter = 0;
    for (int k = 0; k < 2; ++k) {  // graphs without injected delays, for the timing
        CK(cudaSetDevice(k));
        int c;
        CK(cudaGraphExecDestroy(R[k].g1));
        CK(cudaGraphExecDestroy(R[k].g3));
        R[k].g1 = capture(R[k], 1, q, &c);
        R[k].g3 = capture(R[k], 3, q, &c);
    }
    timing("eager", EAGER, 300, 1, q);
    timing("replay1", R1, 300, 1, q);
    timing("replay3", R3, 100, 3, q);
    printf("C SUMMARY calls_per_variant=%u interleaving=%s controls=%s verdict=%s\n", calls, ok ? "pass" : "FAIL", ctl ? "pass" : "FAIL", ok && ctl ? "PASS" : "FAIL");
    return ok && ctl ? 0 : 1;
}
