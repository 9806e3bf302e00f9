// Shared by the probes c_graph, d_pool and e_kill: checks, clocks, random numbers, flag and pattern helpers.
#pragma once
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <cuda_runtime.h>

typedef unsigned long long u64;
typedef unsigned int u32;

static const char* g_who = "main";

[[noreturn]] static inline void die(const char* fmt, ...) {
    char b[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b, sizeof b, fmt, ap);
    va_end(ap);
    printf("FAIL who=%s %s\n", g_who, b);
    fflush(stdout);
    _exit(1);
}
#define CK(x)                                                                                       \
    do {                                                                                            \
        cudaError_t e_ = (x);                                                                       \
        if (e_ != cudaSuccess)                                                                      \
            die("%s:%d %s -> %d %s", __FILE__, __LINE__, #x, (int)e_, cudaGetErrorString(e_));      \
    } while (0)

static void on_alarm(int) {
    static const char m[] = "FAIL program deadline reached\n";
    (void)!write(1, m, sizeof m - 1);
    _exit(124);
}
static inline void deadline_s(unsigned s) {
    signal(SIGALRM, on_alarm);
    alarm(s);
}
static inline double now_ms() {  // CLOCK_MONOTONIC: comparable between processes of one host
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

__host__ __device__ static inline u64 mix64(u64 x) {  // splitmix64 finaliser
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
struct Rng {
    u64 s;
    u64 next() { return mix64(s++ * 0x2545F4914F6CDD1Dull); }
    u32 below(u32 n) { return (u32)(next() % n); }
};
// The 16-byte word i of the pattern named by key.
__host__ __device__ static inline uint4 pat4(u64 key, u32 i) {
    u64 h = mix64(key ^ ((u64)i << 20));
    u32 lo = (u32)h, hi = (u32)(h >> 32);
    return make_uint4(lo, hi, lo ^ i, ~hi + i);
}
__host__ __device__ static inline bool same4(uint4 a, uint4 b) {
    return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}

#ifdef __CUDACC__
__device__ __forceinline__ u64 ld_acq_sys(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 ld_rlx_sys(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 ld_rlx_sys32(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void st_rlx_sys(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void st_rel_sys(u64* p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ u32 add_acqrel_gpu(u32* p, u32 v) {
    u32 o;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0,[%1],%2;" : "=r"(o) : "l"(p), "r"(v) : "memory");
    return o;
}
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// Never the non-coherent path, never L1: memory a peer writes.
__device__ __forceinline__ uint4 ld4_vol(const uint4* p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ u64 gtime() {
    u64 t;
    asm volatile("mov.u64 %0,%globaltimer;" : "=l"(t)::"memory");
    return t;
}
#endif

static inline void need_two_peers() {
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) die("cudaGetDeviceCount: %s", cudaGetErrorString(e));
    if (n < 2) die("needs 2 GPUs, found %d", n);
    for (int d = 0; d < 2; ++d) {
        int ok = 0;
        CK(cudaDeviceCanAccessPeer(&ok, d, 1 - d));
        if (!ok) die("no peer access from GPU %d to GPU %d", d, 1 - d);
    }
}
