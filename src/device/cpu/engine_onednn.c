/* oneDNN as the engine of the CPU's products and convolutions: opening and closing it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/parallel.h"
#include "core/vars.h"
#include "device/cpu/onednn.h"

/* oneDNN accepts a limit of its instruction set only before any other call of oneDNN; in a process that has already
 * used it, the limit does not change. */
static void prepare_process(void) {
    (void)pthread_atfork(NULL, NULL, cairn__dnnl_note_fork);
    if (!cairn__var("CAIRN_CPU")) return;
    const unsigned features = cairn__cpu_features();
    dnnl_set_max_cpu_isa(features & CAIRN__CPU_AVX512_BF16 ? dnnl_cpu_isa_avx512_core_bf16
                         : features & CAIRN__CPU_AVX512    ? dnnl_cpu_isa_avx512_core
                         : features & CAIRN__CPU_AVX2      ? dnnl_cpu_isa_avx2
                                                           : dnnl_cpu_isa_sse41); /* the lowest that oneDNN has */
}

/* oneDNN takes its number of threads from OpenMP, when a primitive is created and at each call. A rank has a number of
 * its own, but the user has that setting, too; so it is changed around a call and then restored. The two functions are
 * looked up instead of linked, so that they are those of libdnnl's runtime: with two runtimes in a process (libgomp
 * below libdnnl, libomp in a program built by clang) a linked name might resolve to the other one. A oneDNN with
 * another threading layer has no such functions. */
static void find_openmp(struct cairn__engine *e) {
    void *get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    void *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (!get || !set) return;
    memcpy(&e->get_threads, &get, sizeof(get)); /* ISO C has no cast from object to function pointer */
    memcpy(&e->set_threads, &set, sizeof(set));
}

cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare_process);
    cairn_status st = CAIRN_OK;
    struct cairn__engine *e = NULL;
    TRY(cairn__calloc(1, sizeof(*e), (void **)&e));
    e->native_bf16 = (features & CAIRN__CPU_AVX512_BF16) != 0;
    find_openmp(e);
    DNNL(dnnl_engine_create(&e->engine, dnnl_cpu, 0));
    DNNL(dnnl_stream_create(&e->stream, e->engine, dnnl_stream_default_flags));
    *out = e;
    return CAIRN_OK;
out:
    cairn__engine_close(&e);
    return st;
}

void cairn__engine_close(struct cairn__engine **engine) {
    struct cairn__engine *e = *engine;
    if (!e) return;
    cairn__dnnl_products_end(e);
    cairn__dnnl_convs_end(e);
    if (e->stream) dnnl_stream_destroy(e->stream);
    if (e->engine) dnnl_engine_destroy(e->engine);
    cairn__free(e);
    *engine = NULL;
}

const char *cairn__engine_describe(struct cairn__engine *engine) {
    const dnnl_version_t *v = dnnl_version();
    const int threads = cairn__num_threads();
    snprintf(engine->text, sizeof(engine->text), "oneDNN %d.%d.%d, %d thread%s", v->major, v->minor, v->patch, threads,
             threads == 1 ? "" : "s");
    return engine->text;
}

bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type) {
    return type == CAIRN_F32 || (type == CAIRN_BF16 && engine->native_bf16);
}
