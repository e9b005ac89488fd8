/* Maps: one function over every element of views. Each operand is a sequence (sequence.h), of which a block at a time
 * is converted to R, computed with and rounded. Operands that are dense and of R are computed with in place, in one
 * run. */
#include <string.h>

#include "core/parallel.h"
#include "device/cpu/cpu_math.h"
#include "device/cpu/sequence.h"
#include "kernels/kernels.h"

enum {
    PIECE = 32 * 1024, /* elements a thread takes at once: some 10 us */
    SHORT_ROW = 128,   /* blocks end with rows that are longer; shorter ones are gathered, many to a block */
};

struct job {
    const struct cairn__cpu *cpu;
    cairn__map_kernel f; /* NULL = conversion */
    cairn_dtype r;
    int inputs;
    struct cairn__seq dst, x[CAIRN__MAP_INPUTS];
    size_t row;   /* blocks end at its multiples */
    size_t block; /* elements of a block, at most */
    double numbers[CAIRN__MAP_NUMBERS];
};

static void take_operand(struct job *job, const struct cairn__seq *s) {
    const size_t row = cairn__seq_row(s);
    const bool is_dense = s->ndim == 0 || (s->ndim == 1 && s->stride[0] == 1);
    if (s->ndim > 1 && row >= SHORT_ROW && row < job->row) job->row = row;
    if (!is_dense || s->dtype != job->r) job->block = CAIRN__BLOCK;
}

static struct job job_of(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                         const struct cairn__view *x, const double *numbers) {
    struct job job = {
        .cpu = cairn__cpu_of(d), .r = CAIRN_F32, .inputs = cairn__map_inputs(f), .row = SIZE_MAX, .block = PIECE};
    if (cairn__needs_f64(dst->dtype)) job.r = CAIRN_F64;
    for (int i = 0; i < job.inputs; i++) {
        if (cairn__needs_f64(x[i].dtype)) job.r = CAIRN_F64;
        job.x[i] = cairn__seq_of(&x[i]);
    }
    for (int i = 0; i < job.inputs; i++) take_operand(&job, &job.x[i]);
    job.f = f == CAIRN__MAP_COPY ? NULL : job.cpu->kernels->map[f][job.r];
    if (numbers) memcpy(job.numbers, numbers, sizeof(job.numbers));
    return job;
}

static void load_block(const struct job *job, size_t at, size_t n, struct cairn__seq_room *rooms,
                       const void *x[CAIRN__MAP_INPUTS]) {
    for (int i = 0; i < job->inputs; i++) x[i] = cairn__seq_load(job->cpu, job->r, &job->x[i], at, n, &rooms[i]);
}

static void map_piece(void *ctx, size_t begin, size_t end) {
    const struct job *job = ctx;
    struct cairn__seq_room out, in[CAIRN__MAP_INPUTS];
    for (int i = 0; i < job->inputs; i++) in[i].filled = NULL;
    for (size_t at = begin, n; at < end; at += n) {
        const void *x[CAIRN__MAP_INPUTS];
        const size_t row_left = job->row - at % job->row, left = end - at < row_left ? end - at : row_left;
        n = left < job->block ? left : job->block;
        load_block(job, at, n, in, x);
        if (!job->f) {
            cairn__seq_store(job->cpu, job->r, &job->dst, at, x[0], n, &out);
            continue;
        }
        void *y = cairn__seq_for(job->r, &job->dst, at, n, &out);
        job->f(y, x, n, job->numbers);
        cairn__seq_store(job->cpu, job->r, &job->dst, at, y, n, &out);
    }
}

/* ---- copies between equal types: bits, and nothing to compute ---- */

struct copy {
    char *dst;
    const char *src;
    size_t width;
    int ndim; /* axes in the order of dst's memory, merged; those of `rows` or `planes` first */
    int64_t size[CAIRN_MAX_DIMS], to[CAIRN_MAX_DIMS], from[CAIRN_MAX_DIMS]; /* strides */
    int64_t bands;                                                          /* of a plane that is transposed */
};

/* Sorts axes by insertion, stably, dst's widest strides outside, and merges those that continue one another. */
static struct copy copy_of(const struct cairn__view *dst, const struct cairn__view *src) {
    struct copy c = {.dst = dst->data, .src = src->data, .width = cairn_dtype_nbytes(dst->dtype)};
    int order[CAIRN_MAX_DIMS], count = 0;
    for (int d = 0; d < dst->ndim; d++) {
        if (dst->size[d] == 1) continue;
        int at = count++;
        for (; at > 0 && dst->stride[order[at - 1]] < dst->stride[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    for (int i = 0; i < count; i++) {
        const int d = order[i], last = c.ndim - 1;
        const int64_t size = dst->size[d], to = dst->stride[d], from = src->stride[d];
        if (last >= 0 && c.to[last] == to * size && c.from[last] == from * size) {
            c.size[last] *= size;
            c.to[last] = to, c.from[last] = from;
        } else {
            c.size[c.ndim] = size;
            c.to[c.ndim] = to, c.from[c.ndim++] = from;
        }
    }
    return c;
}

/* The i-th index of the first ndim axes, and its offsets. */
static void offsets_of(const struct copy *c, int ndim, size_t i, int64_t *index, int64_t *to, int64_t *from) {
    int64_t left = (int64_t)i;
    *to = *from = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        index[d] = left % c->size[d];
        left /= c->size[d];
        *to += index[d] * c->to[d];
        *from += index[d] * c->from[d];
    }
}

/* The next index of the first ndim axes, and its offsets: rows are many and short, so none of them divides. */
static void step(const struct copy *c, int ndim, int64_t *index, int64_t *to, int64_t *from) {
    for (int d = ndim - 1; d >= 0; d--) {
        *to += c->to[d], *from += c->from[d];
        if (++index[d] < c->size[d]) return;
        *to -= c->size[d] * c->to[d], *from -= c->size[d] * c->from[d];
        index[d] = 0;
    }
}

static void copy_rows(void *ctx, size_t begin, size_t end) {
    const struct copy *c = ctx;
    const int last = c->ndim - 1;
    const int64_t width = (int64_t)c->width;
    int64_t to, from, index[CAIRN_MAX_DIMS];
    offsets_of(c, last, begin, index, &to, &from);
    for (size_t i = begin; i < end; i++) {
        cairn__move(c->dst + to * width, c->to[last], c->src + from * width, c->from[last], (size_t)c->size[last],
                    c->width);
        step(c, last, index, &to, &from);
    }
}

static void copy_run(void *ctx, size_t begin, size_t end) {
    const struct copy *c = ctx;
    const int64_t at = (int64_t)begin * (int64_t)c->width;
    cairn__move(c->dst + at * c->to[0], c->to[0], c->src + at * c->from[0], c->from[0], end - begin, c->width);
}

/* ---- transposing: src runs along axis ndim - 2, dst along the last ---- */

enum { TILE = 16 }; /* a line of f32; 32 are slower, since lines a page apart displace each other */

/* Whole tiles apart: the compiler unrolls them. */
#define TRANSPOSE_TILE(T)                                              \
    do {                                                               \
        const bool is_whole = rows == TILE && cols == TILE;            \
        for (int64_t i = 0; i < rows; i++) {                           \
            T *y = (T *)dst + i * to;                                  \
            const T *x = (const T *)src + i;                           \
            if (is_whole) {                                            \
                for (int64_t j = 0; j < TILE; j++) y[j] = x[j * from]; \
            } else {                                                   \
                for (int64_t j = 0; j < cols; j++) y[j] = x[j * from]; \
            }                                                          \
        }                                                              \
    } while (0)

static void transpose_tile(void *dst, int64_t to, const void *src, int64_t from, int64_t rows, int64_t cols,
                           size_t width) {
    switch (width) {
    case 1:
        TRANSPOSE_TILE(uint8_t);
        break;
    case 2:
        TRANSPOSE_TILE(uint16_t);
        break;
    case 4:
        TRANSPOSE_TILE(uint32_t);
        break;
    default:
        TRANSPOSE_TILE(uint64_t);
        break;
    }
}

static int64_t at_most_tile(int64_t n) {
    return n < TILE ? n : TILE;
}

/* An item is TILE rows of a plane. */
static void copy_bands(void *ctx, size_t begin, size_t end) {
    const struct copy *c = ctx;
    const int p = c->ndim - 2, q = c->ndim - 1;
    const int64_t width = (int64_t)c->width;
    for (size_t item = begin; item < end; item++) {
        int64_t to, from, index[CAIRN_MAX_DIMS];
        offsets_of(c, p, item / (size_t)c->bands, index, &to, &from);
        const int64_t i = (int64_t)(item % (size_t)c->bands) * TILE;
        for (int64_t j = 0; j < c->size[q]; j += TILE) {
            transpose_tile(c->dst + (to + i * c->to[p] + j) * width, c->to[p],
                           c->src + (from + i + j * c->from[q]) * width, c->from[q], at_most_tile(c->size[p] - i),
                           at_most_tile(c->size[q] - j), c->width);
        }
    }
}

/* Brings the axis that src runs along to the last place but one, where dst runs along the last and src does not. */
static bool is_transposed(struct copy *c) {
    const int q = c->ndim - 1;
    if (q < 1 || c->to[q] != 1 || c->from[q] <= 1) return false;
    for (int p = q - 1; p >= 0; p--) {
        if (c->from[p] != 1) continue;
        const int64_t size = c->size[p], to = c->to[p], from = c->from[p];
        c->size[p] = c->size[q - 1], c->to[p] = c->to[q - 1], c->from[p] = c->from[q - 1];
        c->size[q - 1] = size, c->to[q - 1] = to, c->from[q - 1] = from;
        c->bands = (c->size[q - 1] + TILE - 1) / TILE;
        return true;
    }
    return false;
}

static size_t grain_of(int64_t item) {
    return item >= PIECE ? 1 : (size_t)(PIECE / item);
}

static void copy_bits(const struct cairn__view *dst, const struct cairn__view *src) {
    struct copy c = copy_of(dst, src);
    const size_t n = cairn__view_numel(dst);
    if (c.ndim == 0) {
        memcpy(c.dst, c.src, c.width);
    } else if (c.ndim == 1) {
        cairn__parallel_for(n, PIECE, copy_run, &c);
    } else if (is_transposed(&c)) {
        const int64_t band = TILE * c.size[c.ndim - 1];
        const size_t planes = n / (size_t)(c.size[c.ndim - 1] * c.size[c.ndim - 2]);
        cairn__parallel_for(planes * (size_t)c.bands, grain_of(band), copy_bands, &c);
    } else {
        const int64_t row = c.size[c.ndim - 1];
        cairn__parallel_for(n / (size_t)row, grain_of(row), copy_rows, &c);
    }
}

/* ---- operands with unfavourable strides ---- */

enum { FEW = 4096 }; /* elements that the first caches hold however they lie */

void cairn__cpu_densify(struct cairn__cpu *cpu, int slot, struct cairn__view *v) {
    const struct cairn__seq s = cairn__seq_of(v);
    const int64_t step = s.ndim > 0 ? s.stride[s.ndim - 1] : 0;
    bool runs_elsewhere = false, repeats = false;
    for (int d = 0; d < s.ndim; d++) {
        runs_elsewhere |= s.stride[d] == 1;
        repeats |= s.stride[d] == 0;
    }
    if (step <= 1 || !runs_elsewhere || repeats || s.n < FEW) return;
    float *room = NULL;
    const size_t floats = (s.n * s.width + sizeof(float) - 1) / sizeof(float);
    if (cairn__scratch_room(&cpu->dense[slot], floats, &room) != CAIRN_OK) return; /* slower, and right all the same */
    const struct cairn__view dense = cairn__view_dense(room, v->dtype, v->ndim, v->size);
    copy_bits(&dense, v);
    *v = dense;
}

/* ---- the passes ---- */

void cairn__cpu_map(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                    const struct cairn__view *x, const double *numbers) {
    const size_t n = cairn__view_numel(dst);
    if (n == 0) return;
    if (f == CAIRN__MAP_COPY && dst->dtype == x->dtype) {
        copy_bits(dst, x);
        return;
    }
    struct cairn__view operands[CAIRN__MAP_INPUTS];
    for (int i = 0; i < cairn__map_inputs(f); i++) {
        operands[i] = x[i];
        cairn__cpu_densify(cairn__cpu_of(d), i, &operands[i]);
    }
    struct job job = job_of(d, f, dst, operands, numbers);
    job.dst = cairn__seq_of(dst);
    take_operand(&job, &job.dst);
    cairn__parallel_for(n, PIECE, map_piece, &job);
}

/* ---- sums of maps ---- */

/* By the blocks of a sum. Of f32 the bits are those of the kernel over all terms; of f64, whose kernels know no blocks,
 * they are of this pass alone. */
static double add_blocks(const struct job *job, double sum, const void *terms, size_t n) {
    const cairn__fold_kernel fold = job->cpu->kernels->fold[CAIRN__FOLD_SUM][job->r];
    for (size_t i = 0; i < n; i += CAIRN__SUM_BLOCK) {
        const size_t m = n - i < CAIRN__SUM_BLOCK ? n - i : CAIRN__SUM_BLOCK;
        sum += fold((const char *)terms + i * cairn_dtype_nbytes(job->r), m, 0);
    }
    return sum;
}

void cairn__cpu_map_sum(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                        const struct cairn__view *x, const double *numbers, double divisor) {
    const struct job job = job_of(d, f, dst, x, numbers);
    const size_t n = cairn__view_numel(x);
    struct cairn__seq_room in[CAIRN__MAP_INPUTS];
    struct cairn__block out;
    double sum = 0;
    for (int i = 0; i < job.inputs; i++) in[i].filled = NULL;
    for (size_t at = 0; at < n; at += CAIRN__BLOCK) {
        const size_t m = n - at < CAIRN__BLOCK ? n - at : CAIRN__BLOCK;
        const void *values[CAIRN__MAP_INPUTS];
        load_block(&job, at, m, in, values);
        if (job.f) job.f(out.room, values, m, job.numbers);
        sum = add_blocks(&job, sum, job.f ? out.room : values[0], m);
    }
    cairn__block_put(dst->dtype, dst->data, sum / divisor);
}
