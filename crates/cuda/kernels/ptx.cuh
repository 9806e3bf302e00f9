// What PTX has and C++ has not: bulk copies, mbarriers, system-scope flags, clocks. No includes: NVRTC compiles this from memory.
#pragma once

namespace expertrail {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8, "the host's structures assume these sizes");

constexpr u32 ALL_LANES = 0xffffffffu;

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// ---- mbarriers: arrival of bulk loads in shared memory

__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the asynchronous proxy, which completes them.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Suspends for a while inside; true once the phase with this parity has completed.
__device__ __forceinline__ bool mbarrier_try_wait(u64* barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return done != 0;
}

// ---- bulk copies: sizes and addresses are multiples of 16

__device__ __forceinline__ void bulk_load(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void bulk_store(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// All but the newest N groups of this thread have read their shared memory, which may be overwritten.
template <int N>
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }

// All but the newest N groups of this thread have written their destination.
template <int N>
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }

// Orders generic accesses (a flag seen) against later accesses of the asynchronous proxy (bulk loads of what it announces).
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// ---- flags

__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ u32 load_acquire_system(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_acquire_system(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 load_relaxed_system(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_relaxed_system(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 load_relaxed_gpu(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_relaxed_gpu(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_relaxed_gpu(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed_gpu(u32* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed_system(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void store_release_system(u32* p, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ u32 load_acquire_gpu(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release_gpu(u32* p, u32 v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed_system(u32* p, u32 v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Both words by one instruction; the order in which they become visible is anybody's. `p` is aligned to 16 bytes.
__device__ __forceinline__ void store_pair_relaxed_system(void* p, u64 first, u64 second) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(first), "l"(second) : "memory");
}
__device__ __forceinline__ u32 add_acquire_release_gpu(u32* p, u32 v) {
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
    return before;
}
__device__ __forceinline__ u32 compare_swap_gpu(u32* p, u32 expected, u32 desired) {
    u32 before;
    asm volatile("atom.cas.acq_rel.gpu.global.b32 %0, [%1], %2, %3;" : "=r"(before) : "l"(p), "r"(expected), "r"(desired) : "memory");
    return before;
}
__device__ __forceinline__ u32 exchange_gpu(u32* p, u32 v) {
    u32 before;
    asm volatile("atom.exch.acq_rel.gpu.global.b32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
    return before;
}

// ---- within a block. Atomics rather than loads and stores: racecheck takes the latter for races, whatever their order says.

__device__ __forceinline__ u32 load_acquire_block(const u32* p) {
    u32 v;
    asm volatile("atom.add.acquire.cta.shared.u32 %0, [%1], 0;" : "=r"(v) : "r"(shared_address(p)) : "memory");
    return v;
}
__device__ __forceinline__ void store_release_block(u32* p, u32 v) {
    asm volatile("{ .reg .b32 before; atom.exch.release.cta.shared.b32 before, [%0], %1; }" ::"r"(shared_address(p)), "r"(v) : "memory");
}

// ---- rows: 16 bytes at a time, past L1. Coherent loads: peers write what is read here.

__device__ __forceinline__ uint4 load_row(const void* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_row(void* p, uint4 v) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Two f32 to two BF16, to nearest even. On an H200 this instruction gave the integer rounding's bits for all 2^32 inputs, denormals kept
// and NaN 0x7FFF (results/h200-x2/NOTES.md, b).
__device__ __forceinline__ u32 round_bf16x2(float high, float low) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31; }

}  // namespace expertrail
