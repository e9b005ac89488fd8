/* The list of weights that saving and loading use. */
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "state/weights.h"

static cairn_status add_piece(struct cairn__weights *w, const struct cairn__weights_piece *whole,
                              const struct cairn_weights_name *rule, int part, int parts) {
    char name[CAIRN__WEIGHTS_NAME];
    cairn_status st = CAIRN_OK;
    struct cairn__weights_piece piece = *whole;
    TRY(cairn__weights_file_name(&w->options, rule, part, whole->ours, name));
    if (parts > 1) {
        if (whole->ndim == 0 || whole->shape[0] % parts != 0)
            TRY(cairn__fail(CAIRN_EINVAL, "'%s' cannot be cut into %d equal parts: its first dimension is %" PRId64,
                            whole->ours, parts, whole->ndim ? whole->shape[0] : 0));
        piece.n = whole->n / (uint64_t)parts;
        piece.shape[0] = whole->shape[0] / parts;
        piece.memory += (uint64_t)part * piece.n * cairn_dtype_nbytes(piece.dtype);
    }
    TRY(cairn__grow((void **)&w->at, &w->capacity, w->count + 1, sizeof(piece)));
    TRY(cairn__strdup(name, &piece.file));
    w->at[w->count++] = piece;
out:
    return st;
}

static cairn_status add_whole(struct cairn__weights *w, struct cairn__weights_piece *whole) {
    const struct cairn_weights_name *rule = cairn__weights_rule(&w->options, whole->ours);
    cairn_status st = CAIRN_OK;
    if (rule && !rule->file) {
        TRY(cairn__grow((void **)&w->excluded, &w->excluded_capacity, w->num_excluded + 1, sizeof(w->excluded[0])));
        w->excluded[w->num_excluded++] = whole->ours;
        return CAIRN_OK;
    }
    whole->is_chosen = !w->options.match || fnmatch(w->options.match, whole->ours, 0) == 0;
    const int parts = cairn__weights_parts(rule);
    for (int part = 0; part < parts; part++) TRY(add_piece(w, whole, rule, part, parts));
out:
    return st;
}

static cairn_status add_param(struct cairn__weights *w, struct cairn__param *p) {
    struct cairn__weights_piece whole = {.ours = p->name, .param = p, .n = p->n, .ndim = p->ndim};
    const bool has_master = p->master && !p->is_sharded; /* a sharded master is only partly here */
    whole.dtype = has_master ? CAIRN_F32 : p->dtype;
    whole.memory = has_master ? (char *)p->master : p->data;
    memcpy(whole.shape, p->shape, sizeof(p->shape));
    return add_whole(w, &whole);
}

static cairn_status add_buffer(struct cairn__weights *w, const struct cairn__entry *e) {
    struct cairn__weights_piece whole = {.ours = e->name, .dtype = e->dtype, .memory = e->memory, .ndim = e->ndim};
    whole.n = e->nbytes / cairn_dtype_nbytes(e->dtype);
    memcpy(whole.shape, e->shape, sizeof(e->shape));
    return add_whole(w, &whole);
}

static cairn_status read_options(struct cairn__weights *w, const char *call,
                                 const struct cairn_weights_options *options) {
    cairn_status st = CAIRN_OK;
    struct cairn_weights_options *o = &w->options;
    *o = (struct cairn_weights_options){.struct_size = sizeof(*o)};
    TRY(cairn__options_read(o, sizeof(*o), options, "cairn_weights_options"));
    REQUIRE(!o->dtype || o->dtype == CAIRN_F32 || o->dtype == CAIRN_F16 || o->dtype == CAIRN_BF16, CAIRN_EINVAL,
            "%s: dtype is %s; f32, f16 and bf16 are allowed", call, cairn_dtype_name(o->dtype));
    REQUIRE((o->names || o->num_names == 0) && (o->metadata || o->num_metadata == 0), CAIRN_EINVAL,
            "%s: names and metadata must be set where there are some", call);
    REQUIRE(o->strict >= CAIRN_DEFAULT && o->strict <= CAIRN_OFF, CAIRN_EINVAL, "%s: strict is %d", call,
            (int)o->strict);
out:
    return st;
}

cairn_status cairn__weights_list(struct cairn__weights *w, const char *call, cairn_stateful object, const char *path,
                                 const struct cairn_weights_options *options) {
    cairn_status st = CAIRN_OK;
    size_t chosen = 0;
    *w = (struct cairn__weights){0};
    if (!object.object && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(object.object && object.ops && path && path[0], CAIRN_EINVAL, "%s: object and path must be set", call);
    REQUIRE(object.ops->weights, CAIRN_EINVAL, "%s: an object of kind '%s' has no weights", call, object.ops->kind);
    TRY(read_options(w, call, options));
    w->env = object.ops->env(object.object);
    w->buffers.env = w->env;
    w->is_on_host = cairn__is_on_host(w->env->device);
    TRY(cairn__device_refuse_recording(w->env->device, "save and load weights between replays"));
    TRY(object.ops->weights(object.object, &w->set, &w->buffers));
    for (size_t i = 0; i < w->set->count; i++) TRY(add_param(w, w->set->params[i]));
    for (size_t i = 0; i < w->buffers.count; i++) TRY(add_buffer(w, &w->buffers.at[i]));
    for (size_t i = 0; i < w->count; i++) chosen += w->at[i].is_chosen;
    if (w->options.match && chosen == 0)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: no tensor matches '%s'", call, w->options.match));
out:
    return st;
}

void cairn__weights_clear(struct cairn__weights *w) {
    for (size_t i = 0; i < w->count; i++) cairn__free(w->at[i].file);
    cairn__free(w->at);
    cairn__free(w->excluded);
    cairn__entries_clear(&w->buffers);
    *w = (struct cairn__weights){0};
}
