/* NVML with COUNT GPUs, each unlike the others in what is read of it. INIT is the code of nvmlInit_v2; LOST the index of a GPU that
   has fallen off; LINK_LOST a link that answers "GPU is lost"; HANG stays in nvmlInit_v2, CRASH dies there, QUIT ends the process there
   with that status; NO_LINKS for a GPU without. TRACE is a file that gets the number of the process, SAYS goes to standard error, NOISE
   and no newline to standard output, FLOOD writes there until nobody reads, HEIR leaves a process behind that holds the pipes for 20 s.
   -DnvmlXyz=gone takes an entry point away. Layouts are those of nvml.h. */
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef COUNT
#define COUNT 2
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef LOST
#define LOST -1
#endif
#ifndef LINK_LOST
#define LINK_LOST 99
#endif

static int started;
static struct gpu { unsigned index; } gpus[64];
typedef struct gpu *device;

int nvmlInit_v2(void) {
#ifdef TRACE
    FILE *trace = fopen(TRACE ".new", "w");
    fprintf(trace, "%d", (int)getpid());
    fclose(trace);
    rename(TRACE ".new", TRACE);
#endif
#ifdef SAYS
    fputs("a line before\n" SAYS "\n\n", stderr);
#endif
#ifdef NOISE
    if (write(1, NOISE, strlen(NOISE)) < 0) return 999;
#endif
#ifdef FLOOD
    static char piece[65536];
    while (write(1, piece, sizeof piece) > 0) {}
#endif
#ifdef HEIR
    if (fork() == 0) {
        sleep(20);
        _exit(0);
    }
#endif
#ifdef QUIT
    _exit(QUIT);
#endif
#ifdef HANG
    for (;;) pause();
#endif
#ifdef CRASH
    abort();
#endif
    started = 1;
    for (unsigned i = 0; i < 64; i++) gpus[i].index = i;
    return INIT;
}

int nvmlShutdown(void) {
    started = 0;
    return 0;
}

const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : NULL;
}

#define READY if (!started) return 1

int nvmlSystemGetDriverVersion(char *text, unsigned room) {
    READY;
    snprintf(text, room, "580.95.05");
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    READY;
    *version = 13000;
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    READY;
    *count = COUNT;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    READY;
    if (index >= COUNT) return 2;
    if ((int)index == LOST) return 15;
    *out = &gpus[index];
    return 0;
}

int nvmlDeviceGetName(device gpu, char *text, unsigned room) {
    READY;
    snprintf(text, room, "NVIDIA Test %u", gpu->index);
    return 0;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(device gpu, struct pci *out) {
    READY;
    memset(out, 0, sizeof *out);
    out->domain = gpu->index == 1 ? 0x10000 : 0;
    out->bus = 0x18 + gpu->index;
    out->device = 0x1f;
    strcpy(out->bus_id, "not read");
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) {
    READY;
    *major = 10;
    *minor = (int)gpu->index;
    return 0;
}

/* 18 links; of GPU 1 the third is down. */
int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *active) {
    READY;
#ifdef NO_LINKS
    return 3;
#endif
    if (link >= 18) return 2;
    if (link == LINK_LOST) return 15;
    *active = !(gpu->index == 1 && link == 2);
    return 0;
}

/* Counter 3 of link 17 has 5 errors on GPU 1, counter 0 of link 0 has 2. */
int nvmlDeviceGetNvLinkErrorCounter(device gpu, unsigned link, unsigned counter, unsigned long long *value) {
    READY;
    if (link >= 18 || counter > 3) return 2;
    *value = 0;
    if (gpu->index == 1) *value = link == 17 && counter == 3 ? 5 : link == 0 && counter == 0 ? 2 : 0;
    return 0;
}

struct fabric {
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
};

int nvmlDeviceGetGpuFabricInfo(device gpu, struct fabric *out) {
    READY;
    memset(out->uuid, 0, 16);
    out->status = 0;
    out->clique = 40 + gpu->index;
    out->state = 2;
    return 0;
}

struct fabric_v2 {
    unsigned version;
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};

int nvmlDeviceGetGpuFabricInfoV(device gpu, struct fabric_v2 *out) {
    READY;
    if (out->version != 0x02000024) return 25;
    for (int i = 0; i < 16; i++) out->uuid[i] = (unsigned char)(16 * i + 1);
    out->status = 0;
    out->clique = 30 + gpu->index;
    out->state = 3;
    out->health = 0x5a;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(device gpu, int type, int counter, unsigned long long *value) {
    READY;
    if (type != 1 || counter != 0) return 2;
    *value = 6 + gpu->index;
    return 0;
}

int nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    READY;
    *corrected = 1;
    *uncorrected = 1;
    *pending = gpu->index == 1;
    *failed = 0;
    return 0;
}

int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *value) {
    READY;
    *value = gpu->index == 1 ? 0x8000000040ull : 1;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *value) {
    READY;
    *value = 4 + gpu->index;
    return 0;
}

int nvmlDeviceGetTemperature(device gpu, int sensor, unsigned *value) {
    READY;
    if (sensor) return 2;
    *value = 41 + gpu->index;
    return 0;
}

struct temperature {
    unsigned version;
    int sensor, celsius;
};

int nvmlDeviceGetTemperatureV(device gpu, struct temperature *out) {
    READY;
    if (out->version != 0x0100000c || out->sensor) return 25;
    out->celsius = 61 + (int)gpu->index;
    return 0;
}

#define ONE(name, number) int name(device gpu, unsigned *value) { READY; *value = (number); return 0; }
ONE(nvmlDeviceGetPersistenceMode, gpu->index == 0)
ONE(nvmlDeviceGetComputeMode, 3 * gpu->index)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, 4 + gpu->index)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, 5)
ONE(nvmlDeviceGetCurrPcieLinkWidth, 8 + 8 * gpu->index)
ONE(nvmlDeviceGetMaxPcieLinkWidth, 16)

int nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *pending) {
    READY;
    *now = gpu->index == 1;
    *pending = 0;
    return 0;
}

struct memory {
    unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(device gpu, struct memory *out) {
    READY;
    out->total = 150ull << 30;
    out->free = (100ull + gpu->index) << 30;
    out->used = 50ull << 30;
    return 0;
}

int nvmlDeviceGetBAR1MemoryInfo(device gpu, struct memory *out) {
    READY;
    out->total = 256ull << 30;
    out->free = gpu->index;
    out->used = 0;
    return 0;
}

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu, compute;
};

int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, struct process *list) {
    READY;
    unsigned there = gpu->index == 1 ? 2 : 0;
    if (*count < there) {
        *count = there;
        return 7;
    }
    for (unsigned i = 0; i < there; i++) list[i] = (struct process){4000 + i, 1 << 20, 0, 0};
    *count = there;
    return 0;
}

int nvmlDeviceGetP2PStatus(device a, device b, int what, unsigned *status) {
    READY;
    if (what != 2) return 2;
    *status = a->index == 0 && b->index == 1 ? 0 : 5;
    return 0;
}
