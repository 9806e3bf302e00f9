/* libgdrapi over host memory. SHUT: no /dev/gdrdrv; PIN and MAP are codes; ELSEWHERE maps memory that is not the GPU's. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef PIN
#define PIN 0
#endif
#ifndef MAP
#define MAP 0
#endif

typedef struct { unsigned long h; } handle;
static char driver;

void *gdr_open(void) {
#ifdef SHUT
    errno = ENOENT;
    return NULL;
#endif
    return &driver;
}

int gdr_close(void *gdr) {
    return gdr == &driver ? 0 : EINVAL;
}

int gdr_pin_buffer(void *gdr, unsigned long address, size_t size, uint64_t token, uint32_t space, handle *out) {
    if (PIN) return PIN;
    if (gdr != &driver || address % 65536 || size % 65536 || token || space) return EINVAL;
    out->h = address;
    return 0;
}

int gdr_unpin_buffer(void *gdr, handle pinned) {
    return gdr == &driver && pinned.h ? 0 : EINVAL;
}

int gdr_map(void *gdr, handle pinned, void **address, size_t size) {
    if (MAP) return MAP;
#ifdef ELSEWHERE
    *address = calloc(1, size);
#else
    *address = (void *)pinned.h;
#endif
    return gdr == &driver ? 0 : EINVAL;
}

int gdr_unmap(void *gdr, handle pinned, void *address, size_t size) {
#ifdef ELSEWHERE
    free(address);
#endif
    return gdr == &driver && size ? 0 : EINVAL;
}
