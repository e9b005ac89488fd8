/* A dataset that applies a function to another, and the scratch fields into which it reads the other's examples. */
#include "cairn/datasets.h"
#include "core/alloc.h"
#include "core/status.h"
#include "data/dataset.h"
#include "data/scratch.h"

/* ---- scratch ---- */

void cairn__scratch_begin(struct cairn__scratch *scratch) {
    pthread_mutex_init(&scratch->lock, NULL);
    scratch->free = NULL;
}

void cairn__scratch_end(struct cairn__scratch *scratch) {
    while (scratch->free) {
        cairn_fields *fields = scratch->free;
        scratch->free = fields->next;
        cairn_fields_destroy(&fields);
    }
    pthread_mutex_destroy(&scratch->lock);
}

cairn_status cairn__scratch_take(struct cairn__scratch *scratch, cairn_fields **out) {
    pthread_mutex_lock(&scratch->lock);
    cairn_fields *fields = scratch->free;
    if (fields) scratch->free = fields->next;
    pthread_mutex_unlock(&scratch->lock);
    if (!fields) return cairn_fields_create(out);
    cairn_fields_clear(fields);
    *out = fields;
    return CAIRN_OK;
}

void cairn__scratch_give(struct cairn__scratch *scratch, cairn_fields *fields) {
    if (!fields) return;
    pthread_mutex_lock(&scratch->lock);
    fields->next = scratch->free;
    scratch->free = fields;
    pthread_mutex_unlock(&scratch->lock);
}

/* ---- the dataset ---- */

struct map {
    const cairn_dataset *from;
    cairn_map_fn fn;
    void *ctx;
    struct cairn__scratch scratch;
};

static cairn_status read_example(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    struct map *m = self;
    cairn_fields *from = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__scratch_take(&m->scratch, &from));
    TRY(cairn_dataset_read(m->from, index, random, from));
    TRY(m->fn(m->ctx, from, random, example));
out:
    cairn__scratch_give(&m->scratch, from);
    return st;
}

static void destroy(void *self) {
    struct map *m = self;
    cairn__scratch_end(&m->scratch);
    cairn__free(m);
}

cairn_status cairn_map_dataset_create(const cairn_dataset *from, cairn_map_fn fn, void *ctx, cairn_dataset **out) {
    struct map *m = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(from && fn && out, CAIRN_EINVAL, "cairn_map_dataset_create: from, fn and out must be set");
    TRY(cairn__calloc(1, sizeof(*m), (void **)&m));
    *m = (struct map){.from = from, .fn = fn, .ctx = ctx};
    cairn__scratch_begin(&m->scratch);
    TRY(cairn_dataset_create(m, from->count, cairn_dataset_functions(.read = read_example, .destroy = destroy), out));
    return CAIRN_OK;
out:
    if (m) destroy(m);
    return st;
}
