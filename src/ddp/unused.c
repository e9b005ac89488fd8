/* Which parameters take part in a backward, here and on the other ranks.
 *
 * nn knows before a backward which parameters it will write. Unsynced gradients take part as well. A parameter with
 * neither is an error on all ranks before anything is sent. If the options allow it, it counts as zero instead; ranks
 * then exchange maps, which show for which parameters no rank had a gradient. These are left as if there had been no
 * backward. */
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "ddp/context.h"

static bool is_on(cairn_switch s) {
    return s == CAIRN_ON;
}

static bool allows_unused(const struct ddp_context *d) {
    return d->reducer || is_on(d->options.find_unused_parameters) || is_on(d->options.static_graph);
}

/* ---- what all ranks have used ---- */

/* A bit for each slot, and one for whether the rank knows its graph. */
static size_t map_nbytes(const struct ddp_context *d) {
    return d->num_slots / 8 + 1;
}

static bool bit_of(const uint8_t *map, size_t i) {
    return map[i / 8] >> i % 8 & 1;
}

/* [size of channel + 1][map_nbytes]: every rank's, and at the end this rank's. */
static cairn_status make_maps(struct ddp_context *d) {
    if (d->maps) return CAIRN_OK;
    return cairn__calloc((size_t)cairn_group_size(d->channel) + 1, map_nbytes(d), (void **)&d->maps);
}

static cairn_status share_used(struct ddp_context *d) {
    const size_t p = (size_t)cairn_group_size(d->channel), nbytes = map_nbytes(d);
    uint8_t *mine = d->maps + p * nbytes;
    memset(mine, 0, nbytes);
    for (size_t s = 0; s < d->num_slots; s++) mine[s / 8] |= (uint8_t)(d->slots[s].used << s % 8);
    mine[d->num_slots / 8] |= (uint8_t)(d->knows_graph << d->num_slots % 8);
    cairn_status st = CAIRN_OK;
    /* A step that is being recorded uses the maps of its last run. */
    if (!d->set->env->device->capturing) st = cairn__group_exchange(d->channel, d->maps, mine, nbytes);
    for (size_t s = 0; st == CAIRN_OK && s < d->num_slots; s++) {
        bool used = false;
        for (size_t r = 0; r < p; r++) used |= bit_of(d->maps + r * nbytes, s);
        d->slots[s].used = used;
    }
    d->all_know_graph = st == CAIRN_OK;
    for (size_t r = 0; st == CAIRN_OK && r < p; r++) d->all_know_graph &= bit_of(d->maps + r * nbytes, d->num_slots);
    return st;
}

/* ---- refusals ---- */

size_t cairn__ddp_name_slots(const struct ddp_context *d, cairn__ddp_slot_test is_meant, char *text, size_t nbytes) {
    enum { SHOWN = 4 };
    size_t count = 0, used = 0;
    text[0] = '\0';
    for (size_t s = 0; s < d->num_slots; s++) {
        if (!is_meant(d, s) || count++ >= SHOWN) continue;
        used += (size_t)snprintf(text + used, nbytes - used, "%s'%.128s'", used ? ", " : "", d->slots[s].param->name);
    }
    if (count > SHOWN) snprintf(text + used, nbytes - used, " and %zu more", count - SHOWN);
    return count;
}

/* Whether this backward will have a gradient for the slot; known before any arrives. */
static bool is_coming(const struct ddp_context *d, size_t s) {
    const struct cairn__param *p = d->slots[s].param;
    return cairn__param_is_reached(p) || cairn__grad_is_unsynced(p->gradient);
}

static bool is_missing(const struct ddp_context *d, size_t s) {
    return !is_coming(d, s);
}

static cairn_status refuse_missing(const struct ddp_context *d) {
    char names[CAIRN__DDP_NAMES_NBYTES];
    const size_t count = cairn__ddp_name_slots(d, is_missing, names, sizeof(names));
    REQUIRE(count == 0, CAIRN_ESTATE,
            "ddp: on rank %d, backward %lld does not reach %s, for which the other ranks wait. If that is intended, "
            "set ddp_options.find_unused_parameters, or name %s in ddp_options.ignored",
            cairn_group_rank(d->channel), (long long)d->backwards + 1, names, count > 1 ? "them" : "it");
    return CAIRN_OK;
}

static bool has_come(const struct ddp_context *d, size_t s) {
    return is_coming(d, s) && !d->slots[s].in_graph;
}

static bool has_gone(const struct ddp_context *d, size_t s) {
    return !is_coming(d, s) && d->slots[s].in_graph;
}

/* ---- the beginning ---- */

/* ddp_zero_loss stands in for any graph, so it is not compared. */
static cairn_status compare_graphs(struct ddp_context *d) {
    char names[CAIRN__DDP_NAMES_NBYTES];
    if (!is_on(d->options.static_graph) || d->zero_loss) return CAIRN_OK;
    if (!d->knows_graph) {
        for (size_t s = 0; s < d->num_slots; s++) d->slots[s].in_graph = is_coming(d, s);
        d->knows_graph = true;
        return CAIRN_OK;
    }
    const bool more = cairn__ddp_name_slots(d, has_come, names, sizeof(names)) > 0;
    REQUIRE(!more && cairn__ddp_name_slots(d, has_gone, names, sizeof(names)) == 0, CAIRN_ESTATE,
            "ddp: on rank %d, backward %lld %s %s, unlike the first one, with ddp_options.static_graph; where the "
            "graph changes, set find_unused_parameters instead",
            cairn_group_rank(d->channel), (long long)d->backwards + 1, more ? "reaches" : "does not reach", names);
    return CAIRN_OK;
}

/* Lets the slots that get no gradient in this backward arrive, with their unsynced sum or empty. */
static cairn_status let_missing_arrive(struct ddp_context *d, cairn__ddp_slot_test comes_later) {
    cairn_status st = CAIRN_OK;
    for (size_t s = 0; s < d->num_slots; s++) {
        struct cairn__grad *g = d->slots[s].param->gradient;
        if (d->slots[s].arrived || comes_later(d, s)) continue;
        if (cairn__grad_is_unsynced(g)) {
            TRY(cairn__grad_write_unreached(g));
            cairn__ddp_arrive(d, s);
        } else {
            cairn__ddp_arrive_empty(d, s);
        }
    }
out:
    return st;
}

static bool is_reached(const struct ddp_context *d, size_t s) {
    return cairn__param_is_reached(d->slots[s].param);
}

static bool never(const struct ddp_context *d, size_t s) {
    (void)d, (void)s;
    return false;
}

/* Whether ranks exchange maps in every backward before its buckets, some of which then need not be sent. */
static bool asks_first(const struct ddp_context *d) {
    return d->model && is_on(d->options.skip_all_reduce_unused_params) && is_on(d->options.find_unused_parameters) &&
           !is_on(d->options.static_graph);
}

cairn_status cairn__ddp_unused_begin(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    if (!d->model) return CAIRN_OK; /* which gradients will be declared is not known */
    st = allows_unused(d) ? compare_graphs(d) : refuse_missing(d);
    if (st != CAIRN_OK && cairn__group_progress(d->channel) != CAIRN_OK)
        st = cairn__last_status(); /* the failure that killed the channel comes first */
    TRY(st);
    if (allows_unused(d)) TRY(make_maps(d));
    for (size_t s = 0; s < d->num_slots; s++) {
        const struct cairn__param *p = d->slots[s].param;
        d->slots[s].used = cairn__grad_is_unsynced(p->gradient) || (cairn__param_is_reached(p) && !d->zero_loss);
    }
    if (asks_first(d)) TRY(share_used(d));
    TRY(let_missing_arrive(d, is_reached));
out:
    return st;
}

bool cairn__ddp_unused_skips(const struct ddp_context *d, size_t b) {
    const struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
    if (!asks_first(d)) return false;
    for (size_t k = 0; k < bucket->count; k++) {
        if (d->slots[bucket->items[k]].used) return false;
    }
    return true;
}

/* ---- the end ---- */

cairn_status cairn__ddp_unused_rest(struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots && !d->model; s++) {
        const struct cairn__ddp_slot *slot = &d->slots[s];
        d->slots[s].used = slot->arrived || cairn__grad_is_unsynced(slot->param->gradient);
    }
    cairn_status st = CAIRN_OK;
    /* No gradient will come that the unsynced sum could be added to. */
    for (size_t i = 0; i < d->num_ignored; i++) {
        struct cairn__grad *g = d->ignored[i]->gradient;
        if (cairn__grad_is_unsynced(g)) TRY(cairn__grad_write_unreached(g));
    }
    TRY(let_missing_arrive(d, never));
out:
    return st;
}

/* Whether ranks exchange maps at the end of this backward: for a static graph in the first one only, or until every
 * rank has had input. */
static bool asks_last(const struct ddp_context *d) {
    if (d->reducer || !is_on(d->options.static_graph)) return allows_unused(d) && !asks_first(d);
    return !d->all_know_graph;
}

cairn_status cairn__ddp_unused_settle(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    if (allows_unused(d)) TRY(make_maps(d));
    if (asks_last(d)) {
        TRY(share_used(d));
        for (size_t s = 0; is_on(d->options.static_graph) && !d->reducer && s < d->num_slots; s++)
            d->slots[s].used_first |= d->slots[s].used;
    } else if (is_on(d->options.static_graph)) {
        for (size_t s = 0; s < d->num_slots; s++) d->slots[s].used = d->slots[s].used_first;
    }
    for (size_t s = 0; s < d->num_slots; s++) {
        if (!allows_unused(d)) d->slots[s].used = true;
        if (d->model) {
            if (!d->slots[s].used) cairn__grad_drop(d->slots[s].param->gradient);
        } else if (d->slots[s].used) {
            /* The gradient in the user's memory is the one declared last, on whichever rank. */
            const struct cairn__param *p = d->slots[s].param;
            if (p->reached != p->set->backward) cairn__grad_join_reduction(p->gradient);
        }
    }
    d->zero_loss = false;
out:
    return st;
}

void cairn__ddp_unused_end(struct ddp_context *d) {
    cairn__free(d->maps);
    d->maps = NULL;
    d->knows_graph = d->all_know_graph = false;
}
