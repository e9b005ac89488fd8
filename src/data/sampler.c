/* Samplers: an order of all examples, of which each rank reads every size-th. */
#include <inttypes.h>

#include "cairn/data.h"
#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "data/sampler.h"
#include "data/words.h"
#include "param/stateful.h"

#define MAX_SHUFFLED ((int64_t)UINT32_MAX)
#define MOST         ((int64_t)1 << 62) /* keeps places, padding included, within int64_t */

struct cairn_sampler {
    int64_t n, length, position, epoch;
    int rank, size;
    uint64_t seed;
    cairn_switch drop_last, pad;
    uint32_t *order; /* [n], of this epoch; NULL = 0, 1, 2, ... */
};

/* In the counter's high half the top bit is set, which counters of tensors' random numbers never have, and the next bit
 * is clear, which counters of examples have set (random.c). */
static void shuffle(cairn_sampler *s) {
    struct cairn__words w = {.key = s->seed, .high = (uint64_t)s->epoch | (uint64_t)1 << 63};
    uint32_t *order = s->order;
    for (int64_t i = 0; i < s->n; i++) order[i] = (uint32_t)i;
    for (uint32_t i = (uint32_t)s->n; i-- > 1;) {
        const uint32_t j = cairn__words_below(&w, i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static int is_switch(cairn_switch s) {
    return s == CAIRN_DEFAULT || s == CAIRN_ON || s == CAIRN_OFF;
}

static cairn_status check_arguments(int64_t n, int rank, int size, const struct cairn_sampler_options *o,
                                    cairn_sampler **out) {
    REQUIRE(out, CAIRN_EINVAL, "out is NULL");
    REQUIRE(n >= 0 && n <= MOST, CAIRN_EINVAL, "a dataset of %" PRId64 " examples; it must have from 0 to 2^62", n);
    REQUIRE(size >= 1, CAIRN_EINVAL, "size is %d; there must be at least one rank", size);
    REQUIRE(rank >= 0 && rank < size, CAIRN_EINVAL, "rank is %d of %d ranks; it must be from 0 to %d", rank, size,
            size - 1);
    REQUIRE(is_switch(o->shuffle), CAIRN_EINVAL,
            "cairn_sampler_options.shuffle is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)o->shuffle);
    REQUIRE(is_switch(o->drop_last), CAIRN_EINVAL,
            "cairn_sampler_options.drop_last is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF",
            (int)o->drop_last);
    REQUIRE(is_switch(o->pad), CAIRN_EINVAL,
            "cairn_sampler_options.pad is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)o->pad);
    REQUIRE(o->pad != CAIRN_OFF || o->drop_last != CAIRN_ON, CAIRN_EINVAL,
            "cairn_sampler_options: pad=OFF gives every example once, but drop_last=ON leaves some out; choose one");
    REQUIRE(
        o->shuffle == CAIRN_OFF || n <= MAX_SHUFFLED, CAIRN_EINVAL,
        "a shuffle of %" PRId64
        " examples; it must be of fewer than 2^32: sample groups of neighbouring examples, or set shuffle to CAIRN_OFF",
        n);
    return CAIRN_OK;
}

static int64_t length_of(const cairn_sampler *s, int rank, int size) {
    if (s->drop_last == CAIRN_ON) return s->n / size;
    return s->n / size + (s->pad == CAIRN_OFF ? rank < s->n % size : s->n % size != 0);
}

cairn_status cairn_distributed_sampler_create(int64_t n, int rank, int size,
                                              const struct cairn_sampler_options *options, cairn_sampler **out) {
    struct cairn_sampler_options o = *cairn_sampler_options(.shuffle = CAIRN_ON);
    cairn_status st = CAIRN_OK;
    cairn_sampler *s = NULL;
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_sampler_options"));
    TRY(check_arguments(n, rank, size, &o, out));
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    *s = (cairn_sampler){.n = n, .rank = rank, .size = size, .seed = o.seed, .drop_last = o.drop_last, .pad = o.pad};
    s->length = length_of(s, rank, size);
    if (o.shuffle != CAIRN_OFF) TRY(cairn__alloc((size_t)n * sizeof(s->order[0]), (void **)&s->order));
    TRY(cairn_sampler_set_epoch(s, 0));
    *out = s;
    return CAIRN_OK;
out:
    cairn_sampler_destroy(&s);
    return st;
}

cairn_status cairn_sampler_create(int64_t n, const struct cairn_sampler_options *options, cairn_sampler **out) {
    return cairn_distributed_sampler_create(n, 0, 1, options, out);
}

void cairn_sampler_destroy(cairn_sampler **sampler) {
    if (!sampler || !*sampler) return;
    cairn__free((*sampler)->order);
    cairn__free(*sampler);
    *sampler = NULL;
}

cairn_status cairn_sampler_set_epoch(cairn_sampler *sampler, int64_t epoch) {
    REQUIRE(sampler, CAIRN_EINVAL, "sampler is NULL");
    REQUIRE(epoch >= 0, CAIRN_EINVAL, "epoch is %" PRId64 "; it must not be negative", epoch);
    sampler->epoch = epoch;
    sampler->position = 0;
    if (sampler->order) shuffle(sampler);
    return CAIRN_OK;
}

int64_t cairn__sampler_examples(const cairn_sampler *sampler) {
    return sampler->n;
}

size_t cairn__sampler_peek(const cairn_sampler *s, int64_t position, int64_t *indices, size_t n) {
    const int64_t left = s->length - position;
    if (n > (uint64_t)left) n = (size_t)left;
    for (size_t i = 0; i < n; i++) {
        const int64_t place = (s->rank + (position + (int64_t)i) * s->size) % s->n;
        indices[i] = s->order ? (int64_t)s->order[place] : place;
    }
    return n;
}

size_t cairn_sampler_next(cairn_sampler *sampler, int64_t *indices, size_t n) {
    if (!sampler || (!indices && n > 0)) {
        cairn__fail(CAIRN_EINVAL, "%s is NULL", sampler ? "indices" : "sampler");
        return 0;
    }
    const size_t got = cairn__sampler_peek(sampler, sampler->position, indices, n);
    sampler->position += (int64_t)got;
    return got;
}

cairn_status cairn_sampler_seek(cairn_sampler *sampler, int64_t position) {
    REQUIRE(sampler, CAIRN_EINVAL, "sampler is NULL");
    REQUIRE(position >= 0 && position <= sampler->length, CAIRN_EINVAL,
            "position is %" PRId64 "; it must be from 0 to %" PRId64, position, sampler->length);
    sampler->position = position;
    return CAIRN_OK;
}

int64_t cairn_sampler_length(const cairn_sampler *sampler) {
    return sampler ? sampler->length : 0;
}

int64_t cairn_sampler_position(const cairn_sampler *sampler) {
    return sampler ? sampler->position : 0;
}

int64_t cairn_sampler_epoch(const cairn_sampler *sampler) {
    return sampler ? sampler->epoch : 0;
}

/* ---- state ---- */

/* Ranks of a distributed sampler have equal positions, except at the end of an epoch without padding. Ranks may also
 * have separate samplers. */
static cairn_status list(void *object, struct cairn__entries *entries) {
    const cairn_sampler *s = object;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"n", s->n},
        {"seed", (int64_t)s->seed},
        {"shuffle", s->order != NULL},
        {"drop_last", s->drop_last == CAIRN_ON},
        {"pad", s->pad != CAIRN_OFF},
        {"ranks", s->size},
        {"epoch", s->epoch},
        {"position", s->position},
    };
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        TRY(cairn__entries_add_i64(entries, CAIRN__ENTRY_RANK_OR_FIRST, numbers[i].value, "%s", numbers[i].name));
out:
    return st;
}

static cairn_status check_same(const cairn_sampler *s, const struct cairn__entries *entries) {
    const int64_t n = cairn__entries_i64(entries, "n"), shuffle = cairn__entries_i64(entries, "shuffle");
    const int64_t drop_last = cairn__entries_i64(entries, "drop_last"), pad = cairn__entries_i64(entries, "pad");
    const uint64_t seed = (uint64_t)cairn__entries_i64(entries, "seed");
    REQUIRE(n == s->n, CAIRN_EINVAL,
            "sampler: it was saved of a dataset of %" PRId64 " examples, and this has %" PRId64, n, s->n);
    REQUIRE(seed == s->seed, CAIRN_EINVAL, "sampler: it was saved with seed %" PRIu64 ", and has seed %" PRIu64, seed,
            s->seed);
    REQUIRE(shuffle == (s->order != NULL) && drop_last == (s->drop_last == CAIRN_ON) && pad == (s->pad != CAIRN_OFF),
            CAIRN_EINVAL,
            "sampler: it was saved with shuffle %d, drop_last %d and pad %d, and has %d, %d and %d; make it as it was",
            shuffle != 0, drop_last != 0, pad != 0, s->order != NULL, s->drop_last == CAIRN_ON, s->pad != CAIRN_OFF);
    return CAIRN_OK;
}

/* Computes the position for this number of ranks after `ranks` ranks had returned `position` examples each. A finished
 * epoch stays finished. */
static cairn_status move(const cairn_sampler *s, int64_t ranks, int64_t position, int64_t *out) {
    const int64_t most = length_of(s, 0, (int)ranks);
    REQUIRE(position >= 0 && position <= most, CAIRN_EINVAL,
            "sampler: position %" PRId64 " of an epoch of %" PRId64 " on %" PRId64 " ranks", position, most, ranks);
    if (position == most || ranks == s->size) {
        *out = position < s->length && position < most ? position : s->length;
        return CAIRN_OK;
    }
    const int64_t places = position * ranks; /* within the dataset, which was checked before */
    REQUIRE(places % s->size == 0, CAIRN_EINVAL,
            "sampler: %" PRId64 " ranks had handed out %" PRId64 " examples, %" PRId64 " each, which %d ranks do not "
            "divide; save where they do, as at the end of an epoch",
            ranks, places, position, s->size);
    *out = places / s->size < s->length ? places / s->size : s->length;
    return CAIRN_OK;
}

static cairn_status find_position(const cairn_sampler *s, const struct cairn__entries *entries, int64_t *position) {
    const int64_t ranks = cairn__entries_i64(entries, "ranks"), epoch = cairn__entries_i64(entries, "epoch");
    cairn_status st = CAIRN_OK;
    TRY(check_same(s, entries));
    REQUIRE(ranks >= 1 && ranks <= INT32_MAX && epoch >= 0, CAIRN_EINVAL,
            "sampler: %" PRId64 " ranks in epoch %" PRId64, ranks, epoch);
    TRY(move(s, ranks, cairn__entries_i64(entries, "position"), position));
out:
    return st;
}

static cairn_status check(const void *object, const struct cairn__entries *entries) {
    int64_t position;
    return find_position(object, entries, &position);
}

static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    cairn_sampler *s = object;
    int64_t position = 0;
    cairn_status st = CAIRN_OK;
    TRY(find_position(s, entries, &position));
    TRY(cairn_sampler_set_epoch(s, cairn__entries_i64(entries, "epoch")));
    TRY(cairn_sampler_seek(s, position));
out:
    return st;
}

static const struct cairn__stateful_ops ops = {.kind = "sampler", .list = list, .check = check, .loaded = loaded};

cairn_stateful cairn_sampler_stateful(cairn_sampler *sampler) {
    return (cairn_stateful){&ops, sampler};
}
