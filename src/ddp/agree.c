/* Agreement on parameters. Every rank gathers every rank's description and compares all of them, so that all ranks find
 * the same first difference and all fail: torch's one-way broadcast leaves rank 0 hanging. */
#include "ddp/agree.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

/* What one rank says of one parameter; equal memory = equal parameter. Sent as 64-bit integers. */
struct description {
    int64_t dtype, has_master, ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    char name[64]; /* cut; it is the start of a name that tells people which parameter */
};
enum { WORDS = sizeof(struct description) / sizeof(int64_t) };

static void describe(struct description *d, const struct cairn__param *p) {
    *d = (struct description){.dtype = p->dtype, .has_master = p->master != NULL, .ndim = p->ndim};
    memcpy(d->shape, p->shape, (size_t)p->ndim * sizeof(d->shape[0]));
    snprintf(d->name, sizeof(d->name), "%s", p->name);
}

/* "'weight' [16, 1024] f16 with master" */
static void write_description(char *text, size_t nbytes, const struct description *d) {
    if (!d->dtype) {
        snprintf(text, nbytes, "missing");
        return;
    }
    size_t used = (size_t)snprintf(text, nbytes, "'%.63s' [", d->name);
    for (int64_t i = 0; i < d->ndim && used < nbytes; i++) {
        used += (size_t)snprintf(text + used, nbytes - used, "%s%lld", i ? ", " : "", (long long)d->shape[i]);
    }
    if (used < nbytes) {
        snprintf(text + used, nbytes - used, "] %s%s", cairn_dtype_name((cairn_dtype)d->dtype),
                 d->has_master ? " with master" : "");
    }
}

/* Different settings of amp on different ranks would go unnoticed until the weights differ. */
static cairn_status agree_on_precision(const struct cairn_param_set *set, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    char(*all)[sizeof(set->precision)] = NULL;
    int p = cairn_group_size(group);
    TRY(cairn__calloc((size_t)p, sizeof(*all), (void **)&all));
    TRY(cairn_allgather(group, all, set->precision, sizeof(*all) / sizeof(int32_t), CAIRN_I32, NULL));
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
    cairn_status st = cairn_allgather(group, counts, &mine, 1, CAIRN_I64, NULL);
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

cairn_status cairn__ddp_agree_on_params(const struct cairn_param_set *set, cairn_group *group) {
    cairn_status st = CAIRN_OK;
    struct description *mine = NULL, *all = NULL;
    size_t p = (size_t)cairn_group_size(group), most = 0;
    if (p == 1) return CAIRN_OK;
    TRY(most_params(set->count, group, &most));
    TRY(cairn__calloc(most, sizeof(*mine), (void **)&mine)); /* zeros: a parameter that this rank lacks */
    TRY(cairn__calloc(most * p, sizeof(*all), (void **)&all));
    for (size_t i = 0; i < set->count; i++) describe(&mine[i], set->params[i]);
    TRY(cairn_allgather(group, all, mine, most * WORDS, CAIRN_I64, NULL));
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
