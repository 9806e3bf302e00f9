// Risk (d): a pool slice is read on a side stream, dropped by its owner and published again at once as the base of the
// next call, so the peer overwrites it under the reader. Shown without the rule of DESIGN 5.1, gone with it.
// Build: nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o d_pool d_pool.cu -lcuda
// Usage: d_pool [iterations=600] [seed=1]
#include "cde.cuh"
#include <algorithm>
#include <deque>
#include <vector>

static const int SEND_BLOCKS = 8, SEND_THREADS = 512, READ_BLOCKS = 16, READ_THREADS = 256;
static const u32 SLICE_VEC = 131072;  // 2 MiB
static const int SLICES = 4;
static const u32 MAXEPOCH = 65536;

// Where a reader of the slice runs; each is covered by another of the four events.
enum { CREATION = 1, COMM = 2, CURRENT = 4, RECORDED = 8, ALL = 15 };
static const char* const where_name[4] = {"creation", "comm", "current", "recorded"};

struct Mail { u64 flag[16]; u64 base; u64 pad[15]; };  // receiver to sender
struct Err { u32 code, phase; u64 epoch, seen; };

__host__ __device__ static inline u64 key_of(u64 epoch) { return 0xD00D0000ull ^ (epoch << 32); }

__device__ bool await(const u64* f, u64 e, Err* err, u32 phase, u64 deadline_ns) {
    u64 t0 = gtime();
    for (u32 s = 0;; ++s) {
        u64 v = ld_acq_sys(f);
        if (v == e) return true;
        if ((s & 31) == 31 && (gtime() - t0 > deadline_ns || *(volatile u32*)&err->code)) {
            if (!*(volatile u32*)&err->code) {
                err->phase = phase;
                err->epoch = e;
                err->seen = v;
                __threadfence_system();
                *(volatile u32*)&err->code = 1;
            }
            return false;
        }
    }
}

static_assert(SLICE_VEC <= 32u * READ_BLOCKS * READ_THREADS, "one bit a vector");

namespace probe {
// GPU 0: publishes the base of this call's output and waits until the peer has filled it.
__global__ void receive(Mail* peer_mail, const u64* done, u64 base, u64 e, Err* err, u64 deadline_ns) {
    if (threadIdx.x) return;
    st_rlx_sys(&peer_mail->base, base);
    fence_sys();
    st_rel_sys(&peer_mail->flag[0], e);
    await(done, e, err, 2, deadline_ns);
}
// GPU 1: writes the pattern of this epoch wherever the receiver said.
__global__ void __launch_bounds__(SEND_THREADS) send(const Mail* mail, uint4* pool, u64* peer_done, u32* arrive, u64 e, u32 nvec, Err* err, u64 deadline_ns) {
    __shared__ u32 go;
    __shared__ u64 base;
    if (threadIdx.x == 0) {
        go = await(&mail->flag[0], e, err, 1, deadline_ns);
        base = ld_rlx_sys(&mail->base);
    }
    __syncthreads();
    if (!go) return;
    u64 key = key_of(e);
    for (u32 i = blockIdx.x * SEND_THREADS + threadIdx.x; i < nvec; i += SEND_BLOCKS * SEND_THREADS) pool[base + i] = pat4(key, i);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x || add_acqrel_gpu(arrive, 1) != SEND_BLOCKS - 1) return;
    *arrive = 0;
    fence_sys();
    st_rel_sys(peer_done, e);
}
// The user's slow consumer: reads the whole slice several times. bad: wrong vectors; mid: wrong vectors that were right
// in the first pass, so overwritten while being read.
__global__ void __launch_bounds__(READ_THREADS) slow_read(const uint4* slice, u64 e, u32 nvec, int passes, u32 nap_ns, u32* bad, u32* mid) {
    u64 key = key_of(e);
    u32 nbad = 0, nmid = 0, right = 0;  // right: one bit a vector of this thread
    for (int p = 0; p < passes; ++p) {
        u32 bit = 1;
        for (u32 i = blockIdx.x * READ_THREADS + threadIdx.x; i < nvec; i += READ_BLOCKS * READ_THREADS, bit <<= 1) {
            bool ok = same4(ld4_vol(slice + i), pat4(key, i));
            if (p == 0 && ok) right |= bit;
            nbad += !ok;
            nmid += !ok && (right & bit);
        }
        if (p + 1 < passes) __nanosleep(nap_ns);
    }
    if (nbad) atomicAdd(&bad[e], nbad);
    if (nmid) atomicAdd(&mid[e], nmid);
}
__global__ void gate(const u32* open) {  // holds a stream until the host opens it; bounded
    u64 t0 = gtime();
    while (!ld_rlx_sys32(open) && gtime() - t0 < 3000000000ull) __nanosleep(500);
}
}  // namespace probe

struct Slice {
    int id;
    int epoch;
    cudaEvent_t ev[4];    // creation, comm, current at drop, recorded
    bool armed[4];
    cudaStream_t creation, comm;
    bool recorded;
};
struct Pool {
    Slice s[SLICES];
    std::vector<int> free_;  // last in, first out: the slice just dropped is the next one out
};
static uint4* g_pool;        // on GPU 0
static Mail* g_mail;         // on GPU 1
static u64* g_done;          // on GPU 0
static u32* g_arrive;        // on GPU 1
static Err* g_err;           // pinned host
static u32 *g_bad, *g_mid;   // on GPU 0
static u32* g_open;          // pinned host
static cudaStream_t user_s[2], comm_s[2], cur_s, rec_s, idle_s, send_s;
static cudaEvent_t input_ev, done_ev, t0_ev, t1_ev;
static Pool pool;
static u64 g_epoch = 0;
static double host_wait_us, host_record_us;
static u64 waits, records;
static const u64 DEADLINE = 5000000000ull;

static void pool_reset(int n) {
    pool.free_.clear();
    for (int i = n - 1; i >= 0; --i) pool.free_.push_back(i);
    for (auto& s : pool.s) memset(s.armed, 0, sizeof s.armed);
}
// rule: which of the four events are recorded and awaited. elide: skip the wait for an event that has already happened.
// dedupe: streams named twice, and the publishing stream itself, need no event.
static Slice* call(cudaStream_t user, cudaStream_t comm, u32 nvec, u32 rule, bool elide) {
    if (pool.free_.empty()) die("pool empty: the probe keeps too many outputs");
    Slice* s = &pool.s[pool.free_.back()];
    pool.free_.pop_back();
    u64 e = ++g_epoch;
    if (e >= MAXEPOCH) die("too many calls");
    // Calls of one communicator are totally ordered; the input comes from the caller's stream.
    CK(cudaStreamWaitEvent(comm, done_ev, 0));
    CK(cudaEventRecord(input_ev, user));
    CK(cudaStreamWaitEvent(comm, input_ev, 0));
    double t = now_ms();
    for (int k = 0; k < 4; ++k)
        if (s->armed[k] && (rule >> k & 1)) {
            if (elide) {
                cudaError_t q = cudaEventQuery(s->ev[k]);
                if (q == cudaSuccess) continue;
                if (q != cudaErrorNotReady) CK(q);
            }
            CK(cudaStreamWaitEvent(comm, s->ev[k], 0));
            waits++;
        }
    host_wait_us += (now_ms() - t) * 1e3;
    memset(s->armed, 0, sizeof s->armed);
    CK(cudaSetDevice(1));
    {
        const Mail* m = g_mail;
        uint4* p = g_pool;
        u64* d = g_done;
        u64 dl = DEADLINE;
        void* a[] = {&m, &p, &d, &g_arrive, &e, &nvec, &g_err, &dl};
        CK(cudaLaunchCooperativeKernel((const void*)probe::send, dim3(SEND_BLOCKS), dim3(SEND_THREADS), a, 0, send_s));
    }
    CK(cudaSetDevice(0));
    probe::receive<<<1, 32, 0, comm>>>(g_mail, g_done, (u64)s->id * SLICE_VEC, e, g_err, DEADLINE);
    CK(cudaGetLastError());
    CK(cudaEventRecord(done_ev, comm));
    CK(cudaStreamWaitEvent(user, done_ev, 0));
    s->epoch = (int)e;
    s->creation = user;
    s->comm = comm;
    s->recorded = false;
    return s;
}
static void read_on(Slice* s, cudaStream_t st, u32 nvec) {
    CK(cudaStreamWaitEvent(st, done_ev, 0));  // the newest call's end; every reader here is launched right after its call
    probe::slow_read<<<READ_BLOCKS, READ_THREADS, 0, st>>>(g_pool + (size_t)s->id * SLICE_VEC, s->epoch, nvec, 5, 30000, g_bad, g_mid);
    CK(cudaGetLastError());
}
static void drop(Slice* s, cudaStream_t current, u32 rule, bool dedupe) {
    double t = now_ms();
    cudaStream_t st[4] = {s->creation, s->comm, current, s->recorded ? rec_s : nullptr};
    for (int k = 0; k < 4; ++k) {
        if (!(rule >> k & 1) || !st[k]) continue;
        bool dup = false;
        for (int j = 0; j < k && dedupe; ++j) dup |= st[j] == st[k];
        if (dup || (dedupe && k == 1)) continue;  // one communication stream here: order is given
        CK(cudaEventRecord(s->ev[k], st[k]));
        s->armed[k] = true;
        records++;
    }
    host_record_us += (now_ms() - t) * 1e3;
    pool.free_.push_back(s->id);
}
static void sync_all(const char* what) {
    for (int d = 1; d >= 0; --d) {
        CK(cudaSetDevice(d));
        CK(cudaDeviceSynchronize());
    }
    if (g_err->code) die("%s: device wait deadline: phase %u epoch %llu seen %llu", what, g_err->phase, g_err->epoch, g_err->seen);
}
struct Tally { u32 calls, readers, bad_calls, mid_calls; u64 bad, mid; double ms; };
static Tally tally(u64 from, u64 to, u32 readers, double ms) {
    std::vector<u32> b(to - from + 1), m(to - from + 1);
    CK(cudaMemcpy(b.data(), g_bad + from, b.size() * 4, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(m.data(), g_mid + from, m.size() * 4, cudaMemcpyDeviceToHost));
    Tally t{(u32)(to - from + 1), readers, 0, 0, 0, 0, ms};
    for (size_t i = 0; i < b.size(); ++i) {
        t.bad += b[i];
        t.mid += m[i];
        t.bad_calls += b[i] != 0;
        t.mid_calls += m[i] != 0;
    }
    return t;
}
static void print(const char* arm, const char* rule, const Tally& t, bool want_zero, bool ok) {
    printf("D arm=%s rule=%s calls=%u readers=%u corrupted_reads=%llu corrupted_calls=%u overwritten_while_read=%llu in_calls=%u wall_ms=%.1f expect=%s verdict=%s\n", arm,
           rule, t.calls, t.readers, t.bad, t.bad_calls, t.mid, t.mid_calls, t.ms, want_zero ? "0" : ">0", ok ? "pass" : "FAIL");
    fflush(stdout);
}
// One slice, one reader a call, on the stream whose event is `where`; pairs: drain after every second call so that a
// backlog of readers is not what goes wrong.
static bool single(u32 where, u32 rule, const char* rule_name, int iters, bool pairs, bool want_zero) {
    pool_reset(1);
    int w = where == CREATION ? 0 : where == COMM ? 1 : where == CURRENT ? 2 : 3;
    u64 from = g_epoch + 1;
    double t0 = now_ms();
    for (int i = 0; i < iters; ++i) {
        cudaStream_t u = user_s[i & 1], c = comm_s[where == COMM ? i & 1 : 0];
        Slice* s = call(u, c, SLICE_VEC, rule, false);
        cudaStream_t st = where == CREATION ? u : where == COMM ? c : where == CURRENT ? cur_s : rec_s;
        read_on(s, st, SLICE_VEC);
        s->recorded = where == RECORDED;
        drop(s, where == CURRENT ? cur_s : idle_s, rule, false);
        if (pairs && (i & 1)) sync_all(where_name[w]);
    }
    sync_all(where_name[w]);
    Tally t = tally(from, g_epoch, iters, now_ms() - t0);
    bool ok = want_zero ? t.bad == 0 : t.bad > 0 && t.mid > 0;
    char arm[64];
    snprintf(arm, sizeof arm, "reader_on_%s", where_name[w]);
    print(arm, rule_name, t, want_zero, ok);
    return ok;
}
// Four slices, up to two held, readers on a random subset of the four streams, random communication and user stream.
static bool mixed(u32 rule, const char* rule_name, int iters, u64 seed, bool want_zero) {
    pool_reset(SLICES);
    Rng g{seed};
    std::deque<std::pair<Slice*, cudaStream_t>> live;
    u64 from = g_epoch + 1;
    u32 readers = 0;
    double t0 = now_ms();
    for (int i = 0; i < iters; ++i) {
        cudaStream_t u = user_s[g.below(2)], c = comm_s[g.below(2)];
        Slice* s = call(u, c, SLICE_VEC, rule, g.below(2));
        u32 m = 1 + g.below(15);
        if (m & CREATION) read_on(s, u, SLICE_VEC);
        if (m & COMM) read_on(s, c, SLICE_VEC);
        if (m & CURRENT) read_on(s, cur_s, SLICE_VEC);
        if (m & RECORDED) read_on(s, rec_s, SLICE_VEC), s->recorded = true;
        readers += __builtin_popcount(m);
        live.push_back({s, m & CURRENT ? cur_s : idle_s});
        u32 keep = g.below(3);
        while (live.size() > keep) {
            size_t k = g.below((u32)live.size());
            drop(live[k].first, live[k].second, rule, false);
            live.erase(live.begin() + k);
        }
        if (i % 100 == 99) sync_all("mixed");
    }
    while (!live.empty()) {
        drop(live.front().first, live.front().second, rule, false);
        live.pop_front();
    }
    sync_all("mixed");
    Tally t = tally(from, g_epoch, readers, now_ms() - t0);
    bool ok = want_zero ? t.bad == 0 : t.bad > 0;
    print("mixed_4_slices", rule_name, t, want_zero, ok);
    return ok;
}
// Cost per call, no reader. Behind a gate: everything is queued first, so device time is the device's own and no event
// has happened yet. Without it: the host feeds a running device, the usual case when the host is the limit.
static void cost(const char* name, bool gated, u32 rule, bool elide, bool dedupe, u32 nvec) {
    std::vector<double> dev, host, wt, rc;
    const int N = gated ? 40 : 200, REPS = 7;
    u64 w0 = waits, r0 = records;
    for (int rep = 0; rep < REPS; ++rep) {
        pool_reset(1);
        sync_all("cost");
        *(volatile u32*)g_open = !gated;
        probe::gate<<<1, 1, 0, comm_s[0]>>>(g_open);
        CK(cudaGetLastError());
        CK(cudaEventRecord(t0_ev, comm_s[0]));
        host_wait_us = host_record_us = 0;
        double t0 = now_ms();
        for (int i = 0; i < N; ++i) {
            Slice* s = call(user_s[0], comm_s[0], nvec, rule, elide);
            s->recorded = true;
            drop(s, user_s[0], rule, dedupe);
        }
        double h = (now_ms() - t0) * 1e3 / N;
        CK(cudaEventRecord(t1_ev, comm_s[0]));
        *(volatile u32*)g_open = 1;
        sync_all("cost");
        float ms;
        CK(cudaEventElapsedTime(&ms, t0_ev, t1_ev));
        if (rep == 0) continue;
        dev.push_back(ms * 1e3 / N);
        host.push_back(h);
        wt.push_back(host_wait_us / N);
        rc.push_back(host_record_us / N);
    }
    auto med = [](std::vector<double>& v) {
        std::sort(v.begin(), v.end());
        return v[v.size() / 2];
    };
    printf("D cost=%s queued=%s bytes=%u waits_per_call=%.2f records_per_call=%.2f host_us_per_call=%.2f host_wait_us=%.2f host_record_us=%.2f span_us_per_call=%.2f\n", name,
           gated ? "gated" : "running", nvec * 16, (double)(waits - w0) / (N * REPS), (double)(records - r0) / (N * REPS), med(host), med(wt), med(rc), med(dev));
    fflush(stdout);
}

int main(int argc, char** argv) {
    deadline_s(58);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // no false order between streams
    setvbuf(stdout, nullptr, _IOLBF, 0);
    int iters = argc > 1 ? atoi(argv[1]) : 600;
    u64 seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : 1;
    if (iters < 10 || iters > 3000) die("iterations must be in 10..3000");
    need_two_peers();
    CK(cudaSetDevice(1));
    CK(cudaDeviceEnablePeerAccess(0, 0));
    CK(cudaMalloc(&g_mail, sizeof(Mail)));
    CK(cudaMemset(g_mail, 0, sizeof(Mail)));
    CK(cudaMalloc(&g_arrive, 4));
    CK(cudaMemset(g_arrive, 0, 4));
    CK(cudaStreamCreateWithFlags(&send_s, cudaStreamNonBlocking));
    CK(cudaDeviceSynchronize());
    CK(cudaSetDevice(0));
    CK(cudaDeviceEnablePeerAccess(1, 0));
    CK(cudaMalloc(&g_pool, (size_t)SLICES * SLICE_VEC * 16));
    CK(cudaMemset(g_pool, 0xEE, (size_t)SLICES * SLICE_VEC * 16));
    CK(cudaMalloc(&g_done, 128));
    CK(cudaMemset(g_done, 0, 128));
    CK(cudaMalloc(&g_bad, MAXEPOCH * 4));
    CK(cudaMalloc(&g_mid, MAXEPOCH * 4));
    CK(cudaMemset(g_bad, 0, MAXEPOCH * 4));
    CK(cudaMemset(g_mid, 0, MAXEPOCH * 4));
    CK(cudaHostAlloc(&g_err, 4096, cudaHostAllocPortable | cudaHostAllocMapped));
    memset(g_err, 0, 4096);
    g_open = (u32*)((char*)g_err + 2048);
    cudaStream_t* all[] = {&user_s[0], &user_s[1], &comm_s[0], &comm_s[1], &cur_s, &rec_s, &idle_s};
    for (auto s : all) CK(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    CK(cudaEventCreateWithFlags(&input_ev, cudaEventDisableTiming));
    CK(cudaEventCreateWithFlags(&done_ev, cudaEventDisableTiming));
    CK(cudaEventCreate(&t0_ev));
    CK(cudaEventCreate(&t1_ev));
    for (int i = 0; i < SLICES; ++i) {
        pool.s[i].id = i;
        for (auto& e : pool.s[i].ev) CK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    }
    sync_all("setup");
    // How long the reader takes beside nothing: it must outlast the next call, or no race can show.
    pool_reset(1);
    {
        Slice* s = call(user_s[0], comm_s[0], SLICE_VEC, ALL, false);
        sync_all("warm");
        CK(cudaEventRecord(t0_ev, rec_s));
        read_on(s, rec_s, SLICE_VEC);
        CK(cudaEventRecord(t1_ev, rec_s));
        sync_all("warm");
        float ms;
        CK(cudaEventElapsedTime(&ms, t0_ev, t1_ev));
        printf("D reader_us=%.1f slice_bytes=%u\n", ms * 1e3, SLICE_VEC * 16);
        s->recorded = false;
        drop(s, idle_s, 0, false);
    }
    bool race = true, clean = true;
    int few = 60;
    // 1. No rule: each kind of reader is overwritten.
    for (u32 w : {CREATION, COMM, CURRENT, RECORDED}) race &= single(w, 0, "none", few, true, false);
    race &= mixed(0, "none", few * 2, seed, false);
    // 2. Every event is needed: all but the one that covers the reader.
    race &= single(CREATION, ALL & ~CREATION, "all_but_creation", few, true, false);
    race &= single(COMM, ALL & ~COMM, "all_but_comm", few, true, false);
    race &= single(CURRENT, ALL & ~CURRENT, "all_but_current", few, true, false);
    race &= single(RECORDED, ALL & ~RECORDED, "all_but_recorded", few, true, false);
    // 3. The rule: none.
    for (u32 w : {CREATION, COMM, CURRENT, RECORDED}) clean &= single(w, ALL, "full", iters, false, true);
    clean &= mixed(ALL, "full", iters, seed, true);
    for (bool gated : {true, false})
        for (u32 nvec : {4096u, SLICE_VEC}) {
            cost("none", gated, 0, false, false, nvec);
            cost("full", gated, ALL, false, false, nvec);
            cost("full_dedupe", gated, ALL, false, true, nvec);
            cost("full_dedupe_elide", gated, ALL, true, true, nvec);
            cost("none_again", gated, 0, false, false, nvec);
        }
    printf("D SUMMARY iterations=%d race_without_rule=%s corruption_with_rule=%s verdict=%s\n", iters, race ? "shown" : "NOT-SHOWN", clean ? "none" : "FOUND",
           race && clean ? "PASS" : "FAIL");
    return race && clean ? 0 : 1;
}
