/* oneDNN 2.6 to 3.x, for the files named *onednn.c: the engine, checked calls, descriptions of memory. */
#ifndef CAIRN__CPU_ONEDNN_H
#define CAIRN__CPU_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#include "core/status.h"
#include "device/cpu/engine.h"

struct cairn__dnnl_products; /* matmul_onednn.c */
struct cairn__dnnl_convs;    /* conv_onednn.c */

struct cairn__engine {
    bool native_bf16;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct cairn__dnnl_products *products; /* kept primitives; NULL before the first call */
    struct cairn__dnnl_convs *convs;
    int max_threads;          /* the limit during a call where more would change the order of sums; 0 = none */
    int gemm_threads;         /* the most threads that dnnl_sgemm has run with here; 0 = not called yet */
    int (*get_threads)(void); /* OpenMP's, NULL = not found */
    void (*set_threads)(int);
    char text[64];
};

/* Free what an engine keeps of each kind; its pointers may be NULL. */
void cairn__dnnl_products_end(struct cairn__engine *e);
void cairn__dnnl_convs_end(struct cairn__engine *e);

cairn_status cairn__dnnl_check(dnnl_status_t status, const char *call);
#define DNNL(call) TRY(cairn__dnnl_check((call), #call))

/* Checks that there is memory before oneDNN's first call with a number of threads and before each primitive is created,
 * because oneDNN crashes if it gets none then. Errors: CAIRN_ENOMEM. */
cairn_status cairn__dnnl_ask_for_room(const struct cairn__engine *e, bool is_first_gemm);

/* Runs in each child of fork: oneDNN has one thread there. */
void cairn__dnnl_note_fork(void);

/* How many threads oneDNN may use: cairn__num_threads(), or the engine's limit; one in a fork child. */
int cairn__dnnl_threads(const struct cairn__engine *e);

/* Set the number of threads before primitives are created and before each call, and restore it afterwards. `before`:
 * the first function's result. */
int cairn__dnnl_take_threads(const struct cairn__engine *e);
void cairn__dnnl_give_threads_back(const struct cairn__engine *e, int before);

static inline dnnl_data_type_t cairn__dnnl_type(cairn_dtype t) {
    return t == CAIRN_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* ---- where versions 2 and 3 differ: descriptions of memory became handles (and operation descriptors went) ---- */

typedef dnnl_memory_desc_t cairn__dnnl_desc;

/* Zeroed before use, released after. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t cairn__dnnl_const_desc; /* from a query, whose result the primitive owns */
#define cairn__dnnl_describe        dnnl_memory_desc_create_with_strides
#define cairn__dnnl_describe_by_tag dnnl_memory_desc_create_with_tag
static inline cairn__dnnl_const_desc cairn__dnnl_const(const cairn__dnnl_desc *d) {
    return *d;
}
static inline dnnl_status_t cairn__dnnl_memory(dnnl_memory_t *out, cairn__dnnl_desc *d, dnnl_engine_t engine) {
    return dnnl_memory_create(out, *d, engine, DNNL_MEMORY_NONE);
}
static inline void cairn__dnnl_forget(cairn__dnnl_desc *d) {
    if (*d) dnnl_memory_desc_destroy(*d);
}
#else
typedef const dnnl_memory_desc_t *cairn__dnnl_const_desc;
#define cairn__dnnl_describe        dnnl_memory_desc_init_by_strides
#define cairn__dnnl_describe_by_tag dnnl_memory_desc_init_by_tag
static inline cairn__dnnl_const_desc cairn__dnnl_const(const cairn__dnnl_desc *d) {
    return d;
}
static inline dnnl_status_t cairn__dnnl_memory(dnnl_memory_t *out, cairn__dnnl_desc *d, dnnl_engine_t engine) {
    return dnnl_memory_create(out, d, engine, DNNL_MEMORY_NONE);
}
static inline void cairn__dnnl_forget(cairn__dnnl_desc *d) {
    (void)d;
}
#endif

#endif
