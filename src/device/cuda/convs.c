/* Opens the library, keeps its plans by their keys, and counts the convolutions left to im2col.
 *
 * The first run of a plan may find that the library refuses it after all, or that there is no memory for its workspace.
 * The key's place records that: cuDNN and im2col round differently, so a convolution keeps using the same one for as
 * long as its key keeps its place. */
#include "device/cuda/convs.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/log.h"
#include "core/status.h"
#include "core/vars.h"
#include "device/cuda/cuda.h"
#include "device/cuda/key_index.h"
#include "device/module.h"

static_assert(sizeof(struct cairn__conv_key) == 16 * 8 + 8, "keys are compared as bytes: no padding");

enum { MAX_WORKSPACE = 256 << 20 }; /* bytes: what im2col takes for a matrix of a chunk */

/* Why a convolution is left to im2col. */
enum reason {
    NONE,
    LIBRARY,   /* there is none */
    ALIGNMENT, /* an array's */
    REFUSAL,   /* the library does not do it */
    WORKSPACE, /* it wants more than MAX_WORKSPACE, or than there is */
    REASONS,
};

struct entry {
    struct cairn__conv_plan *plan;
    size_t workspace;
    enum reason refused; /* NONE = it runs */
};

struct cairn__convs {
    const struct cairn__conv_library *library;
    struct cairn__conv_handle *handle; /* NULL = there is none */
    uint64_t count, left[REASONS];
    struct cairn__key_index index;
    struct cairn__conv_key keys[CAIRN__INDEX_PLACES];
    struct entry entries[CAIRN__INDEX_PLACES];
};

/* ---- what im2col has to do ---- */

static cairn_status leave(const struct cairn__cuda *c, const struct cairn__conv_key *k, enum reason reason,
                          const char *why) {
    if (c->convs->left[reason]++ == 0 && why) {
        cairn__log(CAIRN_LOG_DEBUG, "%s: a convolution of %s [%lld, %lld, %lld, %lld] goes by im2col: %s", c->name,
                   cairn_dtype_name((cairn_dtype)k->type), (long long)k->n, (long long)k->c, (long long)k->h,
                   (long long)k->w, why);
    }
    return CAIRN_ENOTSUP;
}

/* tools/gpu-check reads it. */
static void log_left(const struct cairn__convs *cs) {
    if (cs->count == 0) return;
    cairn__log(CAIRN_LOG_DEBUG,
               "convolutions: %llu; by im2col went %llu without cuDNN, %llu with arrays that are not aligned to 16 "
               "bytes, %llu that cuDNN does not do, and %llu without memory for its workspace",
               (unsigned long long)cs->count, (unsigned long long)cs->left[LIBRARY],
               (unsigned long long)cs->left[ALIGNMENT], (unsigned long long)cs->left[REFUSAL],
               (unsigned long long)cs->left[WORKSPACE]);
}

/* ---- opening ---- */

/* What may allocate, wait or load code, and would break a recording. */
static cairn_status refuse_recording(const struct cairn__cuda *c) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cairn_status st = CAIRN_OK;
    TRY_CUDA(c, "planning a convolution", cudaStreamIsCapturing(c->stream, &status));
    REQUIRE(status == cudaStreamCaptureStatusNone, CAIRN_ESTATE,
            "a graph is being recorded on %s: a convolution of these sizes has not run before; the step must do the "
            "same in every call",
            c->name);
out:
    return st;
}

static cairn_status open_library(struct cairn__convs *cs, char *version, size_t nbytes) {
    static const struct cairn__module_use use = {CAIRN__CONV_LIBRARY, "im2col, as without it",
                                                 sizeof(struct cairn__conv_library)};
    const char *wanted = cairn__var("CAIRN_CUDNN");
    const void *table = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(!wanted || strcmp(wanted, "0") != 0, CAIRN_ENOTSUP, "CAIRN_CUDNN is 0");
    TRY(cairn__module_open(&use, "cudnn", &table));
    cs->library = table;
    TRY(cs->library->open(&cs->handle, version, nbytes));
out:
    return st;
}

static cairn_status create(struct cairn__cuda *c) {
    char version[64] = "";
    cairn_status st = CAIRN_OK;
    TRY(refuse_recording(c));
    TRY(cairn__calloc(1, sizeof(*c->convs), (void **)&c->convs));
    if (open_library(c->convs, version, sizeof(version)) == CAIRN_OK) {
        cairn__log(CAIRN_LOG_DEBUG, "%s: convolutions go by %s", c->name, version);
    } else {
        cairn__log(CAIRN_LOG_DEBUG, "%s: convolutions go by im2col: %s", c->name, cairn_last_error());
    }
out:
    return st;
}

void cairn__convs_destroy(struct cairn__convs **convs) {
    struct cairn__convs *cs = *convs;
    if (!cs) return;
    log_left(cs);
    for (int i = 0; i < CAIRN__INDEX_PLACES; i++) {
        if (cs->entries[i].plan) cs->library->drop(&cs->entries[i].plan);
    }
    if (cs->handle) cs->library->close(&cs->handle);
    cairn__free(cs);
    *convs = NULL;
}

/* ---- one convolution ---- */

static bool is_aligned(const struct cairn__conv_arrays *a) {
    const uintptr_t all = (uintptr_t)a->src | (uintptr_t)a->weights | (uintptr_t)a->dst | (uintptr_t)a->bias;
    return all % CAIRN__CONV_ALIGN == 0;
}

/* Keeps the library's answer to a problem, a plan or a refusal; other errors are not kept. */
static cairn_status make_plan(const struct cairn__cuda *c, const struct cairn__conv_key *k, struct entry *e) {
    struct cairn__convs *cs = c->convs;
    if (e->plan) cs->library->drop(&e->plan);
    *e = (struct entry){.refused = NONE};
    cairn_status st = refuse_recording(c);
    if (st == CAIRN_OK) st = cs->library->plan(cs->handle, k, &e->plan, &e->workspace);
    if (st == CAIRN_ENOTSUP) e->refused = REFUSAL;
    return st == CAIRN_ENOTSUP ? leave(c, k, REFUSAL, cairn_last_error()) : st;
}

static cairn_status run(struct cairn_device *d, const struct cairn__conv_key *k, struct entry *e,
                        const struct cairn__conv_arrays *arrays) {
    const struct cairn__cuda *c = cairn__cuda_of(d);
    const struct cairn__convs *cs = c->convs;
    void *workspace = NULL;
    if (e->workspace > MAX_WORKSPACE) {
        e->refused = WORKSPACE;
        return leave(c, k, WORKSPACE, "cuDNN's workspace would be more than 256 MiB");
    }
    cairn_status st = e->workspace ? cairn__cuda_take_room(d, CAIRN__ROOM_A, e->workspace, &workspace) : CAIRN_OK;
    if (st == CAIRN_ENOMEM) {
        e->refused = WORKSPACE;
        return leave(c, k, WORKSPACE, cairn_last_error());
    }
    if (st == CAIRN_OK) st = cs->library->run(cs->handle, e->plan, c->stream, arrays, workspace, e->workspace);
    if (st == CAIRN_ENOTSUP) {
        e->refused = REFUSAL;
        return leave(c, k, REFUSAL, cairn_last_error());
    }
    return st;
}

cairn_status cairn__convs_write(struct cairn_device *d, const struct cairn__conv_key *k,
                                const struct cairn__conv_arrays *arrays) {
    struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn_status st = CAIRN_OK;
    bool found = false;
    if (!c->convs) TRY(create(c));
    struct cairn__convs *cs = c->convs;
    cs->count++;
    if (!cs->handle) return leave(c, k, LIBRARY, NULL);
    if (!is_aligned(arrays)) return leave(c, k, ALIGNMENT, "an array is not aligned to 16 bytes");
    struct entry *e = &cs->entries[cairn__index_find(&cs->index, cs->keys, k, sizeof(*k), &found)];
    if (found && e->refused != NONE) return leave(c, k, e->refused, NULL);
    if (!found || !e->plan) TRY(make_plan(c, k, e)); /* no plan: making it failed the last time */
    st = run(d, k, e, arrays);
out:
    return st;
}
