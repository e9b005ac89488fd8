/* Matrix products by oneDNN 2.6 to 3.x.
 *
 * Two ways lead into it, and neither is the faster one for every shape (one core of an AVX-512 server, oneDNN 2.6.3, us):
 *     product                        sgemm   primitive   primitive for C^T, then transposed
 *     [64,1024] [16,1024]^T          40.1    39.7        25.6
 *     [64,512] [10,512]^T            16.4     9.8         8.6
 *     [256,256] [32,256]^T           39.4    36.6        44.4
 *     [128,1024] [1024,1024]^T       3011    2479        3097
 *     [64,16]^T [64,1024]            19.0    22.9        72.4
 *     [128,1024]^T [128,1024]        2403    2484        8701
 *     [64,1024] [1,1024]^T           2.4     38.6        9.8
 * route() below is this table as a rule. In bf16 the primitive as asked for is the best way (10.0 us in the first line)
 * but for one column, where oneDNN has a poor kernel one way round and a good one the other.
 *
 * Primitives are kept with their memory objects, and later calls of a shape only change the data handles. A training step
 * has few shapes; where a program brings ever new ones, the least recently used makes room. */
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/status.h"
#include "core/vars.h"
#include "device/cpu/cpu.h"

enum { MOST_ENTRIES = 64 };

struct key {
    int64_t m, n, k;
    int32_t trans_a, trans_b;
    int32_t type, unused;
};

struct entry {
    uint64_t used; /* the engine's clock then; 0 = empty */
    struct key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
};

struct cairn__engine {
    bool native_bf16;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct entry entries[MOST_ENTRIES];
    uint64_t clock; /* of calls of primitives */
    float *turned;  /* C^T */
    size_t room;
    int (*get_threads)(void);
    void (*set_threads)(int);
    char text[64];
};

static cairn_status check(dnnl_status_t status, const char *call) {
    if (status == dnnl_success) return CAIRN_OK;
    return cairn__fail(status == dnnl_out_of_memory ? CAIRN_ENOMEM : CAIRN_EDEVICE, "oneDNN: %s returned status %d",
                       call, (int)status);
}
#define DNNL(call) TRY(check((call), #call))

/* ---- process-wide ---- */

/* oneDNN takes a cap only before its first other call. A process that used oneDNN by itself before keeps what it had. */
static void cap_isa(void) {
    if (!cairn__var("CAIRN_CPU")) return;
    unsigned features = cairn__cpu_features();
    dnnl_set_max_cpu_isa(features & CAIRN__CPU_AVX512_BF16 ? dnnl_cpu_isa_avx512_core_bf16
                         : features & CAIRN__CPU_AVX512    ? dnnl_cpu_isa_avx512_core
                         : features & CAIRN__CPU_AVX2      ? dnnl_cpu_isa_avx2
                                                           : dnnl_cpu_isa_sse41); /* it knows nothing lower */
}

/* oneDNN asks OpenMP how many threads to use, at the making of a primitive and at each call. A rank has one, but the
 * setting is also the user's: it is changed around a call and put back. The two functions are looked up rather than
 * linked, so that they are those of the runtime that libdnnl found: with two runtimes in a process (libgomp below libdnnl,
 * libomp in a program built by clang) a linked name might be the other one's. A oneDNN built on another threading layer
 * has none to find. */
static void find_openmp(struct cairn__engine *e) {
    void *get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    void *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (!get || !set) return;
    memcpy(&e->get_threads, &get, sizeof(get)); /* ISO C has no cast from object to function pointer */
    memcpy(&e->set_threads, &set, sizeof(set));
}

static int take_one_thread(const struct cairn__engine *e) {
    int before = e->get_threads ? e->get_threads() : 1;
    if (before != 1) e->set_threads(1);
    return before;
}

static void give_threads_back(const struct cairn__engine *e, int before) {
    if (before != 1) e->set_threads(before);
}

/* ---- opening ---- */

cairn_status cairn__engine_open(unsigned features, struct cairn__engine **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, cap_isa);
    cairn_status st = CAIRN_OK;
    struct cairn__engine *e = NULL;
    TRY(cairn__calloc(1, sizeof(*e), (void **)&e));
    e->native_bf16 = (features & CAIRN__CPU_AVX512_BF16) != 0;
    find_openmp(e);
    DNNL(dnnl_engine_create(&e->engine, dnnl_cpu, 0));
    DNNL(dnnl_stream_create(&e->stream, e->engine, dnnl_stream_default_flags));
    const dnnl_version_t *v = dnnl_version();
    snprintf(e->text, sizeof(e->text), "oneDNN %d.%d.%d, 1 thread", v->major, v->minor, v->patch);
    *out = e;
    return CAIRN_OK;
out:
    cairn__engine_close(&e);
    return st;
}

static void entry_destroy(struct entry *x) {
    if (x->primitive) dnnl_primitive_destroy(x->primitive);
    if (x->a) dnnl_memory_destroy(x->a);
    if (x->b) dnnl_memory_destroy(x->b);
    if (x->c) dnnl_memory_destroy(x->c);
    *x = (struct entry){.used = 0};
}

void cairn__engine_close(struct cairn__engine **engine) {
    struct cairn__engine *e = *engine;
    if (!e) return;
    for (size_t i = 0; i < MOST_ENTRIES; i++) entry_destroy(&e->entries[i]);
    cairn__free(e->turned);
    if (e->stream) dnnl_stream_destroy(e->stream);
    if (e->engine) dnnl_engine_destroy(e->engine);
    cairn__free(e);
    *engine = NULL;
}

const char *cairn__engine_describe(const struct cairn__engine *engine) {
    return engine->text;
}

bool cairn__engine_takes(const struct cairn__engine *engine, cairn_dtype type) {
    return type == CAIRN_F32 || (type == CAIRN_BF16 && engine->native_bf16);
}

/* ---- primitives ---- */

/* The one place where versions 2 and 3 differ: descriptions of memory became handles, operation descriptors went. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t description;
#define describe dnnl_memory_desc_create_with_strides
static dnnl_status_t make_memory(dnnl_memory_t *out, description *d, dnnl_engine_t engine) {
    return dnnl_memory_create(out, *d, engine, DNNL_MEMORY_NONE);
}
static dnnl_status_t make_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, description d[3]) {
    return dnnl_matmul_primitive_desc_create(out, engine, d[0], d[1], NULL, d[2], NULL);
}
static void forget(description *d) {
    if (*d) dnnl_memory_desc_destroy(*d);
}
#else
typedef dnnl_memory_desc_t description;
#define describe dnnl_memory_desc_init_by_strides
static dnnl_status_t make_memory(dnnl_memory_t *out, description *d, dnnl_engine_t engine) {
    return dnnl_memory_create(out, d, engine, DNNL_MEMORY_NONE);
}
static dnnl_status_t make_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, description d[3]) {
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, &d[0], &d[1], NULL, &d[2]);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &operation, NULL, engine, NULL) : status;
}
static void forget(description *d) {
    (void)d;
}
#endif

static cairn_status entry_make(struct cairn__engine *e, const struct key *k, struct entry *x) {
    cairn_status st = CAIRN_OK;
    const dnnl_data_type_t type = k->type == CAIRN_BF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t shape_a = {k->m, k->k}, strides_a = {k->trans_a ? 1 : k->k, k->trans_a ? k->m : 1};
    const dnnl_dims_t shape_b = {k->k, k->n}, strides_b = {k->trans_b ? 1 : k->n, k->trans_b ? k->k : 1};
    const dnnl_dims_t shape_c = {k->m, k->n}, strides_c = {k->n, 1};
    description d[3];
    memset(d, 0, sizeof(d));
    dnnl_primitive_desc_t made = NULL;
    DNNL(describe(&d[0], 2, shape_a, type, strides_a));
    DNNL(describe(&d[1], 2, shape_b, type, strides_b));
    DNNL(describe(&d[2], 2, shape_c, dnnl_f32, strides_c));
    DNNL(make_matmul(&made, e->engine, d));
    DNNL(dnnl_primitive_create(&x->primitive, made));
    DNNL(make_memory(&x->a, &d[0], e->engine));
    DNNL(make_memory(&x->b, &d[1], e->engine));
    DNNL(make_memory(&x->c, &d[2], e->engine));
    x->key = *k;
out:
    if (made) dnnl_primitive_desc_destroy(made);
    for (int i = 0; i < 3; i++) forget(&d[i]);
    return st;
}

static cairn_status find_entry(struct cairn__engine *e, const struct key *k, struct entry **out) {
    struct entry *x = NULL, *oldest = &e->entries[0];
    for (size_t i = 0; i < MOST_ENTRIES && !x; i++) {
        struct entry *at = &e->entries[i];
        if (at->used && memcmp(&at->key, k, sizeof(*k)) == 0) x = at;
        if (at->used < oldest->used) oldest = at;
    }
    if (!x) {
        x = oldest;
        entry_destroy(x);
        cairn_status st = entry_make(e, k, x);
        if (st != CAIRN_OK) {
            entry_destroy(x);
            return st;
        }
    }
    x->used = ++e->clock;
    *out = x;
    return CAIRN_OK;
}

static cairn_status by_primitive(struct cairn__engine *e, const struct cairn__matmul *p) {
    cairn_status st = CAIRN_OK;
    const struct key k = {p->m, p->n, p->k, p->trans_a, p->trans_b, (int32_t)p->in_type, 0};
    struct entry *x = NULL;
    TRY(find_entry(e, &k, &x));
    DNNL(dnnl_memory_set_data_handle(x->a, (void *)(uintptr_t)p->a));
    DNNL(dnnl_memory_set_data_handle(x->b, (void *)(uintptr_t)p->b));
    DNNL(dnnl_memory_set_data_handle(x->c, p->c));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, x->a}, {DNNL_ARG_WEIGHTS, x->b}, {DNNL_ARG_DST, x->c}};
    DNNL(dnnl_primitive_execute(x->primitive, e->stream, 3, args));
    DNNL(dnnl_stream_wait(e->stream));
out:
    return st;
}

/* ---- ways ---- */

static cairn_status by_sgemm(struct cairn__engine *e, const struct cairn__matmul *p) {
    (void)e;
    return check(dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, 1.0f, p->a,
                            p->trans_a ? p->m : p->k, p->b, p->trans_b ? p->k : p->n, 0.0f, p->c, p->n),
                 "dnnl_sgemm");
}

static cairn_status make_room(struct cairn__engine *e, size_t n) {
    if (n <= e->room) return CAIRN_OK;
    void *p = NULL;
    cairn_status st = cairn__alloc(n * sizeof(float), &p);
    if (st != CAIRN_OK) return st;
    cairn__free(e->turned);
    e->turned = p;
    e->room = n;
    return CAIRN_OK;
}

/* C^T = B^T A^T into the spare buffer, then turned. */
static cairn_status by_transpose(struct cairn__engine *e, const struct cairn__matmul *p) {
    cairn_status st = CAIRN_OK;
    struct cairn__matmul t = *p;
    t.m = p->n, t.n = p->m;
    t.a = p->b, t.b = p->a;
    t.trans_a = !p->trans_b, t.trans_b = !p->trans_a;
    TRY(make_room(e, (size_t)(p->m * p->n)));
    t.c = e->turned;
    TRY(by_primitive(e, &t));
    float *c = p->c;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) c[i * p->n + j] = e->turned[j * p->m + i];
    }
out:
    return st;
}

typedef cairn_status (*way)(struct cairn__engine *e, const struct cairn__matmul *p);

static way route(const struct cairn__matmul *p) {
    const bool forward = !p->trans_a && p->trans_b;
    if (p->in_type == CAIRN_BF16) return p->n == 1 && forward ? by_transpose : by_primitive;
    if (p->m == 1 || p->n == 1 || (p->trans_a && !p->trans_b)) return by_sgemm;
    return forward && p->n <= 16 && p->m >= 2 * p->n ? by_transpose : by_primitive;
}

cairn_status cairn__engine_matmul(struct cairn__engine *engine, const struct cairn__matmul *product) {
    int threads = take_one_thread(engine);
    cairn_status st = route(product)(engine, product);
    give_threads_back(engine, threads);
    return st;
}
