/* libibverbs with COUNT devices called mlx5_0 and on. SHUT is the number of one that does not open, with errno ERROR; NO_LIST refuses
   the list; SAYS is written to standard error; HANG stays in ibv_open_device. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef COUNT
#define COUNT 2
#endif
#ifndef SHUT
#define SHUT -1
#endif
#ifndef ERROR
#define ERROR 13
#endif

struct device {
    char name[16];
};

void **ibv_get_device_list(int *count) {
#ifdef NO_LIST
    errno = 38;
    return NULL;
#endif
#ifdef SAYS
    fputs("libibverbs: Warning: " SAYS "\n", stderr);
#endif
    void **list = calloc(COUNT + 1, sizeof *list);
    for (int i = 0; i < COUNT; i++) {
        struct device *device = calloc(1, sizeof *device);
        snprintf(device->name, sizeof device->name, "mlx5_%d", i);
        list[i] = device;
    }
    *count = COUNT;
    return list;
}

void ibv_free_device_list(void **list) {
    for (int i = 0; list[i]; i++) free(list[i]);
    free(list);
}

const char *ibv_get_device_name(void *device) {
    return ((struct device *)device)->name;
}

void *ibv_open_device(void *device) {
#ifdef HANG
    for (;;) pause();
#endif
    if (SHUT >= 0 && ((struct device *)device)->name[5] == '0' + SHUT) {
        errno = ERROR;
        return NULL;
    }
    return malloc(1);
}

int ibv_close_device(void *context) {
    free(context);
    return 0;
}
