/* The tape.
 *
 * Memory grows in the first steps and is only reused after that. An arena that outgrows its chunks adds a chunk of at
 * least a quarter of the size of all before it. Once the arena is empty, one chunk of the size that was needed replaces
 * them, so a steady step holds what it uses.
 *
 * Headers live in a ring of generations and keep their chunks. When a tensor is used after its step, its header is
 * still untouched, and the generation number in it reveals the misuse. Values have no such ring: no value is read
 * before its header is checked. */
#include "nn/tape.h"

#include <stddef.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/status.h"
#include "nn/tensor.h"

enum { LEAST_CHUNK = 64 << 10, MAX_TIMES = 4 /* that a gap is larger than what it is used for */ };

/* ---- arenas ---- */

static size_t held_by(const struct cairn__arena *a) {
    size_t nbytes = 0;
    for (size_t i = 0; i < a->count; i++) nbytes += a->chunks[i].nbytes;
    return nbytes;
}

static cairn_status add_chunk(struct cairn__arena *a, size_t nbytes) {
    const size_t quarter = held_by(a) / 4;
    size_t size = quarter > LEAST_CHUNK ? quarter / CAIRN__ALIGN * CAIRN__ALIGN : LEAST_CHUNK;
    if (nbytes > size) size = nbytes;
    cairn_status st = CAIRN_OK;
    void *data = NULL;
    TRY(cairn__grow((void **)&a->chunks, &a->capacity, a->count + 1, sizeof(a->chunks[0])));
    TRY(a->device ? cairn__device_alloc(a->device, CAIRN__HOLDS_TAPE, size, &data) : cairn__alloc(size, &data));
    a->chunks[a->count++] = (struct cairn__chunk){data, size};
out:
    return st;
}

static size_t aligned(size_t nbytes) {
    return (nbytes + CAIRN__ALIGN - 1) / CAIRN__ALIGN * CAIRN__ALIGN;
}

cairn_status cairn__arena_alloc(struct cairn__arena *a, size_t nbytes, void **out) {
    REQUIRE(nbytes <= SIZE_MAX / 4, CAIRN_ENOMEM, "out of memory: a tensor of %zu bytes", nbytes);
    const size_t size = aligned(nbytes);
    while (a->chunk < a->count && a->chunks[a->chunk].nbytes - a->used < size) {
        a->chunk++;
        a->used = 0;
    }
    if (a->chunk == a->count) {
        cairn_status st = add_chunk(a, size);
        if (st != CAIRN_OK) return st;
    }
    *out = a->chunks[a->chunk].data + a->used;
    a->used += size;
    a->handed += size;
    if (a->handed > a->peak) a->peak = a->handed;
    return CAIRN_OK;
}

struct cairn__arena_mark cairn__arena_mark(const struct cairn__arena *a) {
    return (struct cairn__arena_mark){a->chunk, a->used, a->handed};
}

void cairn__arena_release(struct cairn__arena *a, struct cairn__arena_mark mark) {
    a->chunk = mark.chunk;
    a->used = mark.used;
    a->handed = mark.handed;
}

static void free_chunks(struct cairn__arena *a) {
    for (size_t i = 0; i < a->count; i++) {
        if (a->device) {
            cairn__device_free(a->device, a->chunks[i].data);
        } else {
            cairn__free(a->chunks[i].data);
        }
    }
    a->count = 0;
}

static const struct cairn__arena_mark START = {0, 0, 0};

/* Keeps the chunks while a graph is being recorded, when nothing may be freed or allocated. If the one chunk cannot be
 * allocated, the next cairn__arena_alloc tries again and returns the error. */
void cairn__arena_restart(struct cairn__arena *a) {
    cairn__arena_release(a, START);
    if (a->count <= 1 || (a->device && a->device->capturing)) return;
    free_chunks(a);
    (void)add_chunk(a, a->peak);
}

static void arena_end(struct cairn__arena *a) {
    free_chunks(a);
    cairn__free(a->chunks);
    a->chunks = NULL;
    a->capacity = 0;
}

/* ---- gaps: memory of forgotten values ---- */

/* The smallest gap that is large enough, unless it is more than MAX_TIMES as large and better kept for a large value;
 * NULL = none. Gaps are never joined, so that the choice does not depend on the layout of chunks. */
static struct cairn__gap *find_gap(const struct cairn__tape *tape, size_t nbytes) {
    struct cairn__gap *best = NULL;
    for (size_t i = tape->no_grad.depth > 0 ? tape->no_grad.num_gaps : 0; i < tape->num_gaps; i++) {
        struct cairn__gap *g = &tape->gaps[i];
        if (g->nbytes >= nbytes && g->nbytes / MAX_TIMES <= nbytes && (!best || g->nbytes < best->nbytes)) best = g;
    }
    return best;
}

cairn_status cairn__tape_take(struct cairn__tape *tape, size_t nbytes, void **out) {
    struct cairn__gap *g = nbytes > 0 && nbytes <= SIZE_MAX / 4 ? find_gap(tape, aligned(nbytes)) : NULL;
    if (!g) return cairn__arena_alloc(&tape->values, nbytes, out);
    *out = g->data;
    g->data += aligned(nbytes);
    g->nbytes -= aligned(nbytes);
    if (g->nbytes == 0) *g = tape->gaps[--tape->num_gaps];
    return CAIRN_OK;
}

/* If the list cannot grow, the memory is reused after the step. */
void cairn__tape_give(struct cairn__tape *tape, void *data, size_t nbytes) {
    if (nbytes == 0) return;
    if (cairn__grow((void **)&tape->gaps, &tape->gaps_capacity, tape->num_gaps + 1, sizeof(tape->gaps[0])) == CAIRN_OK)
        tape->gaps[tape->num_gaps++] = (struct cairn__gap){data, aligned(nbytes)};
}

/* ---- the tape ---- */

static struct cairn__arena *headers_now(struct cairn__tape *tape) {
    struct cairn__no_grad *g = &tape->no_grad;
    return g->depth > 0 ? &g->headers[g->scopes % CAIRN__GENERATIONS]
                        : &tape->headers[tape->steps % CAIRN__GENERATIONS];
}

static uint64_t next_generation(struct cairn__tape *tape) {
    return ++tape->main->last_generation;
}

static void begin_scope(struct cairn__tape *tape) {
    struct cairn__no_grad *g = &tape->no_grad;
    g->scopes++;
    g->generation = next_generation(tape);
    g->values = cairn__arena_mark(&tape->values);
    g->num_gaps = tape->num_gaps;
    g->num_passing = tape->num_passing;
    cairn__arena_release(&g->headers[g->scopes % CAIRN__GENERATIONS], START);
}

/* Ends all results but keeps the failure that the device has reported. */
static void recycle(struct cairn__tape *tape) {
    tape->steps++;
    tape->generation = next_generation(tape);
    tape->count = 0;
    cairn__arena_release(&tape->headers[tape->steps % CAIRN__GENERATIONS], START);
    cairn__arena_restart(&tape->values);
    tape->num_gaps = tape->num_passing = 0;
    cairn__arena_restart(&tape->scratch);
    if (tape->no_grad.depth > 0) begin_scope(tape);
    cairn__free_ended(tape);
}

void cairn__tape_begin_step(struct cairn__tape *tape) {
    if (tape == tape->root) {
        cairn__listen(tape);
        cairn__forget_failure(&tape->failure);
        cairn__forget_failure(&tape->no_grad.failure);
    }
    recycle(tape);
}

static bool begin_step(cairn_env *env) {
    if (cairn__tape_of(env)->outer) { /* the checkpoint returns the error */
        cairn__tape_of(env)->refused_step = true;
        return false;
    }
    if (cairn__tape_of(env)->root->walking) {
        cairn__log(CAIRN_LOG_ERROR, "cairn_zero_grad was called within a backward; no step was begun");
        return false;
    }
    cairn__tape_begin_step(cairn__tape_of(env));
    return true;
}

/* Keeps the gradients, and so the failure that concerns them. */
cairn_status cairn_release_results(cairn_env *env) {
    REQUIRE(env, CAIRN_EINVAL, "release_results: env is NULL");
    struct cairn__tape *tape = cairn__tape_of(env);
    REQUIRE(!tape->root->walking && !tape->outer && tape->inside == 0, CAIRN_ESTATE,
            "release_results: called within a module's forward, a checkpoint or a backward, which use the results");
    REQUIRE(env->open_losses == 0, CAIRN_ESTATE,
            "release_results: called between amp_scale_loss and amp_scale_loss_end; call amp_scale_loss_end first");
    cairn__listen(tape);
    recycle(tape);
    return CAIRN_OK;
}

void cairn_no_grad_begin(cairn_env *env) {
    if (!env) return;
    if (cairn__tape_of(env)->no_grad.depth == 0)
        cairn__listen(cairn__tape_of(env)); /* earlier failures are not the scope's */
    if (cairn__tape_of(env)->no_grad.depth++ == 0) begin_scope(cairn__tape_of(env));
}

cairn_status cairn_no_grad_end(cairn_env *env) {
    REQUIRE(env, CAIRN_EINVAL, "no_grad_end: env is NULL");
    struct cairn__no_grad *g = &cairn__tape_of(env)->no_grad;
    REQUIRE(g->depth > 0, CAIRN_ESTATE, "no_grad_end: call cairn_no_grad_begin first");
    if (g->depth == 1) cairn__listen(cairn__tape_of(env));
    if (--g->depth > 0) return CAIRN_OK;
    cairn__forget_failure(&g->failure);
    g->generation = 0;
    struct cairn__tape *tape = cairn__tape_of(env);
    cairn__arena_release(&tape->values, g->values);
    tape->num_gaps = g->num_gaps;
    if (tape->num_passing > g->num_passing) tape->num_passing = g->num_passing;
    cairn__free_ended(tape);
    return CAIRN_OK;
}

bool cairn__records(const cairn_env *env) {
    return cairn__tape_of(env)->no_grad.depth == 0;
}

void *cairn__tape_one(const struct cairn__tape *tape, cairn_dtype dtype) {
    return (double *)tape->main->ones + (int)dtype;
}

static cairn_status make_ones(struct cairn__tape *tape) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    struct cairn_device *d = tape->env->device;
    const double one = 1.0;
    cairn_status st =
        cairn__device_alloc(d, CAIRN__HOLDS_STATE, CAIRN__DTYPE_END * sizeof(double), (void **)&tape->ones);
    if (st != CAIRN_OK) return st;
    for (int i = 0; i < 3; i++) d->passes->fill(d, types[i], cairn__tape_one(tape, types[i]), 1, 1.0f);
    d->passes->store(d, cairn__tape_one(tape, CAIRN_F64), &one, sizeof(one));
    return CAIRN_OK;
}

static cairn_status new_tape(cairn_env *env, struct cairn__tape *main_tape, struct cairn__tape **out) {
    struct cairn__tape *tape = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*tape), (void **)&tape);
    if (st != CAIRN_OK) return st;
    tape->env = env;
    tape->main = main_tape ? main_tape : tape;
    tape->root = tape;
    tape->values.device = tape->grads.device = tape->scratch.device = env->device;
    tape->generation = next_generation(tape);
    *out = tape;
    return CAIRN_OK;
}

/* ---- for graphs ---- */

static cairn_status fork_results(cairn_env *env, void **out) {
    struct cairn__tape *tape = NULL;
    const cairn_status st = new_tape(env, cairn__tape_of(env)->main, &tape);
    *out = tape;
    return st;
}

static void *use_results(cairn_env *env, void *results) {
    void *const before = cairn__tape_of(env);
    env->places[CAIRN__PLACE_OF_NN].at = results;
    return before;
}

cairn_status cairn__tape_enter(struct cairn__tape *tape, struct cairn__tape **inner) {
    cairn_status st = CAIRN_OK;
    if (!tape->inner) {
        TRY(new_tape(tape->env, tape->main, &tape->inner));
        tape->inner->outer = tape;
        tape->inner->root = tape->root;
    }
    tape->inner->no_grad.depth = 0;
    tape->inner->trail = 0;
    tape->inner->refused_step = false;
    cairn__tape_begin_step(tape->inner);
    *inner = tape->inner;
out:
    return st;
}

void cairn__tape_leave(struct cairn__tape *inner) {
    inner->generation = next_generation(inner);
    inner->no_grad.generation = 0;
}

/* Frees everything but the headers, which detect a late use of a result. */
static void free_memory(struct cairn__tape *tape) {
    if (tape->inner) free_memory(tape->inner);
    arena_end(&tape->values);
    arena_end(&tape->scratch);
    cairn__tensor_grad_pool_end(&tape->grads);
    cairn__free(tape->nodes);
    cairn__free(tape->sets);
    cairn__free(tape->outside);
    cairn__free(tape->gaps);
    cairn__free(tape->passing);
}

static void free_tape(struct cairn__tape *tape) {
    if (tape->inner) free_tape(tape->inner);
    for (int i = 0; i < CAIRN__GENERATIONS; i++) {
        arena_end(&tape->headers[i]);
        arena_end(&tape->no_grad.headers[i]);
    }
    cairn__free(tape);
}

static void end_results(void *results) {
    struct cairn__tape *tape = results;
    free_memory(tape);
    cairn__tape_leave(tape);
    tape->next = tape->main->ended;
    tape->main->ended = tape;
    cairn__free_ended(tape);
}

cairn_status cairn__tape_create(cairn_env *env) {
    cairn_status st = CAIRN_OK;
    struct cairn__tape *tape = NULL;
    TRY(new_tape(env, NULL, &tape));
    env->places[CAIRN__PLACE_OF_NN].at = tape;
    env->begin_step = begin_step;
    env->fork_results = fork_results;
    env->use_results = use_results;
    env->end_results = end_results;
    TRY(make_ones(tape));
    return CAIRN_OK;
out:
    cairn__tape_destroy(env);
    return st;
}

void cairn__tape_destroy(cairn_env *env) {
    struct cairn__tape *tape = cairn__tape_of(env);
    if (!tape) return;
    if (tape->hook.end) tape->hook.end(tape->hook.ctx);
    while (tape->leaves) cairn__leaf_free(tape->leaves);
    while (tape->ending) cairn__leaf_free(tape->ending);
    while (tape->ended) {
        struct cairn__tape *next = tape->ended->next;
        free_tape(tape->ended);
        tape->ended = next;
    }
    cairn__device_free(env->device, tape->ones);
    cairn__free(tape->anomaly);
    free_memory(tape);
    free_tape(tape);
    env->places[CAIRN__PLACE_OF_NN].at = NULL;
    env->begin_step = NULL;
}

cairn_status cairn__tape_room(struct cairn__tape *tape, size_t nbytes, void **out) {
    void *p = NULL;
    cairn_status st = cairn__arena_alloc(headers_now(tape), nbytes, &p);
    if (st == CAIRN_OK && nbytes > 0) *out = memset(p, 0, nbytes);
    return st;
}

cairn_status cairn__tape_new_result(struct cairn__tape *tape, cairn_tensor **out) {
    cairn_status st = cairn__tape_room(tape, sizeof(**out), (void **)out);
    if (st != CAIRN_OK) return st;
    (*out)->env = tape->env;
    (*out)->kind = CAIRN__RESULT;
    (*out)->tape = tape;
    (*out)->generation = tape->no_grad.depth > 0 ? tape->no_grad.generation : tape->generation;
    return CAIRN_OK;
}

static size_t rounded(size_t nbytes) {
    return (nbytes + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t);
}

cairn_status cairn__tape_new_node(struct cairn__tape *tape, int count, const void *attrs, size_t attrs_nbytes,
                                  struct cairn__node **out) {
    const size_t inputs_at = rounded(sizeof(**out));
    const size_t attrs_at = rounded(inputs_at + (size_t)count * sizeof(cairn_tensor *));
    char *p = NULL;
    cairn_status st = cairn__tape_room(tape, attrs_at + attrs_nbytes, (void **)&p);
    if (st != CAIRN_OK) return st;
    *out = (struct cairn__node *)p;
    (*out)->count = count;
    (*out)->inputs = (cairn_tensor **)(p + inputs_at);
    if (attrs_nbytes > 0) (*out)->attrs = memcpy(p + attrs_at, attrs, attrs_nbytes);
    return CAIRN_OK;
}

cairn_status cairn__tape_record(struct cairn__tape *tape, struct cairn__node *node) {
    cairn_status st = cairn__grow((void **)&tape->nodes, &tape->capacity, tape->count + 1, sizeof(tape->nodes[0]));
    if (st != CAIRN_OK) return st;
    node->index = tape->count;
    tape->nodes[tape->count++] = node;
    if (!tape->outer) return CAIRN_OK;
    const cairn_tensor *y = node->result;
    uint64_t trail = cairn__hash_word(tape->trail, (uint64_t)node->op + 1);
    trail = cairn__hash_word(trail, (uint64_t)y->dtype);
    trail = cairn__hash_word(trail, (uint64_t)y->ndim);
    for (int d = 0; d < y->ndim; d++) trail = cairn__hash_word(trail, (uint64_t)y->shape[d]);
    tape->trail = trail;
    return CAIRN_OK;
}

/* ---- memory use ---- */

static void count_arena(struct cairn__memory_use *use, const struct cairn__arena *a) {
    use->used += a->handed;
    use->peak += a->peak;
    use->held += held_by(a);
}

static void count_tape(struct cairn__tape_memory *m, const struct cairn__tape *tape) {
    count_arena(&m->values, &tape->values);
    count_arena(&m->scratch, &tape->scratch);
    for (int i = 0; i < CAIRN__GENERATIONS; i++) {
        count_arena(&m->headers, &tape->headers[i]);
        count_arena(&m->headers, &tape->no_grad.headers[i]);
    }
    if (tape->inner) count_tape(m, tape->inner);
}

struct cairn__tape_memory cairn__tape_memory(const cairn_env *env) {
    struct cairn__tape_memory m = {.gradients = cairn__tensor_grad_pool_use(&cairn__tape_of(env)->root->grads)};
    count_tape(&m, cairn__tape_of(env)->root);
    return m;
}
