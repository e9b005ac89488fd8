/* A forward over all replicas, as one operation of the model's environment. Its inputs are the program's inputs and the
 * parameters that an output depends on; its result is the concatenated outputs or the mean loss. Its backward runs the
 * replicas' backwards and gives each parameter the sum of their gradients. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
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
        cairn__free(f->parts[r].grads);
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

static cairn_status make_forward(struct cairn_data_parallel *dp, int count, int64_t rows,
                                 struct cairn__scattered **out) {
    struct cairn__scattered *f = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&dp->forwards, &dp->capacity, dp->num_forwards + 1, sizeof(dp->forwards[0])));
    TRY(cairn__calloc(1, sizeof(*f), (void **)&f));
    f->count = count;
    f->rows = rows;
    f->records = cairn__records(dp->env);
    /* As torch.chunk. A batch without rows goes to the first replica. */
    f->each = (rows + dp->num_replicas - 1) / dp->num_replicas;
    f->used = f->each > 0 ? (int)((rows + f->each - 1) / f->each) : 1;
    TRY(cairn__calloc(dp->set->count + 1, sizeof(f->reached[0]), (void **)&f->reached));
    TRY(cairn__calloc((size_t)f->used, sizeof(f->parts[0]), (void **)&f->parts));
    for (int r = 0; r < f->used; r++) {
        TRY(cairn__calloc((size_t)count, sizeof(f->parts[r].inputs[0]), (void **)&f->parts[r].inputs));
        TRY(cairn__calloc(dp->set->count + 1, sizeof(f->parts[r].reached[0]), (void **)&f->parts[r].reached));
        TRY(cairn__calloc(dp->set->count + (size_t)count, sizeof(f->parts[r].grads[0]), (void **)&f->parts[r].grads));
        f->parts[r].input_grads = f->parts[r].grads + dp->set->count;
    }
    dp->forwards[dp->num_forwards++] = f;
    *out = f;
    return CAIRN_OK;
out:
    free_forward(f);
    return st;
}

/* After a job that ended with st: a failed job, too, may have queued work that uses the model's memory. */
static cairn_status come_back_with(const struct cairn_data_parallel *dp, const struct cairn__scattered *f,
                                   cairn_status st) {
    char why[CAIRN__REPLICA_WHY];
    if (st == CAIRN_OK) return cairn__team_come_back(dp, f->used);
    snprintf(why, sizeof(why), "%s", cairn_last_error());
    (void)cairn__team_come_back(dp, f->used);
    return cairn__fail(st, "%s", why);
}

/* ---- the operation ---- */

static const struct scatter *scatter_of(const struct cairn__node *node) {
    return cairn__node_attrs(node);
}

static cairn_status infer(const struct cairn__node *node) {
    const struct scatter *s = scatter_of(node);
    return cairn__infer_as(node, s->dtype, s->ndim, s->shape);
}

/* In f64, so that the mean of a few losses of a shorter type is rounded once. */
static void write_mean(const struct cairn_data_parallel *dp, const struct cairn__scattered *f, cairn_dtype dtype,
                       void *to) {
    struct cairn_device *d = dp->env->device;
    const int64_t count = f->used, one = 1;
    const struct cairn__view x = cairn__view_dense(dp->losses, CAIRN_F64, 1, &count),
                             mean = cairn__view_dense(dp->losses + dp->num_replicas, CAIRN_F64, 1, &one),
                             y = cairn__view_dense(to, dtype, 1, &one);
    d->math->map_sum(d, CAIRN__MAP_COPY, &mean, &x, NULL, f->rows > 0 ? (double)f->rows : 1);
    d->math->map(d, CAIRN__MAP_COPY, &y, &mean, NULL);
}

/* The model's GPU may still use the result's memory for an earlier result, so the replicas' streams wait for it. */
static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct scatter *s = scatter_of(node);
    const struct cairn__scattered *f = s->forward;
    const bool is_loss = cairn__replicas_return_losses(s->dp);
    char *to = cairn__tensor_values(cairn__node_result(node));
    cairn_status st = CAIRN_OK;
    (void)tape;
    TRY(cairn__team_go(s->dp, f->used));
    for (int r = 0; r < f->used && !is_loss; r++) {
        const size_t nbytes = f->parts[r].numel * cairn_dtype_nbytes(s->dtype);
        TRY(cairn__device_copy(s->dp->replicas[r].env->device, to, cairn__tensor_values(f->parts[r].output), nbytes));
        to += nbytes;
    }
    TRY(cairn__team_come_back(s->dp, f->used));
    if (is_loss) write_mean(s->dp, f, s->dtype, to);
out:
    return st;
}

/* ---- its backward ---- */

/* A leaf's gradient is f32, or f64 if the leaf is f64. */
static cairn_status bring_input(struct cairn__tape *tape, const struct scatter *s, cairn_tensor *t, int index) {
    struct cairn_device *d = s->dp->env->device;
    const cairn_dtype dtype = cairn_tensor_dtype(t);
    cairn_status st = CAIRN_OK;
    void *dx = NULL;
    if (!cairn__tensor_wants_grad(t)) return CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, t, &dx));
    char *to = dx;
    for (int r = 0; r < s->forward->used; r++) {
        const struct cairn__scattered_part *part = &s->forward->parts[r];
        const size_t n = cairn_tensor_numel(part->inputs[index]);
        if (part->input_grads[index]) {
            cairn__pass_cast(d->passes, d, to, dtype, part->input_grads[index],
                             dtype == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32, n);
        } else if (dtype == CAIRN_F64) {
            d->passes->fill(d, CAIRN_F32, to, 2 * n, 0);
        } else {
            d->passes->fill(d, dtype, to, n, 0);
        }
        to += n * cairn_dtype_nbytes(dtype);
    }
    TRY(cairn__tensor_grad_end(tape, t, dx));
out:
    return st;
}

/* Gives the parameters their gradients, from the last parameter to the first: the order of the node's inputs. */
static cairn_status bring_params(struct cairn__tape *tape, const struct scatter *s, const struct cairn__node *node) {
    struct cairn_data_parallel *dp = s->dp;
    cairn_status st = CAIRN_OK;
    int next = s->forward->given;
    for (size_t i = dp->set->count; i-- > 0;) {
        dp->slots[i].to = NULL;
        if (!s->forward->reached[i]) continue;
        cairn_tensor *t = cairn__node_input(node, next++);
        if (cairn__tensor_wants_grad(t)) TRY(cairn__tensor_grad_begin(tape, t, &dp->slots[i].to));
    }
    TRY(cairn__replicas_sum(dp, s->forward));
    next = s->forward->given;
    for (size_t i = dp->set->count; i-- > 0;) {
        if (!s->forward->reached[i]) continue;
        cairn_tensor *t = cairn__node_input(node, next++);
        if (dp->slots[i].to) TRY(cairn__tensor_grad_end(tape, t, dp->slots[i].to));
    }
out:
    return st;
}

/* Allocates the memory where remote replicas' gradients arrive. */
static cairn_status make_room(const struct cairn_data_parallel *dp, const struct cairn__scattered *f) {
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < f->used; r++) {
        struct cairn__replica *one = &dp->replicas[r];
        memset(f->parts[r].grads, 0, (dp->set->count + (size_t)f->count) * sizeof(f->parts[r].grads[0]));
        if (!one->is_remote) continue;
        TRY(cairn__replica_room(dp->env->device, &one->arrived, cairn__replica_grad_nbytes(one, f)));
    }
out:
    return st;
}

/* A consumed forward has no second backward. Once all forwards are consumed, frees what the replicas hold for them. */
static void consume(struct cairn_data_parallel *dp, struct cairn__scattered *f) {
    bool all = true;
    f->is_consumed = true;
    for (size_t i = 0; i < dp->num_forwards; i++) all &= dp->forwards[i]->is_consumed;
    if (all) cairn__scattered_end(dp);
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const struct scatter *s = scatter_of(node);
    struct cairn_data_parallel *dp = s->dp;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    dp->forward = s->forward;
    dp->dy = dy;
    dp->retains = cairn__backward_retains(tape);
    dp->scale = dp->set->scale;
    TRY(make_room(dp, s->forward));
    TRY(cairn__team_go(dp, s->forward->used));
    st = cairn__team_run(dp, s->forward->used, cairn__replica_backward);
    TRY(come_back_with(dp, s->forward, st));
    TRY(bring_params(tape, s, node));
    int next = 0;
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

/* ---- gathering outputs ---- */

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

/* The program's inputs, then the parameters from last to first: the order in which their gradients become ready. */
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

/* Copies the first replica's buffers to the model, and advances the model's random numbers as far as any replica's. */
static cairn_status take_back(const struct cairn_data_parallel *dp, const struct cairn__scattered *f) {
    const struct cairn__replica *first = &dp->replicas[0];
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < f->used; r++) {
        const uint64_t next = dp->replicas[r].env->next_stream;
        if (next > dp->env->next_stream) dp->env->next_stream = next;
    }
    for (int r = 1; r < f->used; r++) /* the others read the model's buffers until then */
        TRY(cairn__device_wait_for(first->env->device, dp->replicas[r].env->device));
    TRY(cairn__copy_buffers(first->env->device, first->module, dp->model));
out:
    return st;
}

static cairn_tensor *run_forward(struct cairn_data_parallel *dp, cairn_tensor *const *inputs, int count) {
    struct cairn__scattered *f = NULL;
    cairn_tensor *y = NULL;
    if (make_forward(dp, count, cairn_tensor_size(inputs[0], 0), &f) != CAIRN_OK) return NULL;
    f->inputs = inputs;
    dp->forward = f;
    cairn_status st = cairn__team_go(dp, f->used);
    if (st == CAIRN_OK) st = cairn__team_run(dp, f->used, cairn__replica_forward);
    if (st == CAIRN_OK) st = take_back(dp, f);
    if (come_back_with(dp, f, st) == CAIRN_OK) y = gather(dp, f);
    for (int r = 0; r < f->used; r++) cairn__replica_leave(&dp->replicas[r], &f->parts[r]);
    f->inputs = NULL;
    if (!y || !cairn__tensor_wants_grad(y)) { /* no backward will come */
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
    const uint64_t number = cairn__results_number(dp->env);
    if (number != dp->number) cairn__scattered_end(dp); /* of an earlier step */
    dp->number = number;
    y = run_forward(dp, dense, count);
    cairn__trace("parallel", "replicas_forward", dp->num_replicas, 0, begin_ns);
out:
    cairn__free(dense);
    return y;
}

cairn_tensor *cairn_data_parallel_forward(cairn_data_parallel *dp, cairn_tensor *x) {
    return cairn_data_parallel_forward_n(dp, &x, 1);
}
