/* Agreement on overflow for steps whose gradients ranks have not reduced: those between amp_begin_step and
 * amp_end_step, where the user averages in between or not at all. Ranks first exchange a few words on whether they
 * found an overflow. Only if one did do they exchange what they found, so that every rank's report is the same and
 * names parameter and rank. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "guard.h"

/* The words that every rank sends first, with one bit for each loss. */
enum { SKIPS, FOUND, LOSSES = FOUND + 2, WORDS = LOSSES + 2 };

static size_t overflow_words(const struct cairn__amp_guard *g) {
    return cairn_optimizer_num_params(g->optimizer) * sizeof(struct cairn__overflow) / sizeof(int32_t);
}

cairn_status cairn__guard_make_agree(struct cairn__amp_guard *g) {
    if (g->env->size == 1 || !g->skips) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    const size_t ranks = (size_t)g->env->size, count = cairn_optimizer_num_params(g->optimizer);
    TRY(cairn__calloc(ranks * WORDS, sizeof(int32_t), (void **)&g->words));
    TRY(cairn__calloc(ranks * overflow_words(g) + 1, sizeof(int32_t), (void **)&g->theirs));
    TRY(cairn__calloc(count, sizeof(g->overflows[0]), (void **)&g->overflows));
    g->agrees = true;
out:
    return st;
}

/* ---- words ---- */

static void put_bits(int32_t *words, uint64_t bits) {
    memcpy(words, &bits, sizeof(bits));
}

static uint64_t bits_at(const int32_t *words) {
    uint64_t bits;
    memcpy(&bits, words, sizeof(bits));
    return bits;
}

static cairn_status read_mine(struct cairn__amp_guard *g, int32_t *mine) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = g->env->device;
    uint64_t found = 0;
    TRY(cairn__device_download(d, &mine[SKIPS], cairn__optimizer_skip(g->optimizer), sizeof(mine[SKIPS])));
    for (int id = 0; id < g->num_scalers; id++) {
        uint32_t one = 0;
        if (!(g->losses >> id & 1)) continue;
        TRY(cairn__device_download(d, &one, &g->scalers[id]->state->found, sizeof(one)));
        found |= (uint64_t)(one != 0) << id;
    }
    put_bits(&mine[FOUND], found);
    put_bits(&mine[LOSSES], g->losses);
out:
    return st;
}

/* Updates scalers for the same steps on all ranks, even on a rank that had no gradient. */
static void take_over(struct cairn__amp_guard *g, const int32_t *all) {
    struct cairn_device *d = g->env->device;
    const uint32_t raised = 1;
    const uint64_t found = bits_at(&all[FOUND]), losses = bits_at(&all[LOSSES]);
    if (all[SKIPS]) d->passes->store(d, cairn__optimizer_skip(g->optimizer), &raised, sizeof(raised));
    for (int id = 0; id < g->num_scalers; id++) {
        if (losses >> id & 1 & ~(g->losses >> id)) cairn__scaler_add_pending(g->scalers[id]);
        if (found >> id & 1) d->passes->store(d, &g->scalers[id]->state->found, &raised, sizeof(raised));
    }
    g->losses |= losses;
}

/* ---- who overflowed ---- */

static cairn_status exchange(struct cairn__amp_guard *g) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = g->env->device;
    struct cairn__overflow *mine = cairn__optimizer_overflows(g->optimizer);
    const size_t count = cairn_optimizer_num_params(g->optimizer), ranks = (size_t)g->env->size;
    TRY(cairn__device_download(d, g->overflows, mine, count * sizeof(mine[0])));
    TRY(g->env->gather(g->env, g->theirs, (const int32_t *)(const void *)g->overflows, overflow_words(g)));
    for (size_t i = 0; i < count; i++) {
        struct cairn__overflow all = {0}, one;
        for (size_t rank = 0; rank < ranks; rank++) {
            memcpy(&one, (const char *)g->theirs + (rank * count + i) * sizeof(one), sizeof(one));
            if (!one.micro_batch) continue;
            cairn__note_overflow(&all, one.micro_batch, one.rank, one.infs, one.nans);
            if (one.rank < 0) continue; /* ddp has reduced this gradient */
            cairn__ranks_add(&g->nonfinite_ranks, one.rank);
            g->knows_nonfinite_ranks = true;
        }
        if (all.micro_batch) d->passes->store(d, &mine[i], &all, sizeof(all));
    }
out:
    return st;
}

/* *all = the union of the words of all ranks. */
static void unite(const int32_t *words, int size, int32_t *all) {
    uint64_t found = 0, losses = 0;
    memset(all, 0, WORDS * sizeof(*all));
    for (int rank = 0; rank < size; rank++) {
        const int32_t *theirs = &words[rank * WORDS];
        all[SKIPS] |= theirs[SKIPS];
        found |= bits_at(&theirs[FOUND]);
        losses |= bits_at(&theirs[LOSSES]);
    }
    put_bits(&all[FOUND], found);
    put_bits(&all[LOSSES], losses);
}

cairn_status cairn__guard_agree(struct cairn__amp_guard *g) {
    cairn_status st = CAIRN_OK;
    int32_t mine[WORDS] = {0}, all[WORDS];
    TRY(read_mine(g, mine));
    TRY(g->env->gather(g->env, g->words, mine, WORDS));
    unite(g->words, g->env->size, all);
    take_over(g, all);
    if (all[SKIPS]) TRY(exchange(g));
out:
    return st;
}

/* ---- partners: each has parameters of its own ---- */

enum { SAYING = 640, SAYINGS = 3000 };

static bool is_any(const struct cairn__overflow *overflows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (overflows[i].micro_batch) return true;
    }
    return false;
}

/* Collects the explanations of all partners, in their order; long ones are cut. Then collects their overflows as a
 * list. */
static cairn_status exchange_sayings(struct cairn__amp_guard *g, const struct cairn__partners *partners) {
    const size_t count = cairn_optimizer_num_params(g->optimizer) + 1, size = (size_t)partners->size;
    struct cairn__overflow *own = NULL;
    char *all = NULL, mine[SAYING] = "";
    size_t used = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(count, sizeof(own[0]), (void **)&own));
    TRY(cairn__calloc(size, SAYING, (void **)&all));
    if (!g->partners_say) TRY(cairn__calloc(SAYINGS, 1, (void **)&g->partners_say));
    TRY(cairn__device_download(g->env->device, own, cairn__optimizer_overflows(g->optimizer), count * sizeof(own[0])));
    if (is_any(own, count)) cairn__guard_explain_own(g, own, mine, sizeof(mine));
    TRY(partners->gather(partners->ctx, all, mine, SAYING));
    for (size_t i = 0; i < count; i++) {
        if (own[i].micro_batch && own[i].rank < 0) own[i].rank = cairn__guard_only_nonfinite_rank(g);
    }
    TRY(cairn__found_exchange(g, partners, own));
    g->partners_say[0] = '\0';
    for (size_t i = 0; i < size; i++) {
        const char *one = &all[i * SAYING];
        if (!one[0] || used + SAYING + 2 > SAYINGS) continue;
        used += (size_t)snprintf(g->partners_say + used, SAYINGS - used, "%s%.*s", used ? "; " : "", SAYING - 1, one);
    }
out:
    cairn__free(own);
    cairn__free(all);
    return st;
}

cairn_status cairn__guard_agree_with_partners(struct cairn__amp_guard *g) {
    const struct cairn__partners *partners = cairn__optimizer_partners(g->optimizer);
    cairn_status st = CAIRN_OK;
    int32_t mine[WORDS] = {0}, all[WORDS], *words = NULL;
    TRY(cairn__calloc((size_t)partners->size, WORDS * sizeof(words[0]), (void **)&words));
    TRY(read_mine(g, mine));
    TRY(partners->gather(partners->ctx, words, mine, sizeof(mine)));
    unite(words, partners->size, all);
    take_over(g, all);
    if (all[SKIPS]) TRY(exchange_sayings(g, partners));
out:
    cairn__free(words);
    return st;
}

/* Adds up counts [n] over all ranks. */
static cairn_status sum_counts(const struct cairn__sharers *sharers, uint64_t *counts, size_t n) {
    uint64_t *all = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)sharers->size * n, sizeof(all[0]), (void **)&all));
    TRY(sharers->gather(sharers->ctx, all, counts, n * sizeof(counts[0])));
    for (size_t i = 0; i < n; i++) {
        counts[i] = 0;
        for (size_t r = 0; r < (size_t)sharers->size; r++) counts[i] += all[r * n + i];
    }
out:
    cairn__free(all);
    return st;
}

static uint32_t at_most_32_bits(uint64_t n) {
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

cairn_status cairn__guard_unite_shards(struct cairn__amp_guard *g) {
    const struct cairn__sharers *sharers = cairn__optimizer_sharers(g->optimizer);
    struct cairn__param *const *params = cairn__optimizer_param_list(g->optimizer);
    struct cairn_device *d = g->env->device;
    const size_t count = cairn_optimizer_num_params(g->optimizer);
    struct cairn__overflow *overflows = NULL;
    uint64_t *counts = NULL;
    uint32_t skips = 0;
    cairn_status st = CAIRN_OK;
    if (!sharers || !cairn__is_on_host(d)) return CAIRN_OK;
    TRY(cairn__device_download(d, &skips, cairn__optimizer_skip(g->optimizer), sizeof(skips)));
    if (!skips) return CAIRN_OK;
    TRY(cairn__calloc(count, sizeof(overflows[0]), (void **)&overflows));
    TRY(cairn__calloc(2 * count, sizeof(counts[0]), (void **)&counts));
    TRY(cairn__device_download(d, overflows, cairn__optimizer_overflows(g->optimizer), count * sizeof(overflows[0])));
    for (size_t i = 0; i < count; i++) {
        counts[2 * i] = overflows[i].infs;
        counts[2 * i + 1] = overflows[i].nans;
    }
    TRY(sum_counts(sharers, counts, 2 * count));
    for (size_t i = 0; i < count; i++) {
        if (!params[i]->is_sharded) continue;
        overflows[i].infs = at_most_32_bits(counts[2 * i]);
        overflows[i].nans = at_most_32_bits(counts[2 * i + 1]);
    }
    TRY(cairn__device_upload(d, cairn__optimizer_overflows(g->optimizer), overflows, count * sizeof(overflows[0])));
out:
    cairn__free(overflows);
    cairn__free(counts);
    return st;
}

cairn_status cairn__guard_find_nonfinite_ranks(struct cairn__amp_guard *g) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = g->env->device;
    uint32_t skips = 0;
    size_t count = 0;
    struct cairn_param_set *const *sets = cairn__optimizer_sets(g->optimizer, &count);
    bool found = false, looked = true;
    if (g->env->size == 1 || strcmp(d->ops->name, "cpu") != 0) return CAIRN_OK;
    for (size_t i = 0; i < count; i++) { /* without ddp the set, and its skip, are this rank's alone */
        if (!sets[i]->listener || !sets[i]->listener->nonfinite_ranks) return CAIRN_OK;
    }
    TRY(cairn__device_download(d, &skips, cairn__optimizer_skip(g->optimizer), sizeof(skips)));
    for (size_t i = 0; i < count && skips; i++) {
        const struct cairn__grad_listener *l = sets[i]->listener;
        bool one = false;
        TRY(l->nonfinite_ranks(l->ctx, &g->nonfinite_ranks, &found, &one));
        looked &= one;
    }
    g->knows_nonfinite_ranks = found && looked;
out:
    return st;
}
