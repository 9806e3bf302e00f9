// The device's half of the command ring; the host's half is crates/fabric/src/ring.rs, which says how it works. The constants below are
// compared with the host's by crates/fabric/tests/ring.rs: one a line, plain numbers. crates/fabric/tests/ring_device.rs runs this file on
// a CPU, with a stand-in for ptx.cuh: so no PTX here.
//
// One thread pushes into a ring. Entries and the count of those taken lie in pinned host memory, all zero before the first push.
#pragma once
#include "ptx.cuh"

namespace expertrail {

// First half.
constexpr u32 RING_PARITY_SHIFT = 0;
constexpr u32 RING_PARITY_BITS = 1;
constexpr u32 RING_KIND_SHIFT = 1;
constexpr u32 RING_KIND_BITS = 3;
constexpr u32 RING_CHANNEL_SHIFT = 4;
constexpr u32 RING_CHANNEL_BITS = 3;
constexpr u32 RING_PEER_SHIFT = 7;
constexpr u32 RING_PEER_BITS = 12;
constexpr u32 RING_SEQUENCE_SHIFT = 19;
constexpr u32 RING_SEQUENCE_BITS = 10;
constexpr u32 RING_EPOCH_SHIFT = 29;
constexpr u32 RING_EPOCH_BITS = 4;
// Second half, which has the parity in the same place.
constexpr u32 RING_SLOT_SHIFT = 1;
constexpr u32 RING_SLOT_BITS = 20;
constexpr u32 RING_LENGTH_SHIFT = 21;
constexpr u32 RING_LENGTH_BITS = 24;

constexpr u32 RING_LENGTH_UNIT = 16;  // bytes that a length counts in
constexpr u32 RING_ENTRY_BYTES = 16;

// Kinds.
constexpr u32 RING_WRITE = 1;
constexpr u32 RING_CREDIT = 2;
constexpr u32 RING_HEADER = 3;
constexpr u32 RING_STATUS = 4;
constexpr u32 RING_FLUSH = 5;
constexpr u32 RING_STOP = 6;
constexpr u32 RING_POISON = 7;

static_assert(RING_EPOCH_SHIFT + RING_EPOCH_BITS <= 64 && RING_LENGTH_SHIFT + RING_LENGTH_BITS <= 64, "fields fit their half");

struct __align__(16) RingEntry {
    u64 a;
    u64 b;
};
static_assert(sizeof(RingEntry) == RING_ENTRY_BYTES && alignof(RingEntry) == RING_ENTRY_BYTES, "written by one 16-byte store");
// Without offsetof (NVRTC has no headers), order and size of equal members give the offsets: 0 and 8.
static_assert(RingEntry{1, 2}.a == 1 && RingEntry{1, 2}.b == 2, "the first half first");

struct Command {
    u32 kind;
    u32 channel;
    u32 peer;
    u32 sequence;
    u32 epoch;
    u32 slot;
    u32 length;  // in units of RING_LENGTH_UNIT
};

// The producer's state, in device memory between kernels. Host: src/kernels.rs.
struct RingProducer {
    RingEntry* entries;
    const u64* taken;  // how many entries the proxy has taken
    u64 capacity;      // a power of two
    u64 pushed;
    u64 credit;        // what was taken when this side last looked: looking crosses the bus
    u64 stalls;        // pushes that found the ring full
};
static_assert(sizeof(RingProducer) == 48, "src/kernels.rs");
// Six members of 8 bytes in this order: offsets 0, 8, 16, 24, 32 and 40.
static_assert(RingProducer{nullptr, nullptr, 2, 3, 4, 5}.capacity == 2 && RingProducer{nullptr, nullptr, 2, 3, 4, 5}.pushed == 3 &&
                  RingProducer{nullptr, nullptr, 2, 3, 4, 5}.credit == 4 && RingProducer{nullptr, nullptr, 2, 3, 4, 5}.stalls == 5,
              "src/kernels.rs");

// What became of a push.
enum RingPush : u32 {
    RING_PUSHED = 0,
    RING_GIVEN_UP = 1,  // the ring stayed full until the caller stopped waiting
    RING_MISFIT = 2,    // a field is too large for its bits
    RING_DAMAGED = 3,   // the proxy claims to have taken more than was pushed
};

__device__ __forceinline__ bool ring_fits(u32 value, u32 bits) { return value >> bits == 0; }

// Pushes a command, or waits while the ring is full; `keep_waiting()` is asked at each look and ends the wait. Nothing is pushed unless
// the answer is RING_PUSHED. What this thread wrote or acquired before is visible to whoever takes the command.
template <class KeepWaiting>
__device__ __forceinline__ u32 ring_push(RingProducer& ring, const Command& c, KeepWaiting&& keep_waiting) {
    const bool fits = ring_fits(c.kind, RING_KIND_BITS) && ring_fits(c.channel, RING_CHANNEL_BITS) && ring_fits(c.peer, RING_PEER_BITS) &&
                      ring_fits(c.sequence, RING_SEQUENCE_BITS) && ring_fits(c.epoch, RING_EPOCH_BITS) &&
                      ring_fits(c.slot, RING_SLOT_BITS) && ring_fits(c.length, RING_LENGTH_BITS);
    if (!fits) return RING_MISFIT;
    for (bool first = true; ring.pushed - ring.credit >= ring.capacity; first = false) {
        // Acquire: the proxy's loads of an entry come before our next store to it.
        const u64 taken = load_acquire_system(ring.taken);
        if (taken > ring.pushed || taken < ring.credit) return RING_DAMAGED;
        ring.credit = taken;
        if (ring.pushed - taken < ring.capacity) break;
        if (first) ring.stalls++;
        if (!keep_waiting()) return RING_GIVEN_UP;
    }
    // Zeroed memory is of no lap: the first lap's parity is 1.
    const u64 parity = (ring.pushed / ring.capacity & 1) ^ 1;
    const u64 a = parity << RING_PARITY_SHIFT | static_cast<u64>(c.kind) << RING_KIND_SHIFT |
                  static_cast<u64>(c.channel) << RING_CHANNEL_SHIFT | static_cast<u64>(c.peer) << RING_PEER_SHIFT |
                  static_cast<u64>(c.sequence) << RING_SEQUENCE_SHIFT | static_cast<u64>(c.epoch) << RING_EPOCH_SHIFT;
    const u64 b = parity << RING_PARITY_SHIFT | static_cast<u64>(c.slot) << RING_SLOT_SHIFT |
                  static_cast<u64>(c.length) << RING_LENGTH_SHIFT;
    RingEntry* entry = ring.entries + (ring.pushed & (ring.capacity - 1));
    // A vector store is two stores without order between them: the fence comes before both, and each half has the parity.
    fence_system();
    store_pair_relaxed_system(entry, a, b);
    ring.pushed++;
    return RING_PUSHED;
}

}  // namespace expertrail
