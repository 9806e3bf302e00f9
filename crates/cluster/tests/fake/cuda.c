/* A CUDA driver whose device memory is host memory. Two GPUs, and everything works, unless told otherwise:
   COUNT GPUs, INIT and RETAIN codes, CONTEXT_ODD fails on the GPU of that number with RETAIN, DMABUF and FABRIC attributes,
   EXPORT, CREATE and FABRIC_EXPORT codes, NO_DESCRIPTOR, PEER says whether peers may copy, ALLOC code,
   CORRUPT flips the byte at that place of every copy to GPU 1, NOCOPY copies nothing, HANG_IN_INIT, HANG_IN_PEER, CRASH_IN_INIT.
   -DcuXyz=gone takes an entry point away. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef COUNT
#define COUNT 2
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef RETAIN
#define RETAIN 0
#endif
#ifndef CONTEXT_ODD
#define CONTEXT_ODD device
#endif
#ifndef DMABUF
#define DMABUF 1
#endif
#ifndef FABRIC
#define FABRIC 1
#endif
#ifndef EXPORT
#define EXPORT 0
#endif
#ifndef CREATE
#define CREATE 0
#endif
#ifndef FABRIC_EXPORT
#define FABRIC_EXPORT 0
#endif
#ifndef PEER
#define PEER 1
#endif
#ifndef ALLOC
#define ALLOC 0
#endif

static char contexts[64];
static void *current;

static void hang(void) {
    for (;;) pause();
}

int cuInit(unsigned flags) {
#ifdef CRASH_IN_INIT
    abort();
#endif
#ifdef HANG_IN_INIT
    hang();
#endif
    return flags ? 1 : INIT;
}

int cuDeviceGetCount(int *count) {
    *count = COUNT;
    return 0;
}

int cuGetErrorName(int code, const char **text) {
    switch (code) {
    case 2: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case 800: *text = "CUDA_ERROR_NOT_PERMITTED"; return 0;
    case 802: *text = "CUDA_ERROR_SYSTEM_NOT_READY"; return 0;
    default: *text = NULL; return 1;
    }
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (device < 0 || device >= COUNT) return 101;
    switch (attribute) {
    case 124: *value = DMABUF; return 0;
    case 128: *value = FABRIC; return 0;
    default: return 1;
    }
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (RETAIN && device == CONTEXT_ODD) return RETAIN;
    *context = &contexts[device];
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    return device < COUNT ? 0 : 101;
}

int cuCtxSetCurrent(void *context) {
    current = context;
    return 0;
}

int cuCtxSynchronize(void) {
    return current ? 0 : 201;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (ALLOC) return ALLOC;
    if (!current) return 201;
    *address = (uint64_t)aligned_alloc(2 << 20, (size + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1));
    return 0;
}

int cuMemFree_v2(uint64_t address) {
    free((void *)address);
    return 0;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    memcpy((void *)to, from, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, (void *)from, size);
    return 0;
}

int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t size) {
    memset((void *)to, value, size);
    return 0;
}

int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, unsigned kind, unsigned long long flags) {
    if (EXPORT) return EXPORT;
    if (kind != 1 || flags || address % 4096 || size % 4096) return 1;
#ifdef NO_DESCRIPTOR
    *(int *)handle = -1;
#else
    *(int *)handle = memfd_create("dma-buf", 0);
#endif
    return 0;
}

int cuDeviceCanAccessPeer(int *can, int from, int to) {
    *can = PEER;
    return from == to;
}

int cuCtxEnablePeerAccess(void *context, unsigned flags) {
    static char enabled[64][64];
    char *one = &enabled[(char *)current - contexts][(char *)context - contexts];
    if (flags || context == current) return 1;
    if (*one) return 704;
    *one = 1;
    return 0;
}

int cuMemcpyPeer(uint64_t to, void *target, uint64_t from, void *source, size_t size) {
#ifdef HANG_IN_PEER
    hang();
#endif
    if (target == source) return 1;
#ifndef NOCOPY
    memcpy((void *)to, (void *)from, size);
#endif
#ifdef CORRUPT
    if (target == &contexts[1]) ((unsigned char *)to)[CORRUPT] ^= 1;
#endif
    return 0;
}

/* CUmemAllocationProp of cuda.h. */
struct properties {
    int type, handles;
    struct { int type, id; } location;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};

int cuMemCreate(uint64_t *handle, size_t size, const struct properties *properties, unsigned long long flags) {
    if (CREATE) return CREATE;
    if (properties->type != 1 || properties->handles != 8 || properties->location.type != 1) return 1;
    if (properties->location.id < 0 || properties->location.id >= COUNT || size % (2 << 20) || flags) return 1;
    *handle = 7;
    return 0;
}

int cuMemExportToShareableHandle(void *out, uint64_t handle, unsigned kind, unsigned long long flags) {
    if (FABRIC_EXPORT) return FABRIC_EXPORT;
    if (handle != 7 || kind != 8 || flags) return 1;
    memset(out, 0xab, 64);
    return 0;
}

int cuMemRelease(uint64_t handle) {
    return handle == 7 ? 0 : 1;
}
