/* Loading: finds and compares every tensor of the program, then reads all in the files' order. */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/options.h"
#include "core/status.h"
#include "state/weights.h"
#include "state/weights_source.h"

enum { BLOCK = 1 << 18, SHOWN = 64, SHAPE_TEXT = 8 * 22 + 32 }; /* BLOCK: elements converted at once */

/* A tensor of the program and the matching one of a file. */
struct pair {
    const struct cairn__weights_piece *ours;
    const struct cairn__source_tensor *theirs;
};

/* The lists of a report. */
enum finding { MISSING, UNEXPECTED, OTHER_SHAPE, OTHER_TYPE, FINDINGS };
static const char *const findings[FINDINGS] = {"missing in the file", "unexpected in the file", "of another shape",
                                               "of another type"};

struct names {
    char text[900]; /* "a, b", as many as fit */
    size_t used, count, shown;
};

struct load {
    struct cairn__weights list;
    struct cairn__source source;
    const char *path;
    struct names found[FINDINGS];
    struct pair *pairs;
    size_t count;
    void *read, *converted; /* blocks, allocated on first need */
};

/* ---- matching ---- */

static void note(struct load *l, enum finding finding, const char *what) {
    struct names *n = &l->found[finding];
    const size_t room = sizeof(n->text) - n->used, nbytes = strlen(what) + 2;
    n->count++;
    if (n->shown + 1 < n->count || nbytes >= room) return; /* the list ends at the first name that does not fit */
    n->used += (size_t)snprintf(n->text + n->used, room, "%s%s", n->shown ? ", " : "", what);
    n->shown++;
}

static const char *shape_text(int ndim, const int64_t *shape, char text[SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < ndim && i < CAIRN_MAX_DIMS; i++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    snprintf(text + used, SHAPE_TEXT - used, ndim > CAIRN_MAX_DIMS ? ", ...]" : "]");
    return text;
}

static bool same_shape(const struct cairn__weights_piece *ours, const struct cairn__safetensors_tensor *theirs) {
    return ours->ndim == theirs->ndim &&
           memcmp(ours->shape, theirs->shape, (size_t)ours->ndim * sizeof(ours->shape[0])) == 0;
}

static bool is_float(cairn_dtype dtype) {
    return dtype && cairn__dtype(dtype)->is_float;
}

static bool converts(const struct cairn__weights_piece *ours, const struct cairn__safetensors_tensor *theirs) {
    const cairn_dtype dtype = cairn__safetensors_dtype(theirs->type);
    return dtype == ours->dtype || (is_float(dtype) && is_float(ours->dtype));
}

static void match_piece(struct load *l, const struct cairn__weights_piece *ours) {
    char text[SHOWN + 2 * SHAPE_TEXT + 64], a[SHAPE_TEXT], b[SHAPE_TEXT];
    struct cairn__source_tensor *theirs = cairn__source_find(&l->source, ours->file);
    if (theirs) theirs->is_taken = true;
    if (!ours->is_chosen) return;
    if (!theirs) {
        note(l, MISSING, ours->file);
    } else if (!same_shape(ours, theirs->at)) {
        snprintf(text, sizeof(text), "%.*s (%s, and in the file %s)", SHOWN, ours->file,
                 shape_text(ours->ndim, ours->shape, a), shape_text(theirs->at->ndim, theirs->at->shape, b));
        note(l, OTHER_SHAPE, text);
    } else if (!converts(ours, theirs->at)) {
        snprintf(text, sizeof(text), "%.*s (%s, and in the file %s)", SHOWN, ours->file, cairn_dtype_name(ours->dtype),
                 cairn__safetensors_type_name(theirs->at->type));
        note(l, OTHER_TYPE, text);
    } else {
        l->pairs[l->count++] = (struct pair){ours, theirs};
    }
}

/* A file from another program may contain tensors that a rule excludes here; they are not unexpected. */
static cairn_status take_excluded(struct load *l, const char *ours) {
    cairn_status st = CAIRN_OK;
    char *name = NULL;
    const char *prefix = l->list.options.prefix ? l->list.options.prefix : "";
    const size_t room = strlen(prefix) + strlen(ours) + 1;
    TRY(cairn__alloc(room, (void **)&name));
    snprintf(name, room, "%s%s", prefix, ours);
    struct cairn__source_tensor *theirs = cairn__source_find(&l->source, name);
    if (theirs) theirs->is_taken = true;
out:
    cairn__free(name);
    return st;
}

static cairn_status match_all(struct load *l) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(l->list.count, sizeof(l->pairs[0]), (void **)&l->pairs));
    for (size_t i = 0; i < l->list.num_excluded; i++) TRY(take_excluded(l, l->list.excluded[i]));
    for (size_t i = 0; i < l->list.count; i++) match_piece(l, &l->list.at[i]);
    for (size_t i = 0; i < l->source.count; i++) {
        const struct cairn__source_tensor *t = &l->source.tensors[i];
        if (!t->is_taken && cairn__weights_is_unexpected(&l->list.options, t->at->name))
            note(l, UNEXPECTED, t->at->name);
    }
out:
    return st;
}

/* ---- the report ---- */

/* Writes lines, separated by `between`. */
static void write_findings(const struct load *l, const char *between, char *text, size_t nbytes) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < FINDINGS; i++) {
        const struct names *n = &l->found[i];
        if (n->count == 0) continue;
        used += (size_t)snprintf(text + used, nbytes - used, "%s%s: %s", used ? between : "", findings[i], n->text);
        if (used < nbytes && n->shown < n->count)
            used += (size_t)snprintf(text + used, nbytes - used, "%s%zu more", n->shown ? " and " : "",
                                     n->count - n->shown);
        if (used >= nbytes) return;
    }
}

static void write_report(const struct load *l, struct cairn_weights_report *report) {
    if (!report) return;
    struct cairn_weights_report own = {.struct_size = report->struct_size, .loaded = l->count};
    own.missing = l->found[MISSING].count;
    own.unexpected = l->found[UNEXPECTED].count;
    own.other_shape = l->found[OTHER_SHAPE].count;
    own.other_type = l->found[OTHER_TYPE].count;
    write_findings(l, "\n", own.text, sizeof(own.text));
    memcpy(report, &own, sizeof(own));
}

/* Begins with counts, "3 missing, 1 of another shape", so that a long list of names does not hide other findings. */
static cairn_status check_strict(const struct load *l) {
    static const char *const words[FINDINGS] = {"missing", "unexpected", "of another shape", "of another type"};
    char counts[160], text[700];
    size_t used = 0;
    for (int i = 0; i < FINDINGS; i++) {
        if (l->found[i].count > 0)
            used += (size_t)snprintf(counts + used, sizeof(counts) - used, "%s%zu %s", used ? ", " : "",
                                     l->found[i].count, words[i]);
    }
    if (used == 0 || l->list.options.strict == CAIRN_OFF) return CAIRN_OK;
    write_findings(l, "; ", text, sizeof(text));
    return cairn__fail(CAIRN_EINVAL, "%s: does not fit, and nothing was loaded: %s: %s", l->path, counts, text);
}

/* ---- elements ---- */

static int by_place(const void *a, const void *b) {
    const struct cairn__source_tensor *x = ((const struct pair *)a)->theirs, *y = ((const struct pair *)b)->theirs;
    if (x->file != y->file) return strcmp(cairn__safetensors_path(x->file), cairn__safetensors_path(y->file));
    return x->at->begin < y->at->begin ? -1 : x->at->begin > y->at->begin;
}

static cairn_status read_pair(struct load *l, const struct pair *pair) {
    cairn_status st = CAIRN_OK;
    const struct cairn__weights_piece *ours = pair->ours;
    const struct cairn__safetensors_tensor *theirs = pair->theirs->at;
    const cairn_dtype dtype = cairn__safetensors_dtype(theirs->type);
    const size_t from = cairn_dtype_nbytes(dtype), to = cairn_dtype_nbytes(ours->dtype);
    if (dtype == ours->dtype && l->list.is_on_host)
        return cairn__safetensors_read(pair->theirs->file, theirs, 0, ours->memory, (size_t)theirs->nbytes);
    for (uint64_t i = 0; i < ours->n; i += BLOCK) {
        const size_t n = (size_t)(ours->n - i < BLOCK ? ours->n - i : BLOCK);
        TRY(cairn__safetensors_read(pair->theirs->file, theirs, i * from, l->read, n * from));
        if (dtype != ours->dtype) cairn__convert(l->converted, ours->dtype, l->read, dtype, n);
        const void *elements = dtype != ours->dtype ? l->converted : l->read;
        if (l->list.is_on_host) memcpy(ours->memory + i * to, elements, n * to);
        else TRY(cairn__device_upload(l->list.env->device, ours->memory + i * to, elements, n * to));
    }
out:
    return st;
}

/* Even after a failure rounds half weights from their masters, so that both agree. */
static cairn_status read_all(struct load *l) {
    cairn_status st = CAIRN_OK, changed;
    size_t n = 0;
    qsort(l->pairs, l->count, sizeof(l->pairs[0]), by_place);
    while (n < l->count && st == CAIRN_OK) st = read_pair(l, &l->pairs[n++]);
    for (size_t i = 0; i < n; i++) {
        const struct cairn__param *p = l->pairs[i].ours->param;
        changed = p ? cairn_param_changed(l->list.set, p->index, 1) : CAIRN_OK;
        if (st == CAIRN_OK) st = changed;
    }
    return st;
}

static cairn_status check_time(const struct load *l) {
    for (const struct cairn_param_set *s = cairn__last_set(l->list.env); s; s = s->next)
        REQUIRE(!s->in_backward, CAIRN_ESTATE, "%s",
                s->is_users ? "gradients are being averaged: call ddp_wait before weights are loaded"
                            : "a backward is running: load weights between steps");
    return CAIRN_OK;
}

cairn_status cairn_weights_load(cairn_stateful object, const char *path, const struct cairn_weights_options *options,
                                struct cairn_weights_report *report) {
    static const char call[] = "cairn_weights_load";
    cairn_status st = CAIRN_OK;
    struct load *l = NULL;
    REQUIRE(!report || report->struct_size >= sizeof(*report), CAIRN_EINVAL,
            "%s: begin the report with CAIRN_WEIGHTS_REPORT_INIT", call);
    TRY(cairn__calloc(1, sizeof(*l), (void **)&l));
    l->path = path;
    TRY(cairn__weights_list(&l->list, call, object, path, options));
    TRY(check_time(l));
    TRY(cairn__params_check_whole(call, l->list.set->params, l->list.set->count));
    TRY(cairn__source_open(&l->source, path));
    TRY(match_all(l));
    write_report(l, report);
    TRY(check_strict(l));
    TRY(cairn__alloc(BLOCK * sizeof(double), &l->read)); /* before the first change */
    TRY(cairn__alloc(BLOCK * sizeof(double), &l->converted));
    TRY(cairn__device_synchronize(l->list.env->device));
    TRY(read_all(l));
out:
    if (l) {
        cairn__weights_clear(&l->list);
        cairn__source_close(&l->source);
        cairn__free(l->pairs);
        cairn__free(l->read);
        cairn__free(l->converted);
    }
    cairn__free(l);
    return st;
}
