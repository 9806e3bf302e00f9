/* An NVRTC that compiles nothing: it checks what it is given and returns a smallest CUDA ELF file, or fails with
   -DCODE=. With -DBUILTINS it stands for the library of built-ins. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef BUILTINS
int fake_builtins;
#else
#ifndef MAJOR
#define MAJOR 12
#endif
#ifndef CODE
#define CODE 0
#endif

static const char text[] = "probe.cu(3): error: fake failure\n";
static int open_programs, compiled;
int fake_open(void) { return open_programs; }
int fake_compiled(void) { return compiled; }

int nvrtcVersion(int *major, int *minor) { *major = MAJOR; *minor = 8; return 0; }
int nvrtcGetNumSupportedArchs(int *n) { *n = 2; return 0; }
int nvrtcGetSupportedArchs(int *a) { a[0] = 80; a[1] = 90; return 0; }
int nvrtcCreateProgram(uintptr_t *p, const char *src, const char *name, int n, const char *const *h, const char *const *names) {
    open_programs++;
    *p = 7;
    (void)name;
    return strlen(src) && (n == 0 || (n == 1 && !strcmp(names[0], "own.cuh") && !strcmp(h[0], "// header"))) ? 0 : 3;
}
int nvrtcDestroyProgram(uintptr_t *p) { open_programs--; *p = 0; return 0; }
int nvrtcCompileProgram(uintptr_t p, int n, const char *const *o) {
    compiled++;
    if (p != 7 || n < 3 || strcmp(o[0], "--gpu-architecture=sm_90a") || strcmp(o[1], "--std=c++17")) return 5;
    return CODE;
}
int nvrtcGetCUBINSize(uintptr_t p, size_t *n) { (void)p; *n = 64; return 0; }
int nvrtcGetCUBIN(uintptr_t p, char *b) {
    (void)p;
    memset(b, 0, 64);
    memcpy(b, "\177ELF\2\1", 6);
    b[18] = (char)190;
    return 0;
}
int nvrtcGetProgramLogSize(uintptr_t p, size_t *n) { (void)p; *n = sizeof text; return 0; }
int nvrtcGetProgramLog(uintptr_t p, char *b) { (void)p; memcpy(b, text, sizeof text); return 0; }
#endif
