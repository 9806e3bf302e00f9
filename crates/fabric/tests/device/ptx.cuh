// Stands in for kernels/ptx.cuh, so that a C++ compiler makes host code of ring.cuh: the same words by a CPU's atomics.
#pragma once

#define __device__
#define __forceinline__ inline
#define __align__(n) alignas(n)

namespace expertrail {

using u32 = unsigned int;
using u64 = unsigned long long;

inline u64 load_acquire_system(const u64* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

inline void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// A GPU may make either half visible first: every second pair goes the other way, with time between the halves.
inline void store_pair_relaxed_system(void* p, u64 first, u64 second) {
    static thread_local u32 pairs = 0;
    u64* words = static_cast<u64*>(p);
    const bool swapped = pairs++ & 1;
    __atomic_store_n(words + swapped, swapped ? second : first, __ATOMIC_RELAXED);
    for (volatile u32 spin = 0; spin < pairs % 64; spin = spin + 1) {
    }
    __atomic_store_n(words + !swapped, swapped ? first : second, __ATOMIC_RELAXED);
}

}  // namespace expertrail
