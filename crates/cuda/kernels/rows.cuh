// The benchmark's row generator, the same function as crates/bench/src/workload/rows.rs: any element of any row from the row's name
// alone. Plain C++ without includes, so that a test compiles it for the CPU and compares every bit with the Rust one
// (crates/bench/tests/gpu_rows.rs).
#pragma once

namespace expertrail {

constexpr unsigned long long SPREAD = 0x9E3779B97F4A7C15ull;

struct LaneKeys {
    unsigned short k[4];
};

__device__ inline unsigned long long mix(unsigned long long x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

__device__ inline unsigned long long add_key(unsigned long long key, unsigned long long part) {
    return mix(key ^ (part * SPREAD)) + SPREAD;
}

// The keys of row `index` (an input set in its high half) of `tensor` (0 tokens, 1 expert output) of `rank`.
__device__ inline LaneKeys lane_keys(unsigned long long seed, unsigned tensor, unsigned rank, unsigned long long index) {
    const unsigned long long owner = static_cast<unsigned long long>(rank) << 32 | tensor;
    const unsigned long long k = add_key(add_key(add_key(SPREAD, seed), owner), index);
    return {{static_cast<unsigned short>(k), static_cast<unsigned short>(k >> 16), static_cast<unsigned short>(k >> 32),
             static_cast<unsigned short>(k >> 48)}};
}

// The 16-bit hash of two bytes. Each product of two 16-bit numbers is taken in 32 bits without sign: as int it could overflow.
__device__ inline unsigned lane(unsigned i, const LaneKeys& key) {
    unsigned x = (i * 0x9E35u ^ key.k[0]) & 0xFFFFu;
    x = ((x ^ (x >> 7)) * 0xA2D5u + key.k[1]) & 0xFFFFu;
    x = ((x ^ (x >> 8)) * (key.k[2] | 1u) ^ key.k[3]) & 0xFFFFu;
    return x ^ (x >> 7);
}

// A BF16 of magnitude 2^-7 to 2.
__device__ inline unsigned bf16_bits(unsigned hash) { return (hash & 0x83FFu) | 0x3C00u; }

// Two e4m3 codes, neither NaN.
__device__ inline unsigned fp8_codes(unsigned hash) {
    const unsigned nan = ((hash & 0x7F7Fu) + 0x0101u) >> 7 & 0x0101u;
    return hash - nan;
}

// Bytes 2 i and 2 i + 1 of a row.
__device__ inline unsigned row_word(unsigned i, const LaneKeys& key, bool fp8) {
    const unsigned hash = lane(i, key);
    return fp8 ? fp8_codes(hash) : bf16_bits(hash);
}

// The bits of the scale of a block of 128 elements.
__device__ inline unsigned scale_bits(unsigned block, const LaneKeys& key) {
    unsigned long long row = 0;
    for (int i = 0; i < 4; i++) row |= static_cast<unsigned long long>(key.k[i]) << (16 * i);
    return 0x3B000000u | (static_cast<unsigned>(add_key(add_key(SPREAD, row), block)) & 0x007FFFFFu);
}

// f32 to BF16 as core::Bf16::from_f32 has it, by integers: the kernels under test use an instruction instead.
__device__ inline unsigned round_bits(unsigned bits) {
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFFu;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16 & 0xFFFFu;
}

}  // namespace expertrail
