/* A replica: a thread that waits for jobs, with an environment, a module and, with amp, a context.
 *
 * Between jobs the replica's objects belong to the program's thread, which then destroys what a forward has made. */
#include <stdio.h>
#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "parallel/data_parallel.h"

/* ---- like the model ---- */

static cairn_status check_params(const struct cairn__replica *r, const cairn_param_set *mine) {
    const cairn_param_set *set = r->dp->set;
    REQUIRE(mine->count == set->count, CAIRN_EINVAL, "make returned a module of %zu parameters, the model has %zu",
            mine->count, set->count);
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i], *own = mine->params[i];
        REQUIRE(strcmp(p->name, own->name) == 0, CAIRN_EINVAL,
                "parameter %zu of the module that make returned is '%s', the model's is '%s'", i, own->name, p->name);
        REQUIRE(p->ndim == own->ndim && memcmp(p->shape, own->shape, (size_t)p->ndim * sizeof(p->shape[0])) == 0,
                CAIRN_EINVAL, "parameter '%s' of the module that make returned has another shape than the model's",
                p->name);
        REQUIRE(p->dtype == own->dtype, CAIRN_EINVAL,
                "parameter '%s' is %s in the module that make returned, and %s in the model; give "
                "cairn_data_parallel_options.amp the options of amp_initialize, and no prepared module",
                p->name, cairn_dtype_name(own->dtype), cairn_dtype_name(p->dtype));
    }
    REQUIRE(strcmp(set->precision, mine->precision) == 0, CAIRN_EINVAL,
            "the model was prepared with other amp_options (%s) than cairn_data_parallel_options.amp (%s)",
            set->precision[0] ? set->precision : "none", mine->precision[0] ? mine->precision : "none");
    return CAIRN_OK;
}

static cairn_status check_buffers(const struct cairn__replica *r) {
    const size_t count = cairn_module_num_buffers(r->dp->model);
    REQUIRE(cairn_module_num_buffers(r->module) == count, CAIRN_EINVAL,
            "make returned a module of %zu buffers, the model has %zu", cairn_module_num_buffers(r->module), count);
    for (size_t i = 0; i < count; i++) {
        const char *name = NULL, *own_name = NULL;
        cairn_tensor *b = cairn_module_buffer(r->dp->model, i, &name);
        cairn_tensor *own = cairn_module_buffer(r->module, i, &own_name);
        REQUIRE(strcmp(name, own_name) == 0 && cairn_tensor_dtype(b) == cairn_tensor_dtype(own) &&
                    cairn_tensor_numel(b) == cairn_tensor_numel(own),
                CAIRN_EINVAL, "buffer '%s' of the module that make returned is unlike the model's '%s'", own_name,
                name);
    }
    return CAIRN_OK;
}

/* An environment of one rank, since replicas do not communicate. */
static cairn_status make_env(struct cairn__replica *r) {
    const struct cairn_data_parallel *dp = r->dp;
    const struct cairn_device *d = dp->env->device;
    char device[32];
    cairn_status st = CAIRN_OK;
    snprintf(device, sizeof(device), cairn__is_on_host(d) ? "%s" : "%s:%d", cairn_device_name(d), r->ordinal);
    cairn__trace_set_replica(true);
    st = cairn_env_create(NULL, NULL,
                          cairn_env_options(.device = device, .seed = dp->env->seed, .world_size = 1, .backend = "auto",
                                            .tf32 = d->tf32 ? CAIRN_ON : CAIRN_OFF),
                          &r->env);
    cairn__trace_set_replica(false);
    if (st != CAIRN_OK) return st;
    r->env->stream_rank = r->index;
    if (!r->is_remote) return CAIRN_OK;
    cairn__device_connect(r->env->device, d);
    if (cairn__replicas_return_losses(dp))
        TRY(cairn__device_alloc(r->env->device, CAIRN__HOLDS_STATE, sizeof(*r->loss), (void **)&r->loss));
out:
    return st;
}

static cairn_status begin(struct cairn__replica *r) {
    const struct cairn_data_parallel *dp = r->dp;
    const uint64_t failures = cairn__failures();
    struct amp_options amp;
    cairn_status st = CAIRN_OK;
    TRY(make_env(r));
    r->module = dp->options.make(dp->options.ctx, r->env, r->index);
    if (!r->module && cairn__failures() != failures) return cairn__last_status();
    REQUIRE(r->module, CAIRN_EINVAL, "make returned NULL");
    cairn_param_set *mine = cairn_module_params(r->module);
    if (!mine) return cairn__last_status();
    REQUIRE(cairn__module_env(r->module) == r->env, CAIRN_EINVAL,
            "make returned a module of another environment than the one it was given");
    if (dp->amp) {
        TRY(cairn__options_read(&amp, sizeof(amp), dp->amp, "amp_options"));
        amp.verbosity = -1;
        TRY(amp_initialize(r->env, r->module, NULL, &amp, &r->amp));
    }
    TRY(check_params(r, mine));
    TRY(check_buffers(r));
    TRY(cairn__module_follow_mode(r->module, dp->model));
    for (size_t i = 0; i < mine->count; i++) cairn__param_share(mine->params[i], dp->set->params[i], !r->is_remote);
out:
    return st;
}

void cairn__replica_end(struct cairn__replica *r) {
    amp_destroy(&r->amp);
    if (r->module && cairn__module_env(r->module) == r->env) cairn_module_destroy(&r->module);
    if (r->env) cairn__device_free(r->env->device, r->loss);
    r->loss = NULL;
    cairn_env_destroy(&r->env);
}

/* ---- the thread ---- */

static bool has_work(const void *what) {
    const struct cairn__replica *r = what;
    return atomic_load(&r->posted) != atomic_load(&r->done);
}

static void finish(struct cairn__replica *r, cairn_status st) {
    r->status = st;
    if (st != CAIRN_OK) snprintf(r->why, sizeof(r->why), "%s", cairn_last_error());
    atomic_store(&r->done, atomic_load(&r->posted));
    cairn__team_tell(r->dp);
}

static void give_up(struct cairn__replica *r, cairn_status st) {
    atomic_store(&r->is_gone, true);
    finish(r, st);
}

static void end_early(void *at) {
    give_up(at, cairn__fail(CAIRN_EPEER, "its thread ended within a function of the program's (pthread_exit)"));
}

/* If the environment could not be created, the thread ends at once. */
int cairn__replica_run(int rank, void *of) {
    struct cairn_data_parallel *dp = of;
    struct cairn__replica *r = &dp->replicas[rank % dp->num_replicas];
    cairn_status st = CAIRN_OK;
    pthread_cleanup_push(end_early, r);
    st = begin(r);
    while (r->env) {
        finish(r, st);
        cairn__team_await(dp, has_work, r);
        if (!r->work) break;
        st = r->work(r);
    }
    pthread_cleanup_pop(0);
    if (!r->env) {
        give_up(r, st);
        return 1;
    }
    cairn__replica_end(r);
    return 0;
}

/* ---- a forward ---- */

cairn_status cairn__copy_buffers(struct cairn_device *d, const cairn_module *from, const cairn_module *to) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < cairn_module_num_buffers(from); i++) {
        cairn_tensor *a = cairn_module_buffer(from, i, NULL), *b = cairn_module_buffer(to, i, NULL);
        const size_t nbytes = cairn_tensor_numel(a) * cairn_dtype_nbytes(cairn_tensor_dtype(a));
        TRY(cairn__device_copy(d, cairn__tensor_memory(b), cairn__tensor_memory(a), nbytes));
    }
out:
    return st;
}

static cairn_status follow(const struct cairn__replica *r) {
    const struct cairn_data_parallel *dp = r->dp;
    cairn_param_set *mine = cairn_module_params(r->module);
    cairn_status st = CAIRN_OK;
    r->env->seed = dp->env->seed;
    r->env->next_stream = dp->env->next_stream;
    TRY(cairn__module_follow_mode(r->module, dp->model));
    for (size_t i = 0; i < mine->count; i++) TRY(cairn__param_follow(mine->params[i], dp->set->params[i]));
    TRY(cairn__copy_buffers(r->env->device, dp->model, r->module));
out:
    return st;
}

/* A leaf in the replica's environment over `from`, memory of the model's device, or with a copy of it if the
 * replica is remote. NULL on error. */
static cairn_tensor *bring(const struct cairn__replica *r, cairn_dtype dtype, int ndim, const int64_t *shape,
                           char *from) {
    cairn_tensor *t = NULL;
    if (!r->is_remote) return cairn_tensor_over(r->env, dtype, ndim, shape, NULL, from);
    if (cairn__tensor_empty(r->env, dtype, ndim, shape, &t) != CAIRN_OK) return NULL;
    const size_t nbytes = cairn_tensor_numel(t) * cairn_dtype_nbytes(dtype);
    if (cairn__device_copy(r->env->device, cairn__tensor_memory(t), from, nbytes) != CAIRN_OK) cairn_tensor_destroy(&t);
    return t;
}

/* The replica's rows of every input. */
static cairn_status take_inputs(const struct cairn__replica *r, const struct cairn__scattered *f,
                                struct cairn__scattered_part *part) {
    const int64_t rows = cairn__scattered_rows(f, r->index), first = r->index * f->each;
    for (int i = 0; i < f->count; i++) {
        cairn_tensor *x = f->inputs[i];
        if (!x) continue;
        int64_t shape[CAIRN_MAX_DIMS];
        for (int d = 0; d < cairn_tensor_ndim(x); d++) shape[d] = cairn_tensor_size(x, d);
        shape[0] = rows;
        const size_t row = f->rows > 0 ? cairn_tensor_numel(x) / (size_t)f->rows : 0;
        char *from = (char *)cairn__tensor_values(x) + (size_t)first * row * cairn_dtype_nbytes(cairn_tensor_dtype(x));
        part->inputs[i] = bring(r, cairn_tensor_dtype(x), cairn_tensor_ndim(x), shape, from);
        if (!part->inputs[i]) return cairn__last_status();
        if (!f->records || !cairn__tensor_wants_grad(x)) continue;
        const cairn_status st = cairn_tensor_require_grad(part->inputs[i]);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

static cairn_status check_output(const struct cairn__replica *r, cairn_tensor *y, uint64_t failures) {
    if (!y && cairn__failures() != failures) return cairn__last_status();
    REQUIRE(y, CAIRN_EINVAL, "forward returned NULL");
    REQUIRE(cairn__tensor_env(y) == r->env, CAIRN_EINVAL, "forward returned a tensor of another environment");
    REQUIRE(!cairn__replicas_return_losses(r->dp) || cairn_tensor_numel(y) == 1, CAIRN_EINVAL,
            "forward returned %zu elements; a loss is one (forward_returns_loss)", cairn_tensor_numel(y));
    return CAIRN_OK;
}

/* Writes the loss times its rows, in f64, to the model's memory. */
static cairn_status hand_over_loss(const struct cairn__replica *r, const struct cairn__scattered *f,
                                   const struct cairn__scattered_part *part) {
    struct cairn_device *d = r->env->device;
    const int64_t one = 1;
    double *theirs = &r->dp->losses[r->index], *to = r->is_remote ? r->loss : theirs;
    const double rows = f->rows > 0 ? (double)cairn__scattered_rows(f, r->index) : 1;
    const struct cairn__view y = cairn__view_dense(to, CAIRN_F64, 1, &one),
                             x = cairn__view_dense(cairn__tensor_values(part->output), part->dtype, 1, &one);
    d->math->map(d, CAIRN__MAP_AFFINE, &y, &x, (const double[CAIRN__MAP_NUMBERS]){rows});
    return cairn__device_copy(d, theirs, to, sizeof(*to));
}

cairn_status cairn__replica_forward(struct cairn__replica *r) {
    const struct cairn_data_parallel_options *o = &r->dp->options;
    struct cairn__scattered *f = r->dp->forward;
    struct cairn__scattered_part *part = &f->parts[r->index];
    const cairn_param_set *mine = cairn_module_params(r->module);
    const uint64_t failures = cairn__failures();
    uint64_t backward = 0;
    cairn_status st = CAIRN_OK;
    TRY(follow(r));
    if (!f->records) cairn_no_grad_begin(r->env);
    part->in_no_grad = !f->records;
    TRY(take_inputs(r, f, part));
    part->mark = cairn__inside_begin(r->env);
    part->is_inside = true;
    cairn_tensor *y = o->forward ? o->forward(o->ctx, r->module, part->inputs, f->count, r->index)
                                 : cairn_module_forward_n(r->module, part->inputs, f->count);
    TRY(check_output(r, y, failures));
    y = part->output = cairn_contiguous(y);
    if (!y) return cairn__last_status();
    part->dtype = cairn_tensor_dtype(y);
    part->ndim = cairn_tensor_ndim(y);
    for (int d = 0; d < part->ndim; d++) part->shape[d] = cairn_tensor_size(y, d);
    part->numel = cairn_tensor_numel(y);
    part->wants_grad = cairn__tensor_wants_grad(y);
    if (cairn__replicas_return_losses(r->dp)) TRY(hand_over_loss(r, f, part));
    if (f->records && part->wants_grad) {
        TRY(cairn__backward_reaches(y, &backward));
        for (size_t i = 0; i < mine->count; i++) part->reached[i] = mine->params[i]->reached == backward;
    }
    TRY(cairn__device_check(r->env->device));
out:
    return st;
}

/* ---- by the program's thread ---- */

void cairn__replica_forget(const struct cairn__scattered *f, struct cairn__scattered_part *part) {
    for (int i = 0; i < f->count; i++) cairn_tensor_destroy(&part->inputs[i]);
}

void cairn__replica_leave(struct cairn__replica *r, struct cairn__scattered_part *part) {
    if (part->is_inside) (void)cairn__inside_end(r->env, part->mark, NULL);
    part->is_inside = false;
    if (part->output && !part->in_no_grad) cairn__tensor_spare(part->output);
    if (part->in_no_grad) (void)cairn_no_grad_end(r->env);
    part->in_no_grad = false;
}

/* ---- a backward ---- */

/* A leaf with the rows of the result's gradient that belong to this output; of a loss, the replica's share of the
 * gradient of the mean over the batch. */
static cairn_tensor *take_grad(const struct cairn__replica *r, const struct cairn__scattered *f) {
    const bool is_loss = cairn__replicas_return_losses(r->dp);
    const struct cairn__scattered_part *part = &f->parts[r->index];
    size_t before = 0;
    for (int i = 0; i < r->index && !is_loss; i++) before += f->parts[i].numel;
    cairn_tensor *grad = bring(r, part->dtype, part->ndim, part->shape,
                               (char *)(uintptr_t)r->dp->dy + before * cairn_dtype_nbytes(part->dtype));
    if (!grad || !is_loss) return grad;
    const double share_of_rows = (double)cairn__scattered_rows(f, r->index) / (double)f->rows;
    cairn_no_grad_begin(r->env);
    cairn_tensor *share = cairn_mul_scalar(grad, f->rows > 0 ? share_of_rows : 1), *kept = NULL;
    if (share) kept = cairn_tensor_keep(share);
    (void)cairn_no_grad_end(r->env);
    cairn_tensor_destroy(&grad);
    return kept;
}

static size_t round_up(size_t nbytes) {
    return (nbytes + 63) / 64 * 64;
}

static size_t param_nbytes(const struct cairn__param *p) {
    return p->n * cairn_dtype_nbytes(p->dtype);
}

/* A leaf's gradient is f32, or f64 if the leaf is f64. */
static size_t input_nbytes(const cairn_tensor *x) {
    return cairn_tensor_numel(x) * (cairn_tensor_dtype(x) == CAIRN_F64 ? sizeof(double) : sizeof(float));
}

size_t cairn__replica_grad_nbytes(const struct cairn__replica *r, const struct cairn__scattered *f) {
    const struct cairn__scattered_part *part = &f->parts[r->index];
    size_t nbytes = 0;
    for (size_t i = 0; i < r->dp->set->count; i++)
        nbytes += part->reached[i] ? round_up(param_nbytes(r->dp->set->params[i])) : 0;
    for (int i = 0; i < f->count; i++) {
        const cairn_tensor *x = part->inputs[i];
        nbytes += x && cairn__tensor_wants_grad(x) ? round_up(input_nbytes(x)) : 0;
    }
    return nbytes;
}

/* If the replica is remote: copies *grad to *to in the model's memory, sets *grad to the copy, and advances *to. */
static cairn_status hand_over(const struct cairn__replica *r, const void **grad, size_t nbytes, char **to) {
    cairn_status st = CAIRN_OK;
    if (!r->is_remote || !*grad) return CAIRN_OK;
    TRY(cairn__device_copy(r->env->device, *to, *grad, nbytes));
    *grad = *to;
    *to += round_up(nbytes);
out:
    return st;
}

static cairn_status hand_over_grads(const struct cairn__replica *r, const struct cairn__scattered *f,
                                    const struct cairn__scattered_part *part) {
    const cairn_param_set *mine = cairn_module_params(r->module);
    char *to = r->arrived.data;
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < mine->count; i++) {
        const struct cairn__grad *g = mine->params[i]->gradient;
        part->grads[i] = cairn__grad_is_written(g) ? cairn__grad_memory(g) : NULL;
        TRY(hand_over(r, &part->grads[i], param_nbytes(mine->params[i]), &to));
    }
    for (int i = 0; i < f->count; i++) {
        if (!part->inputs[i]) continue;
        part->input_grads[i] = cairn__leaf_grad(part->inputs[i]);
        TRY(hand_over(r, &part->input_grads[i], input_nbytes(part->inputs[i]), &to));
    }
out:
    return st;
}

cairn_status cairn__replica_backward(struct cairn__replica *r) {
    const struct cairn_data_parallel *dp = r->dp;
    const struct cairn__scattered *f = dp->forward;
    struct cairn__scattered_part *part = &f->parts[r->index];
    const cairn_param_set *mine = cairn_module_params(r->module);
    cairn_status st = CAIRN_OK;
    cairn__params_forget(mine->params, mine->count);
    for (int i = 0; i < f->count; i++) cairn_tensor_clear_grad(part->inputs[i]);
    if (!part->wants_grad) return CAIRN_OK;
    cairn_tensor *grad = take_grad(r, f);
    if (!grad) return cairn__last_status();
    st = cairn__backward_scaled(part->output, grad, dp->retains, dp->scale);
    cairn_tensor_destroy(&grad);
    if (st == CAIRN_OK) st = hand_over_grads(r, f, part);
    return st;
}
