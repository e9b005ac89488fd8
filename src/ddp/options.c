/* Options of a context. Each wrong value, and each pair of options that contradict each other, has its message. */
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "core/options.h"
#include "core/status.h"
#include "ddp/context.h"

enum {
    BUCKET_NBYTES = 25 << 20,    /* torch: bucket_cap_mb=25 */
    SHM_BUCKET_NBYTES = 4 << 20, /* summed while the caches hold it; and there is no latency to hide */
    FIRST_BUCKET_NBYTES = 1 << 20,
};

/* ---- values ---- */

#define SWITCH_LIST(X)                             \
    X(broadcast_buffers, CAIRN_ON)                 \
    X(find_unused_parameters, CAIRN_OFF)           \
    X(static_graph, CAIRN_OFF)                     \
    X(init_sync, CAIRN_ON)                         \
    X(gradient_as_bucket_view, CAIRN_ON)           \
    X(skip_all_reduce_unused_params, CAIRN_OFF)    \
    X(delay_allreduce, CAIRN_OFF)                  \
    X(allreduce_always_fp32, CAIRN_OFF)            \
    X(gradient_average, CAIRN_ON)                  \
    X(join_divide_by_initial_world_size, CAIRN_ON) \
    X(join_throw_on_early_termination, CAIRN_OFF)  \
    X(shard_optimizer, CAIRN_OFF)

static cairn_status check_switch(const char *name, cairn_switch value) {
    REQUIRE((int)value >= CAIRN_DEFAULT && (int)value <= CAIRN_OFF, CAIRN_EINVAL,
            "ddp_options.%s is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", name, (int)value);
    return CAIRN_OK;
}

static cairn_status check_names(const char *option, const char *const *names, size_t count) {
    REQUIRE(names || count == 0, CAIRN_EINVAL, "ddp_options.%s is NULL, but its count is %zu", option, count);
    for (size_t i = 0; i < count; i++) REQUIRE(names[i], CAIRN_EINVAL, "ddp_options.%s[%zu] is NULL", option, i);
    return CAIRN_OK;
}

/* ---- pairs ---- */

static cairn_status check_pairs(const struct ddp_options *o) {
    REQUIRE(o->allreduce_always_fp32 != CAIRN_ON || o->wire == 0 || o->wire == CAIRN_F32, CAIRN_EINVAL,
            "ddp_options give allreduce_always_fp32 and wire = %s; give one of them", cairn_dtype_name(o->wire));
    REQUIRE(o->retain_allreduce_buffers == CAIRN_DEFAULT || o->gradient_as_bucket_view == CAIRN_DEFAULT ||
                o->retain_allreduce_buffers == o->gradient_as_bucket_view,
            CAIRN_EINVAL,
            "ddp_options turn retain_allreduce_buffers %s and gradient_as_bucket_view %s, which are two names of one "
            "option; give one of them",
            o->retain_allreduce_buffers == CAIRN_ON ? "on" : "off",
            o->gradient_as_bucket_view == CAIRN_ON ? "on" : "off");
    REQUIRE(o->skip_all_reduce_unused_params != CAIRN_ON || o->find_unused_parameters == CAIRN_ON ||
                o->delay_allreduce == CAIRN_ON,
            CAIRN_EINVAL,
            "ddp_options give skip_all_reduce_unused_params without find_unused_parameters; give both, or neither");
    return CAIRN_OK;
}

/* ---- reading ---- */

static void complete(struct ddp_options *o, const cairn_group *group, bool for_module) {
    if (o->retain_allreduce_buffers != CAIRN_DEFAULT) o->gradient_as_bucket_view = o->retain_allreduce_buffers;
    if (o->gradient_as_bucket_view == CAIRN_DEFAULT && !for_module) o->gradient_as_bucket_view = CAIRN_OFF;
    if (o->delay_allreduce == CAIRN_ON) o->find_unused_parameters = CAIRN_ON;
#define CAIRN__X(name, value) \
    if (o->name == CAIRN_DEFAULT) o->name = value;
    SWITCH_LIST(CAIRN__X)
#undef CAIRN__X
    if (o->bucket_nbytes == 0) o->bucket_nbytes = cairn__group_shares_memory(group) ? SHM_BUCKET_NBYTES : BUCKET_NBYTES;
    if (o->first_bucket_nbytes == 0)
        o->first_bucket_nbytes = o->bucket_nbytes < FIRST_BUCKET_NBYTES ? o->bucket_nbytes : FIRST_BUCKET_NBYTES;
    if (o->allreduce_always_fp32 == CAIRN_ON) o->wire = CAIRN_F32;
    if (o->gradient_predivide_factor == 0) o->gradient_predivide_factor = 1;
}

cairn_status cairn__ddp_options_read(const struct ddp_options *given, const cairn_group *group, bool for_module,
                                     struct ddp_options *out) {
    cairn_status st = CAIRN_OK;
    struct ddp_options o = {.struct_size = sizeof(o)};
    TRY(cairn__options_read(&o, sizeof(o), given, "ddp_options"));
#define CAIRN__X(name, value) TRY(check_switch(#name, o.name));
    SWITCH_LIST(CAIRN__X)
#undef CAIRN__X
    TRY(check_switch("retain_allreduce_buffers", o.retain_allreduce_buffers));
    TRY(check_switch("prof", o.prof));
    /* Options of apex that do nothing here: their fields keep the struct's layout. */
    REQUIRE(o.num_allreduce_streams == 0 || o.num_allreduce_streams == 1, CAIRN_EINVAL,
            "ddp_options.num_allreduce_streams is %d; buckets are sent in one order over one channel; leave it out",
            o.num_allreduce_streams);
    REQUIRE(
        o.prof != CAIRN_ON, CAIRN_EINVAL,
        "ddp_options.prof is on, but there are no profiler ranges; leave it out: ddp_get_logging_data has the times");
    REQUIRE(o.wire == 0 || o.wire == CAIRN_F32 || o.wire == CAIRN_F16 || o.wire == CAIRN_BF16, CAIRN_EINVAL,
            "ddp_options.wire is %s (%d); it must be f32, f16 or bf16", cairn_dtype_name(o.wire), (int)o.wire);
    REQUIRE(o.message_size >= 0, CAIRN_EINVAL,
            "ddp_options.message_size is %lld; it must be a number of elements, or 0 to limit buckets by bucket_nbytes",
            (long long)o.message_size);
    const double f = o.gradient_predivide_factor; /* 1/f is an f32 */
    REQUIRE(f == 0 || (f >= 1e-30 && f <= 1e30), CAIRN_EINVAL,
            "ddp_options.gradient_predivide_factor is %g; it must be positive, from 1e-30 to 1e30", f);
    TRY(check_names("ignored", o.ignored, o.num_ignored));
    TRY(check_names("allreduce_trigger_params", o.allreduce_trigger_params, o.num_trigger_params));
    REQUIRE(
        o.message_size == 0 || (o.bucket_nbytes == 0 && o.first_bucket_nbytes == 0), CAIRN_EINVAL,
        "ddp_options give message_size = %lld elements and %s = %zu bytes; a bucket has one limit: give one of them",
        (long long)o.message_size, o.bucket_nbytes ? "bucket_nbytes" : "first_bucket_nbytes",
        o.bucket_nbytes ? o.bucket_nbytes : o.first_bucket_nbytes);
    REQUIRE(
        o.delay_allreduce != CAIRN_ON || o.num_trigger_params == 0, CAIRN_EINVAL,
        "ddp_options give delay_allreduce and allreduce_trigger_params; which contradict each other; give one of them");
    TRY(check_pairs(&o));
    const char *const name =
        o.retain_allreduce_buffers == CAIRN_ON ? "retain_allreduce_buffers" : "gradient_as_bucket_view";
    REQUIRE(for_module || (o.gradient_as_bucket_view != CAIRN_ON && o.retain_allreduce_buffers != CAIRN_ON),
            CAIRN_EINVAL,
            "ddp_options give %s, but parameters are in your own memory, which stays where it is; leave it out", name);
    complete(&o, group, for_module);
    *out = o;
out:
    return st;
}

/* ---- the same on every rank ---- */

/* As the user gave them, or as they were filled in. */
#define OPTION_LIST(X)                   \
    X(bucket_nbytes)                     \
    X(first_bucket_nbytes)               \
    X(message_size)                      \
    X(wire)                              \
    X(broadcast_buffers)                 \
    X(find_unused_parameters)            \
    X(static_graph)                      \
    X(init_sync)                         \
    X(gradient_as_bucket_view)           \
    X(skip_all_reduce_unused_params)     \
    X(delay_allreduce)                   \
    X(gradient_average)                  \
    X(gradient_predivide_factor)         \
    X(join_divide_by_initial_world_size) \
    X(join_throw_on_early_termination)   \
    X(shard_optimizer)                   \
    X(num_ignored)                       \
    X(num_trigger_params)

static const char *const option_names[] = {
#define CAIRN__X(name) #name,
    OPTION_LIST(CAIRN__X)
#undef CAIRN__X
};

enum { NUM_OPTIONS = sizeof(option_names) / sizeof(option_names[0]), NUM_LISTS = 2 };

static const char *const list_names[NUM_LISTS] = {"ignored", "allreduce_trigger_params"};

/* The options of one rank; equal memory = the same. */
struct told {
    char call[32];
    double values[NUM_OPTIONS];
    uint64_t hashes[NUM_LISTS];
    char lists[NUM_LISTS][128]; /* cut */
};

static void write_list(const char *const *names, size_t count, char *text, size_t nbytes, uint64_t *hash) {
    size_t used = 0;
    *hash = CAIRN__HASH_START;
    for (size_t i = 0; i < count; i++) {
        *hash = cairn__hash_bytes(*hash, names[i], strlen(names[i]) + 1);
        if (used < nbytes) used += (size_t)snprintf(text + used, nbytes - used, "%s%s", i ? ", " : "", names[i]);
    }
}

static cairn_status compare_told(const struct told *first, const struct told *other, int rank) {
    REQUIRE(strcmp(first->call, other->call) == 0, CAIRN_EPEER, "rank 0 calls %s but rank %d %s", first->call, rank,
            other->call);
    for (int i = 0; i < NUM_OPTIONS; i++)
        REQUIRE(first->values[i] == other->values[i], CAIRN_EPEER,
                "%s: ddp_options.%s is %.10g on rank 0 but %.10g on rank %d; give every rank the same options",
                first->call, option_names[i], first->values[i], other->values[i], rank);
    for (int i = 0; i < NUM_LISTS; i++)
        REQUIRE(first->hashes[i] == other->hashes[i], CAIRN_EPEER,
                "%s: ddp_options.%s is %.127s on rank 0 but %.127s on rank %d; give every rank the same options",
                first->call, list_names[i], first->lists[i], other->lists[i], rank);
    return CAIRN_OK;
}

cairn_status cairn__ddp_agree_on_options(const struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    struct told *all = NULL, mine;
    if (cairn_group_size(d->group) == 1) return CAIRN_OK;
    TRY(cairn__group_make_room(d->group, d->call, sizeof(*all), (void **)&all));
    const struct ddp_options *o = &d->options;
    const double values[] = {
#define CAIRN__X(name) (double)o->name,
        OPTION_LIST(CAIRN__X)
#undef CAIRN__X
    };
    memset(&mine, 0, sizeof(mine));
    snprintf(mine.call, sizeof(mine.call), "%s", d->call);
    memcpy(mine.values, values, sizeof(values));
    write_list(o->ignored, o->num_ignored, mine.lists[0], sizeof(mine.lists[0]), &mine.hashes[0]);
    write_list(o->allreduce_trigger_params, o->num_trigger_params, mine.lists[1], sizeof(mine.lists[1]),
               &mine.hashes[1]);
    TRY(cairn__group_exchange(d->group, all, &mine, sizeof(mine)));
    for (int r = 1; r < cairn_group_size(d->group); r++) TRY(compare_told(&all[0], &all[r], r));
out:
    cairn__free(all);
    return st;
}

/* ---- asking ---- */

bool cairn__ddp_ignores(const struct ddp_context *d, const char *name) {
    for (size_t i = 0; i < d->options.num_ignored; i++) {
        if (strcmp(d->options.ignored[i], name) == 0) return true;
    }
    return false;
}
