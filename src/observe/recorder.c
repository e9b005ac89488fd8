/* The recorder: watches what nn and param compute (param/watcher.h) and sends counts of exponents as events. Between
 * calls it keeps only names of modules, whose numbers nn keeps with the results until their gradients arrive. */
#include "observe/recorder.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "observe/exponents.h"
#include "param/watcher.h"

enum { NAME = 640, EVERY = 10 };

struct cairn_recorder {
    struct cairn__watcher watcher;
    cairn_env *env; /* NULL = the environment has ended */
    int64_t every;
    size_t sample;
    bool gradients, results, failed;
    bool is_environments; /* owned by the environment */

    struct result {
        char *path;
        size_t set; /* number of its parameters' set */
        int64_t step;
    } * names;
    size_t num_names, capacity;
    uint64_t first; /* the number of names[0]; different in each recorder, since results may outlive one */

    struct cairn_exponents counts; /* of the tensor being counted */
    struct cairn_exponents_buckets buckets;
};

/* ---- what is recorded ---- */

/* The number of live sets created before this one. */
static size_t number_of(const struct cairn_param_set *set) {
    size_t number = 0;
    for (const struct cairn_param_set *s = set->next; s; s = s->next) number++;
    return number;
}

static int64_t step_of_param(const struct cairn__param *p) {
    return p->steps ? (int64_t)*p->steps + 1 : (int64_t)p->set->backward;
}

static int64_t step_of_set(const struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        if (set->params[i]->steps) return step_of_param(set->params[i]);
    }
    return (int64_t)set->backward + 1; /* the next backward */
}

static bool is_recorded(const struct cairn_recorder *r, int64_t step) {
    return !r->failed && cairn__trace_on() && (step - 1) % r->every == 0;
}

/* ---- sending ---- */

static void fail(struct cairn_recorder *r) {
    r->failed = true;
    cairn__log(CAIRN_LOG_ERROR, "exponents are recorded no more: %s", cairn_last_error());
}

/* Writes "grad/0.weight", or "grad@1/0.weight" for sets other than the first. */
static void put_name(char text[NAME], const char *what, size_t set, const char *name) {
    if (set) {
        snprintf(text, NAME, "%s@%zu/%s", what, set, name);
    } else {
        snprintf(text, NAME, "%s/%s", what, name);
    }
}

static cairn_status send(struct cairn_recorder *r, const char *name, int64_t step, const struct cairn__watched *v,
                         cairn_dtype values, const struct cairn__loss_scale *scale) {
    struct cairn__loss_scale cell = {1, 1};
    struct cairn_histogram h = *cairn_histogram();
    cairn_status st = CAIRN_OK;
    r->counts = (struct cairn_exponents)CAIRN_EXPONENTS_INIT;
    TRY(cairn__exponents_count(r->env->device, v->x, v->n, v->dtype, r->sample, &r->counts));
    if (scale) TRY(cairn__device_download(r->env->device, &cell, scale, sizeof(cell)));
    TRY(cairn_exponents_histogram(&r->counts, (double)cell.scale, &r->buckets, &h));
    h.dtype = values;
    cairn__trace_send(&(struct cairn__event){
        .room = "observe", .what = name, .index = step, .kind = CAIRN__HISTOGRAM, .histogram = &h});
out:
    return st;
}

/* ---- the watcher's functions ---- */

static bool wants_results(void *ctx, const struct cairn_param_set *params) {
    const struct cairn_recorder *r = ctx;
    return r->results && is_recorded(r, step_of_set(params));
}

/* The number of a name, which is added if new; 0 = out of memory. */
static uint64_t number_name(struct cairn_recorder *r, const char *path, size_t set, int64_t step) {
    size_t i = 0;
    while (i < r->num_names && (r->names[i].set != set || strcmp(r->names[i].path, path) != 0)) i++;
    if (i == r->num_names) {
        char *copy = NULL;
        const size_t nbytes = strlen(path) + 1;
        if (cairn__grow((void **)&r->names, &r->capacity, i + 1, sizeof(r->names[0])) != CAIRN_OK ||
            cairn__alloc(nbytes, (void **)&copy) != CAIRN_OK)
            return 0;
        memcpy(copy, path, nbytes);
        r->names[r->num_names++] = (struct result){.path = copy, .set = set};
    }
    r->names[i].step = step;
    return r->first + i;
}

static uint64_t result(void *ctx, const struct cairn_param_set *params, const char *path, const char *kind,
                       const struct cairn__watched *values) {
    struct cairn_recorder *r = ctx;
    char name[NAME];
    const int64_t step = step_of_set(params);
    const size_t set = number_of(params);
    if (!path[0]) path = kind;
    put_name(name, "activation", set, path);
    if (values && send(r, name, step, values, values->dtype, NULL) != CAIRN_OK) fail(r);
    return number_name(r, path, set, step);
}

static void result_grad(void *ctx, uint64_t number, const struct cairn__watched *values,
                        const struct cairn__loss_scale *scale) {
    struct cairn_recorder *r = ctx;
    char name[NAME];
    if (number < r->first || number - r->first >= r->num_names || r->failed) return;
    const struct result *of = &r->names[number - r->first];
    put_name(name, "activation_grad", of->set, of->path);
    if (send(r, name, of->step, values, values->dtype, scale) != CAIRN_OK) fail(r);
}

static void send_grad(struct cairn_recorder *r, const char *what, const struct cairn__param *p) {
    const struct cairn__grad_view g = cairn__grad_peek(p->gradient);
    const struct cairn__watched values = {g.x, g.n, g.dtype};
    char name[NAME];
    put_name(name, what, number_of(p->set), p->name);
    if (send(r, name, step_of_param(p), &values, g.values, p->set->scale) != CAIRN_OK) fail(r);
}

/* A dropped unsynced gradient (spares_unsynced) is in no slot. */
static void grad_ready(void *ctx, const struct cairn__param *p) {
    struct cairn_recorder *r = ctx;
    if (!r->gradients || !is_recorded(r, step_of_param(p)) || !cairn__grad_is_written(p->gradient)) return;
    send_grad(r, p->set->listener ? "grad_before" : "grad", p);
}

/* The reduction may produce gradients for parameters that this rank's backward did not reach. */
static void grads_settled(void *ctx, const struct cairn_param_set *set) {
    struct cairn_recorder *r = ctx;
    for (size_t i = 0; r->gradients && i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        if (is_recorded(r, step_of_param(p)) && cairn__grad_is_written(p->gradient)) send_grad(r, "grad", p);
    }
}

/* ---- making and ending ---- */

cairn_status cairn_recorder_create(cairn_env *env, const struct cairn_recorder_options *options, cairn_recorder **out) {
    static atomic_uint_fast64_t made;
    struct cairn_recorder_options o = {.struct_size = sizeof(o)};
    struct cairn_recorder *r = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(env && out, CAIRN_EINVAL, "cairn_recorder_create: env and out must be set");
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_recorder_options"));
    REQUIRE(o.every >= 0, CAIRN_EINVAL, "cairn_recorder_create: every is %lld; it must be at least 1 (0 = %d)",
            (long long)o.every, (int)EVERY);
    REQUIRE(!cairn__watcher_of(env), CAIRN_ESTATE,
            "cairn_recorder_create: the environment has a recorder already, which CAIRN_LAB makes too");
    TRY(cairn__calloc(1, sizeof(*r), (void **)&r));
    r->watcher = (struct cairn__watcher){.ctx = r,
                                         .wants_results = wants_results,
                                         .result = result,
                                         .result_grad = result_grad,
                                         .grad_ready = grad_ready,
                                         .grads_settled = grads_settled};
    r->env = env;
    r->every = o.every ? o.every : EVERY;
    r->sample = o.sample ? o.sample : 1;
    r->gradients = o.gradients != CAIRN_OFF;
    r->results = o.results != CAIRN_OFF;
    r->first = ((uint64_t)atomic_fetch_add(&made, 1) << 32) + 1;
    cairn__env_watch(env, &r->watcher);
    *out = r;
out:
    return st;
}

void cairn_recorder_destroy(cairn_recorder **recorder) {
    if (!recorder || !*recorder) return;
    struct cairn_recorder *r = *recorder;
    if (r->env) cairn__env_watch(r->env, NULL);
    for (size_t i = 0; i < r->num_names; i++) cairn__free(r->names[i].path);
    cairn__free(r->names);
    cairn__free(r);
    *recorder = NULL;
}

void cairn__recorder_begin(cairn_env *env, int64_t every) {
    cairn_recorder *r = NULL;
    if (cairn_recorder_create(env, cairn_recorder_options(.every = every), &r) == CAIRN_OK) {
        r->is_environments = true;
    } else {
        cairn__log(CAIRN_LOG_ERROR, "exponents are not recorded: %s", cairn_last_error());
    }
}

void cairn__recorder_end(cairn_env *env) {
    const struct cairn__watcher *w = cairn__watcher_of(env);
    cairn_recorder *r = w ? w->ctx : NULL;
    if (!r) return;
    cairn__env_watch(env, NULL);
    r->env = NULL;
    if (r->is_environments) cairn_recorder_destroy(&r);
}
