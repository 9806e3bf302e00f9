// Risk (e): kill -9 of a peer process mid-call; the survivor notices, aborts its kernel, drains, unmaps, and a new peer
// and communicator work in the same surviving process. One GPU a process, VMM memory shared by POSIX descriptors.
// Build: nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o e_kill e_kill.cu -lcuda -ldl
// Usage: e_kill [rounds=10] [seed=1]
// Three kinds of process: the parent (no CUDA; spawns, kills), one survivor (GPU 0, lives through all rounds), one peer
// a round (GPU 1). The parent re-executes itself, so no process forks with CUDA in it.
#include "cde.cuh"
#include <algorithm>
#include <vector>
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define DRV(x)                                                                     \
    do {                                                                           \
        CUresult r_ = (x);                                                         \
        if (r_ != CUDA_SUCCESS) {                                                  \
            const char* s_ = nullptr;                                              \
            cuGetErrorString(r_, &s_);                                             \
            die("%s:%d %s -> %d %s", __FILE__, __LINE__, #x, (int)r_, s_ ? s_ : "?"); \
        }                                                                          \
    } while (0)

static const u32 NB = 16, CHUNK = 16384, STAGES = 4, AHEAD = 2;
static const size_t PAY = 16u << 20, HEAP = 64u << 20, OFF_PAY = 2u << 20;  // two parities of payload behind the flags
static const u32 ALL_CHUNKS = PAY / CHUNK, VERSIONS = 3, VERIFY_CALLS = 4;
static_assert(OFF_PAY + 2 * PAY <= HEAP, "heap");

struct Head {  // start of each heap, written by the peer
    u64 notify[2][16];
    u64 done[2][16];
    u64 rec[2][16];  // epoch, nonce
};
struct Ctx { u64 epoch; u32 arrive, exits; };  // device memory, advanced by the kernel
enum { RUNNING = 0, FINISHED = 1, ABORTED = 2, DEADLINE = 3, STUCK = 4, PROTOCOL = 5 };
enum { PH_NONE = 0, PH_NOTIFY = 1, PH_COPY = 2, PH_DONE = 3 };
static const char* const code_name[] = {"running", "finished", "aborted", "deadline", "stuck", "protocol"};
struct Out {  // one block's last words, pinned host memory
    u32 code, phase;
    u64 epoch, expected, seen, drain_ns, chunks;
    u32 loads, groups;  // bulk loads in flight, bulk-store groups not known complete, when the block stopped
};
struct Host {
    u32 abort;
    u32 pad[31];
    u64 progress;
    u64 pad2[15];
    Out out[NB];
};
struct Args {
    char *own, *peer, *src, *sink;
    Ctx* ctx;
    Host* host;
    u64 nonce, deadline_ns;
    u32 rank, chunks, reps, calls, pull, delay_us;
};

__host__ __device__ static inline u64 src_key(u32 rank) { return 0xE0E0ull + rank; }

__device__ __forceinline__ u32 smem(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ bool mbar_try(u32 bar, u32 parity) {
    u32 ok;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p; }" : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
    return ok;
}
// Returns FINISHED when the flag reads want, else why not. Polls the abort word: no wait without a way out.
__device__ u32 await(const u64* f, u64 want, const Args& a, u64* seen) {
    u64 t0 = gtime();
    for (u32 s = 0;; ++s) {
        u64 v = ld_acq_sys(f);
        *seen = v;
        if (v == want) return FINISHED;
        if (v > want) return PROTOCOL;
        if ((s & 31) == 31) {
            if (ld_rlx_sys32(&a.host->abort)) return ABORTED;
            if (gtime() - t0 > a.deadline_ns) return DEADLINE;
        }
    }
}

namespace probe {
// One thread a block does the work: flags, bulk loads, bulk stores. A huge `reps` makes one call that lasts until abort.
__global__ void __launch_bounds__(32) calls(Args a) {
    extern __shared__ __align__(128) unsigned char stage[];  // STAGES x CHUNK
    __shared__ __align__(8) u64 bars[STAGES];
    if (threadIdx.x) return;
    Head* own = (Head*)a.own;
    Head* peer = (Head*)a.peer;
    for (u32 i = 0; i < STAGES; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(smem(&bars[i])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const u64 base = *(volatile u64*)&a.ctx->epoch;
    u32 issued = 0, taken = 0, groups = 0;  // chunks loaded, chunks handed on, groups since the last full wait
    u64 chunks = 0, e = base, want = 0, seen = 0, drain = 0;
    u32 code = ld_rlx_sys32(&a.host->abort) ? ABORTED : FINISHED, phase = PH_NONE;
    for (u32 c = 0; c < a.calls && code == FINISHED; ++c) {
        e = base + c + 1;
        want = e;
        const u32 p = (u32)(e & 1);
        phase = PH_NOTIFY;
        if (blockIdx.x == 0) {
            st_rlx_sys(&peer->rec[p][0], e);
            st_rlx_sys(&peer->rec[p][1], a.nonce);
            fence_sys();
            st_rel_sys(&peer->notify[p][0], e);
        }
        code = await(&own->notify[p][0], e, a, &seen);
        if (code == FINISHED && (ld_rlx_sys(&own->rec[p][0]) != e || ld_rlx_sys(&own->rec[p][1]) != a.nonce)) code = PROTOCOL;
        if (code != FINISHED) break;
        if (a.delay_us) {
            u64 t0 = gtime();
            while (gtime() - t0 < a.delay_us * 1000ull && !ld_rlx_sys32(&a.host->abort)) __nanosleep(1000);
        }
        phase = PH_COPY;
        const u32 mine = a.chunks > blockIdx.x ? (a.chunks - blockIdx.x + NB - 1) / NB : 0;
        char* out = a.pull ? a.sink : a.peer + OFF_PAY + p * PAY;
        const char* in = a.pull ? a.peer + OFF_PAY : a.src + (e % VERSIONS) * CHUNK;
        for (u32 r = 0; r < a.reps && code == FINISHED; ++r) {
            u32 k_load = 0;
            for (u32 k = 0; k < mine; ++k) {
                for (; k_load < mine && k_load <= k + AHEAD; ++k_load) {
                    // The stage was last read by the store of chunk issued - STAGES; AHEAD younger groups may still be open.
                    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES - AHEAD - 1) : "memory");
                    u32 s = issued % STAGES, bar = smem(&bars[s]);
                    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(bar), "r"(CHUNK) : "memory");
                    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(smem(stage + s * CHUNK)),
                                 "l"(in + (size_t)(blockIdx.x + k_load * NB) * CHUNK), "r"(CHUNK), "r"(bar)
                                 : "memory");
                    issued++;
                }
                u32 s = taken % STAGES, par = (taken / STAGES) & 1;
                u64 t0 = gtime();
                while (!mbar_try(smem(&bars[s]), par))
                    if (gtime() - t0 > a.deadline_ns) {
                        code = STUCK;
                        break;
                    }
                if (code != FINISHED) break;
                taken++;
                const u32 id = blockIdx.x + k * NB;
                if (!a.pull) {  // the chunk's own header: epoch, nonce, source, index
                    *(uint4*)(stage + s * CHUNK) = make_uint4((u32)e, (u32)a.nonce, a.rank, id);
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                }
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;" ::"l"(out + (size_t)id * CHUNK), "r"(smem(stage + s * CHUNK)), "r"(CHUNK) : "memory");
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                groups++;
                chunks++;
                if ((chunks & 7) == 7 && ld_rlx_sys32(&a.host->abort)) {
                    code = ABORTED;
                    break;
                }
            }
            if (blockIdx.x == 0 && r) *(volatile u64*)&a.host->progress = e + r;
        }
        if (code != FINISHED) break;
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // complete, not merely read
        asm volatile("fence.proxy.async;" ::: "memory");
        groups = 0;
        phase = PH_DONE;
        if (add_acqrel_gpu(&a.ctx->arrive, 1) % NB == NB - 1) {
            fence_sys();
            st_rel_sys(&peer->done[p][0], e);
        }
        code = await(&own->done[p][0], e, a, &seen);
        if (code == FINISHED && blockIdx.x == 0) *(volatile u64*)&a.host->progress = e;
    }
    // Drain: no bulk copy may be in flight when the block's shared memory goes away.
    const u32 loads = issued - taken;
    u64 t0 = gtime();
    for (; taken != issued; ++taken) {
        u64 t1 = gtime();
        while (!mbar_try(smem(&bars[taken % STAGES]), (taken / STAGES) & 1))
            if (gtime() - t1 > 2000000000ull) {
                code = STUCK;
                break;
            }
        if (code == STUCK) break;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    drain = gtime() - t0;
    volatile Out* o = &a.host->out[blockIdx.x];
    o->phase = phase;
    o->epoch = e;
    o->expected = want;
    o->seen = seen;
    o->drain_ns = drain;
    o->chunks = chunks;
    o->loads = loads;
    o->groups = groups;
    __threadfence_system();
    o->code = code;
    if (add_acqrel_gpu(&a.ctx->exits, 1) == NB - 1) {
        a.ctx->exits = 0;
        a.ctx->epoch = base + a.calls;
    }
}
__global__ void fill(uint4* p, u64 key, u32 n) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = pat4(key, i);
}
// Payload of epoch e from `rank`: every chunk has its header and the body of the version of that epoch.
__global__ void verify(const uint4* pay, u64 e, u64 nonce, u32 rank, u32* bad) {
    u32 n = 0;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < PAY / 16; i += gridDim.x * blockDim.x) {
        u32 c = i / (CHUNK / 16);
        uint4 w = i % (CHUNK / 16) ? pat4(src_key(rank), i + (u32)(e % VERSIONS) * (CHUNK / 16)) : make_uint4((u32)e, (u32)nonce, rank, c);
        n += !same4(ld4_vol(pay + i), w);
    }
    if (n) atomicAdd(bad, n);
}
__global__ void hello(u32* p, u32 v) { *p = v; }
}  // namespace probe

// ---- messages ------------------------------------------------------------------------------------------------
enum { M_JOIN = 1, M_RUNNING, M_KILLED, M_CLEANED, M_DONE, M_HELLO, M_READY, M_RESULT, M_BYE };
struct Msg { u32 type, a, b, c; double t; u64 n; };
static bool send_msg(int s, const Msg& m, const int* fds = nullptr, int nfd = 0) {
    iovec io = {(void*)&m, sizeof m};
    alignas(cmsghdr) char b[CMSG_SPACE(2 * sizeof(int))];
    msghdr h;
    memset(&h, 0, sizeof h);
    memset(b, 0, sizeof b);
    h.msg_iov = &io;
    h.msg_iovlen = 1;
    if (nfd) {
        h.msg_control = b;
        h.msg_controllen = CMSG_SPACE(nfd * sizeof(int));
        cmsghdr* c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(nfd * sizeof(int));
        memcpy(CMSG_DATA(c), fds, nfd * sizeof(int));
    }
    return sendmsg(s, &h, MSG_NOSIGNAL) == (ssize_t)sizeof m;
}
// Dies unless a message of this type arrives within the time; *nfd descriptors received.
static Msg recv_msg(int s, u32 type, int timeout_ms, const char* what, int* fds = nullptr, int* nfd = nullptr) {
    pollfd p = {s, POLLIN, 0};
    int r = poll(&p, 1, timeout_ms);
    if (r <= 0) die("no %s within %d ms", what, timeout_ms);
    Msg m;
    memset(&m, 0, sizeof m);
    iovec io = {&m, sizeof m};
    alignas(cmsghdr) char b[CMSG_SPACE(2 * sizeof(int))];
    msghdr h;
    memset(&h, 0, sizeof h);
    h.msg_iov = &io;
    h.msg_iovlen = 1;
    h.msg_control = b;
    h.msg_controllen = sizeof b;
    if (recvmsg(s, &h, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof m) die("hang-up instead of %s", what);
    int n = 0;
    for (cmsghdr* c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            if (fds) memcpy(fds, CMSG_DATA(c), n * sizeof(int));
        }
    if (nfd) *nfd = n;
    if (m.type != type) die("message %u instead of %s", m.type, what);
    return m;
}
static bool wait_fd(int fd, short ev, int timeout_ms) {
    pollfd p = {fd, ev, 0};
    return poll(&p, 1, timeout_ms) > 0 && p.revents;
}

// ---- memory in use on a GPU ----------------------------------------------------------------------------------
struct NvmlMem { u64 total, free, used; };
static int (*nvml_mem)(void*, NvmlMem*);
static void* nvml_dev[2];
static void nvml_open() {
    void* l = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!l) return;
    auto init = (int (*)())dlsym(l, "nvmlInit_v2");
    auto by = (int (*)(const char*, void**))dlsym(l, "nvmlDeviceGetHandleByPciBusId_v2");
    auto mem = (int (*)(void*, NvmlMem*))dlsym(l, "nvmlDeviceGetMemoryInfo");
    if (!init || !by || !mem || init()) return;
    for (int d = 0; d < 2; ++d) {
        char id[64];
        CK(cudaDeviceGetPCIBusId(id, sizeof id, d));
        if (by(id, &nvml_dev[d])) return;
    }
    nvml_mem = mem;
}
static double used_mib(int dev) {
    if (nvml_mem) {
        NvmlMem m;
        if (!nvml_mem(nvml_dev[dev], &m)) return m.used / 1048576.0;
    }
    size_t f, t;  // makes a context on that GPU
    CK(cudaSetDevice(dev));
    CK(cudaMemGetInfo(&f, &t));
    CK(cudaSetDevice(0));
    return (t - f) / 1048576.0;
}
static double used_settled(int dev) {  // until four samples agree, two seconds at most
    double last = used_mib(dev);
    for (int i = 0, same = 0; i < 200 && same < 4; ++i) {
        usleep(10000);
        double u = used_mib(dev);
        same = u == last ? same + 1 : 0;
        last = u;
    }
    return last;
}

// ---- one communicator ----------------------------------------------------------------------------------------
struct Rank {
    int rank;
    char* src;
    char* sink;
    Ctx* ctx;
    u32* bad;
    Host* host;
    cudaStream_t s;
};
struct Comm { CUdeviceptr own, peer; CUmemGenericAllocationHandle h; u64 nonce; };

static Rank rank_open(int rank) {
    Rank r;
    memset(&r, 0, sizeof r);
    r.rank = rank;
    need_two_peers();
    CK(cudaSetDevice(rank));
    CK(cudaFree(nullptr));
    DRV(cuInit(0));
    CK(cudaMalloc(&r.src, PAY + VERSIONS * CHUNK));
    CK(cudaMalloc(&r.sink, PAY));
    CK(cudaMalloc(&r.ctx, sizeof(Ctx)));
    CK(cudaMalloc(&r.bad, 4));
    CK(cudaHostAlloc(&r.host, sizeof(Host), cudaHostAllocMapped));
    CK(cudaStreamCreateWithFlags(&r.s, cudaStreamNonBlocking));
    CK(cudaFuncSetAttribute(probe::calls, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * CHUNK));
    probe::fill<<<256, 256, 0, r.s>>>((uint4*)r.src, src_key(rank), (u32)((PAY + VERSIONS * CHUNK) / 16));
    CK(cudaGetLastError());
    CK(cudaStreamSynchronize(r.s));
    return r;
}
static Comm comm_open(Rank& r, int sock, u64 nonce) {
    Comm c;
    memset(&c, 0, sizeof c);
    c.nonce = nonce;
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = r.rank;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc ac;
    memset(&ac, 0, sizeof ac);
    ac.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ac.location.id = r.rank;
    ac.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRV(cuMemCreate(&c.h, HEAP, &p, 0));
    DRV(cuMemAddressReserve(&c.own, HEAP, 0, 0, 0));
    DRV(cuMemMap(c.own, HEAP, 0, c.h, 0));
    DRV(cuMemSetAccess(c.own, HEAP, &ac, 1));
    CK(cudaMemsetAsync((void*)c.own, 0, OFF_PAY, r.s));
    CK(cudaMemsetAsync((void*)(c.own + OFF_PAY), 0xEE, HEAP - OFF_PAY, r.s));
    CK(cudaMemsetAsync(r.ctx, 0, sizeof(Ctx), r.s));
    CK(cudaStreamSynchronize(r.s));
    memset(r.host, 0, sizeof(Host));
    int fd = -1, pfd = -1, n = 0;
    DRV(cuMemExportToShareableHandle(&fd, c.h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    Msg m;
    memset(&m, 0, sizeof m);
    m.type = M_HELLO;
    m.a = r.rank;
    m.n = nonce;
    if (!send_msg(sock, m, &fd, 1)) die("cannot send HELLO");
    close(fd);
    Msg q = recv_msg(sock, M_HELLO, 15000, "HELLO", &pfd, &n);
    if (n != 1 || q.n != nonce || q.a != (u32)(1 - r.rank)) die("HELLO of another communicator");
    CUmemGenericAllocationHandle ph;
    DRV(cuMemImportFromShareableHandle(&ph, (void*)(intptr_t)pfd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(pfd);
    DRV(cuMemAddressReserve(&c.peer, HEAP, 0, 0, 0));
    DRV(cuMemMap(c.peer, HEAP, 0, ph, 0));
    DRV(cuMemSetAccess(c.peer, HEAP, &ac, 1));
    DRV(cuMemRelease(ph));  // the mapping alone keeps it
    m.type = M_READY;
    if (!send_msg(sock, m)) die("cannot send READY");
    recv_msg(sock, M_READY, 15000, "READY");
    return c;
}
static void unmap_peer(Comm& c) {
    DRV(cuMemUnmap(c.peer, HEAP));
    DRV(cuMemAddressFree(c.peer, HEAP));
    c.peer = 0;
}
static void free_own(Comm& c) {
    DRV(cuMemUnmap(c.own, HEAP));
    DRV(cuMemRelease(c.h));
    DRV(cuMemAddressFree(c.own, HEAP));
    c.own = 0;
}
static void launch(Rank& r, Comm& c, u32 calls, u32 chunks, u32 reps, bool pull, u32 delay_us) {
    Args a;
    memset(&a, 0, sizeof a);
    a.own = (char*)c.own;
    a.peer = (char*)c.peer;
    a.src = r.src;
    a.sink = r.sink;
    a.ctx = r.ctx;
    a.host = r.host;
    a.nonce = c.nonce;
    a.deadline_ns = 12000000000ull;
    a.rank = r.rank;
    a.chunks = chunks;
    a.reps = reps;
    a.calls = calls;
    a.pull = pull;
    a.delay_us = delay_us;
    void* v[] = {&a};
    CK(cudaLaunchCooperativeKernel((const void*)probe::calls, dim3(NB), dim3(32), v, STAGES * CHUNK, r.s));
}
static void idle(Rank& r, double limit_ms, const char* what) {  // never cudaStreamSynchronize on something that may not end
    double t0 = now_ms();
    for (;;) {
        cudaError_t e = cudaStreamQuery(r.s);
        if (e == cudaSuccess) return;
        if (e != cudaErrorNotReady) die("%s: %s", what, cudaGetErrorString(e));
        if (now_ms() - t0 > limit_ms) die("%s: kernel still running after %.0f ms", what, limit_ms);
    }
}
static u32 verify(Rank& r, const void* pay, u64 e, u64 nonce, u32 rank) {
    u32 bad = ~0u;
    CK(cudaMemsetAsync(r.bad, 0, 4, r.s));
    probe::verify<<<256, 256, 0, r.s>>>((const uint4*)pay, e, nonce, rank, r.bad);
    CK(cudaGetLastError());
    CK(cudaMemcpyAsync(&bad, r.bad, 4, cudaMemcpyDeviceToHost, r.s));
    CK(cudaStreamSynchronize(r.s));
    return bad;
}
// The first calls of a communicator, each checked on both sides. Returns when the first one was known to be right.
static double first_calls(Rank& r, Comm& c, int sock, u32* bad_total, u32* peer_bad) {
    double t_first = 0;
    *bad_total = 0;
    for (u32 e = 1; e <= VERIFY_CALLS; ++e) {
        launch(r, c, 1, ALL_CHUNKS, 1, false, 0);
        idle(r, 13000, "verified call");
        for (u32 b = 0; b < NB; ++b)
            if (((volatile Out*)r.host->out)[b].code != FINISHED) die("verified call %u: block %u ended as %s", e, b, code_name[r.host->out[b].code % 6]);
        *bad_total += verify(r, (const void*)(c.own + OFF_PAY + (e & 1) * PAY), e, c.nonce, 1 - r.rank);
        if (e == 1) t_first = now_ms();
    }
    Msg m;
    memset(&m, 0, sizeof m);
    m.type = M_RESULT;
    m.a = *bad_total;
    if (!send_msg(sock, m)) die("cannot send RESULT");
    *peer_bad = recv_msg(sock, M_RESULT, 13000, "RESULT").a;
    return t_first;
}

// What both sides do while the parent waits to kill.
enum { STREAM_PUSH, CALLS, SLOW_PEER, STREAM_PULL, LAUNCHES, ABSENT_PEER, MODES, CLEAN = 99 };
static const char* const mode_name[] = {"stream_push", "calls", "slow_peer", "stream_pull", "launches", "absent_peer"};
static const u32 FOREVER = 1000000000u;
static void start(Rank& r, Comm& c, u32 mode) {
    bool victim = r.rank == 1;
    switch (mode) {
        case STREAM_PUSH: launch(r, c, 1, ALL_CHUNKS, FOREVER, false, 0); break;
        case CALLS: launch(r, c, FOREVER, ALL_CHUNKS / 2, 1, false, 0); break;
        case SLOW_PEER: launch(r, c, FOREVER, 64, 1, false, victim ? 20000 : 0); break;
        case STREAM_PULL: launch(r, c, 1, ALL_CHUNKS, FOREVER, true, 0); break;
        case ABSENT_PEER:
            if (!victim) launch(r, c, 1, ALL_CHUNKS, 1, false, 0);
            break;
        default: break;
    }
}

static int peer_main(int sock, u32 round, u32 mode) {
    g_who = "peer";
    double t0 = now_ms();
    Rank r = rank_open(1);
    double t_init = now_ms() - t0;
    Comm c = comm_open(r, sock, 1000 + round);
    u32 bad, other;
    first_calls(r, c, sock, &bad, &other);
    if (bad) die("round %u: %u wrong vectors in verified calls", round, bad);
    if (mode != CLEAN) start(r, c, mode);
    double t_end = now_ms() + 20000;
    bool bye = false;
    if (round == 0) printf("E peer init_ms=%.0f\n", t_init);
    while (now_ms() < t_end) {  // to be killed; a hang-up or BYE of the survivor ends it too
        if (mode == LAUNCHES) {
            launch(r, c, 1, 64, 1, false, 0);
            while (cudaStreamQuery(r.s) == cudaErrorNotReady && !wait_fd(sock, POLLIN, 0)) {
            }
        }
        if (wait_fd(sock, POLLIN, mode == LAUNCHES ? 0 : 100)) {
            bye = true;
            break;
        }
    }
    *(volatile u32*)&r.host->abort = 1;
    idle(r, 5000, "peer end");
    unmap_peer(c);
    free_own(c);
    return bye ? 0 : 1;
}

struct Sum { std::vector<double> v; void add(double x) { v.push_back(x); }
    void print(const char* name) {
        if (v.empty()) return;
        std::sort(v.begin(), v.end());
        printf("E stat=%s n=%zu min=%.2f median=%.2f max=%.2f\n", name, v.size(), v.front(), v[v.size() / 2], v.back());
    } };

static int survivor_main(int ctl) {
    g_who = "survivor";
    double ti = now_ms();
    Rank r = rank_open(0);
    nvml_open();
    printf("E survivor init_ms=%.0f memory_by=%s\n", now_ms() - ti, nvml_mem ? "nvml" : "cudaMemGetInfo");
    Sum detect, exit_s, after_abort, rebuilt, returned, drain;
    double killed_before = 0, own_used0 = 0;
    u32 rounds_done = 0, drained_blocks = 0;
    for (;;) {
        int fds[2] = {-1, -1}, nfd = 0;
        Msg j = recv_msg(ctl, M_JOIN, 20000, "JOIN", fds, &nfd);
        u32 round = j.a, mode = j.b;
        int sock = fds[0], pidfd = nfd > 1 ? fds[1] : -1;
        if (nfd < 1) die("JOIN without a socket");
        double t_spawn = j.t;
        double used1_idle = used_mib(1);
        Comm c = comm_open(r, sock, 1000 + round);
        double t_comm = now_ms();
        u32 bad, peer_bad;
        double t_first = first_calls(r, c, sock, &bad, &peer_bad);
        if (bad || peer_bad) die("round %u: wrong vectors in verified calls: %u here, %u at the peer", round, bad, peer_bad);
        if (killed_before > 0) {
            rebuilt.add(t_first - killed_before);
            printf("E rebuilt round=%u spawn_to_mapped_ms=%.1f mapped_to_first_call_ms=%.1f kill_to_first_call_ms=%.1f verified_calls=%u wrong_vectors=0\n", round, t_comm - t_spawn,
                   t_first - t_comm, t_first - killed_before, VERIFY_CALLS);
        }
        Msg m;
        memset(&m, 0, sizeof m);
        if (mode == CLEAN) {
            m.type = M_BYE;
            send_msg(sock, m);
            if (pidfd >= 0 && !wait_fd(pidfd, POLLIN, 8000)) die("peer did not end after BYE");
            unmap_peer(c);
            free_own(c);
            CK(cudaDeviceSynchronize());
            CK(cudaGetLastError());
            break;
        }
        start(r, c, mode);
        // Death detection: whichever of hang-up and pidfd comes first.
        double t_hup = 0, t_pid = 0, t_abort = 0, t_exit = 0, t_run = now_ms();
        bool told = false;
        u64 launched = 0;
        volatile u64* progress = &r.host->progress;
        while (!t_hup && !t_pid) {
            if (mode == LAUNCHES && (cudaStreamQuery(r.s) == cudaSuccess)) {
                launch(r, c, 1, 64, 1, false, 0);
                launched++;
            }
            pollfd p[2] = {{sock, POLLIN | POLLRDHUP, 0}, {pidfd, POLLIN, 0}};
            timespec w = {0, mode == LAUNCHES ? 0 : 200000};
            if (ppoll(p, pidfd >= 0 ? 2 : 1, &w, nullptr) > 0) {
                if (p[0].revents) t_hup = now_ms();
                if (pidfd >= 0 && p[1].revents) t_pid = now_ms();
            }
            if (!told && (mode == ABSENT_PEER ? now_ms() - t_run > 20 : *progress >= VERIFY_CALLS + 3)) {
                told = true;
                m.type = M_RUNNING;
                if (!send_msg(ctl, m)) die("parent gone");
            }
            if (now_ms() - t_run > 12000) die("round %u: no death seen in 12 s, progress %llu", round, (u64)*progress);
        }
        if (!told) die("round %u: peer died before it was killed", round);
        const bool still = cudaStreamQuery(r.s) == cudaErrorNotReady;
        t_abort = now_ms();
        *(volatile u32*)&r.host->abort = 1;
        idle(r, 5000, "after abort");
        t_exit = now_ms();
        Msg k = recv_msg(ctl, M_KILLED, 10000, "KILLED");
        double t_kill = k.t;
        while (!(t_hup && (t_pid || pidfd < 0)) && now_ms() - t_kill < 10000) {
            pollfd p[2] = {{t_hup ? -1 : sock, POLLIN | POLLRDHUP, 0}, {t_pid ? -1 : pidfd, POLLIN, 0}};
            if (poll(p, 2, 100) > 0) {
                if (p[0].revents) t_hup = now_ms();
                if (p[1].revents) t_pid = now_ms();
            }
        }
        // How the blocks ended.
        u32 codes[6] = {0}, phases[4] = {0}, loads = 0, groups = 0;
        double max_drain = 0;
        for (u32 b = 0; b < NB; ++b) {
            Out o = r.host->out[b];
            codes[o.code % 6]++;
            phases[o.phase % 4]++;
            loads += o.loads;
            groups += o.groups ? 1 : 0;
            if (o.loads || o.groups) drained_blocks++, max_drain = std::max(max_drain, o.drain_ns * 1e-3);
        }
        if (still && codes[ABORTED] != NB && mode != LAUNCHES)
            die("round %u %s: blocks aborted %u finished %u deadline %u stuck %u protocol %u", round, mode_name[mode], codes[ABORTED], codes[FINISHED], codes[DEADLINE], codes[STUCK],
                codes[PROTOCOL]);
        if (codes[DEADLINE] || codes[STUCK] || codes[PROTOCOL]) die("round %u: deadline %u stuck %u protocol %u", round, codes[DEADLINE], codes[STUCK], codes[PROTOCOL]);
        // The context is healthy and the dead peer's memory still readable: what this rank last pushed there.
        cudaError_t e1 = cudaDeviceSynchronize(), e2 = cudaGetLastError();
        u32 got = 0;
        probe::hello<<<1, 1, 0, r.s>>>(r.bad, 4200 + round);
        CK(cudaMemcpyAsync(&got, r.bad, 4, cudaMemcpyDeviceToHost, r.s));
        CK(cudaStreamSynchronize(r.s));
        if (e1 || e2 || got != 4200 + round) die("round %u: context not clean: %s, %s, %u", round, cudaGetErrorString(e1), cudaGetErrorString(e2), got);
        u32 pulled = 0;
        if (mode == STREAM_PULL) {  // parity 0 of the peer's heap holds what this rank pushed in call VERIFY_CALLS
            pulled = verify(r, r.sink, VERIFY_CALLS, c.nonce, 0);
            if (pulled) die("round %u: %u wrong vectors pulled from the peer", round, pulled);
        }
        // Memory of the dead comes back with the unmapping. Its process is gone (pidfd), so nothing writes to this heap.
        double u_before = used_settled(1);
        double t0 = now_ms();
        unmap_peer(c);
        double t_unmap = now_ms() - t0;
        double u_after = used_settled(1), back = u_before - u_after;
        free_own(c);
        CK(cudaGetLastError());
        close(sock);
        if (pidfd >= 0) close(pidfd);
        double own_used = used_mib(0);
        if (round == 1) own_used0 = own_used;
        printf("E killed round=%u mode=%s kernel_running_at_abort=%d kill_to_hangup_ms=%.2f kill_to_pidfd_ms=%.2f kill_to_abort_ms=%.2f abort_to_kernel_exit_ms=%.3f kill_to_kernel_exit_ms=%.2f "
               "aborted_blocks=%u phases=notify:%u,copy:%u,done:%u loads_in_flight=%u blocks_with_stores_open=%u max_drain_us=%.1f launches=%llu last_error=clean gpu1_used_before_unmap_mib=%.0f "
               "returned_mib=%.0f unmap_ms=%.2f gpu1_used_at_join_mib=%.0f gpu0_used_mib=%.0f\n",
               round, mode_name[mode], still, t_hup ? t_hup - t_kill : -1, t_pid ? t_pid - t_kill : -1, t_abort - t_kill, t_exit - t_abort, t_exit - t_kill, codes[ABORTED],
               phases[PH_NOTIFY], phases[PH_COPY], phases[PH_DONE], loads, groups, max_drain, launched, u_before, back, t_unmap, used1_idle, own_used);
        if (t_abort - t_kill > 2000) die("round %u: detection took %.0f ms, over 2,000", round, t_abort - t_kill);
        if (t_exit - t_abort > 500) die("round %u: the kernel took %.0f ms to leave", round, t_exit - t_abort);
        if (back < HEAP / 1048576.0 * 0.95) die("round %u: only %.1f MiB of %zu came back", round, back, HEAP >> 20);
        if (round > 1 && own_used > own_used0 + 8) die("round %u: GPU 0 grew from %.0f to %.0f MiB", round, own_used0, own_used);
        detect.add(t_abort - t_kill);
        after_abort.add(t_exit - t_abort);
        exit_s.add(t_exit - t_kill);
        returned.add(back);
        if (max_drain > 0) drain.add(max_drain);
        killed_before = t_kill;
        rounds_done++;
        m.type = M_CLEANED;
        if (!send_msg(ctl, m)) die("parent gone");
    }
    detect.print("kill_to_host_detection_ms");
    after_abort.print("abort_to_kernel_exit_ms");
    exit_s.print("kill_to_kernel_exit_ms");
    rebuilt.print("kill_to_rebuilt_first_call_ms");
    returned.print("memory_returned_mib");
    drain.print("drain_us");
    printf("E survivor rounds=%u blocks_that_had_copies_to_drain=%u\n", rounds_done, drained_blocks);
    if (!drained_blocks) die("no round stopped with bulk copies in flight: the drain was not tested");
    Msg m;
    memset(&m, 0, sizeof m);
    m.type = M_DONE;
    m.a = rounds_done;
    send_msg(ctl, m);
    return 0;
}

// ---- parent --------------------------------------------------------------------------------------------------
static pid_t g_survivor = 0, g_peer = 0;
static void end_children() {  // only processes this one started
    if (g_survivor > 0) kill(g_survivor, SIGKILL);
    if (g_peer > 0) kill(g_peer, SIGKILL);
}
static void parent_alarm(int) {
    end_children();
    on_alarm(0);
}
static pid_t spawn(int sock, const char* a, const char* b, const char* c) {
    fflush(stdout);
    pid_t parent = getpid();
    pid_t p = fork();
    if (p < 0) die("fork failed");
    if (p == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        if (dup2(sock, 100) < 0) _exit(1);  // the copy is not closed on exec
        char* v[] = {(char*)"e_kill", (char*)a, (char*)b, (char*)c, nullptr};
        execv("/proc/self/exe", v);
        _exit(127);
    }
    return p;
}
static bool reap(pid_t* p, int limit_ms, int* status) {
    for (double t0 = now_ms(); now_ms() - t0 < limit_ms; usleep(1000))
        if (waitpid(*p, status, WNOHANG) == *p) {
            *p = 0;
            return true;
        }
    return false;
}
static int parent_main(u32 rounds, u64 seed) {
    g_who = "parent";
    signal(SIGALRM, parent_alarm);
    alarm(58);
    atexit(end_children);
    Rng g{seed};
    int ctl[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ctl)) die("socketpair failed");
    g_survivor = spawn(ctl[1], "survivor", "0", "0");
    close(ctl[1]);
    double t_start = now_ms();
    for (u32 i = 0; i <= rounds; ++i) {
        u32 mode = i == rounds ? (u32)CLEAN : i % MODES;
        int s[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s)) die("socketpair failed");
        char a[16], b[16];
        snprintf(a, sizeof a, "%u", i);
        snprintf(b, sizeof b, "%u", mode);
        Msg m;
        memset(&m, 0, sizeof m);
        m.type = M_JOIN;
        m.a = i;
        m.b = mode;
        m.t = now_ms();
        g_peer = spawn(s[1], "peer", a, b);
        int fds[2] = {s[0], (int)syscall(SYS_pidfd_open, g_peer, 0)};
        bool ok = send_msg(ctl[0], m, fds, fds[1] >= 0 ? 2 : 1);
        close(s[0]);
        close(s[1]);
        if (fds[1] >= 0) close(fds[1]);
        if (!ok) end_children(), die("survivor gone");
        int st = 0;
        if (mode == CLEAN) break;
        auto from_survivor = [&](u32 type, const char* what) {
            if (!wait_fd(ctl[0], POLLIN, 25000)) end_children(), die("no %s from the survivor", what);
            Msg q;
            if (recv(ctl[0], &q, sizeof q, 0) != (ssize_t)sizeof q || q.type != type) end_children(), die("survivor failed before %s (round %u)", what, i);
        };
        from_survivor(M_RUNNING, "RUNNING");
        usleep(g.below(60000));
        m.type = M_KILLED;
        m.t = now_ms();
        if (kill(g_peer, SIGKILL)) end_children(), die("kill failed");
        if (!send_msg(ctl[0], m)) end_children(), die("survivor gone");
        if (!reap(&g_peer, 15000, &st)) end_children(), die("killed peer not reaped in 15 s");
        double t_reap = now_ms() - m.t;
        if (!WIFSIGNALED(st) || WTERMSIG(st) != SIGKILL) end_children(), die("peer ended by itself, status %d", st);
        printf("E reaped round=%u kill_to_reap_ms=%.1f\n", i, t_reap);
        from_survivor(M_CLEANED, "CLEANED");
    }
    int st1 = -1, st2 = -1;
    if (!reap(&g_survivor, 20000, &st1)) end_children(), die("survivor did not end");
    if (!reap(&g_peer, 10000, &st2)) end_children(), die("last peer did not end");
    Msg q;
    memset(&q, 0, sizeof q);
    bool done = recv(ctl[0], &q, sizeof q, MSG_DONTWAIT) == (ssize_t)sizeof q && q.type == M_DONE && q.a == rounds;
    bool ok = done && st1 == 0 && st2 == 0;
    printf("E SUMMARY rounds=%u kills_survived=%u survivor_status=%d last_peer_status=%d wall_s=%.1f verdict=%s\n", rounds, done ? q.a : 0, st1, st2, (now_ms() - t_start) / 1e3,
           ok ? "PASS" : "FAIL");
    return ok ? 0 : 1;
}

int main(int argc, char** argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (argc == 4 && !strcmp(argv[1], "survivor")) {
        deadline_s(57);
        return survivor_main(100);
    }
    if (argc == 4 && !strcmp(argv[1], "peer")) {
        deadline_s(57);
        return peer_main(100, (u32)atoi(argv[2]), (u32)atoi(argv[3]));
    }
    u32 rounds = argc > 1 ? (u32)atoi(argv[1]) : 10;
    u64 seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : 1;
    if (rounds < 1 || rounds > 50) die("rounds must be in 1..50");
    return parent_main(rounds, seed);
}
