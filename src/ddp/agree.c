/* Agreement on parameters and buffers. Every rank gathers every rank's description and compares all of them, so that all ranks find
 * the same first difference and all fail: torch's one-way broadcast leaves rank 0 hanging. */
#include "ddp/agree.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "dist/group.h"

enum holds { A_PARAM, WITH_MASTER, A_BUFFER };

/* What one rank says of one parameter or buffer; equal memory = equal parameter. */
struct description {
    int64_t dtype, holds, ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    char name[64]; /* cut; it is the start of a name that tells people which parameter */
};

static void describe(struct description *d, const struct cairn__param *p) {
    *d = (struct description){.dtype = p->dtype, .holds = p->master ? WITH_MASTER : A_PARAM, .ndim = p->ndim};
    memcpy(d->shape, p->shape, (size_t)p->ndim * sizeof(d->shape[0]));
    snprintf(d->name, sizeof(d->name), "%s", p->name);
}

static void describe_buffer(struct description *d, const cairn_module *model, size_t i) {
    const char *name = NULL;
    const cairn_tensor *b = cairn_module_buffer(model, i, &name);
    *d = (struct description){.dtype = cairn_tensor_dtype(b), .holds = A_BUFFER, .ndim = cairn_tensor_ndim(b)};
    for (int k = 0; k < cairn_tensor_ndim(b); k++) d->shape[k] = cairn_tensor_size(b, k);
    snprintf(d->name, sizeof(d->name), "%s", name);
}

/* "'weight' [16, 1024] f16 with master" */
static void write_description(char *text, size_t nbytes, const struct description *d) {
    static const char *const more[] = {[A_PARAM] = "", [WITH_MASTER] = " with master", [A_BUFFER] = ", a buffer"};
    if (!d->dtype) {
        snprintf(text, nbytes, "missing");
        return;
    }
    size_t used = (size_t)snprintf(text, nbytes, "'%.63s' [", d->name);
    for (int64_t i = 0; i < d->ndim && used < nbytes; i++) {
        used += (size_t)snprintf(text + used, nbytes - used, "%s%lld", i ? ", " : "", (long long)d->shape[i]);
    }
    if (used < nbytes) {
        snprintf(text + used, nbytes - used, "] %s%s", cairn_dtype_name((cairn_dtype)d->dtype), more[d->holds]);
    }
}

/* Different settings of amp on different ranks would go unnoticed until the weights differ. */
static cairn_status agree_on_precision(const struct cairn_param_set *set, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    char(*all)[sizeof(set->precision)] = NULL;
    int p = cairn_group_size(group);
    TRY(cairn__calloc((size_t)p, sizeof(*all), (void **)&all));
    TRY(cairn__group_exchange(group, all, set->precision, sizeof(*all)));
    for (int r = 1; r < p; r++) {
        if (memcmp(all[0], all[r], sizeof(*all)) == 0) continue;
        st = cairn__fail(CAIRN_EPEER,
                         "ddp_create: rank 0 runs with %s but rank %d with %s; call amp_initialize alike on every rank",
                         all[0][0] ? all[0] : "no amp", r, all[r][0] ? all[r] : "no amp");
        break;
    }
out:
    cairn__free(all);
    return st;
}

static cairn_status most_params(size_t count, cairn_group *group, size_t *most) {
    int64_t counts[CAIRN__MAX_RANKS], mine = (int64_t)count;
    cairn_status st = cairn__group_exchange(group, counts, &mine, sizeof(mine));
    *most = 0;
    for (int r = 0; st == CAIRN_OK && r < cairn_group_size(group); r++) {
        if ((size_t)counts[r] > *most) *most = (size_t)counts[r];
    }
    return st;
}

static cairn_status compare(const struct description *all, size_t count, int p) {
    for (size_t i = 0; i < count; i++) {
        for (int r = 1; r < p; r++) {
            const struct description *first = &all[i], *other = &all[(size_t)r * count + i];
            if (memcmp(first, other, sizeof(*first)) == 0) continue;
            char ours[192], theirs[192];
            write_description(ours, sizeof(ours), first);
            write_description(theirs, sizeof(theirs), other);
            return cairn__fail(CAIRN_EPEER,
                               "ddp_create: parameter %zu is %s on rank 0 but %s on rank %d; every rank must build the "
                               "same model at the same opt level",
                               i, ours, theirs, r);
        }
    }
    return CAIRN_OK;
}

cairn_status cairn__ddp_agree(const cairn_module *model, const struct cairn_param_set *set, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    struct description *mine = NULL, *all = NULL;
    const size_t p = (size_t)cairn_group_size(group), buffers = cairn_module_num_buffers(model);
    size_t most = 0;
    if (p == 1) return CAIRN_OK;
    TRY(most_params(set->count + buffers, group, &most));
    TRY(cairn__calloc(most, sizeof(*mine), (void **)&mine)); /* zeros: a parameter that this rank lacks */
    TRY(cairn__calloc(most * p, sizeof(*all), (void **)&all));
    for (size_t i = 0; i < set->count; i++) describe(&mine[i], set->params[i]);
    for (size_t i = 0; i < buffers; i++) describe_buffer(&mine[set->count + i], model, i);
    TRY(cairn__group_exchange(group, all, mine, most * sizeof(*mine)));
    TRY(compare(all, most, (int)p));
    TRY(agree_on_precision(set, group));
out:
    cairn__free(mine);
    cairn__free(all);
    return st;
}

cairn_status cairn__ddp_broadcast_params(struct cairn_param_set *set, cairn_group *group) {
    if (cairn_group_size(group) == 1) return CAIRN_OK;
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        void *values = p->master ? p->master : p->data;
        cairn_status st = cairn_broadcast(group, values, p->n, p->master ? CAIRN_F32 : p->dtype, 0, NULL);
        if (st != CAIRN_OK) return st;
        cairn__param_round_from_master(p);
    }
    cairn__param_set_weights_changed(set);
    return CAIRN_OK;
}

/* A broadcast copies bits: any type of an element's size will do. */
static cairn_dtype carrier(cairn_dtype dtype) {
    return cairn_dtype_nbytes(dtype) == 8 ? CAIRN_I64 : dtype;
}

cairn_status cairn__ddp_broadcast_buffers(const cairn_module *model, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    if (cairn_group_size(group) == 1) return CAIRN_OK;
    for (size_t i = 0; st == CAIRN_OK && i < cairn_module_num_buffers(model); i++) {
        cairn_tensor *b = cairn_module_buffer(model, i, NULL);
        st = cairn_broadcast(group, cairn__tensor_memory(b), cairn_tensor_numel(b), carrier(cairn_tensor_dtype(b)), 0,
                             NULL);
    }
    return st;
}
