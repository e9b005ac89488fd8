/* Convolutions by oneDNN 2.6 to 3.x, between dense tensors: its primitives choose blocked layouts for their operands,
 * which are copied into kept scratch of those layouts and back (a tenth of the time of a layer of ResNet-18 at
 * 64 x 64).
 *
 * If weights outweigh pixels, copying them is most of the work, and small planes with padding waste oneDNN's kernels;
 * then the columns of conv_columns.c are multiplied instead. One core of an AVX-512 server, oneDNN 2.6.3, batch 8, us:
 *     convolution               dst: primitive, columns   weights        src
 *     3 -> 64, 7 x 7, 64 x 64        1361, -               1410, 2600     6993, 1960
 *     64 -> 64, 3 x 3, 16 x 16       1221, 1500            1377, 2200     1215, 1600
 *     256 -> 256, 3 x 3, 4 x 4       1015, 1350            1743, 1600     1041, 1400
 *     256 -> 512, 3 x 3 / 2, 4 x 4    871,  750            2670,  900     1354,  780
 *     512 -> 512, 3 x 3, 2 x 2       3343, 1550            5495, 1900     2200, 1700
 * goes_by_columns() below is a model of that.
 *
 * Primitives are kept with their memory objects, by shape; a new one replaces the least recently used of its set. */
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "device/cpu/conv.h"
#include "device/cpu/onednn.h"

enum { SETS = 64, WAYS = 8 };
enum { SRC, WEIGHTS, DST, OPERANDS };

struct key {
    struct cairn__conv_shape shape;
    int32_t what, type, threads, rounds;
};

struct operand {
    dnnl_memory_t dense, blocked; /* the primitive's own; NULL = it uses the dense one */
    dnnl_primitive_t reorder;     /* between them; NULL = none */
    size_t nbytes;                /* of the blocked memory */
};

struct entry {
    uint64_t used; /* the clock at the last use; 0 = empty */
    struct key key;
    bool by_columns; /* the fields below are not made */
    bool alone;      /* needs one thread: the fields below are made only in the entry of the key with 1 thread */
    dnnl_primitive_t primitive;
    struct operand operands[OPERANDS];
    dnnl_memory_t scratchpad;
    size_t scratchpad_nbytes;
};

struct cairn__dnnl_convs {
    struct entry entries[SETS][WAYS];
    uint64_t clock;
    struct cairn__scratch blocked[OPERANDS], scratchpad;
    struct cairn__conv_columns columns;
};

/* ---- ending ---- */

static void entry_destroy(struct entry *x) {
    if (x->primitive) dnnl_primitive_destroy(x->primitive);
    if (x->scratchpad) dnnl_memory_destroy(x->scratchpad);
    for (int i = 0; i < OPERANDS; i++) {
        struct operand *o = &x->operands[i];
        if (o->dense) dnnl_memory_destroy(o->dense);
        if (o->blocked) dnnl_memory_destroy(o->blocked);
        if (o->reorder) dnnl_primitive_destroy(o->reorder);
    }
    *x = (struct entry){.used = 0};
}

void cairn__dnnl_convs_end(struct cairn__engine *e) {
    struct cairn__dnnl_convs *kept = e->convs;
    if (!kept) return;
    for (size_t i = 0; i < SETS * WAYS; i++) entry_destroy(&kept->entries[i / WAYS][i % WAYS]);
    for (int i = 0; i < OPERANDS; i++) cairn__free(kept->blocked[i].data);
    cairn__free(kept->scratchpad.data);
    cairn__conv_columns_end(&kept->columns);
    cairn__free(kept);
    e->convs = NULL;
}

/* ---- the choice ---- */

/* The share of all taps of the outputs along an axis that lie inside src. */
static double share_inside(const struct cairn__conv_shape *g, int axis) {
    const int64_t taps = axis ? g->s : g->r, outs = axis ? g->q : g->p;
    double inside = 0;
    for (int64_t t = 0; t < taps; t++) {
        const struct cairn__reach at = cairn__conv_reach(g, axis, t);
        inside += (double)(at.end - at.begin);
    }
    return inside / (double)(taps * outs);
}

/* Compares nanoseconds as measured above; only which way is faster matters. oneDNN skips taps outside src, computes
 * channels in blocks of 16, and transposes weights, the slower the further they are from the cache. The way by columns
 * copies. */
static bool goes_by_columns(const struct key *k) {
    static const double of_weight[] = {[CAIRN__CONV_DST] = 0.45, [CAIRN__CONV_SRC] = 0.6, [CAIRN__CONV_WEIGHTS] = 1.3};
    const struct cairn__conv_shape *g = &k->shape;
    const double product = 1.0 / 55, copied = 0.3;
    const double weights = (double)g->k * (double)(g->c / g->groups) * (double)(g->r * g->s);
    const double columns = (double)g->n * (double)g->p * (double)g->q;
    const double full = weights * columns * product;
    const int64_t wide = (k->what == CAIRN__CONV_SRC ? g->c : g->k) / g->groups;
    const double in_blocks = (double)((wide + 15) / 16 * 16) / (double)wide;
    const double copies = g->r * g->s == 1 ? 0 : columns * (double)(g->c * g->r * g->s) * copied;
    const double by_primitive =
        full * share_inside(g, 0) * share_inside(g, 1) * in_blocks + weights * of_weight[k->what];
    return g->groups == 1 && full + copies < by_primitive;
}

/* ---- making ---- */

/* The only place where versions 2 and 3 differ: version 3 has no operation descriptors. d: src, weights, dst. */
struct description {
    cairn__dnnl_desc d[OPERANDS];
    dnnl_dims_t stride, dilation, before, after; /* dilation 0 = dense */
    dnnl_primitive_attr_t attr;
};

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t make_conv(dnnl_primitive_desc_t *out, enum cairn__conv_what what, const struct description *v,
                               dnnl_engine_t e, dnnl_primitive_desc_t hint) {
    const dnnl_alg_kind_t how = dnnl_convolution_direct;
    switch (what) {
    case CAIRN__CONV_DST:
        return dnnl_convolution_forward_primitive_desc_create(out, e, dnnl_forward_training, how, v->d[SRC],
                                                              v->d[WEIGHTS], NULL, v->d[DST], v->stride, v->dilation,
                                                              v->before, v->after, v->attr);
    case CAIRN__CONV_SRC:
        return dnnl_convolution_backward_data_primitive_desc_create(out, e, how, v->d[SRC], v->d[WEIGHTS], v->d[DST],
                                                                    v->stride, v->dilation, v->before, v->after, hint,
                                                                    v->attr);
    default:
        return dnnl_convolution_backward_weights_primitive_desc_create(out, e, how, v->d[SRC], v->d[WEIGHTS], NULL,
                                                                       v->d[DST], v->stride, v->dilation, v->before,
                                                                       v->after, hint, v->attr);
    }
}
#else
static dnnl_status_t make_conv(dnnl_primitive_desc_t *out, enum cairn__conv_what what, const struct description *v,
                               dnnl_engine_t e, dnnl_primitive_desc_t hint) {
    const dnnl_alg_kind_t how = dnnl_convolution_direct;
    dnnl_convolution_desc_t op;
    dnnl_status_t status;
    switch (what) {
    case CAIRN__CONV_DST:
        status =
            dnnl_dilated_convolution_forward_desc_init(&op, dnnl_forward_training, how, &v->d[SRC], &v->d[WEIGHTS],
                                                       NULL, &v->d[DST], v->stride, v->dilation, v->before, v->after);
        break;
    case CAIRN__CONV_SRC:
        status = dnnl_dilated_convolution_backward_data_desc_init(&op, how, &v->d[SRC], &v->d[WEIGHTS], &v->d[DST],
                                                                  v->stride, v->dilation, v->before, v->after);
        break;
    default:
        status =
            dnnl_dilated_convolution_backward_weights_desc_init(&op, how, &v->d[SRC], &v->d[WEIGHTS], NULL, &v->d[DST],
                                                                v->stride, v->dilation, v->before, v->after);
    }
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &op, v->attr, e, hint) : status;
}
#endif

/* Shapes of src, weights and dst, and their numbers of dimensions. */
struct shapes {
    int ndim[OPERANDS];
    dnnl_dims_t size[OPERANDS];
};

static struct shapes shapes_of(const struct cairn__conv_shape *g) {
    struct shapes s = {{4, 4, 4}, {{g->n, g->c, g->h, g->w}, {g->k, g->c, g->r, g->s}, {g->n, g->k, g->p, g->q}}};
    if (g->groups > 1) {
        const dnnl_dims_t grouped = {g->groups, g->k / g->groups, g->c / g->groups, g->r, g->s};
        s.ndim[WEIGHTS] = 5;
        memcpy(s.size[WEIGHTS], grouped, sizeof(grouped));
    }
    return s;
}

static int operand_written(enum cairn__conv_what what) {
    return what == CAIRN__CONV_DST ? DST : what == CAIRN__CONV_SRC ? SRC : WEIGHTS;
}

static dnnl_data_type_t type_of(const struct key *k, bool written) {
    return written && !k->rounds ? dnnl_f32 : cairn__dnnl_type((cairn_dtype)k->type);
}

static cairn_status describe(const struct key *k, int written, struct description *v) {
    const struct cairn__conv_shape *g = &k->shape;
    const struct shapes shapes = shapes_of(g);
    cairn_status st = CAIRN_OK;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t taps = axis ? g->s : g->r, outs = axis ? g->q : g->p, size = axis ? g->w : g->h;
        const int64_t reach = (outs - 1) * g->stride[axis] + (taps - 1) * g->dilation[axis] + 1;
        v->stride[axis] = g->stride[axis];
        v->dilation[axis] = g->dilation[axis] - 1;
        v->before[axis] = g->padding[axis];
        v->after[axis] = reach - size - g->padding[axis]; /* negative if the stride skips the last rows of src */
    }
    for (int i = 0; i < OPERANDS; i++) {
        DNNL(cairn__dnnl_describe_by_tag(&v->d[i], shapes.ndim[i], shapes.size[i], type_of(k, i == written),
                                         dnnl_format_tag_any));
    }
    DNNL(dnnl_primitive_attr_create(&v->attr));
    DNNL(dnnl_primitive_attr_set_scratchpad_mode(v->attr, dnnl_scratchpad_mode_user));
out:
    return st;
}

static cairn_status make_reorder(struct cairn__engine *e, struct operand *o, cairn__dnnl_const_desc dense,
                                 cairn__dnnl_const_desc blocked, bool written) {
    cairn_status st = CAIRN_OK;
    dnnl_primitive_desc_t made = NULL;
    DNNL(dnnl_reorder_primitive_desc_create(&made, written ? blocked : dense, e->engine, written ? dense : blocked,
                                            e->engine, NULL));
    DNNL(dnnl_primitive_create(&o->reorder, made));
    DNNL(dnnl_memory_create(&o->blocked, blocked, e->engine, DNNL_MEMORY_NONE));
    o->nbytes = dnnl_memory_desc_get_size(blocked);
out:
    if (made) dnnl_primitive_desc_destroy(made);
    return st;
}

/* The dense memory, and the reorder between it and the layout that the primitive chose. */
static cairn_status make_operand(struct cairn__engine *e, const struct key *k, int i, bool written,
                                 cairn__dnnl_const_desc wanted, struct operand *o) {
    const struct shapes shapes = shapes_of(&k->shape);
    cairn_status st = CAIRN_OK;
    cairn__dnnl_desc dense;
    memset(&dense, 0, sizeof(dense));
    DNNL(cairn__dnnl_describe_by_tag(&dense, shapes.ndim[i], shapes.size[i], type_of(k, written),
                                     shapes.ndim[i] == 5 ? dnnl_abcde : dnnl_abcd));
    DNNL(cairn__dnnl_memory(&o->dense, &dense, e->engine));
    if (!dnnl_memory_desc_equal(cairn__dnnl_const(&dense), wanted))
        TRY(make_reorder(e, o, cairn__dnnl_const(&dense), wanted, written));
out:
    cairn__dnnl_forget(&dense);
    return st;
}

/* The primitive of a gradient needs that of the forward pass as a hint for layouts. */
static dnnl_status_t make_description(struct cairn__engine *e, const struct key *k, const struct description *v,
                                      dnnl_primitive_desc_t *out) {
    dnnl_primitive_desc_t hint = NULL;
    if (k->what != CAIRN__CONV_DST) {
        const dnnl_status_t status = make_conv(&hint, CAIRN__CONV_DST, v, e->engine, NULL);
        if (status != dnnl_success) return status;
    }
    const dnnl_status_t status = make_conv(out, (enum cairn__conv_what)k->what, v, e->engine, hint);
    if (hint) dnnl_primitive_desc_destroy(hint);
    return status;
}

/* Whether the name of oneDNN's implementation contains the word. */
static bool is_named(const_dnnl_primitive_desc_t made, const char *word) {
    const char *name = NULL;
    return dnnl_primitive_desc_query(made, dnnl_query_impl_info_str, 0, &name) == dnnl_success && strstr(name, word);
}

static cairn_status make_parts(struct cairn__engine *e, const struct key *k, const_dnnl_primitive_desc_t made,
                               struct entry *x) {
    static const dnnl_query_t forward[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
                              src[] = {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
                              weights[] = {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
    const dnnl_query_t *query = k->what == CAIRN__CONV_DST ? forward : k->what == CAIRN__CONV_SRC ? src : weights;
    const int written = operand_written((enum cairn__conv_what)k->what);
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < OPERANDS; i++) {
        TRY(make_operand(e, k, i, i == written, dnnl_primitive_desc_query_md(made, query[i], 0), &x->operands[i]));
    }
    cairn__dnnl_const_desc pad = dnnl_primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
    DNNL(dnnl_memory_create(&x->scratchpad, pad, e->engine, DNNL_MEMORY_NONE));
    x->scratchpad_nbytes = dnnl_memory_desc_get_size(pad);
    DNNL(dnnl_primitive_create(&x->primitive, made));
out:
    return st;
}

/* Convolutions for which oneDNN has no good kernel are computed by columns. oneDNN's implementations by products
 * ("gemm") divide sums by the number of threads. */
static cairn_status entry_make(struct cairn__engine *e, const struct key *k, struct entry *x) {
    cairn_status st = CAIRN_OK;
    struct description v;
    dnnl_primitive_desc_t made = NULL;
    memset(&v, 0, sizeof(v));
    x->key = *k;
    x->by_columns = goes_by_columns(k);
    if (x->by_columns) return CAIRN_OK;
    TRY(cairn__dnnl_ask_for_room(e, false));
    TRY(describe(k, operand_written((enum cairn__conv_what)k->what), &v));
    x->by_columns = make_description(e, k, &v, &made) != dnnl_success || is_named(made, "ref");
    x->alone = !x->by_columns && k->threads > 1 && is_named(made, "gemm");
    if (!x->by_columns && !x->alone) TRY(make_parts(e, k, made, x));
out:
    if (made) dnnl_primitive_desc_destroy(made);
    for (int i = 0; i < OPERANDS; i++) cairn__dnnl_forget(&v.d[i]);
    if (v.attr) dnnl_primitive_attr_destroy(v.attr);
    return st;
}

/* ---- finding ---- */

static cairn_status find_entry(struct cairn__engine *e, const struct key *k, struct entry **out) {
    uint64_t words[sizeof(*k) / sizeof(uint64_t)], hash = CAIRN__HASH_START;
    memcpy(words, k, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) hash = cairn__hash_word(hash, words[i]);
    struct entry *set = e->convs->entries[(hash >> 40) % SETS], *x = NULL, *oldest = set;
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < WAYS && !x; i++) {
        if (set[i].used && memcmp(&set[i].key, k, sizeof(*k)) == 0) x = &set[i];
        if (set[i].used < oldest->used) oldest = &set[i];
    }
    if (!x) {
        x = oldest;
        entry_destroy(x);
        TRY(entry_make(e, k, x));
    }
    x->used = ++e->convs->clock;
    *out = x;
out:
    if (st != CAIRN_OK) entry_destroy(x);
    return st;
}

/* ---- computing ---- */

static cairn_status place(struct cairn__scratch *room, dnnl_memory_t memory, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    float *data = NULL;
    TRY(cairn__scratch_room(room, (nbytes + sizeof(float) - 1) / sizeof(float), &data));
    DNNL(dnnl_memory_set_data_handle(memory, data));
out:
    return st;
}

static cairn_status reorder(struct cairn__engine *e, const struct operand *o, bool written) {
    cairn_status st = CAIRN_OK;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, written ? o->blocked : o->dense},
                                    {DNNL_ARG_TO, written ? o->dense : o->blocked}};
    if (o->reorder) DNNL(dnnl_primitive_execute(o->reorder, e->stream, 2, args));
out:
    return st;
}

static cairn_status by_primitive(struct cairn__engine *e, const struct cairn__conv_pass *pass, struct entry *x) {
    static const int names[][OPERANDS] = {
        [CAIRN__CONV_DST] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        [CAIRN__CONV_SRC] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        [CAIRN__CONV_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    };
    void *const data[OPERANDS] = {pass->src, pass->weights, pass->dst};
    const int written = operand_written(pass->what);
    struct cairn__dnnl_convs *kept = e->convs;
    dnnl_exec_arg_t args[OPERANDS + 1] = {{0, NULL}};
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < OPERANDS; i++) {
        const struct operand *o = &x->operands[i];
        DNNL(dnnl_memory_set_data_handle(o->dense, data[i]));
        if (o->blocked) TRY(place(&kept->blocked[i], o->blocked, o->nbytes));
        if (i != written) TRY(reorder(e, o, false));
        args[i] = (dnnl_exec_arg_t){names[pass->what][i], o->blocked ? o->blocked : o->dense};
    }
    TRY(place(&kept->scratchpad, x->scratchpad, x->scratchpad_nbytes));
    args[OPERANDS] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, x->scratchpad};
    DNNL(dnnl_primitive_execute(x->primitive, e->stream, OPERANDS + 1, args));
    TRY(reorder(e, &x->operands[written], true));
    DNNL(dnnl_stream_wait(e->stream));
out:
    return st;
}

static struct key key_of(const struct cairn__engine *e, const struct cairn__conv_pass *pass) {
    return (struct key){pass->shape, (int32_t)pass->what, (int32_t)pass->in_type, cairn__dnnl_threads(e), pass->rounds};
}

static cairn_status by_either(struct cairn__engine *e, const struct cairn__conv_pass *pass) {
    const struct key k = key_of(e, pass);
    struct entry *x = NULL;
    const int before = cairn__dnnl_take_threads(e);
    cairn_status st = find_entry(e, &k, &x);
    if (st == CAIRN_OK && !x->by_columns && !x->alone) st = by_primitive(e, pass, x);
    cairn__dnnl_give_threads_back(e, before);
    if (st != CAIRN_OK || (!x->by_columns && !x->alone)) return st;
    e->max_threads = 1;
    return x->alone ? by_either(e, pass) : cairn__conv_by_columns(e, &e->convs->columns, pass);
}

/* With several threads oneDNN adds gradients of weights in another order, and sometimes also the products of 1 x 1
 * kernels. */
static int max_threads(const struct cairn__conv_pass *pass) {
    return pass->what == CAIRN__CONV_WEIGHTS || (pass->shape.r == 1 && pass->shape.s == 1) ? 1 : 0;
}

static cairn_status find_convs(struct cairn__engine *engine) {
    return engine->convs ? CAIRN_OK : cairn__calloc(1, sizeof(*engine->convs), (void **)&engine->convs);
}

/* Gradients of weights are not rounded here: their sums continue from block to block of pixels in f32. */
bool cairn__engine_conv_rounds(struct cairn__engine *engine, const struct cairn__conv_pass *pass) {
    struct cairn__conv_pass rounding = *pass;
    struct entry *x = NULL;
    rounding.rounds = true;
    if (pass->in_type == CAIRN_F32 || pass->what == CAIRN__CONV_WEIGHTS || find_convs(engine) != CAIRN_OK) return false;
    engine->max_threads = max_threads(pass);
    const int before = cairn__dnnl_take_threads(engine);
    const struct key k = key_of(engine, &rounding);
    const bool found = find_entry(engine, &k, &x) == CAIRN_OK;
    cairn__dnnl_give_threads_back(engine, before);
    engine->max_threads = 0;
    return found && !x->by_columns && !x->alone;
}

cairn_status cairn__engine_conv(struct cairn__engine *engine, const struct cairn__conv_pass *pass) {
    cairn_status st = CAIRN_OK;
    TRY(find_convs(engine));
    engine->max_threads = max_threads(pass);
    st = by_either(engine, pass);
    engine->max_threads = 0;
out:
    return st;
}
