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
    TRY(a->device ? cairn__device_alloc(a->device, size, &data) : cairn__alloc(size, &data));
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

static void begin_step(cairn_env *env) {
    struct cairn__tape *tape = env->tape;
    tape->generation++;
    tape->count = 0;
    cairn__arena_release(&tape->headers[tape->generation % CAIRN__GENERATIONS], START);
    cairn__arena_release(&tape->values, START);
}

cairn_status cairn__tape_create(cairn_env *env) {
    struct cairn__tape *tape = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*tape), (void **)&tape);
    if (st != CAIRN_OK) return st;
    tape->env = env;
    tape->values.device = tape->grads.device = env->device;
    env->tape = tape;
    env->begin_step = begin_step;
    return CAIRN_OK;
}

void cairn__tape_destroy(cairn_env *env) {
    struct cairn__tape *tape = env->tape;
    if (!tape) return;
    while (tape->leaves) {
        cairn_tensor *leaf = tape->leaves;
        cairn_tensor_destroy(&leaf);
    }
    for (int i = 0; i < CAIRN__GENERATIONS; i++) arena_end(&tape->headers[i]);
    arena_end(&tape->values);
    arena_end(&tape->grads);
    cairn__free(tape->nodes);
    cairn__free(tape->sets);
    cairn__free(tape);
    env->tape = NULL;
    env->begin_step = NULL;
}

static cairn_status new_header(struct cairn__tape *tape, size_t nbytes, void **out) {
    void *p = NULL;
    cairn_status st = cairn__arena_alloc(&tape->headers[tape->generation % CAIRN__GENERATIONS], nbytes, &p);
    if (st == CAIRN_OK) *out = memset(p, 0, nbytes);
    return st;
}

cairn_status cairn__tape_new_result(struct cairn__tape *tape, cairn_tensor **out) {
    cairn_status st = new_header(tape, sizeof(**out), (void **)out);
    if (st != CAIRN_OK) return st;
    (*out)->env = tape->env;
    (*out)->kind = CAIRN__RESULT;
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
