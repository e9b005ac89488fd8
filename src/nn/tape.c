/* The tape.
 *
 * Memory grows in the first steps and is then only handed out again: an arena keeps its chunks when it is reset, and a
 * chunk is at least as large as all before it together, so that their number stays small.
 * Headers live in a ring of generations: those of the step before are still there, untouched, when somebody uses one of
 * their tensors too late, and the generation number in them tells. Values have no such ring: nobody reads them without
 * having looked at the header. */
#include "nn/tape.h"

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "nn/tensor.h"

enum { LEAST_CHUNK = 64 << 10 };

/* ---- arenas ---- */

static cairn_status add_chunk(struct cairn__arena *a, size_t nbytes) {
    size_t total = LEAST_CHUNK;
    for (size_t i = 0; i < a->count; i++) total += a->chunks[i].nbytes;
    size_t size = nbytes > total ? nbytes : total;
    cairn_status st = CAIRN_OK;
    void *data = NULL;
    TRY(cairn__grow((void **)&a->chunks, &a->capacity, a->count + 1, sizeof(a->chunks[0])));
    TRY(a->device ? cairn__device_alloc(a->device, CAIRN__HOLDS_TAPE, size, &data) : cairn__alloc(size, &data));
    a->chunks[a->count++] = (struct cairn__chunk){data, size};
out:
    return st;
}

cairn_status cairn__arena_alloc(struct cairn__arena *a, size_t nbytes, void **out) {
    REQUIRE(nbytes <= SIZE_MAX / 4, CAIRN_ENOMEM, "out of memory: a tensor of %zu bytes", nbytes);
    size_t rounded = (nbytes + CAIRN__ALIGN - 1) / CAIRN__ALIGN * CAIRN__ALIGN;
    while (a->chunk < a->count && a->chunks[a->chunk].nbytes - a->used < rounded) {
        a->chunk++;
        a->used = 0;
    }
    if (a->chunk == a->count) {
        cairn_status st = add_chunk(a, rounded);
        if (st != CAIRN_OK) return st;
    }
    *out = a->chunks[a->chunk].data + a->used;
    a->used += rounded;
    return CAIRN_OK;
}

struct cairn__arena_mark cairn__arena_mark(const struct cairn__arena *a) {
    return (struct cairn__arena_mark){a->chunk, a->used};
}

void cairn__arena_release(struct cairn__arena *a, struct cairn__arena_mark mark) {
    a->chunk = mark.chunk;
    a->used = mark.used;
}

static void arena_end(struct cairn__arena *a) {
    for (size_t i = 0; i < a->count; i++) {
        if (a->device) {
            cairn__device_free(a->device, a->chunks[i].data);
        } else {
            cairn__free(a->chunks[i].data);
        }
    }
    cairn__free(a->chunks);
}

/* ---- the tape ---- */

static const struct cairn__arena_mark START = {0, 0};

static struct cairn__arena *headers_of_step(struct cairn__tape *tape) {
    return &tape->headers[tape->steps % CAIRN__GENERATIONS];
}

static void begin_step(cairn_env *env) {
    struct cairn__tape *tape = env->tape;
    tape->steps++;
    tape->generation = ++tape->main->last_generation;
    tape->count = 0;
    cairn__arena_release(headers_of_step(tape), START);
    cairn__arena_release(&tape->values, START);
}

void *cairn__tape_one(const struct cairn__tape *tape, cairn_dtype dtype) {
    return (float *)tape->main->ones + (int)dtype;
}

static cairn_status make_ones(struct cairn__tape *tape) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    struct cairn_device *d = tape->env->device;
    cairn_status st =
        cairn__device_alloc(d, CAIRN__HOLDS_STATE, CAIRN__DTYPE_END * sizeof(float), (void **)&tape->ones);
    for (int i = 0; st == CAIRN_OK && i < 3; i++)
        d->passes->fill(d, types[i], cairn__tape_one(tape, types[i]), 1, 1.0f);
    return st;
}

static cairn_status new_tape(cairn_env *env, struct cairn__tape *main_tape, struct cairn__tape **out) {
    struct cairn__tape *tape = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*tape), (void **)&tape);
    if (st != CAIRN_OK) return st;
    tape->env = env;
    tape->main = main_tape ? main_tape : tape;
    tape->values.device = tape->grads.device = env->device;
    tape->generation = ++tape->main->last_generation;
    *out = tape;
    return CAIRN_OK;
}

static cairn_status fork_tape(cairn_env *env, struct cairn__tape **out) {
    return new_tape(env, env->tape->main, out);
}

/* Everything but the headers, which are read by whoever uses a result too late. */
static void free_memory(struct cairn__tape *tape) {
    arena_end(&tape->values);
    arena_end(&tape->grads);
    cairn__free(tape->nodes);
    cairn__free(tape->sets);
}

static void free_tape(struct cairn__tape *tape) {
    for (int i = 0; i < CAIRN__GENERATIONS; i++) arena_end(&tape->headers[i]);
    cairn__free(tape);
}

static void end_tape(struct cairn__tape *tape) {
    free_memory(tape);
    tape->generation = ++tape->main->last_generation;
    tape->next = tape->main->ended;
    tape->main->ended = tape;
}

cairn_status cairn__tape_create(cairn_env *env) {
    cairn_status st = CAIRN_OK;
    TRY(new_tape(env, NULL, &env->tape));
    env->begin_step = begin_step;
    env->fork_tape = fork_tape;
    env->end_tape = end_tape;
    TRY(make_ones(env->tape));
    return CAIRN_OK;
out:
    cairn__tape_destroy(env);
    return st;
}

void cairn__tape_destroy(cairn_env *env) {
    struct cairn__tape *tape = env->tape;
    if (!tape) return;
    while (tape->leaves) {
        cairn_tensor *leaf = tape->leaves;
        cairn_tensor_destroy(&leaf);
    }
    while (tape->ended) {
        struct cairn__tape *next = tape->ended->next;
        free_tape(tape->ended);
        tape->ended = next;
    }
    cairn__device_free(env->device, tape->ones);
    free_memory(tape);
    free_tape(tape);
    env->tape = NULL;
    env->begin_step = NULL;
}

static cairn_status new_header(struct cairn__tape *tape, size_t nbytes, void **out) {
    void *p = NULL;
    cairn_status st = cairn__arena_alloc(headers_of_step(tape), nbytes, &p);
    if (st == CAIRN_OK) *out = memset(p, 0, nbytes);
    return st;
}

cairn_status cairn__tape_new_result(struct cairn__tape *tape, cairn_tensor **out) {
    cairn_status st = new_header(tape, sizeof(**out), (void **)out);
    if (st != CAIRN_OK) return st;
    (*out)->env = tape->env;
    (*out)->kind = CAIRN__RESULT;
    (*out)->tape = tape;
    (*out)->generation = tape->generation;
    return CAIRN_OK;
}

cairn_status cairn__tape_new_node(struct cairn__tape *tape, struct cairn__node **out) {
    return new_header(tape, sizeof(**out), (void **)out);
}

cairn_status cairn__tape_record(struct cairn__tape *tape, struct cairn__node *node) {
    cairn_status st = cairn__grow((void **)&tape->nodes, &tape->capacity, tape->count + 1, sizeof(tape->nodes[0]));
    if (st != CAIRN_OK) return st;
    node->index = tape->count;
    tape->nodes[tape->count++] = node;
    return CAIRN_OK;
}
