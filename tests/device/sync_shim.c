/* LD_PRELOAD this in front of libcudart or the stand-in: counts the calls that wait for the GPU, or may wait.
 * sync_waits() returns the count; programs look it up with dlsym. */
#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned long long sync_waits(void);

static atomic_ullong waits;

unsigned long long sync_waits(void) {
    return atomic_load(&waits);
}

/* The module and what it is linked to are opened for themselves, so that RTLD_NEXT does not find them. */
static void find(const char *name, void *function) {
    static const char *const libraries[] = {"libcudart.so.13", "libcudart.so.12", "libcairn_standin.so"};
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        void *library = dlopen(libraries[i], RTLD_NOW | RTLD_NOLOAD);
        void *found = library ? dlsym(library, name) : NULL;
        if (!found) continue;
        memcpy(function, &found, sizeof(found));
        return;
    }
    fprintf(stderr, "sync_shim: no library has %s\n", name);
    abort();
}

/* name takes `parameters` and is called with `arguments`. */
#define COUNTED(name, parameters, arguments)  \
    cudaError_t name parameters {             \
        static cudaError_t(*next) parameters; \
        if (!next) find(#name, &next);        \
        atomic_fetch_add(&waits, 1);          \
        return next arguments;                \
    }

COUNTED(cudaStreamSynchronize, (cudaStream_t stream), (stream))
COUNTED(cudaDeviceSynchronize, (void), ())
COUNTED(cudaEventSynchronize, (cudaEvent_t event), (event))
COUNTED(cudaMalloc, (void **p, size_t nbytes), (p, nbytes))
COUNTED(cudaFree, (void *p), (p))
COUNTED(cudaHostAlloc, (void **p, size_t nbytes, unsigned flags), (p, nbytes, flags))
COUNTED(cudaFreeHost, (void *p), (p))
COUNTED(cudaMemcpy, (void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind), (dst, src, nbytes, kind))

/* Only what goes to the host waits. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    static cudaError_t (*next)(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t);
    if (!next) find("cudaMemcpyAsync", &next);
    if (kind == cudaMemcpyDeviceToHost) atomic_fetch_add(&waits, 1);
    return next(dst, src, nbytes, kind, stream);
}
