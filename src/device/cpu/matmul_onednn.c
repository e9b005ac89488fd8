/* Matrix products by oneDNN 2.6 to 3.x.
 *
 * There are three ways, none of which is the fastest for every shape (one core of an AVX-512 server, oneDNN 2.6.3,
 * us):
 *     product                        sgemm   primitive   primitive for C^T, then transposed
 *     [64,1024] [16,1024]^T          40.1    39.7        25.6
 *     [64,512] [10,512]^T            16.4     9.8         8.6
 *     [256,256] [32,256]^T           39.4    36.6        44.4
 *     [128,1024] [1024,1024]^T       3011    2479        3097
 *     [64,16]^T [64,1024]            19.0    22.9        72.4
 *     [128,1024]^T [128,1024]        2403    2484        8701
 *     [64,1024] [1,1024]^T           2.4     38.6        9.8
 * route() below is this table as a rule. In bf16 the primitive for C is the best way (10.0 us in the first line) but
 * for one column, where oneDNN's kernel for C is poor and that for C^T is good.
 *
 * The primitive for C also adds the bias, adds to C, and rounds to bf16, all with the bits that separate passes would
 * give (a bf16 result that is subnormal becomes 0, as in the processor's own bf16 products).
 * Strided operands cost nothing: all ways take leading dimensions. Batches are the caller's loop: 96 products of
 * [128,64] [64,128] took 2453 us one by one and 2461 us as one primitive.
 *
 * Primitives are kept with their memory objects, and later calls of a shape only change the data handles. A training
 * step has few shapes; a new one replaces the least recently used of its bucket. */
#include <limits.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "device/cpu/onednn.h"
#include "device/cpu/state.h"

enum { BUCKETS = 64, WAYS = 4 }; /* of the cache of primitives */

struct key {
    int64_t m, n, k;
    int64_t a_lead, b_lead, c_lead; /* strides of rows, or of columns where trans */
    int32_t trans_a, trans_b;
    int32_t in_type, out_type;
    int32_t bias, add;
    int32_t threads, unused;
};

struct entry {
    uint64_t used; /* the engine's clock at the last use; 0 = empty */
    struct key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, c;
};

struct cairn__dnnl_products {
    struct entry entries[BUCKETS][WAYS];
    uint64_t clock;               /* number of calls of primitives */
    struct cairn__scratch turned; /* C^T */
};

static void entry_destroy(struct entry *x) {
    if (x->primitive) dnnl_primitive_destroy(x->primitive);
    if (x->a) dnnl_memory_destroy(x->a);
    if (x->b) dnnl_memory_destroy(x->b);
    if (x->bias) dnnl_memory_destroy(x->bias);
    if (x->c) dnnl_memory_destroy(x->c);
    *x = (struct entry){.used = 0};
}

void cairn__dnnl_products_end(struct cairn__engine *e) {
    struct cairn__dnnl_products *kept = e->products;
    if (!kept) return;
    for (size_t i = 0; i < (size_t)BUCKETS * WAYS; i++) entry_destroy(&kept->entries[i / WAYS][i % WAYS]);
    cairn__free(kept->turned.data);
    cairn__free(kept);
    e->products = NULL;
}

/* ---- primitives ---- */

enum { A, B, BIAS, C, DESCRIPTIONS };

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t make_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, cairn__dnnl_desc d[DESCRIPTIONS],
                                 bool bias, dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(out, engine, d[A], d[B], bias ? d[BIAS] : NULL, d[C], attr);
}
#else
static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
static dnnl_status_t make_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, cairn__dnnl_desc d[DESCRIPTIONS],
                                 bool bias, dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, &d[A], &d[B], bias ? &d[BIAS] : NULL, &d[C]);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &operation, attr, engine, NULL) : status;
}
#endif

static cairn_status describe_all(const struct key *k, cairn__dnnl_desc d[DESCRIPTIONS]) {
    cairn_status st = CAIRN_OK;
    const dnnl_dims_t shape_a = {k->m, k->k}, strides_a = {k->trans_a ? 1 : k->a_lead, k->trans_a ? k->a_lead : 1};
    const dnnl_dims_t shape_b = {k->k, k->n}, strides_b = {k->trans_b ? 1 : k->b_lead, k->trans_b ? k->b_lead : 1};
    const dnnl_dims_t shape_c = {k->m, k->n}, strides_c = {k->c_lead, 1};
    const dnnl_dims_t shape_bias = {1, k->n}, strides_bias = {k->n, 1};
    DNNL(cairn__dnnl_describe(&d[A], 2, shape_a, cairn__dnnl_type((cairn_dtype)k->in_type), strides_a));
    DNNL(cairn__dnnl_describe(&d[B], 2, shape_b, cairn__dnnl_type((cairn_dtype)k->in_type), strides_b));
    DNNL(cairn__dnnl_describe(&d[BIAS], 2, shape_bias, dnnl_f32, strides_bias));
    DNNL(cairn__dnnl_describe(&d[C], 2, shape_c, cairn__dnnl_type((cairn_dtype)k->out_type), strides_c));
out:
    return st;
}

/* Leaves *out NULL if the product is not added to C. */
static cairn_status make_attr(const struct key *k, dnnl_primitive_attr_t *out) {
    if (!k->add) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    dnnl_post_ops_t ops = NULL;
    DNNL(dnnl_primitive_attr_create(out));
    DNNL(dnnl_post_ops_create(&ops));
    DNNL(append_sum(ops));
    DNNL(dnnl_primitive_attr_set_post_ops(*out, ops));
out:
    if (ops) dnnl_post_ops_destroy(ops);
    return st;
}

static cairn_status entry_make(struct cairn__engine *e, const struct key *k, struct entry *x) {
    cairn_status st = CAIRN_OK;
    cairn__dnnl_desc d[DESCRIPTIONS];
    memset(d, 0, sizeof(d));
    dnnl_primitive_desc_t made = NULL;
    dnnl_primitive_attr_t attr = NULL;
    TRY(cairn__dnnl_ask_for_room(e, false));
    TRY(describe_all(k, d));
    TRY(make_attr(k, &attr));
    DNNL(make_matmul(&made, e->engine, d, k->bias, attr));
    DNNL(dnnl_primitive_create(&x->primitive, made));
    DNNL(cairn__dnnl_memory(&x->a, &d[A], e->engine));
    DNNL(cairn__dnnl_memory(&x->b, &d[B], e->engine));
    DNNL(cairn__dnnl_memory(&x->bias, &d[BIAS], e->engine));
    DNNL(cairn__dnnl_memory(&x->c, &d[C], e->engine));
    x->key = *k;
out:
    if (made) dnnl_primitive_desc_destroy(made);
    if (attr) dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < DESCRIPTIONS; i++) cairn__dnnl_forget(&d[i]);
    return st;
}

static cairn_status find_entry(struct cairn__engine *e, const struct key *k, struct entry **out) {
    uint64_t words[sizeof(*k) / sizeof(uint64_t)], hash = CAIRN__HASH_START;
    memcpy(words, k, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) hash = cairn__hash_word(hash, words[i]);
    struct entry *bucket = e->products->entries[(hash >> 32) % BUCKETS], *x = NULL, *oldest = &bucket[0];
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < WAYS && !x; i++) {
        struct entry *at = &bucket[i];
        if (at->used && memcmp(&at->key, k, sizeof(*k)) == 0) x = at;
        if (at->used < oldest->used) oldest = at;
    }
    if (!x) {
        x = oldest;
        entry_destroy(x);
        TRY(entry_make(e, k, x));
    }
    x->used = ++e->products->clock;
    *out = x;
out:
    if (st != CAIRN_OK) entry_destroy(x);
    return st;
}

static bool is_trans(const struct cairn__operand *x) {
    return x->col != 1;
}

static int64_t lead_of(const struct cairn__operand *x) {
    return is_trans(x) ? x->col : x->row;
}

static cairn_status by_primitive(struct cairn__engine *e, const struct cairn__product *p) {
    cairn_status st = CAIRN_OK;
    const struct key k = {.m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .a_lead = lead_of(&p->a),
                          .b_lead = lead_of(&p->b),
                          .c_lead = p->c_row,
                          .trans_a = is_trans(&p->a),
                          .trans_b = is_trans(&p->b),
                          .in_type = (int32_t)p->in_type,
                          .out_type = (int32_t)p->out_type,
                          .bias = p->bias != NULL,
                          .add = p->add,
                          .threads = cairn__dnnl_threads(e)};
    struct entry *x = NULL;
    TRY(find_entry(e, &k, &x));
    DNNL(dnnl_memory_set_data_handle(x->a, (void *)(uintptr_t)p->a.data));
    DNNL(dnnl_memory_set_data_handle(x->b, (void *)(uintptr_t)p->b.data));
    DNNL(dnnl_memory_set_data_handle(x->c, p->c));
    if (p->bias) DNNL(dnnl_memory_set_data_handle(x->bias, (void *)(uintptr_t)p->bias));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, x->a},
                                    {DNNL_ARG_WEIGHTS, x->b},
                                    {DNNL_ARG_DST, x->c},
                                    {DNNL_ARG_BIAS, x->bias}};
    DNNL(dnnl_primitive_execute(x->primitive, e->stream, p->bias ? 4 : 3, args));
    DNNL(dnnl_stream_wait(e->stream));
out:
    return st;
}

/* ---- ways ---- */

static cairn_status by_sgemm(struct cairn__engine *e, const struct cairn__product *p) {
    const int threads = cairn__dnnl_threads(e);
    cairn_status st = CAIRN_OK;
    if (threads > e->gemm_threads) TRY(cairn__dnnl_ask_for_room(e, e->gemm_threads == 0));
    e->gemm_threads = threads > e->gemm_threads ? threads : e->gemm_threads;
    st = cairn__dnnl_check(dnnl_sgemm(is_trans(&p->a) ? 'T' : 'N', is_trans(&p->b) ? 'T' : 'N', p->m, p->n, p->k, 1.0f,
                                      p->a.data, lead_of(&p->a), p->b.data, lead_of(&p->b), p->add ? 1.0f : 0.0f, p->c,
                                      p->c_row),
                           "dnnl_sgemm");
out:
    return st;
}

static struct cairn__operand transposed(const struct cairn__operand *x) {
    return (struct cairn__operand){x->data, x->col, x->row};
}

/* Computes C^T = B^T A^T into scratch, and transposes it. */
static cairn_status by_transpose(struct cairn__engine *e, const struct cairn__product *p) {
    cairn_status st = CAIRN_OK;
    float *turned = NULL;
    struct cairn__product t = *p;
    t.m = p->n, t.n = p->m;
    t.a = transposed(&p->b), t.b = transposed(&p->a);
    TRY(cairn__scratch_room(&e->products->turned, (size_t)(p->m * p->n), &turned));
    t.c = turned, t.c_row = t.n;
    TRY(by_primitive(e, &t));
    float *c = p->c;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) c[i * p->c_row + j] = turned[j * p->m + i];
    }
out:
    return st;
}

typedef cairn_status (*way)(struct cairn__engine *e, const struct cairn__product *p);

static way route(const struct cairn__product *p) {
    const bool trans_a = is_trans(&p->a), trans_b = is_trans(&p->b), forward = !trans_a && trans_b && !p->add;
    if (p->in_type == CAIRN_BF16) return p->n == 1 && forward ? by_transpose : by_primitive;
    if (p->m == 1 || p->n == 1 || (trans_a && !trans_b)) return by_sgemm;
    return forward && p->n <= 16 && p->m >= 2 * p->n ? by_transpose : by_primitive;
}

bool cairn__engine_finishes(const struct cairn__engine *engine, const struct cairn__product *product) {
    (void)engine;
    return route(product) == by_primitive;
}

/* With more threads than C has large blocks oneDNN divides k, which changes the order of sums. Measured with AVX2, with
 * 8 threads on [128, 1024] and 16 on [1024, 768], k 1024 and 3072; it does not with fewer threads. */
static int max_threads(const struct cairn__product *p) {
    enum { BLOCK = 256 * 512 };
    const int64_t blocks = p->m * p->n / BLOCK;
    if (p->m == 1 || p->n == 1 || blocks < 1) return 1;
    return blocks < INT_MAX ? (int)blocks : INT_MAX;
}

cairn_status cairn__engine_product(struct cairn__engine *engine, const struct cairn__product *product) {
    cairn_status st = CAIRN_OK;
    if (!engine->products) TRY(cairn__calloc(1, sizeof(*engine->products), (void **)&engine->products));
    const int limit = engine->max_threads, most = max_threads(product);
    if (limit == 0 || most < limit) engine->max_threads = most;
    const int threads = cairn__dnnl_take_threads(engine);
    st = route(product)(engine, product);
    cairn__dnnl_give_threads_back(engine, threads);
    engine->max_threads = limit;
out:
    return st;
}
