// Shared by the probes a_dispatch.cu and b_combine.cu: PTX wrappers, waits with a deadline, and a two-GPU
// timing harness (one host thread per GPU). 2 GPUs of one host, one process, peer access.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include <cuda_runtime.h>

using u32 = uint32_t;
using u64 = unsigned long long;

#define CK(x)                                                                                        \
  do {                                                                                               \
    cudaError_t e_ = (x);                                                                            \
    if (e_ != cudaSuccess) {                                                                         \
      printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_));                 \
      fflush(stdout);                                                                                \
      _Exit(2);                                                                                      \
    }                                                                                                \
  } while (0)

// ---------------------------------------------------------------- failures
// One record in pinned host memory, read by both GPUs and the host. First writer wins (roughly: a probe).
struct Abort {
  volatile u32 word, gpu, phase, cta;
  volatile u64 expected, seen;
};
constexpr u64 DEADLINE_NS = 2000000000ull;

// ---------------------------------------------------------------- PTX
__device__ __forceinline__ u32 saddr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(t));
  return t;
}
__device__ __forceinline__ u32 smid() {
  u32 s;
  asm volatile("mov.u32 %0,%%smid;" : "=r"(s));
  return s;
}
__device__ __forceinline__ void mbar_init(u64* b, u32 n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(saddr(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void mbar_expect(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(saddr(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(u64* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(saddr(b)) : "memory");
}
__device__ __forceinline__ bool mbar_try(u64* b, u32 parity) {
  u32 ok;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
               : "=r"(ok) : "r"(saddr(b)), "r"(parity) : "memory");
  return ok;
}
__device__ __forceinline__ void fence_mbar_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void fence_proxy_all() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void bulk_load(void* s, const void* g, u32 n, u64* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(saddr(s)),
               "l"(g), "r"(n), "r"(saddr(bar)) : "memory");
}
__device__ __forceinline__ void bulk_load_hint(void* s, const void* g, u32 n, u64* bar, u64 pol) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],%4;" ::"r"(
                   saddr(s)), "l"(g), "r"(n), "r"(saddr(bar)), "l"(pol) : "memory");
}
__device__ __forceinline__ void bulk_store(void* g, const void* s, u32 n) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;" ::"l"(g), "r"(saddr(s)), "r"(n) : "memory");
}
__device__ __forceinline__ void bulk_store_hint(void* g, const void* s, u32 n, u64 pol) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0],[%1],%2,%3;" ::"l"(g), "r"(saddr(s)),
               "r"(n), "l"(pol) : "memory");
}
__device__ __forceinline__ u64 policy_evict_first() {
  u64 p;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(p));
  return p;
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// .read: the source in shared memory may be overwritten. Plain: the write itself is complete and visible to this thread.
__device__ __forceinline__ void bulk_wait_read(int n) {
  switch (n) {
#define W_(i) case i: asm volatile("cp.async.bulk.wait_group.read " #i ";" ::: "memory"); break;
    W_(1) W_(2) W_(3) W_(4) W_(5) W_(6) W_(8)
#undef W_
    default: asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
__device__ __forceinline__ void bulk_wait(int n) {
  switch (n) {
#define W_(i) case i: asm volatile("cp.async.bulk.wait_group " #i ";" ::: "memory"); break;
    W_(1) W_(2) W_(3) W_(4) W_(5) W_(6) W_(8)
#undef W_
    default: asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
__device__ __forceinline__ u32 ld_acq_sys(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
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
__device__ __forceinline__ u32 ld_rlx_gpu(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void st_rel_sys(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void st_rel_sys(u64* p, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void st_rlx_sys(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void st_rlx_sys(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ u32 atom_add_acqrel_gpu(u32* p, u32 v) {
  u32 r;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0,[%1],%2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
// coherent (never .nc: peers write what we read) 16-byte accesses that do not allocate in L1
__device__ __forceinline__ uint4 ld16(const void* p) {
  uint4 r;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p) : "memory");
  return r;
}
__device__ __forceinline__ void st16(void* p, uint4 r) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(p), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w) : "memory");
}

// Polls f(seen) until true. False after DEADLINE_NS or when somebody else has failed; the first failure leaves a record.
template <class F>
__device__ __forceinline__ bool wait_until(Abort* ab, u32 gpu, u32 phase, u64 expected, F f) {
  u64 seen = 0, t0 = 0;
  for (u32 n = 0;; n++) {
    if (f(seen)) return true;
    if ((n & 255) == 255) {
      u64 t = now_ns();
      if (!t0) t0 = t;
      if (ab->word) return false;
      if (t - t0 > DEADLINE_NS) {
        ab->gpu = gpu, ab->phase = phase, ab->cta = blockIdx.x, ab->expected = expected, ab->seen = seen;
        __threadfence_system();
        ab->word = 1;
        return false;
      }
    }
  }
}
__device__ __forceinline__ bool mbar_wait(u64* b, u32 parity, Abort* ab, u32 gpu, u32 phase) {
  return wait_until(ab, gpu, phase, parity, [&](u64&) { return mbar_try(b, parity); });
}

// ---------------------------------------------------------------- data
__host__ __device__ __forceinline__ u64 mix64(u64 z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
// Seeded delay before a publish, a flag or a read. seed 0: none. Mostly none, often short, rarely long.
__device__ __forceinline__ void maybe_delay(u64 seed, u32 site, u32 a, u32 b) {
  if (!seed) return;
  u64 h = mix64(seed ^ mix64(((u64)site << 48) ^ ((u64)a << 24) ^ b));
  u32 p = (u32)h & 255;
  if (p < 24) __nanosleep((u32)(h >> 32) & 4095);
  else if (p == 24) __nanosleep((u32)(h >> 32) & 65535);
}
struct Rng {
  u64 s;
  u64 next() { return mix64(s++); }
  double uni() { return (next() >> 11) * (1.0 / 9007199254740992.0); }
};

// ---------------------------------------------------------------- harness
__global__ void k_nop() {}
// Holds a stream until the host raises *word to want: then event, kernel and event are all queued ("aligned" span).
__global__ void k_gate(const u32* word, u32 want, Abort* ab, u32 gpu) {
  wait_until(ab, gpu, 99, want, [&](u64& seen) { u32 v = ld_acq_sys(word); seen = v; return (int)(v - want) >= 0; });
}
struct SpinBar {
  std::atomic<int> n{0}, gen{0};
  void wait() {
    int g = gen.load(std::memory_order_acquire);
    if (n.fetch_add(1, std::memory_order_acq_rel) == 1) { n.store(0, std::memory_order_relaxed); gen.store(g + 1, std::memory_order_release); }
    else while (gen.load(std::memory_order_acquire) == g) {}
  }
};
struct Rig {
  cudaStream_t st[2];
  cudaEvent_t e0[2], e1[2];
  Abort* ab;
  u32* gate;
  u32 ticket = 0;
  int sms = 0;
  std::chrono::steady_clock::time_point t0 = std::chrono::steady_clock::now();
  double secs() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count(); }
};
inline void rig_init(Rig& r) {
  int n = 0;
  CK(cudaGetDeviceCount(&n));
  if (n < 2) { printf("FAIL needs two GPUs, found %d\n", n); _Exit(2); }
  for (int g = 0; g < 2; g++) {
    CK(cudaSetDevice(g));
    int ok = 0;
    CK(cudaDeviceCanAccessPeer(&ok, g, 1 - g));
    if (!ok) { printf("FAIL no peer access %d -> %d\n", g, 1 - g); _Exit(2); }
    CK(cudaDeviceEnablePeerAccess(1 - g, 0));
    CK(cudaStreamCreateWithFlags(&r.st[g], cudaStreamNonBlocking));
    CK(cudaEventCreate(&r.e0[g]));
    CK(cudaEventCreate(&r.e1[g]));
  }
  CK(cudaDeviceGetAttribute(&r.sms, cudaDevAttrMultiProcessorCount, 0));
  void* p;
  CK(cudaHostAlloc(&p, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
  memset(p, 0, 4096);
  r.ab = (Abort*)p;
  r.gate = (u32*)((char*)p + 2048);
}
inline void check_abort(Rig& r, const char* what) {
  if (r.ab->word) {
    printf("FAIL timeout in %s: gpu %u phase %u cta %u expected %llu seen %llu\n", what, r.ab->gpu, r.ab->phase, r.ab->cta,
           (u64)r.ab->expected, (u64)r.ab->seen);
    fflush(stdout);
    _Exit(3);
  }
}
inline void sync_both(Rig& r, const char* what) {
  for (int g = 0; g < 2; g++) { CK(cudaSetDevice(g)); CK(cudaStreamSynchronize(r.st[g])); }
  check_abort(r, what);
}
template <class F>
void both(F f) {  // f(g) on one host thread per GPU, device current
  std::thread t[2];
  for (int g = 0; g < 2; g++) t[g] = std::thread([g, &f] { CK(cudaSetDevice(g)); f(g); });
  for (auto& x : t) x.join();
}
// Median over iterations of the maximum over GPUs, in us. gate: "aligned" span (device-side start), else "isolated".
template <class F>
float measure(Rig& r, int warm, int iters, bool gate, const char* what, F launch, int only = -1) {
  SpinBar bar;
  std::vector<float> t[2];
  u32 base = r.ticket;
  both([&](int g) {
    for (int it = 0; it < warm + iters; it++) {
      bar.wait();
      if (gate) k_gate<<<1, 1, 0, r.st[g]>>>(r.gate, base + it + 1, r.ab, g);
      else k_nop<<<1, 1, 0, r.st[g]>>>();
      CK(cudaEventRecord(r.e0[g], r.st[g]));
      if (only < 0 || only == g) launch(g, it);
      CK(cudaEventRecord(r.e1[g], r.st[g]));
      if (gate) {
        bar.wait();
        if (g == 0) { std::atomic_thread_fence(std::memory_order_seq_cst); *(volatile u32*)r.gate = base + it + 1; }
      }
      CK(cudaEventSynchronize(r.e1[g]));
      float ms;
      CK(cudaEventElapsedTime(&ms, r.e0[g], r.e1[g]));
      if (it >= warm) t[g].push_back((only < 0 || only == g) ? ms : 0.f);
      if (r.ab->word) check_abort(r, what);
    }
  });
  r.ticket = base + warm + iters;
  *(volatile u32*)r.gate = r.ticket;
  std::vector<float> m;
  for (int i = 0; i < iters; i++) m.push_back(std::max(t[0][i], t[1][i]) * 1e3f);
  std::sort(m.begin(), m.end());
  return m[m.size() / 2];
}
template <class K, class A>
void launch(K k, int grid, int threads, size_t smem, cudaStream_t st, A& args, bool coop) {
  void* p[] = {(void*)&args};
  if (coop) CK(cudaLaunchCooperativeKernel((const void*)k, dim3(grid), dim3(threads), p, smem, st));
  else CK(cudaLaunchKernel((const void*)k, dim3(grid), dim3(threads), p, smem, st));
}
