/* The parameters of a set by name: hash chains, newest first. Only the parameter added last is ever removed, so it is
 * the first of its chain. */
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/status.h"
#include "param/param.h"

/* count is a power of two. */
static struct cairn__param **chain_of(struct cairn__param **chains, size_t count, const char *name) {
    return &chains[cairn__hash_text(CAIRN__HASH_START, name) & (count - 1)];
}

static void link_to(struct cairn__param **chain, struct cairn__param *p) {
    p->same_hash = *chain;
    *chain = p;
}

cairn_status cairn__param_names_make_room(struct cairn_param_set *set, size_t count) {
    struct cairn__param **chains = NULL;
    size_t n = set->num_chains ? set->num_chains : 16;
    while (n < count) n *= 2;
    if (n == set->num_chains) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(n, sizeof(chains[0]), (void **)&chains));
    for (size_t i = 0; i < set->count; i++) link_to(chain_of(chains, n, set->params[i]->name), set->params[i]);
    cairn__free(set->chains);
    set->chains = chains;
    set->num_chains = n;
out:
    return st;
}

void cairn__param_names_add(struct cairn_param_set *set, struct cairn__param *p) {
    link_to(chain_of(set->chains, set->num_chains, p->name), p);
}

void cairn__param_names_drop_last(struct cairn_param_set *set, struct cairn__param *last) {
    *chain_of(set->chains, set->num_chains, last->name) = last->same_hash;
}

struct cairn__param *cairn__param_set_find(const struct cairn_param_set *set, const char *name) {
    struct cairn__param *p = set->num_chains ? *chain_of(set->chains, set->num_chains, name) : NULL;
    while (p && strcmp(p->name, name) != 0) p = p->same_hash;
    return p;
}
