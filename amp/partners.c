/* Exchange of overflows between partners: optimizers that step together, each with its own parameters. They exchange
 * when one of them skips, so that amp_last_overflow returns the same list on every rank. */
#include <string.h>

#include "cairn/amp.h"
#include "core/alloc.h"
#include "core/status.h"
#include "guard.h"

/* An overflow as it is sent, followed by its name with the terminating 0. */
struct said {
    struct cairn__overflow what;
    int32_t stage;
    uint32_t name_nbytes;
    uint32_t is_loss;
};

struct sizes {
    int64_t count, nbytes;
};

/* Writes overflows to out, unless out is NULL, and returns their sizes. own: [parameters + 1], the last is the
 * losses'. */
static struct sizes pack(const struct cairn__amp_guard *g, const struct cairn__partners *partners,
                         const struct cairn__overflow *own, char *out) {
    struct cairn__param *const *params = cairn__optimizer_param_list(g->optimizer);
    const size_t num_params = cairn_optimizer_num_params(g->optimizer);
    struct sizes is = {0, 0};
    for (size_t i = 0; i <= num_params; i++) {
        const bool is_loss = i == num_params;
        const char *name = is_loss ? "(loss)" : params[i]->name;
        if (!own[i].micro_batch) continue;
        struct said one = {own[i], partners->stage(partners->ctx, is_loss ? NULL : params[i]),
                           (uint32_t)strlen(name) + 1, is_loss};
        if (out) {
            memcpy(out + is.nbytes, &one, sizeof(one));
            memcpy(out + is.nbytes + sizeof(one), name, one.name_nbytes);
        }
        is.nbytes += (int64_t)(sizeof(one) + one.name_nbytes);
        is.count++;
    }
    return is;
}

/* Appends one partner's overflows: those of losses, or those of parameters. */
static void unpack(struct cairn__amp_found *found, const char *from, int64_t count, bool losses) {
    for (int64_t i = 0; i < count; i++) {
        struct said one;
        memcpy(&one, from, sizeof(one));
        if ((one.is_loss != 0) == losses)
            found->list[found->count++] = (struct amp_overflow){.name = from + sizeof(one),
                                                                .infs = one.what.infs,
                                                                .nans = one.what.nans,
                                                                .micro_batch = (int)one.what.micro_batch,
                                                                .rank = one.what.rank,
                                                                .stage = one.stage};
        from += sizeof(one) + one.name_nbytes;
    }
}

cairn_status cairn__found_exchange(struct cairn__amp_guard *g, const struct cairn__partners *partners,
                                   const struct cairn__overflow *own) {
    const size_t size = (size_t)partners->size;
    const struct sizes mine = pack(g, partners, own, NULL);
    struct sizes *all = NULL;
    char *said = NULL;
    int64_t count = 0, most = 0;
    struct cairn__amp_found *found = &g->partners_found;
    cairn_status st = CAIRN_OK;
    cairn__found_end(found);
    TRY(cairn__calloc(size, sizeof(all[0]), (void **)&all));
    TRY(partners->gather(partners->ctx, all, &mine, sizeof(mine)));
    for (size_t i = 0; i < size; i++) {
        count += all[i].count;
        most = all[i].nbytes > most ? all[i].nbytes : most;
    }
    if (count == 0) goto out;
    TRY(cairn__calloc((size_t)most, 1, (void **)&said));
    TRY(cairn__calloc((size_t)count, sizeof(found->list[0]), (void **)&found->list));
    TRY(cairn__calloc(size, (size_t)most, (void **)&found->said));
    (void)pack(g, partners, own, said);
    TRY(partners->gather(partners->ctx, found->said, said, (size_t)most));
    for (int losses = 1; losses >= 0; losses--) {
        for (size_t i = 0; i < size; i++) unpack(found, found->said + i * (size_t)most, all[i].count, losses);
    }
out:
    cairn__free(all);
    cairn__free(said);
    return st;
}

void cairn__found_end(struct cairn__amp_found *found) {
    cairn__free(found->list);
    cairn__free(found->said);
    *found = (struct cairn__amp_found){NULL, 0, NULL};
}
