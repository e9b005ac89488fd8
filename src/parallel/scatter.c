/* A batch over the replicas, as an operation of the model's environment: its inputs are the program's and those
 * parameters that an output depends on, its result is the outputs put together. Its backward runs the replicas', and
 * brings each parameter the sum of theirs. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/parallel.h"
#include "core/status.h"
#include "core/trace.h"
#include "kernels/kernels.h"
#include "parallel/data_parallel.h"

struct scatter {
    struct cairn__guest guest;
    struct cairn_data_parallel *dp;
    struct cairn__scattered *forward;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
};

/* ---- forwards that are kept ---- */

static void free_forward(struct cairn__scattered *f) {
    if (!f) return;
    for (int r = 0; f->parts && r < f->used; r++) {
        cairn__free(f->parts[r].inputs);
        cairn__free(f->parts[r].reached);
    }
    cairn__free(f->parts);
    cairn__free(f->reached);
    cairn__free(f);
}

static void forget(const struct cairn_data_parallel *dp, struct cairn__scattered *f) {
    for (int r = 0; r < f->used; r++) cairn__replica_forget(f, &f->parts[r]);
    free_forward(f);
    if (dp->num_forwards > 0) return;
    for (int r = 0; r < dp->num_replicas; r++) (void)cairn_release_results(dp->replicas[r].env);
}

void cairn__scattered_end(struct cairn_data_parallel *dp) {
    while (dp->num_forwards > 0) {
        struct cairn__scattered *last = dp->forwards[--dp->num_forwards];
        forget(dp, last);
    }
}

/* As torch.chunk. A batch without rows is the first replica's. */
static void cut(const struct cairn_data_parallel *dp, struct cairn__scattered *f) {
    f->each = (f->rows + dp->num_replicas - 1) / dp->num_replicas;
    f->used = f->each > 0 ? (int)((f->rows + f->each - 1) / f->each) : 1;
}

static cairn_status make_forward(struct cairn_data_parallel *dp, int count, int64_t rows,
                                 struct cairn__scattered **out) {
    struct cairn__scattered *f = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&dp->forwards, &dp->capacity, dp->num_forwards + 1, sizeof(dp->forwards[0])));
    TRY(cairn__calloc(1, sizeof(*f), (void **)&f));
    f->count = count;
    f->rows = rows;
    f->records = cairn__records(dp->env);
    cut(dp, f);
    TRY(cairn__calloc(dp->set->count + 1, sizeof(f->reached[0]), (void **)&f->reached));
    TRY(cairn__calloc((size_t)f->used, sizeof(f->parts[0]), (void **)&f->parts));
    for (int r = 0; r < f->used; r++) {
        TRY(cairn__calloc((size_t)count, sizeof(f->parts[r].inputs[0]), (void **)&f->parts[r].inputs));
        TRY(cairn__calloc(dp->set->count + 1, sizeof(f->parts[r].reached[0]), (void **)&f->parts[r].reached));
    }
    dp->forwards[dp->num_forwards++] = f;
    *out = f;
    return CAIRN_OK;
out:
    free_forward(f);
    return st;
}

/* ---- the operation ---- */

static const struct scatter *scatter_of(const struct cairn__node *node) {
    return cairn__node_attrs(node);
}

static cairn_status infer(const struct cairn__node *node) {
    const struct scatter *s = scatter_of(node);
    return cairn__infer_as(node, s->dtype, s->ndim, s->shape);
}

static void write_mean(const struct cairn_data_parallel *dp, const struct cairn__scattered *f, cairn_dtype dtype,
                       void *to) {
    double sum = 0;
    for (int r = 0; r < f->used; r++) sum += f->parts[r].loss * (double)cairn__scattered_rows(f, r);
    const double mean = f->rows > 0 ? sum / (double)f->rows : f->parts[0].loss;
    const float narrow = (float)mean;
    if (dtype == CAIRN_F64) {
        memcpy(to, &mean, sizeof(mean));
    } else {
        cairn__pass_cast(dp->env->device->passes, dp->env->device, to, dtype, &narrow, CAIRN_F32, 1);
    }
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct scatter *s = scatter_of(node);
    const struct cairn__scattered *f = s->forward;
    char *to = cairn__tensor_values(cairn__node_result(node));
    (void)tape;
    if (cairn__replicas_return_losses(s->dp)) {
        write_mean(s->dp, f, s->dtype, to);
        return CAIRN_OK;
    }
    for (int r = 0; r < f->used; r++) {
        const size_t nbytes = f->parts[r].numel * cairn_dtype_nbytes(s->dtype);
        if (nbytes > 0) memcpy(to, cairn__tensor_values(f->parts[r].output), nbytes);
        to += nbytes;
    }
    return CAIRN_OK;
}

/* ---- its backward ---- */

/* Arrays of n elements of a type, whose sum is formed in f32 in their order and rounded once. */
struct sum {
    cairn__reduce_fn reduce;
    const void *from[CAIRN__MAX_RANKS];
    int count;
    size_t nbytes; /* of an element */
    char *to;
};

enum { GRAIN = 65536 };

static void sum_piece(void *ctx, size_t begin, size_t end) {
    const struct sum *s = ctx;
    const void *from[CAIRN__MAX_RANKS];
    void *to = s->to + begin * s->nbytes;
    uint32_t found = 0;
    for (int i = 0; i < s->count; i++) from[i] = (const char *)s->from[i] + begin * s->nbytes;
    s->reduce(&to, 1, from, s->count, end - begin, 1.0f, &found);
}

static void add_up(struct sum *s, cairn_dtype dtype, size_t n, void *to) {
    s->to = to;
    s->nbytes = cairn_dtype_nbytes(dtype);
    if (n == 0) return;
    if (s->count == 0) memset(to, 0, n * s->nbytes);
    if (s->count == 1) memcpy(to, s->from[0], n * s->nbytes);
    if (s->count > 1) cairn__parallel_for(n, GRAIN, sum_piece, s);
}

static cairn_status bring_param(struct cairn__tape *tape, const struct scatter *s, cairn_tensor *t, size_t index,
                                const struct cairn__kernels *kernels) {
    const cairn_dtype dtype = cairn_tensor_dtype(t);
    struct sum sum = {.reduce = kernels->reduce[CAIRN__REDUCE_SUM][dtype]};
    cairn_status st = CAIRN_OK;
    void *dx = NULL;
    if (!cairn__tensor_wants_grad(t)) return CAIRN_OK;
    for (int r = 0; r < s->forward->used; r++) {
        const cairn_param_set *theirs = cairn_module_params(s->dp->replicas[r].module);
        const struct cairn__grad *g = theirs->params[index]->gradient;
        if (cairn__grad_is_written(g)) sum.from[sum.count++] = cairn__grad_memory(g);
    }
    TRY(cairn__tensor_grad_begin(tape, t, &dx));
    add_up(&sum, dtype, cairn_tensor_numel(t), dx);
    TRY(cairn__tensor_grad_end(tape, t, dx));
out:
    return st;
}

/* Leaves' gradients are f32, or f64 as they are. */
static cairn_status bring_input(struct cairn__tape *tape, const struct scatter *s, cairn_tensor *t, int index) {
    const struct cairn_device *d = s->dp->env->device;
    const cairn_dtype dtype = cairn_tensor_dtype(t);
    cairn_status st = CAIRN_OK;
    void *dx = NULL;
    if (!cairn__tensor_wants_grad(t)) return CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, t, &dx));
    char *to = dx;
    for (int r = 0; r < s->forward->used; r++) {
        const cairn_tensor *x = s->forward->parts[r].inputs[index];
        const size_t n = cairn_tensor_numel(x);
        const void *grad = cairn__leaf_grad(x);
        if (!grad) {
            memset(to, 0, n * cairn_dtype_nbytes(dtype));
        } else {
            cairn__pass_cast(d->passes, (struct cairn_device *)(uintptr_t)d, to, dtype, grad,
                             dtype == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32, n);
        }
        to += n * cairn_dtype_nbytes(dtype);
    }
    TRY(cairn__tensor_grad_end(tape, t, dx));
out:
    return st;
}

/* It cannot be walked again. Once all are consumed, what the replicas hold for them goes. */
static void consume(struct cairn_data_parallel *dp, struct cairn__scattered *f) {
    bool all = true;
    f->is_consumed = true;
    for (size_t i = 0; i < dp->num_forwards; i++) all &= dp->forwards[i]->is_consumed;
    if (all) cairn__scattered_end(dp);
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const struct scatter *s = scatter_of(node);
    struct cairn_data_parallel *dp = s->dp;
    const struct cairn__kernels *kernels = cairn__kernels_cpu(cairn__cpu_features());
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    dp->forward = s->forward;
    dp->dy = dy;
    dp->retains = cairn__backward_retains(tape);
    dp->scale = dp->set->scale;
    TRY(cairn__team_run(dp, s->forward->used, cairn__replica_backward));
    int next = s->forward->given;
    for (size_t i = dp->set->count; i-- > 0;) {
        if (s->forward->reached[i]) TRY(bring_param(tape, s, cairn__node_input(node, next++), i, kernels));
    }
    next = 0;
    for (int i = 0; i < s->forward->count; i++) {
        if (s->forward->parts[0].inputs[i]) TRY(bring_input(tape, s, cairn__node_input(node, next++), i));
    }
    if (!dp->retains) consume(dp, s->forward);
out:
    cairn__trace("parallel", "replicas_backward", dp->num_replicas, 0, begin_ns);
    return st;
}

static const struct cairn__guest_op scatter = {
    .name = "data_parallel", .keeps_types = true, .infer = infer, .forward = forward, .backward = backward};

/* ---- putting together ---- */

static cairn_status find_shape(const struct cairn__scattered *f, bool loss, struct scatter *s) {
    const struct cairn__scattered_part *first = &f->parts[0];
    s->dtype = first->dtype;
    if (loss) return CAIRN_OK; /* one element, without dimensions */
    s->ndim = first->ndim ? first->ndim : 1;
    memcpy(s->shape, first->shape, sizeof(s->shape));
    s->shape[0] = 0;
    for (int r = 0; r < f->used; r++) {
        const struct cairn__scattered_part *part = &f->parts[r];
        const size_t rest = part->ndim > 1 ? (size_t)(part->ndim - 1) * sizeof(part->shape[0]) : 0;
        REQUIRE(part->dtype == s->dtype && part->ndim == first->ndim &&
                    memcmp(part->shape + 1, first->shape + 1, rest) == 0,
                CAIRN_EINVAL,
                "cairn_data_parallel_forward: the outputs of replicas 0 and %d differ in type or in another dimension "
                "than the first, so they cannot be put together",
                r);
        s->shape[0] += part->ndim ? part->shape[0] : 1;
    }
    return CAIRN_OK;
}

/* The program's inputs, then parameters from the last to the first, the order in which their gradients come. */
static cairn_status list_inputs(const struct cairn_data_parallel *dp, struct cairn__scattered *f, cairn_tensor ***out,
                                int *count) {
    cairn_tensor **params = NULL, **all = NULL;
    size_t total = 0, n = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__module_handles(dp->model, &params, &total));
    TRY(cairn__calloc((size_t)f->count + total, sizeof(all[0]), (void **)&all));
    for (int i = 0; i < f->count; i++) {
        if (f->inputs[i]) all[n++] = f->inputs[i];
    }
    f->given = (int)n;
    for (size_t i = 0; i < total; i++) {
        if (f->reached[total - 1 - i]) all[n++] = params[i];
    }
    *out = all;
    *count = (int)n;
out:
    return st;
}

static cairn_tensor *gather(struct cairn_data_parallel *dp, struct cairn__scattered *f) {
    struct scatter s = {.guest = {&scatter}, .dp = dp, .forward = f};
    cairn_tensor **inputs = NULL, *y = NULL;
    int count = 0;
    for (int r = 0; r < f->used; r++) {
        for (size_t i = 0; i < dp->set->count; i++) f->reached[i] |= f->parts[r].reached[i];
    }
    if (find_shape(f, cairn__replicas_return_losses(dp), &s) != CAIRN_OK) return NULL;
    if (list_inputs(dp, f, &inputs, &count) == CAIRN_OK) y = cairn__apply_guest(&s.guest, sizeof(s), count, inputs);
    cairn__free(inputs);
    return y;
}

/* What the first replica made of the model's buffers, and how far the random numbers are. */
static void take_back(const struct cairn_data_parallel *dp, const struct cairn__scattered *f) {
    cairn__copy_buffers(dp->replicas[0].module, dp->model);
    for (int r = 0; r < f->used; r++) {
        const uint64_t next = dp->replicas[r].env->next_stream;
        if (next > dp->env->next_stream) dp->env->next_stream = next;
    }
}

static cairn_tensor *run_forward(struct cairn_data_parallel *dp, cairn_tensor *const *inputs, int count) {
    struct cairn__scattered *f = NULL;
    cairn_tensor *y = NULL;
    if (make_forward(dp, count, cairn_tensor_size(inputs[0], 0), &f) != CAIRN_OK) return NULL;
    f->inputs = inputs;
    dp->forward = f;
    if (cairn__team_run(dp, f->used, cairn__replica_forward) == CAIRN_OK) {
        take_back(dp, f);
        y = gather(dp, f);
    }
    for (int r = 0; r < f->used; r++) cairn__replica_leave(&dp->replicas[r], &f->parts[r]);
    f->inputs = NULL;
    if (!y || !cairn__tensor_wants_grad(y)) { /* no backward comes */
        dp->num_forwards--;
        forget(dp, f);
    }
    return y;
}

/* ---- the calls ---- */

static cairn_status check_inputs(const struct cairn_data_parallel *dp, cairn_tensor *const *inputs, int count) {
    REQUIRE(inputs && count > 0, CAIRN_EINVAL, "cairn_data_parallel_forward_n: at least one input must be given");
    for (int i = 0; i < count; i++) {
        const cairn_tensor *x = inputs[i];
        if (!x && i > 0) continue;
        if (!x && cairn__last_status() != CAIRN_OK) return cairn__last_status();
        REQUIRE(x, CAIRN_EINVAL, "cairn_data_parallel_forward: the first input is NULL");
        REQUIRE(cairn_tensor_ndim(x) >= 0, CAIRN_ESTATE, "cairn_data_parallel_forward: the step of input %d is over",
                i);
        REQUIRE(cairn__tensor_env(x) == dp->env, CAIRN_EINVAL,
                "cairn_data_parallel_forward: input %d belongs to another environment than the model", i);
        REQUIRE(cairn_tensor_ndim(x) > 0 && cairn_tensor_size(x, 0) == cairn_tensor_size(inputs[0], 0), CAIRN_EINVAL,
                "cairn_data_parallel_forward: input %d has %lld rows and input 0 has %lld; what is not cut is for the "
                "options' ctx",
                i, (long long)(cairn_tensor_ndim(x) > 0 ? cairn_tensor_size(x, 0) : 0),
                (long long)cairn_tensor_size(inputs[0], 0));
    }
    return cairn__device_refuse_recording(dp->env->device, "replicas are not part of a recording");
}

static void begin_step(struct cairn_data_parallel *dp) {
    const uint64_t number = cairn__results_number(dp->env);
    if (number != dp->number) cairn__scattered_end(dp);
    dp->number = number;
}

cairn_tensor *cairn_data_parallel_forward_n(cairn_data_parallel *dp, cairn_tensor *const *inputs, int count) {
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_tensor **dense = NULL, *y = NULL;
    cairn_status st = CAIRN_OK;
    if (!dp) {
        (void)cairn__fail(CAIRN_EINVAL, "cairn_data_parallel_forward: dp is NULL");
        return NULL;
    }
    TRY(check_inputs(dp, inputs, count));
    TRY(cairn__calloc((size_t)count, sizeof(dense[0]), (void **)&dense));
    for (int i = 0; i < count; i++) {
        dense[i] = inputs[i] ? cairn_contiguous(inputs[i]) : NULL;
        if (inputs[i] && !dense[i]) goto out;
    }
    begin_step(dp);
    y = run_forward(dp, dense, count);
    cairn__trace("parallel", "replicas_forward", dp->num_replicas, 0, begin_ns);
out:
    cairn__free(dense);
    return y;
}

cairn_tensor *cairn_data_parallel_forward(cairn_data_parallel *dp, cairn_tensor *x) {
    return cairn_data_parallel_forward_n(dp, &x, 1);
}
