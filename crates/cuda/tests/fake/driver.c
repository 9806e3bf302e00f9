/* A driver without a GPU: device memory is host memory, and a launch runs the probe kernel's loop at once.
   Memory that processes share is a memfd, mapped at the addresses given out and protected until access is set.
   Compile with -DVERSION=, -DINIT=, -DCOUNT= to choose what it says; with -DcuXyz=gone to take an entry point away.
   ODD names a device (by ordinal) that is unlike the others: -DODD=1 -DMODE=2 gives it another compute mode, and so do
   MAJOR, VMM, FD, FABRIC, COOP, RDMA, NAME, UUID and FREE; without ODD they hold for all. NO_PEER_A and NO_PEER_B are
   ordinals that do not reach each other. IMPORT and ACCESS are codes for those calls. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef VERSION_CODE
#define VERSION_CODE 0
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef COUNT
#define COUNT 2
#endif
#ifndef ALLOC
#define ALLOC 0
#endif

#ifndef MODE
#define MODE 0
#endif
#ifndef MAJOR
#define MAJOR 9
#endif
#ifndef VMM
#define VMM 1
#endif
#ifndef FD
#define FD 1
#endif
#ifndef FABRIC
#define FABRIC 1
#endif
#ifndef COOP
#define COOP 1
#endif
#ifndef RDMA
#define RDMA 1
#endif
#ifndef NAME
#define NAME NULL
#endif
#ifndef UUID
#define UUID 0
#endif
#ifndef FREE
#define FREE 0
#endif
#ifndef NO_PEER_A
#define NO_PEER_A -1
#define NO_PEER_B -1
#endif
#ifndef IMPORT
#define IMPORT 0
#endif
#ifndef ACCESS
#define ACCESS 0
#endif

typedef uintptr_t H;
typedef unsigned long long P;
static _Atomic int alive;
/* Whether device d (40 + ordinal) is the one that the settings are for. */
#ifdef ODD
static int odd(int d) { return d == 40 + ODD; }
#else
static int odd(int d) { (void)d; return 1; }
#endif
static _Thread_local H current;
int fake_alive(void) { return alive; }
H fake_current(void) { return current; }
void fake_set_current(H h) { current = h; }

int cuDriverGetVersion(int *v) { *v = VERSION; return VERSION_CODE; }
int cuInit(unsigned flags) { return flags ? 1 : INIT; }
int cuGetErrorName(int code, const char **s) {
    *s = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY"
        : code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *s ? 0 : 1;
}
int cuGetErrorString(int code, const char **s) { *s = code == 2 ? "out of memory" : NULL; return *s ? 0 : 1; }

int cuDeviceGetCount(int *n) { *n = COUNT; return 0; }
int cuDeviceGet(int *d, int ordinal) { *d = ordinal + 40; return 0; }
int cuDeviceGetName(char *s, int n, int d) {
    const char *name = odd(d) ? NAME : NULL;
    const char *usual[] = {"Fake A", "Fake B", "Fake C", "Fake D"};
    strncpy(s, name ? name : usual[(d - 40) & 3], n);
    return 0;
}
int cuDeviceGetAttribute(int *v, int a, int d) {
    int o = odd(d);
    switch (a) {
    case 16: *v = 132; break;
    case 20: *v = o ? MODE : 0; break;
    case 75: *v = o ? MAJOR : 9; break;
    case 76: *v = 0; break;
    case 95: *v = o ? COOP : 1; break;
    case 102: *v = o ? VMM : 1; break;
    case 103: *v = o ? FD : 1; break;
    case 110: *v = o ? RDMA : 1; break;
    case 128: *v = o ? FABRIC : 1; return *v < 0 ? 1 : 0;
    default: *v = 1;
    }
    return a > 1000 ? 1 : 0;
}
int cuDeviceGetUuid_v2(char *u, int d) { memset(u, UUID && odd(d) ? UUID : d, 16); return 0; }
int cuDeviceCanAccessPeer(int *can, int d, int peer) {
    if (d == peer || peer < 40 || peer >= 40 + COUNT) return 101;
    *can = !((d == 40 + NO_PEER_A && peer == 40 + NO_PEER_B) || (d == 40 + NO_PEER_B && peer == 40 + NO_PEER_A));
    return 0;
}
int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = (size_t)1 << 37; return 0; }

int cuDevicePrimaryCtxRetain(H *c, int d) { alive++; *c = 0x1000 + d; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; alive--; return 0; }
int cuCtxSetCurrent(H c) { current = c; return 0; }
int cuCtxGetCurrent(H *c) { *c = current; return 0; }
int cuCtxSynchronize(void) { return current ? 0 : 201; }

/* Free bytes of the current device that allocations mind; 0 for no limit. */
static size_t limit(void) { return odd((int)(current - 0x1000)) ? FREE : 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = limit() ? limit() : 1 << 20; *t = 1 << 21; return current ? 0 : 201; }
int cuMemAlloc_v2(P *p, size_t n) {
    if (ALLOC) return ALLOC;
    if (!current) return 201;
    alive++;
    *p = (P)(uintptr_t)malloc(n);
    return 0;
}
int cuMemFree_v2(P p) { alive--; free((void *)(uintptr_t)p); return 0; }
int cuMemcpyHtoD_v2(P d, const void *s, size_t n) { memcpy((void *)(uintptr_t)d, s, n); return 0; }
int cuMemcpyDtoH_v2(void *d, P s, size_t n) { memcpy(d, (void *)(uintptr_t)s, n); return 0; }
int cuMemcpyAsync(P d, P s, size_t n, H h) { memcpy((void *)(uintptr_t)d, (void *)(uintptr_t)s, n); return h ? 0 : 400; }
int cuMemsetD8Async(P d, unsigned char v, size_t n, H h) { memset((void *)(uintptr_t)d, v, n); return h ? 0 : 400; }

int cuPointerGetAttribute(void *v, int a, P p) { (void)v; (void)a; (void)p; return 1; }

int cuMemHostAlloc(void **p, size_t n, unsigned f) {
    if (ALLOC) return ALLOC;
    if (!current) return 201;
    if (f != 3) return 1;
    *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    memset(*p, 0xee, n);
    alive++;
    return 0;
}
int cuMemFreeHost(void *p) { alive--; free(p); return 0; }
int cuMemHostGetDevicePointer_v2(P *d, void *p, unsigned f) { *d = (P)(uintptr_t)p; return f; }

/* As in cuda.h. */
#define GRANULE ((size_t)2 << 20)
typedef struct { unsigned type; int id; } Location;
typedef struct { unsigned type, handles; Location at; void *win32; struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags; } Prop;
typedef struct { Location at; unsigned flags; } Access;
static int bad(const Prop *p) {
    static const char zero[4];
    return p->type != 1 || p->handles != 1 || p->at.type != 1 || p->at.id < 0 || p->at.id >= COUNT || p->win32 || p->flags.compression
        || p->flags.rdma != (odd(40 + p->at.id) ? RDMA : 1) || p->flags.usage || memcmp(p->flags.reserved, zero, 4);
}
int cuMemGetAllocationGranularity(size_t *n, const Prop *p, int option) { *n = GRANULE; return bad(p) || option != 1; }
/* A handle is a descriptor, so that numbers are small and closed ones are noticed. */
int cuMemCreate(P *h, size_t n, const Prop *p, P flags) {
    if (!current) return 201;
    if (bad(p) || flags || !n || n % GRANULE) return 1;
    if (limit() && n > limit()) return 2;
    int fd = memfd_create("fake", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, n)) return 2;
    *h = fd;
    alive++;
    return 0;
}
int cuMemRelease(P h) { alive--; return close((int)h) ? 400 : 0; }
int cuMemExportToShareableHandle(void *out, P h, int type, P flags) {
    if (type != 1 || flags) return 1;
    *(int *)out = dup((int)h);
    return 0;
}
int cuMemImportFromShareableHandle(P *h, void *os, int type) {
    if (IMPORT || type != 1) return IMPORT ? IMPORT : 1;
    int fd = dup((int)(intptr_t)os);
    if (fd < 0) return 1;
    *h = fd;
    alive++;
    return 0;
}
static int map(P p, size_t n, int flags, int fd) {
    return mmap((void *)(uintptr_t)p, n, PROT_NONE, flags, fd, 0) == MAP_FAILED;
}
int cuMemAddressReserve(P *p, size_t n, size_t align, P wanted, P flags) {
    if (align || wanted || flags || n % GRANULE) return 1;
    void *at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 2;
    *p = (P)(uintptr_t)at;
    alive++;
    return 0;
}
int cuMemAddressFree(P p, size_t n) { alive--; return munmap((void *)(uintptr_t)p, n) ? 1 : 0; }
int cuMemMap(P p, size_t n, size_t offset, P h, P flags) {
    if (offset || flags || lseek((int)h, 0, SEEK_END) != (off_t)n) return 1;
    alive++;
    return map(p, n, MAP_SHARED | MAP_FIXED, (int)h);
}
int cuMemUnmap(P p, size_t n) { alive--; return map(p, n, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1); }
int cuMemSetAccess(P p, size_t n, const Access *a, size_t count) {
    if (ACCESS) return ACCESS;
    if (count != 1 || a->at.type != 1 || a->at.id != (int)(current - 0x1000 - 40) || a->flags != 3) return 1;
    return mprotect((void *)(uintptr_t)p, n, PROT_READ | PROT_WRITE) ? 1 : 0;
}

int cuStreamCreateWithPriority(H *s, unsigned f, int p) { (void)p; alive++; *s = 0x2000; return f == 1 ? 0 : 1; }
int cuStreamDestroy_v2(H s) { (void)s; alive--; return 0; }
int cuStreamSynchronize(H s) { return s == 0x2000 || s == 1 ? 0 : 400; } // 1: the legacy default stream
int cuStreamQuery(H s) { (void)s; return 600; }
int cuStreamWaitEvent(H s, H e, unsigned f) { return s == 0x2000 && e == 0x3000 && !f ? 0 : 400; }
int cuStreamIsCapturing(H s, int *v) { (void)s; *v = 0; return 0; }
int cuStreamBeginCapture_v2(H s, int mode) { (void)s; (void)mode; return 801; }
int cuStreamEndCapture(H s, H *g) { (void)s; (void)g; return 801; }
int cuGraphInstantiateWithFlags(H *e, H g, P flags) { (void)e; (void)g; (void)flags; return 801; }
int cuGraphLaunch(H e, H s) { (void)e; (void)s; return 801; }
int cuGraphDestroy(H g) { (void)g; return 801; }
int cuGraphExecDestroy(H e) { (void)e; return 801; }
int cuEventCreate(H *e, unsigned f) { alive++; *e = 0x3000; return f == 0 || f == 2 ? 0 : 1; }
int cuEventDestroy_v2(H e) { (void)e; alive--; return 0; }
int cuEventRecord(H e, H s) { return e == 0x3000 && s == 0x2000 ? 0 : 400; }
int cuEventQuery(H e) { (void)e; return 0; }
int cuEventSynchronize(H e) { (void)e; return 0; }
int cuEventElapsedTime(float *ms, H a, H b) { (void)a; (void)b; *ms = 1.5f; return 0; }

/* MODULE is a code for the first load. */
#ifndef MODULE
#define MODULE 0
#endif
int cuModuleLoadData(H *m, const void *image) {
    static int loads;
    int code = loads++ ? 0 : MODULE;
    if (!code && memcmp(image, "\177ELF", 4)) code = 200;
    if (!code) alive++, *m = 0x4000;
    return code;
}
int cuModuleUnload(H m) { (void)m; alive--; return 0; }
int cuModuleGetFunction(H *f, H m, const char *name) {
    (void)m;
    *f = 0x5000;
    return strcmp(name, "_ZN10expertrail5probeENS_4ArgsE") ? 500 : 0;
}
int cuFuncGetAttribute(int *v, int a, H f) { (void)f; *v = 10 + a; return 0; }
int cuFuncSetAttribute(H f, int a, int v) { return f == 0x5000 && a == 8 && v == 99 ? 0 : 1; }

/* As in cuda.h. */
typedef struct { unsigned id; char pad[4]; union { char bytes[64]; int cooperative; struct { unsigned x, y, z; } cluster; } value; } Attr;
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; H stream; Attr *attrs; unsigned count; } Config;
struct Args { unsigned *out; unsigned count, seed; };
int cuLaunchKernelEx(const Config *c, H f, void **params, void **extra) {
    if (!current) return 201;
    if (f != 0x5000 || extra || c->gx != 8 || c->gy != 1 || c->gz != 1 || c->bx != 512 || c->by != 1 || c->bz != 1) return 1;
    if (c->shared != 48 || c->stream != 0x2000 || c->count != 2) return 1;
    if (c->attrs[0].id != 2 || c->attrs[0].value.cooperative != 1) return 1;
    if (c->attrs[1].id != 4 || c->attrs[1].value.cluster.x != 4 || c->attrs[1].value.cluster.y != 1 || c->attrs[1].value.cluster.z != 1) return 1;
    struct Args *a = params[0];
    for (unsigned i = 0; i < a->count; i++) a->out[i] = (i * 2654435761u) ^ a->seed;
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return 0; }
