/* Creates and destroys pipelines. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/options.h"
#include "param/param.h"
#include "parallel/pipeline.h"

/* ---- what each rank checks by itself ---- */

static cairn_status check_schedule(const struct cairn_pipeline_options *o, int num_modules) {
    REQUIRE(o->schedule >= CAIRN_PIPELINE_GPIPE && o->schedule <= CAIRN_PIPELINE_INTERLEAVED_1F1B, CAIRN_EINVAL,
            "cairn_pipeline_create: schedule is %d, which is none", (int)o->schedule);
    REQUIRE(num_modules == 1 || o->schedule == CAIRN_PIPELINE_INTERLEAVED_1F1B, CAIRN_EINVAL,
            "cairn_pipeline_create: %d modules are given, but this schedule has one a rank; use "
            "CAIRN_PIPELINE_INTERLEAVED_1F1B",
            num_modules);
    REQUIRE(
        o->n_microbatches >= 0 && o->split_size >= 0 && (o->n_microbatches > 0) != (o->split_size > 0), CAIRN_EINVAL,
        "cairn_pipeline_create: n_microbatches is %d and split_size is %lld; one of them must be above 0, the other "
        "0",
        o->n_microbatches, (long long)o->split_size);
    return CAIRN_OK;
}

static cairn_status check_modules(cairn_module *const *modules, int num_modules, ddp_context *const *ddp) {
    for (int i = 0; i < num_modules; i++) {
        REQUIRE(modules[i], cairn__last_status() != CAIRN_OK ? cairn__last_status() : CAIRN_EINVAL,
                "cairn_pipeline_create: module %d is NULL", i);
        REQUIRE(cairn__module_env(modules[i]) == cairn__module_env(modules[0]), CAIRN_EINVAL,
                "cairn_pipeline_create: the modules belong to different environments");
        REQUIRE(cairn_module_params(modules[i]), CAIRN_ESTATE,
                "cairn_pipeline_create: module %d belongs to another; give the root", i);
        const bool is_listened = cairn_module_params(modules[i])->listener != NULL;
        REQUIRE(is_listened == (ddp && ddp[i]), CAIRN_EINVAL,
                "cairn_pipeline_create: module %d has %s ddp context, but cairn_pipeline_options.ddp has %s for it", i,
                is_listened ? "a" : "no", is_listened ? "none" : "one");
    }
    return CAIRN_OK;
}

static cairn_status check(cairn_module *const *modules, int num_modules, struct cairn_pipeline_options *o,
                          const struct cairn_pipeline_options *options) {
    cairn_status st = CAIRN_OK;
    REQUIRE(num_modules > 0 && modules, CAIRN_EINVAL,
            "cairn_pipeline_create: num_modules is %d and modules is %s; at least one module must be given",
            num_modules, modules ? "set" : "NULL");
    TRY(cairn__options_read(o, sizeof(*o), options, "cairn_pipeline_options"));
    if (!o->schedule) o->schedule = num_modules > 1 ? CAIRN_PIPELINE_INTERLEAVED_1F1B : CAIRN_PIPELINE_1F1B;
    TRY(check_schedule(o, num_modules));
    TRY(check_modules(modules, num_modules, o->ddp));
    cairn_env *const env = cairn__module_env(modules[0]);
    REQUIRE(!o->optimizer || cairn__optimizer_env(o->optimizer) == env, CAIRN_EINVAL,
            "cairn_pipeline_create: the optimizer belongs to another environment than the modules");
    REQUIRE(!o->optimizer || !cairn__optimizer_partners(o->optimizer), CAIRN_ESTATE,
            "cairn_pipeline_create: the optimizer belongs to another pipeline; destroy that one first");
    REQUIRE(
        !o->amp || o->optimizer, CAIRN_EINVAL,
        "cairn_pipeline_create: amp is set, but optimizer is not; every stage's loss scale moves with its steps, so "
        "give the optimizer that was given to amp_initialize");
out:
    return st;
}

/* ---- what must be the same on all ranks ---- */

struct terms {
    int64_t schedule, num_modules, n_microbatches, split_size, has_amp;
    uint64_t amp; /* a hash of its level, types and scalers */
    int64_t has_optimizer;
    double max_norm; /* that the optimizer's steps clip by */
};

static cairn_status hash_amp(cairn_module *const *modules, int num_modules, amp_context *amp, uint64_t *out) {
    cairn_status st = CAIRN_OK;
    char *text = NULL;
    *out = 0;
    if (!amp) return CAIRN_OK;
    const int length = amp_state_dict(amp, NULL, 0);
    if (length < 0) return cairn__last_status();
    TRY(cairn__calloc((size_t)length + 1, 1, (void **)&text));
    if (amp_state_dict(amp, text, (size_t)length + 1) < 0) TRY(cairn__last_status());
    *out = cairn__hash_text(CAIRN__HASH_START, text);
    for (int i = 0; i < num_modules; i++) *out = cairn__hash_text(*out, cairn_module_params(modules[i])->precision);
out:
    cairn__free(text);
    return st;
}

static cairn_status compare(const struct terms *all, int ranks) {
    for (int r = 1; r < ranks; r++) {
        const struct terms *a = &all[0], *b = &all[r];
        REQUIRE(b->num_modules == a->num_modules, CAIRN_EINVAL,
                "cairn_pipeline_create: rank 0 has %lld modules and rank %d has %lld; each must have as many",
                (long long)a->num_modules, r, (long long)b->num_modules);
        REQUIRE(b->schedule == a->schedule, CAIRN_EINVAL,
                "cairn_pipeline_create: rank %d has another schedule than rank 0", r);
        REQUIRE(b->n_microbatches == a->n_microbatches && b->split_size == a->split_size, CAIRN_EINVAL,
                "cairn_pipeline_create: rank 0 has n_microbatches %lld and split_size %lld, rank %d %lld and %lld",
                (long long)a->n_microbatches, (long long)a->split_size, r, (long long)b->n_microbatches,
                (long long)b->split_size);
        REQUIRE(b->has_amp == a->has_amp, CAIRN_EINVAL, "cairn_pipeline_create: rank %d has %s, but rank 0 has %s", r,
                b->has_amp ? "an amp context" : "no amp context", a->has_amp ? "one" : "none");
        REQUIRE(
            b->amp == a->amp, CAIRN_EINVAL,
            "cairn_pipeline_create: rank %d's amp context differs from rank 0's; all stages must have the same level, "
            "half type and loss scale",
            r);
    }
    /* Every stage takes part in clipping by the norm of all stages. */
    int first = 0;
    while (first < ranks && !all[first].has_optimizer) first++;
    for (int r = first; r < ranks; r++) {
        REQUIRE(!all[r].has_optimizer || all[r].max_norm == all[first].max_norm, CAIRN_EINVAL,
                "cairn_pipeline_create: the step of rank %d's optimizer clips by a norm of %g, and that of rank %d's "
                "by %g (max_grad_norm of LAMB; 0 is none); the norm is that of all stages, so give all the same",
                first, all[first].max_norm, r, all[r].max_norm);
    }
    return CAIRN_OK;
}

static cairn_status agree(cairn_pipeline *p, cairn_group *group, int *with_optimizer) {
    cairn_status st = CAIRN_OK;
    struct terms *all = NULL;
    struct terms mine = {.schedule = p->options.schedule,
                         .num_modules = p->chunks,
                         .n_microbatches = p->options.n_microbatches,
                         .split_size = p->options.split_size,
                         .has_amp = p->options.amp != NULL,
                         .has_optimizer = p->options.optimizer != NULL,
                         .max_norm = p->options.optimizer ? cairn__optimizer_max_norm(p->options.optimizer) : 0};
    st = hash_amp(p->modules, p->chunks, p->options.amp, &mine.amp);
    TRY(cairn__group_agree_on_status(group, "cairn_pipeline_create", st));
    TRY(cairn__group_make_room(group, "cairn_pipeline_create", sizeof(mine), (void **)&all));
    TRY(cairn__group_exchange(group, all, &mine, sizeof(mine)));
    TRY(compare(all, p->ranks));
    *with_optimizer = 0;
    for (int r = 0; r < p->ranks; r++) *with_optimizer += all[r].has_optimizer != 0;
out:
    cairn__free(all);
    return st;
}

/* ---- partners ---- */

static cairn_status gather(void *ctx, void *all, const void *mine, size_t nbytes) {
    return cairn__group_exchange(((cairn_pipeline *)ctx)->partner_group, all, mine, nbytes);
}

static int stage_of(void *ctx, const struct cairn__param *param) {
    const cairn_pipeline *p = ctx;
    if (!param) return p->chunks * p->ranks - 1;
    for (int c = 0; c < p->chunks; c++) {
        if (cairn_module_params(p->modules[c]) == param->set) return c * p->ranks + p->rank;
    }
    return -1;
}

static void name_stages(cairn_pipeline *p, const cairn_group *group) {
    enum { SHOWN = 3 };
    size_t used = (size_t)snprintf(p->stages, sizeof(p->stages), p->chunks > 1 ? "stages %d" : "stage %d", p->rank);
    for (int c = 1; c < p->chunks && c < SHOWN; c++)
        used += (size_t)snprintf(p->stages + used, sizeof(p->stages) - used, ", %d", c * p->ranks + p->rank);
    if (p->chunks > SHOWN) snprintf(p->stages + used, sizeof(p->stages) - used, ", ...");
    snprintf(p->name, sizeof(p->name), "%s (rank %d)", p->stages, cairn_group_env_rank(group, p->rank));
}

static cairn_status make_partners(cairn_pipeline *p, cairn_group *group, int with_optimizer) {
    cairn_status st = CAIRN_OK;
    if (with_optimizer < 2) return CAIRN_OK;
    TRY(cairn_group_split(group, p->options.optimizer ? 0 : -1, p->rank, NULL, &p->partner_group));
    if (!p->partner_group) return CAIRN_OK;
    p->partners = (struct cairn__partners){.ctx = p,
                                           .size = cairn_group_size(p->partner_group),
                                           .index = cairn_group_rank(p->partner_group),
                                           .gather = gather,
                                           .name = p->stages,
                                           .stage = stage_of,
                                           .counts = cairn__ties_counts};
    cairn__optimizer_set_partners(p->options.optimizer, &p->partners);
out:
    return st;
}

/* ---- making and ending ---- */

static void count_users(const cairn_pipeline *p, int more) {
    for (int i = 0; i < p->chunks; i++) cairn_module_params(p->modules[i])->users += more;
}

/* The part of create that does not communicate. */
static cairn_status make(cairn_module *const *modules, int num_modules, const cairn_group *group,
                         const struct cairn_pipeline_options *o, cairn_pipeline **out) {
    cairn_status st = CAIRN_OK;
    cairn_pipeline *p = NULL;
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    *out = p;
    p->env = cairn__module_env(modules[0]);
    p->chunks = num_modules;
    p->rank = cairn_group_rank(group);
    p->ranks = cairn_group_size(group);
    p->options = *o;
    name_stages(p, group);
    TRY(cairn__calloc((size_t)num_modules, sizeof(p->modules[0]), (void **)&p->modules));
    memcpy(p->modules, modules, (size_t)num_modules * sizeof(p->modules[0]));
    count_users(p, 1);
    TRY(cairn__calloc((size_t)num_modules, sizeof(p->ddp[0]), (void **)&p->ddp));
    if (o->ddp) memcpy(p->ddp, o->ddp, (size_t)num_modules * sizeof(p->ddp[0]));
    for (int i = 0; i < 2; i++) {
        p->anchors[i] = cairn_zeros(p->env, CAIRN_F32, 0, NULL);
        if (!p->anchors[i]) return cairn__last_status();
    }
    TRY(cairn_tensor_require_grad(p->anchors[1]));
out:
    return st;
}

static cairn_status connect(cairn_pipeline *p, cairn_group *group) {
    const int slots = cairn__pipeline_slots(p->options.schedule, p->ranks);
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < 2; i++) {
        struct cairn__hop *hop = i ? &p->back : &p->ahead;
        st = cairn__hop_create(p->env->device, slots, hop);
        TRY(cairn__group_agree_on_status(group, "cairn_pipeline_create", st));
        TRY(cairn__hop_connect(hop, group, i == 1, p->chunks > 1));
    }
    p->channel = p->ahead.out;
    if (!p->ahead.has_lanes) return CAIRN_OK;
    p->channel = NULL;
    TRY(cairn_group_new(group, NULL, 0, NULL, &p->channel));
out:
    return st;
}

cairn_status cairn_pipeline_create(cairn_module *const *modules, int num_modules, cairn_group *group,
                                   const struct cairn_pipeline_options *options, cairn_pipeline **out) {
    REQUIRE(group && out, CAIRN_EINVAL, "cairn_pipeline_create: group and out must be set");
    cairn_status st = CAIRN_OK;
    cairn_pipeline *p = NULL;
    struct cairn_pipeline_options o = {.struct_size = sizeof(o)};
    int with_optimizer = 0;
    st = check(modules, num_modules, &o, options);
    if (st == CAIRN_OK) st = make(modules, num_modules, group, &o, &p);
    TRY(cairn__group_agree_on_status(group, "cairn_pipeline_create", st));
    TRY(agree(p, group, &with_optimizer));
    TRY(connect(p, group));
    TRY(make_partners(p, group, with_optimizer));
    *out = p;
    return CAIRN_OK;
out:
    cairn_pipeline_destroy(&p);
    return st;
}

void cairn_pipeline_destroy(cairn_pipeline **pipeline) {
    if (!pipeline || !*pipeline) return;
    cairn_pipeline *p = *pipeline;
    if (p->modules) count_users(p, -1);
    if (p->ahead.has_lanes) (void)cairn__device_synchronize(p->env->device); /* messages in flight would be lost */
    if (p->partner_group) cairn__optimizer_set_partners(p->options.optimizer, NULL);
    cairn__ties_end(p);
    cairn_group_destroy(&p->partner_group);
    if (p->ahead.has_lanes) cairn_group_destroy(&p->channel);
    cairn__hop_end(&p->ahead);
    cairn__hop_end(&p->back);
    for (int i = 0; i < 2; i++) cairn_tensor_destroy(&p->anchors[i]);
    cairn__device_free(p->env->device, p->grad);
    cairn__device_free(p->env->device, p->losses);
    cairn__free(p->actions);
    cairn__free(p->flights);
    cairn__free(p->modules);
    cairn__free(p->ddp);
    cairn__free(p);
    *pipeline = NULL;
}

int cairn_pipeline_in_flight(const cairn_pipeline *pipeline) {
    return pipeline ? pipeline->in_flight : 0;
}
