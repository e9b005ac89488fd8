/* Memory of overflow flags: two per parameter, and copies of both that ranks have agreed on. */
#include "core/alloc.h"
#include "core/status.h"
#include "param/param.h"

cairn_status cairn__param_set_make_flags(struct cairn_param_set *set) {
    if (set->flags && set->flags_count == set->count) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = set->env->device;
    struct cairn__item *items = NULL;
    uint32_t *flags = NULL;
    TRY(cairn__calloc(set->count, sizeof(items[0]), (void **)&items));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, 4 * set->count * sizeof(flags[0]), (void **)&flags));
    d->passes->clear_flags(d, flags, 4 * set->count);
    cairn__free(set->items);
    cairn__device_free(d, set->flags); /* no flag is raised, since parameters are added before there are gradients */
    set->items = items;
    set->flags = flags;
    set->flags_count = set->count;
    return CAIRN_OK;
out:
    cairn__free(items);
    return st;
}
