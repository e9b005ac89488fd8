/* cairn_pipeline_step and cairn_pipeline_eval: one batch through the stages.
 *
 * Every rank runs its list of actions in order; an action waits for the message that it needs from a neighbour. Results
 * of a micro-batch count as made inside a module (cairn__inside_begin), so they end with its backward, and the next
 * micro-batch reuses their memory. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/trace.h"
#include "parallel/pipeline.h"

/* One call of step or eval. */
struct run {
    cairn_pipeline *p;
    bool trains, stays_unsynced;
    cairn_tensor *input, *target;
    int64_t rows, split;
    int micro_batches;
    bool wants_loss; /* the caller passed loss; only on the last rank */
    double loss;     /* the mean over the batch; set by read_loss */
    cairn_dtype loss_type;
    cairn_tensor **output; /* NULL = not wanted */
    uint64_t terms;        /* a hash of what all ranks sent in begin */
    bool has_results;      /* the last rank returns a loss or an output */
};

/* ---- before the actions: all ranks compare their calls ---- */

struct call {
    int64_t status;                /* of the rank's own checks */
    int64_t trains, rows, targets; /* targets: rows of the target; -1 = none is given */
    int64_t has_results;
    uint64_t largest; /* bytes of the largest array sent so far */
    uint64_t shapes;  /* a hash of what determines the messages' shapes, except the number of rows */
};

static cairn_status check_rows(const cairn_pipeline *p, const cairn_tensor *t, const char *what, int64_t *rows) {
    REQUIRE(t, CAIRN_EINVAL, "cairn_pipeline_step: the rank with the %s stage gives the %s, which is NULL here",
            cairn__pipeline_has_first(p) ? "first" : "last", what);
    REQUIRE(cairn__tensor_env(t) == p->env, CAIRN_EINVAL,
            "cairn_pipeline_step: the %s belongs to another environment than the modules", what);
    *rows = cairn_tensor_size(t, 0);
    REQUIRE(*rows > 0, CAIRN_EINVAL, "cairn_pipeline_step: the %s has no rows", what);
    return CAIRN_OK;
}

/* The program has ddp_no_sync on. */
static bool is_unsynced(const cairn_pipeline *p) {
    for (int i = 0; i < p->chunks; i++) {
        if (p->ddp[i] && cairn_module_params(p->modules[i])->unsynced) return true;
    }
    return false;
}

static uint64_t hash_shapes(const struct run *r) {
    const cairn_pipeline *p = r->p;
    uint64_t hash = CAIRN__HASH_START;
    for (int i = 0; i < p->chunks; i++) {
        const struct cairn_param_set *set = cairn_module_params(p->modules[i]);
        for (size_t k = 0; k < set->count; k++)
            hash = cairn__hash_word(hash, cairn__param_requires_grad(set->params[k]));
    }
    if (!cairn__pipeline_has_first(p) || !r->input) return hash;
    hash = cairn__hash_word(hash, (uint64_t)cairn_tensor_dtype(r->input));
    hash = cairn__hash_word(hash, cairn__tensor_wants_grad(r->input));
    for (int d = 0; d < cairn_tensor_ndim(r->input); d++)
        hash = cairn__hash_word(hash, (uint64_t)cairn_tensor_size(r->input, d));
    return hash;
}

static cairn_status check_own(const struct run *r, struct call *mine) {
    const cairn_pipeline *p = r->p;
    cairn_status st = CAIRN_OK;
    mine->targets = -1;
    REQUIRE(!r->trains || !p->ties || !is_unsynced(p), CAIRN_ENOTSUP,
            "cairn_pipeline_step: parameters are tied, and ddp_no_sync is on; let every step average its gradients");
    if (cairn__pipeline_has_first(p)) TRY(check_rows(p, r->input, "input", &mine->rows));
    if (!cairn__pipeline_has_last(p)) return CAIRN_OK;
    REQUIRE(p->options.loss || (!r->trains && !r->target), CAIRN_EINVAL,
            "cairn_pipeline_step: the rank with the last stage was given no cairn_pipeline_options.loss");
    if (r->target || r->trains) TRY(check_rows(p, r->target, "target", &mine->targets));
out:
    return st;
}

static cairn_status compare(const struct call *all, int ranks) {
    const struct call *last = &all[ranks - 1];
    for (int i = 1; i < ranks; i++) {
        REQUIRE(all[i].trains == all[0].trains, CAIRN_EINVAL,
                "cairn_pipeline_step: rank 0 called %s and rank %d %s; all must make the same call",
                all[0].trains ? "cairn_pipeline_step" : "cairn_pipeline_eval", i,
                all[i].trains ? "cairn_pipeline_step" : "cairn_pipeline_eval");
    }
    REQUIRE(last->targets < 0 || last->targets == all[0].rows, CAIRN_EINVAL,
            "cairn_pipeline_step: the input has %lld rows and the target %lld", (long long)all[0].rows,
            (long long)last->targets);
    return CAIRN_OK;
}

static cairn_status make_lists(struct run *r) {
    cairn_pipeline *p = r->p;
    const size_t count = (size_t)p->chunks * (size_t)r->micro_batches;
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&p->actions, &p->actions_capacity, 2 * count, sizeof(p->actions[0])));
    TRY(cairn__grow((void **)&p->flights, &p->flights_capacity, count, sizeof(p->flights[0])));
    memset(p->flights, 0, count * sizeof(p->flights[0]));
    cairn__pipeline_plan(p->options.schedule, p->rank, p->ranks, p->chunks, r->micro_batches, p->actions);
    if (r->trains) p->in_flight = cairn__pipeline_plan_in_flight(p->actions, 2 * count);
    const size_t nbytes = (size_t)r->micro_batches * sizeof(double); /* losses of any type */
    if (r->wants_loss && nbytes > p->losses_room) {
        cairn__device_free(p->env->device, p->losses);
        p->losses = NULL;
        p->losses_room = 0;
        TRY(cairn__device_alloc(p->env->device, CAIRN__HOLDS_STATE, nbytes, &p->losses));
        p->losses_room = nbytes;
    }
out:
    return st;
}

static cairn_status begin(struct run *r, const char *name) {
    cairn_pipeline *p = r->p;
    const struct cairn_pipeline_options *o = &p->options;
    struct call all[CAIRN__MAX_RANKS],
        mine = {.trains = r->trains, .has_results = r->wants_loss || r->output, .shapes = hash_shapes(r)};
    uint64_t largest = 0;
    bool failed = false;
    cairn_status st = CAIRN_OK;
    const cairn_status own = check_own(r, &mine);
    mine.status = own;
    mine.largest = p->ahead.largest > p->back.largest ? p->ahead.largest : p->back.largest;
    TRY(cairn__group_exchange(p->channel, all, &mine, sizeof(mine)));
    for (int i = 0; i < p->ranks; i++) failed |= all[i].status != CAIRN_OK;
    if (failed) return cairn__group_agree_on_status(p->channel, name, own); /* with the failed rank's sentence */
    TRY(compare(all, p->ranks));
    for (int i = 0; i < p->ranks; i++) largest = all[i].largest > largest ? all[i].largest : largest;
    TRY(cairn__hop_share(&p->ahead, (size_t)largest));
    TRY(cairn__hop_share(&p->back, (size_t)largest));
    r->rows = all[0].rows;
    r->split = o->split_size ? o->split_size : (r->rows + o->n_microbatches - 1) / o->n_microbatches;
    r->micro_batches = (int)((r->rows + r->split - 1) / r->split);
    r->terms = cairn__hash_word(CAIRN__HASH_START, (uint64_t)all[0].trains);
    r->terms = cairn__hash_word(r->terms, (uint64_t)r->rows);
    for (int i = 0; i < p->ranks; i++) r->terms = cairn__hash_word(r->terms, all[i].shapes);
    r->has_results = all[p->ranks - 1].has_results != 0;
out:
    return st;
}

/* ---- forward ---- */

static int64_t rows_of(const struct run *r, int m) {
    const int64_t left = r->rows - (int64_t)m * r->split;
    return left < r->split ? left : r->split;
}

static cairn_tensor *part_of(const struct run *r, cairn_tensor *batch, int m) {
    const int64_t first = (int64_t)m * r->split;
    return r->micro_batches == 1 ? batch : cairn_slice(batch, 0, first, first + rows_of(r, m), 1);
}

/* What a user's function returned. */
static cairn_status check_made(const cairn_tensor *t, const char *what, uint64_t failures) {
    if (t) return CAIRN_OK;
    if (cairn__failures() != failures) return cairn__last_status();
    return cairn__fail(CAIRN_EINVAL, "pipeline: %s returned NULL", what);
}

static cairn_status send_output(const struct run *r, int chunk, int m, cairn_tensor *y, struct cairn__flight *flight) {
    cairn_pipeline *p = r->p;
    cairn_status st = CAIRN_OK;
    y = cairn_contiguous(y);
    if (!y) return cairn__last_status();
    const bool wants_grad = r->trains && cairn__tensor_wants_grad(y);
    struct cairn__parcel parcel = {.chunk = chunk + (cairn__pipeline_has_last(p) ? 1 : 0),
                                   .micro_batch = m,
                                   .present = 1,
                                   .wants_grad = wants_grad,
                                   .dtype = (int64_t)cairn_tensor_dtype(y),
                                   .ndim = cairn_tensor_ndim(y)};
    for (int d = 0; d < parcel.ndim; d++) parcel.shape[d] = cairn_tensor_size(y, d);
    TRY(cairn__hop_send(&p->ahead, &parcel, cairn__tensor_values(y)));
    cairn__tensor_spare(y);
    if (wants_grad) flight->from = y;
out:
    return st;
}

/* Copies the output's rows into the whole output. Every row of input makes `each` rows, in the input's order. */
static cairn_status keep_output(struct run *r, int m, cairn_tensor *y) {
    cairn_status st = CAIRN_OK;
    const cairn_dtype dtype = cairn_tensor_dtype(y);
    int64_t shape[CAIRN_MAX_DIMS];
    void *to = NULL;
    y = cairn_contiguous(y);
    if (!y) return cairn__last_status();
    const int ndim = cairn_tensor_ndim(y);
    for (int d = 0; d < ndim; d++) shape[d] = cairn_tensor_size(y, d);
    REQUIRE(ndim > 0 && shape[0] % rows_of(r, m) == 0, CAIRN_EINVAL,
            "cairn_pipeline_eval: an output of %lld rows came from %lld rows of input; there must be a number for each",
            (long long)(ndim > 0 ? shape[0] : 0), (long long)rows_of(r, m));
    const int64_t each = shape[0] / rows_of(r, m);
    shape[0] = each * r->rows;
    if (m == 0) TRY(cairn__tensor_empty(r->p->env, dtype, ndim, shape, r->output));
    const size_t n = cairn_tensor_numel(y), rows = (size_t)(each * rows_of(r, m)), row = rows > 0 ? n / rows : 0;
    REQUIRE(cairn_tensor_dtype(*r->output) == dtype && cairn_tensor_numel(*r->output) == row * (size_t)shape[0] &&
                cairn_tensor_size(*r->output, 0) == shape[0],
            CAIRN_EINVAL, "cairn_pipeline_eval: the output of micro-batch %d has another shape or type than the first",
            m);
    TRY(cairn__tensor_open(*r->output, "cairn_pipeline_eval", &to));
    TRY(cairn__device_copy(r->p->env->device,
                           (char *)to + (size_t)each * (size_t)m * (size_t)r->split * row * cairn_dtype_nbytes(dtype),
                           cairn__tensor_values(y), n * cairn_dtype_nbytes(dtype)));
out:
    return st;
}

/* Computes the mean over the batch. Runs after all work has been queued, because it waits for the GPU. */
static cairn_status read_loss(struct run *r) {
    cairn_status st = CAIRN_OK;
    cairn_tensor *losses = NULL;
    double *values = NULL, sum = 0;
    if (!r->wants_loss) return CAIRN_OK;
    losses = cairn_tensor_over(r->p->env, r->loss_type, 1, (int64_t[]){r->micro_batches}, NULL, r->p->losses);
    if (!losses) return cairn__last_status();
    TRY(cairn__calloc((size_t)r->micro_batches, sizeof(values[0]), (void **)&values));
    TRY(cairn_tensor_read_as(losses, CAIRN_F64, values, (size_t)r->micro_batches));
    for (int m = 0; m < r->micro_batches; m++) sum += (double)rows_of(r, m) / (double)r->rows * values[m];
    r->loss = sum;
out:
    cairn__free(values);
    cairn_tensor_destroy(&losses);
    return st;
}

static cairn_status finish_output(struct run *r, int m, cairn_tensor *y, struct cairn__flight *flight) {
    const cairn_pipeline *p = r->p;
    const double part = (double)rows_of(r, m) / (double)r->rows;
    const uint64_t failures = cairn__failures();
    cairn_status st = CAIRN_OK;
    if (r->output) TRY(keep_output(r, m, y));
    if (!r->target) return CAIRN_OK;
    cairn_tensor *target = part_of(r, r->target, m);
    cairn_tensor *loss = target ? p->options.loss(p->options.ctx, y, target, m) : NULL;
    TRY(check_made(loss, "the loss function", failures));
    REQUIRE(cairn_tensor_numel(loss) == 1, CAIRN_EINVAL,
            "pipeline: the loss function returned %zu elements; it must be one", cairn_tensor_numel(loss));
    if (r->wants_loss) {
        const cairn_dtype dtype = cairn_tensor_dtype(loss);
        const size_t nbytes = cairn_dtype_nbytes(dtype);
        if (m == 0) r->loss_type = dtype;
        REQUIRE(dtype == r->loss_type, CAIRN_EINVAL,
                "pipeline: the loss of micro-batch %d is %s and that of the first %s", m, cairn_dtype_name(dtype),
                cairn_dtype_name(r->loss_type));
        TRY(cairn__device_copy(p->env->device, (char *)p->losses + (size_t)m * nbytes, cairn__tensor_values(loss),
                               nbytes));
    }
    if (!r->trains) return CAIRN_OK;
    flight->from = r->micro_batches == 1 ? loss : cairn_mul_scalar(loss, part);
    if (!flight->from) return cairn__last_status();
out:
    return st;
}

static cairn_status run_forward(struct run *r, int chunk, int m) {
    cairn_pipeline *p = r->p;
    struct cairn__flight *flight = cairn__pipeline_flight(p, chunk, r->micro_batches, m);
    const bool is_first = cairn__pipeline_has_first(p) && chunk == 0;
    const bool is_last = cairn__pipeline_has_last(p) && chunk == p->chunks - 1;
    const uint64_t failures = cairn__failures(), begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    const size_t mark = cairn__inside_begin(p->env);
    cairn_tensor *x = is_first ? part_of(r, r->input, m) : cairn__pipeline_receive(p, chunk, m, flight);
    cairn_tensor *y = NULL;
    if (x && p->options.forward) y = p->options.forward(p->options.ctx, p->modules[chunk], x, m);
    else if (x) y = p->ddp[chunk] ? ddp_forward(p->ddp[chunk], x) : cairn_module_forward(p->modules[chunk], x);
    TRY(check_made(y, "a stage's forward", failures));
    TRY(is_last ? finish_output(r, m, y, flight) : send_output(r, chunk, m, y, flight));
out:
    (void)cairn__inside_end(p->env, mark, NULL);
    cairn__trace("parallel", "forward", m, 0, begin_ns);
    return st;
}

/* ---- backward ---- */

/* Receives the gradient of the stage's output: *grad is a leaf over the pipeline's memory, or NULL if no gradient
 * reached the output. */
static cairn_status receive_grad(cairn_pipeline *p, int chunk, int m, cairn_tensor **grad) {
    struct cairn__parcel parcel;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    *grad = NULL;
    TRY(cairn__hop_receive(&p->back, &parcel));
    cairn__trace("parallel", "wait", m, 0, begin_ns);
    REQUIRE(
        parcel.chunk == chunk && parcel.micro_batch == m, CAIRN_EINTERNAL,
        "pipeline: the gradient of micro-batch %lld and module %lld arrived where that of micro-batch %d and module "
        "%d was expected",
        (long long)parcel.micro_batch, (long long)parcel.chunk, m, chunk);
    const size_t nbytes = cairn__parcel_nbytes(&parcel);
    if (nbytes > p->grad_room) {
        cairn__device_free(p->env->device, p->grad);
        p->grad = NULL;
        p->grad_room = 0;
        TRY(cairn__device_alloc(p->env->device, CAIRN__HOLDS_GRADS, nbytes, &p->grad));
        p->grad_room = nbytes;
    }
    TRY(cairn__hop_receive_values(&p->back, &parcel, p->grad));
    if (!parcel.present) return CAIRN_OK;
    *grad = cairn_tensor_over(p->env, (cairn_dtype)parcel.dtype, (int)parcel.ndim, parcel.shape, NULL, p->grad);
    if (!*grad) return cairn__last_status();
out:
    return st;
}

/* With several modules amp would count each module's backward as a micro-batch, so it gets the micro-batch's number. */
static cairn_status backward_from(const cairn_pipeline *p, cairn_tensor *from, cairn_tensor *grad, int m) {
    cairn_optimizer *optimizer = p->options.optimizer;
    if (p->options.amp)
        return amp_backward_with(p->options.amp, from,
                                 amp_loss_options(.num_optimizers = 1, .optimizers = &optimizer, .grad = grad,
                                                  .micro_batch = p->chunks > 1 ? m + 1 : 0));
    return cairn_backward_with(from, cairn_backward_options(.grad = grad));
}

static cairn_status run_backward(struct run *r, int chunk, int m) {
    cairn_pipeline *p = r->p;
    struct cairn__flight *flight = cairn__pipeline_flight(p, chunk, r->micro_batches, m);
    const bool is_last = cairn__pipeline_has_last(p) && chunk == p->chunks - 1;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_tensor *grad = NULL;
    cairn_status st = CAIRN_OK;
    if (flight->from && !is_last) TRY(receive_grad(p, chunk, m, &grad));
    if (flight->from && (is_last || grad)) TRY(backward_from(p, flight->from, grad, m));
    if (flight->owes_grad) TRY(cairn__pipeline_answer_none(p, chunk, m));
out:
    cairn_tensor_destroy(&grad);
    flight->from = NULL;
    cairn__trace("parallel", "backward", m, 0, begin_ns);
    return st;
}

/* ---- replicas ---- */

/* Keeps gradients unsynced until the last micro-batch's backward, which averages their sum over the replicas; longer if
 * the program has ddp_no_sync on. */
static cairn_status keep_unsynced(const struct run *r, int chunk, bool on) {
    const cairn_pipeline *p = r->p;
    const bool is_one = r->micro_batches == 1 || !p->ddp[chunk];
    return is_one || r->stays_unsynced ? CAIRN_OK : ddp_no_sync(p->ddp[chunk], on);
}

/* ---- the whole call ---- */

static cairn_status run_actions(struct run *r) {
    cairn_pipeline *p = r->p;
    /* What all ranks sent in begin determines the messages of the call. */
    const bool is_known = r->terms == p->terms;
    const size_t count = 2 * (size_t)p->chunks * (size_t)r->micro_batches;
    cairn_status st = CAIRN_OK;
    p->terms = 0;
    cairn__hop_begin(&p->ahead, is_known);
    cairn__hop_begin(&p->back, is_known);
    for (size_t i = 0; i < count; i++) {
        const struct cairn__action *a = &p->actions[i];
        if (a->is_backward && !r->trains) continue;
        if (a->is_backward && a->micro_batch == r->micro_batches - 1) TRY(keep_unsynced(r, a->chunk, false));
        TRY(a->is_backward ? run_backward(r, a->chunk, a->micro_batch) : run_forward(r, a->chunk, a->micro_batch));
    }
    TRY(read_loss(r)); /* this waits; the flushes return what failed meanwhile */
    TRY(cairn__hop_flush(&p->ahead));
    TRY(cairn__hop_flush(&p->back));
    p->terms = r->terms;
out:
    return st;
}

/* Between GPUs, before a result is returned. A stream that waits for a lane continues when the lane is aborted, and its
 * results are then wrong. So each rank waits for its GPU, checks its lanes, and only then enters the barrier, which a
 * failed rank never enters. */
static cairn_status end_together(const struct run *r) {
    cairn_pipeline *p = r->p;
    cairn_status st = CAIRN_OK;
    if (!p->ahead.has_lanes || !r->has_results) return CAIRN_OK;
    TRY(cairn__device_synchronize(p->env->device));
    TRY(cairn__lanes_check(&p->ahead));
    TRY(cairn__lanes_check(&p->back));
    TRY(cairn_barrier(p->channel));
out:
    return st;
}

/* Ends every group in which other ranks may be waiting: in either channel, or, after their actions, for tied gradients
 * or before their optimizer's step. */
static cairn_status fail(cairn_pipeline *p, cairn_status st) {
    if (st != CAIRN_EPEER && st != CAIRN_ETIMEOUT) cairn__fail_in(p->name);
    if (p->partner_group) st = cairn__group_kill(p->partner_group, st);
    for (struct cairn__tie *t = p->ties; t; t = t->next) st = cairn__group_kill(t->group, st);
    if (p->ahead.has_lanes) st = cairn__group_kill(p->channel, st);
    st = cairn__hop_kill(&p->ahead, st);
    return cairn__hop_kill(&p->back, st);
}

static cairn_status fail_step(struct run *r, cairn_status st) {
    cairn_pipeline *p = r->p;
    char why[1024];
    snprintf(why, sizeof(why), "%s", cairn_last_error());
    for (int i = 0; i < p->chunks; i++) (void)keep_unsynced(r, i, false);
    st = cairn__fail(st, "%s", why);
    for (int i = 0; i < p->chunks; i++) cairn__param_set_make_incomplete(cairn_module_params(p->modules[i]));
    return fail(p, st);
}

static cairn_status run_step(struct run *r) {
    cairn_pipeline *p = r->p;
    cairn_status st = CAIRN_OK;
    TRY(make_lists(r));
    TRY(cairn__ties_begin(p));
    r->stays_unsynced = is_unsynced(p);
    for (int i = 0; i < p->chunks; i++) TRY(keep_unsynced(r, i, true));
    TRY(run_actions(r));
    TRY(cairn__ties_sum(p));
    if (!p->options.optimizer) TRY(cairn_release_results(p->env));
    TRY(end_together(r));
out:
    return st;
}

cairn_status cairn_pipeline_step(cairn_pipeline *pipeline, cairn_tensor *input, cairn_tensor *target, double *loss) {
    REQUIRE(pipeline, CAIRN_EINVAL, "cairn_pipeline_step: pipeline is NULL");
    const bool has_last = cairn__pipeline_has_last(pipeline);
    struct run r = {.p = pipeline,
                    .trains = true,
                    .input = input,
                    .target = has_last ? target : NULL,
                    .wants_loss = has_last && target && loss};
    cairn_status st = CAIRN_OK;
    TRY(begin(&r, "cairn_pipeline_step"));
    st = run_step(&r);
    if (st != CAIRN_OK) return fail_step(&r, st);
    if (r.wants_loss) *loss = r.loss;
out:
    return st;
}

cairn_status cairn_pipeline_eval(cairn_pipeline *pipeline, cairn_tensor *input, cairn_tensor *target, double *loss,
                                 cairn_tensor **output) {
    REQUIRE(pipeline, CAIRN_EINVAL, "cairn_pipeline_eval: pipeline is NULL");
    cairn_tensor *made = NULL;
    const bool has_last = cairn__pipeline_has_last(pipeline);
    struct run r = {.p = pipeline,
                    .input = input,
                    .target = has_last ? target : NULL,
                    .wants_loss = has_last && target && loss,
                    .output = output && has_last ? &made : NULL};
    cairn_status st = CAIRN_OK;
    TRY(begin(&r, "cairn_pipeline_eval"));
    cairn_no_grad_begin(pipeline->env);
    st = make_lists(&r);
    if (st == CAIRN_OK) st = run_actions(&r);
    const cairn_status ended = cairn_no_grad_end(pipeline->env);
    if (st == CAIRN_OK) st = ended;
    if (st == CAIRN_OK) st = end_together(&r);
    if (st != CAIRN_OK) cairn_tensor_destroy(&made);
    if (st != CAIRN_OK) return fail(pipeline, st);
    if (r.wants_loss) *loss = r.loss;
    if (r.output) *output = made;
out:
    return st;
}
