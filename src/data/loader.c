/* Loaders. Batches go through a ring of slots. Only the caller of cairn_loader_next uses the sampler: it writes the
 * indices of examples into free slots, and takes the oldest slot's batch when that is ready. Workers claim wanted slots
 * in order, read each example into its own memory, and collate the examples into the slot's fields. One worker makes a
 * batch, the ring keeps the order, and workers use neither sampler nor device.
 *
 * The ring is filled from the sampler's position. If the sampler is not where the last batch left it, the program has
 * moved it, and prefetched batches are discarded. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cairn/loader.h"
#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "core/subnormals.h"
#include "core/trace.h"
#include "data/dataset.h"
#include "data/fields.h"
#include "data/sampler.h"
#include "device/env.h"
#include "nn/hooks.h"

enum { MAX_WORKERS = 256, MAX_PREFETCH = 1 << 16, MAX_BATCH = 1 << 24, MAX_ERROR = 1024 };

/* A slot for a batch. Its indices and epoch are written before it is wanted, the rest before it is ready. */
struct slot {
    bool is_ready; /* under lock */
    int64_t epoch;
    size_t n;
    int64_t *indices; /* [n] */
    cairn_fields *fields;
    cairn_status status;
    char error[MAX_ERROR];
    /* For the caller: the upload until which the device may read the fields' pinned memory; 0 = none. */
    uint64_t ticket;
};

/* A reader: a worker's thread, or the caller. */
struct reader {
    cairn_loader *loader;
    pthread_t thread;
    cairn_fields **examples; /* [batch]; NULL after those needed so far */
    int log_rank;            /* of the thread that created the loader, which may be a rank */
};

struct cairn_loader {
    cairn_env *env;
    const cairn_dataset *dataset;
    cairn_sampler *sampler;
    size_t batch;
    int depth;
    bool drops_last;
    uint64_t seed;
    cairn_collate_fn collate;
    void *collate_ctx;
    unsigned forks; /* value of cairn__forks() when the threads were started */

    struct slot *slots;             /* [num_slots]; batch b is in slot b mod num_slots */
    int num_slots;                  /* depth, plus one for the batch returned last if the device copies later */
    bool pins;                      /* batches are in pinned memory */
    uint64_t head, tail;            /* next batch to return, and to want; head is the caller's, tail is under lock */
    int64_t epoch, position, ahead; /* the sampler's, after the batch before head; ahead: after the one before tail */

    struct reader *readers; /* [workers], or the caller's */
    int workers, started;
    pthread_mutex_t lock;
    pthread_cond_t wanted, ready;
    uint64_t claimed; /* next batch for a worker; under lock, as reading and quit are */
    int reading;      /* workers that read a batch */
    bool quit;
    atomic_bool cancelled; /* batches being read are no longer wanted */

    struct cairn_batch out;
    cairn_tensor *tensors[CAIRN_MAX_FIELDS];
    int64_t *indices; /* [batch], for out */
};

/* ---- reading a batch ---- */

static cairn_status keep_error(struct slot *s, cairn_status st, const char *what) {
    snprintf(s->error, sizeof(s->error), "%s%s", what, cairn_last_error());
    return st;
}

static cairn_status read_example(struct reader *r, struct slot *s, size_t i) {
    const cairn_loader *l = r->loader;
    struct cairn_random random;
    char what[48];
    cairn_status st = CAIRN_OK;
    if (!r->examples[i]) TRY(cairn_fields_create(&r->examples[i]));
    cairn_fields_clear(r->examples[i]);
    cairn_random_begin(&random, l->seed, s->epoch, s->indices[i]);
    TRY(cairn_dataset_read(l->dataset, s->indices[i], &random, r->examples[i]));
    return CAIRN_OK;
out:
    snprintf(what, sizeof(what), "example %" PRId64 ": ", s->indices[i]);
    return keep_error(s, st, what);
}

static cairn_status collate(struct reader *r, struct slot *s) {
    const cairn_loader *l = r->loader;
    const uint64_t failures = cairn__failures();
    char what[96];
    cairn_fields_clear(s->fields);
    const cairn_status st = l->collate(l->collate_ctx, (const cairn_fields *const *)r->examples, s->n, s->fields);
    if (st == CAIRN_OK) return st;
    if (cairn__failures() == failures)
        (void)cairn__fail(st, "the collate function returned %s without a sentence, which cairn_dataset_fail writes",
                          cairn_status_name(st));
    snprintf(what, sizeof(what), "the batch of examples %" PRId64 " to %" PRId64 ": ", s->indices[0],
             s->indices[s->n - 1]);
    return keep_error(s, st, what);
}

/* Stops early if the batch is cancelled. */
static void read_batch(struct reader *r, struct slot *s) {
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    s->status = CAIRN_OK;
    for (size_t i = 0; i < s->n && s->status == CAIRN_OK; i++) {
        if (atomic_load_explicit(&r->loader->cancelled, memory_order_relaxed)) return;
        s->status = read_example(r, s, i);
    }
    if (s->status == CAIRN_OK) s->status = collate(r, s);
    if (begin_ns) cairn__trace("data", "read", (int64_t)s->n, 0, begin_ns);
}

static void *work(void *argument) {
    struct reader *r = argument;
    cairn_loader *l = r->loader;
    (void)pthread_setname_np(pthread_self(), "cairn-loader");
    cairn__log_set_thread_rank(r->log_rank);
    (void)cairn__keep_subnormals();
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->quit && l->claimed == l->tail) pthread_cond_wait(&l->wanted, &l->lock);
        if (l->quit) break;
        struct slot *s = &l->slots[l->claimed++ % (uint64_t)l->num_slots];
        l->reading++;
        pthread_mutex_unlock(&l->lock);
        read_batch(r, s);
        pthread_mutex_lock(&l->lock);
        l->reading--;
        s->is_ready = true;
        pthread_cond_signal(&l->ready); /* only the caller waits for it */
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- the ring, by the caller ---- */

/* Replaces memory that workers allocated on the host by pinned memory, for later batches. Without pinned memory uploads
 * copy once more. */
static void pin(cairn_loader *l, struct cairn__field_memory *m) {
    struct cairn_device *d = l->env->device;
    if (!l->pins || m->nbytes == 0) return;
    cairn__device_free_pinned(d, m->pinned);
    m->pinned = NULL;
    m->pinned_nbytes = 0;
    l->pins = cairn__device_alloc_pinned(d, m->nbytes, &m->pinned) == CAIRN_OK;
    if (!l->pins) return;
    m->pinned_nbytes = m->nbytes;
    cairn__free(m->data);
    m->data = NULL;
    m->nbytes = 0;
}

/* Wants batches for all free slots, up to the end of the epoch. */
static cairn_status want(cairn_loader *l) {
    bool is_new = false;
    cairn_status st = CAIRN_OK;
    while (l->tail - l->head < (uint64_t)l->depth) {
        struct slot *s = &l->slots[l->tail % (uint64_t)l->num_slots];
        TRY(cairn__device_wait_upload(l->env->device, s->ticket)); /* until the device has read the slot */
        s->ticket = 0;
        for (int i = 0; i < CAIRN_MAX_FIELDS; i++) pin(l, &s->fields->memory[i]);
        s->n = cairn__sampler_peek(l->sampler, l->ahead, s->indices, l->batch);
        if (s->n == 0 || (l->drops_last && s->n < l->batch)) break;
        s->epoch = l->epoch;
        l->ahead += (int64_t)s->n;
        pthread_mutex_lock(&l->lock);
        s->is_ready = false;
        l->tail++;
        pthread_mutex_unlock(&l->lock);
        is_new = true;
    }
out:
    if (is_new && l->workers > 0) pthread_cond_broadcast(&l->wanted);
    return st;
}

/* Discards prefetched batches, and waits for those being read. */
static void restart(cairn_loader *l) {
    atomic_store(&l->cancelled, true);
    pthread_mutex_lock(&l->lock);
    l->claimed = l->tail;
    while (l->reading > 0) pthread_cond_wait(&l->ready, &l->lock);
    l->claimed = l->tail = l->head = 0;
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->cancelled, false);
    l->epoch = cairn_sampler_epoch(l->sampler);
    l->position = l->ahead = cairn_sampler_position(l->sampler);
}

static void wait_for(cairn_loader *l, struct slot *s) {
    if (l->workers == 0) {
        if (!s->is_ready) read_batch(&l->readers[0], s);
        s->is_ready = true;
        return;
    }
    pthread_mutex_lock(&l->lock);
    const uint64_t begin = s->is_ready || !cairn__trace_on() ? 0 : cairn__now_ns();
    while (!s->is_ready) pthread_cond_wait(&l->ready, &l->lock);
    pthread_mutex_unlock(&l->lock);
    if (begin) cairn__trace("data", "wait", l->position, 0, begin);
}

/* ---- returning batches ---- */

static bool has_type_of(const cairn_tensor *t, const struct cairn_field *f) {
    bool is_same = cairn_tensor_dtype(t) == f->dtype && cairn_tensor_ndim(t) == f->ndim;
    for (int d = 0; is_same && d < f->ndim; d++) is_same = cairn_tensor_size(t, d) == f->shape[d];
    return is_same;
}

static cairn_status hand_out_field(cairn_loader *l, struct slot *s, int i) {
    const struct cairn_field *f = &s->fields->fields[i];
    cairn_tensor **t = &l->tensors[i];
    uint64_t ticket;
    cairn_status st = CAIRN_OK;
    REQUIRE(f->dtype != CAIRN_U8, CAIRN_EINVAL,
            "field %d of the batch is u8, and tensors have no such elements; read i32, or f32", i);
    if (*t && !has_type_of(*t, f)) cairn_tensor_destroy(t);
    if (!*t) TRY(cairn__tensor_empty(l->env, f->dtype, f->ndim, f->shape, t));
    if (f->data == s->fields->memory[i].pinned) {
        TRY(cairn__device_upload_pinned(l->env->device, cairn__tensor_memory(*t), f->data, f->nbytes, &ticket));
        if (ticket) s->ticket = ticket;
    } else {
        TRY(cairn__device_upload(l->env->device, cairn__tensor_memory(*t), f->data, f->nbytes));
    }
out:
    return st;
}

static cairn_status hand_out(cairn_loader *l, struct slot *s) {
    cairn_status st = CAIRN_OK;
    if (s->status != CAIRN_OK) TRY(cairn__fail(s->status, "%s", s->error));
    for (int i = 0; i < s->fields->count; i++) TRY(hand_out_field(l, s, i));
    for (int i = s->fields->count; i < CAIRN_MAX_FIELDS; i++) cairn_tensor_destroy(&l->tensors[i]);
    memcpy(l->indices, s->indices, s->n * sizeof(l->indices[0]));
    l->out = (struct cairn_batch){.n = s->n, .count = s->fields->count, .tensors = l->tensors, .indices = l->indices};
out:
    return st;
}

static void move_to(cairn_loader *l, int64_t position) {
    (void)cairn_sampler_seek(l->sampler, position); /* cannot fail: position is within the epoch */
    l->position = position;
}

cairn_status cairn_loader_next(cairn_loader *l, const struct cairn_batch **batch) {
    cairn_status st = CAIRN_OK;
    REQUIRE(l && batch, CAIRN_EINVAL, "cairn_loader_next: loader and batch must be set");
    REQUIRE(l->forks == cairn__forks(), CAIRN_ESTATE,
            "cairn_loader_next: called in a child of fork, which has none of the loader's threads; make a loader in "
            "the child");
    TRY(cairn__device_refuse_recording(l->env->device,
                                       "replays would not repeat it; call cairn_loader_next between replays"));
    if (cairn_sampler_epoch(l->sampler) != l->epoch || cairn_sampler_position(l->sampler) != l->position) restart(l);
    TRY(want(l));
    if (l->head == l->tail) {
        move_to(l, cairn_sampler_length(l->sampler)); /* past the examples that drop_last omits */
        *batch = NULL;
        return CAIRN_OK;
    }
    struct slot *s = &l->slots[l->head % (uint64_t)l->num_slots];
    wait_for(l, s);
    TRY(hand_out(l, s));
    l->head++;
    move_to(l, l->position + (int64_t)s->n);
    (void)want(l); /* a failure here recurs in the next call */
    *batch = &l->out;
    return CAIRN_OK;
out:
    l->epoch = -1; /* the next call starts at the sampler's position and reads again */
    return st;
}

/* ---- making and ending ---- */

static cairn_status check(cairn_env *env, const cairn_dataset *dataset, cairn_sampler *sampler, size_t batch,
                          const struct cairn_loader_options *o, cairn_loader **out) {
    REQUIRE(env && dataset && sampler && out, CAIRN_EINVAL,
            "cairn_loader_create: env, dataset, sampler and out must be set");
    REQUIRE(batch >= 1 && batch <= MAX_BATCH, CAIRN_EINVAL,
            "cairn_loader_create: a batch of %zu examples; it must have from 1 to 2^24", batch);
    REQUIRE(o->workers >= 0 && o->workers <= MAX_WORKERS, CAIRN_EINVAL,
            "cairn_loader_options.workers is %d; it must be from 0 to %d", o->workers, (int)MAX_WORKERS);
    REQUIRE(o->prefetch >= 0 && o->prefetch <= MAX_PREFETCH, CAIRN_EINVAL,
            "cairn_loader_options.prefetch is %d; it must be from 0 to %d", o->prefetch, (int)MAX_PREFETCH);
    REQUIRE(o->drop_last == CAIRN_DEFAULT || o->drop_last == CAIRN_ON || o->drop_last == CAIRN_OFF, CAIRN_EINVAL,
            "cairn_loader_options.drop_last is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)o->drop_last);
    REQUIRE(o->collate || !o->collate_ctx, CAIRN_EINVAL, "cairn_loader_options has collate_ctx, but no collate");
    REQUIRE(cairn__sampler_examples(sampler) <= dataset->count, CAIRN_EINVAL,
            "cairn_loader_create: the sampler is of %" PRId64 " examples, but the dataset has %" PRId64,
            cairn__sampler_examples(sampler), dataset->count);
    return CAIRN_OK;
}

static void choose_collate(cairn_loader *l, const struct cairn_loader_options *o) {
    l->collate = o->collate;
    l->collate_ctx = o->collate_ctx;
    if (l->collate) return;
    l->collate = l->dataset->functions.collate ? l->dataset->functions.collate : cairn_collate_stack;
    l->collate_ctx = l->dataset->functions.collate ? l->dataset->self : NULL;
}

static cairn_status make_slots(cairn_loader *l) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)l->num_slots, sizeof(l->slots[0]), (void **)&l->slots));
    TRY(cairn__calloc(l->batch, sizeof(l->indices[0]), (void **)&l->indices));
    for (int i = 0; i < l->num_slots; i++) {
        TRY(cairn_fields_create(&l->slots[i].fields));
        TRY(cairn__calloc(l->batch, sizeof(l->slots[i].indices[0]), (void **)&l->slots[i].indices));
    }
out:
    return st;
}

static cairn_status make_readers(cairn_loader *l) {
    const int count = l->workers > 0 ? l->workers : 1;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)count, sizeof(l->readers[0]), (void **)&l->readers));
    for (int i = 0; i < count; i++) {
        l->readers[i].loader = l;
        TRY(cairn__calloc(l->batch, sizeof(l->readers[i].examples[0]), (void **)&l->readers[i].examples));
    }
out:
    return st;
}

/* Workers block all signals, so that the program's handlers run in its own threads. */
static cairn_status start(cairn_loader *l) {
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (l->started < l->workers && error == 0) {
        struct reader *r = &l->readers[l->started];
        r->log_rank = cairn__log_thread_rank();
        error = pthread_create(&r->thread, NULL, work, r);
        if (error == 0) l->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return cairn__fail_errno(error, "starting thread %d of the loader's %d", l->started + 1, l->workers);
    return CAIRN_OK;
}

cairn_status cairn_loader_create(cairn_env *env, const cairn_dataset *dataset, cairn_sampler *sampler, size_t batch,
                                 const struct cairn_loader_options *options, cairn_loader **out) {
    struct cairn_loader_options o = *cairn_loader_options(.workers = 0);
    cairn_loader *l = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_loader_options"));
    TRY(check(env, dataset, sampler, batch, &o, out));
    TRY(cairn__calloc(1, sizeof(*l), (void **)&l));
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wanted, NULL);
    pthread_cond_init(&l->ready, NULL);
    l->env = env, l->dataset = dataset, l->sampler = sampler, l->batch = batch;
    env->places[CAIRN__PLACE_OF_DATA].alive++;
    l->workers = o.workers;
    l->depth = o.workers == 0 ? 1 : o.prefetch > 0 ? o.prefetch : 2 * o.workers;
    l->pins = !cairn__is_on_host(env->device);
    l->num_slots = l->depth + l->pins;
    l->drops_last = o.drop_last == CAIRN_ON;
    l->seed = o.seed;
    l->forks = cairn__forks();
    l->epoch = -1; /* the first call starts at the sampler's position then */
    choose_collate(l, &o);
    TRY(make_slots(l));
    TRY(make_readers(l));
    TRY(start(l));
    *out = l;
    return CAIRN_OK;
out:
    cairn_loader_destroy(&l);
    return st;
}

static void join(cairn_loader *l) {
    atomic_store(&l->cancelled, true);
    pthread_mutex_lock(&l->lock);
    l->quit = true;
    pthread_cond_broadcast(&l->wanted);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->started; i++) pthread_join(l->readers[i].thread, NULL);
    pthread_cond_destroy(&l->ready);
    pthread_cond_destroy(&l->wanted);
    pthread_mutex_destroy(&l->lock);
}

void cairn_loader_destroy(cairn_loader **loader) {
    if (!loader || !*loader) return;
    cairn_loader *l = *loader;
    if (l->forks == cairn__forks()) join(l); /* a forked child does not have these threads */
    for (int i = 0; i < CAIRN_MAX_FIELDS; i++) cairn_tensor_destroy(&l->tensors[i]);
    for (int i = 0; l->readers && i < (l->workers > 0 ? l->workers : 1); i++) {
        struct reader *r = &l->readers[i];
        for (size_t k = 0; r->examples && k < l->batch; k++) cairn_fields_destroy(&r->examples[k]);
        cairn__free(r->examples);
    }
    for (int i = 0; l->slots && i < l->num_slots; i++) {
        struct slot *s = &l->slots[i];
        for (int k = 0; s->fields && k < CAIRN_MAX_FIELDS; k++)
            cairn__device_free_pinned(l->env->device, s->fields->memory[k].pinned);
        cairn_fields_destroy(&s->fields);
        cairn__free(s->indices);
    }
    l->env->places[CAIRN__PLACE_OF_DATA].alive--;
    cairn__free(l->readers);
    cairn__free(l->slots);
    cairn__free(l->indices);
    cairn__free(l);
    *loader = NULL;
}

int64_t cairn_loader_length(const cairn_loader *l) {
    if (!l) return 0;
    const int64_t n = cairn_sampler_length(l->sampler), batch = (int64_t)l->batch;
    return n / batch + (n % batch != 0 && !l->drops_last);
}

cairn_stateful cairn_loader_stateful(cairn_loader *loader) {
    return cairn_sampler_stateful(loader ? loader->sampler : NULL);
}
