/* The scaled loss: scale before backward, check gradients after it, decide at the step.
 *
 * The scale is in device memory. Scaling a loss copies the scale and its inverse into a cell, backward makes every
 * parameter set that it reaches refer to that cell, and the optimizer's pass reads the inverse there. Whether a
 * gradient overflowed is known once backward has settled: from the reduction over ranks, or from a read of the
 * gradients. That read is deferred until a call reads, changes or forgets the gradients, since a reduction or clipping
 * may have checked them by then. All ranks then hold equal gradients, so all decide alike without an exchange. */
#include <math.h>
#include <string.h>

#include "context.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/hooks.h"

/* ---- the optimizers of a loss ---- */

struct cairn__amp_guard *cairn__amp_guard_of(const amp_context *amp, const cairn_optimizer *optimizer, size_t *index) {
    for (size_t i = 0; i < amp->num_guards; i++) {
        if (amp->guards[i]->optimizer != optimizer) continue;
        *index = i;
        return amp->guards[i];
    }
    return NULL;
}

static size_t num_words(const amp_context *amp) {
    return (amp->num_guards + 63) / 64;
}

static bool is_given(const struct cairn__loss *loss, size_t i) {
    return loss->guards[i / 64] >> (i % 64) & 1;
}

/* ---- checking the last loss ---- */

/* Lists the flags to raise if any optimizer of the loss has found an overflow: `skip` of all of them, since all skip
 * their next step, and the scaler's found. Returns their number; 0 = more than raises has room for. */
static size_t list_flags(const amp_context *amp, const struct cairn__loss *loss, uint32_t **raises) {
    size_t count = 0;
    raises[count++] = &amp->scalers[loss->id]->state->found;
    for (size_t i = 0; i < amp->num_guards; i++) {
        if (!is_given(loss, i)) continue;
        if (count == CAIRN__SHARE_MAX) return 0;
        raises[count++] = cairn__optimizer_skip(amp->guards[i]->optimizer);
    }
    return count;
}

/* Raises these flags, in several passes, from the one flag that was raised in their place. */
static void share(amp_context *amp, const struct cairn__loss *loss) {
    struct cairn_device *d = amp->env->device;
    uint32_t *into[CAIRN__SHARE_MAX];
    uint32_t *from = &amp->found[0], *other = &amp->found[1];
    size_t count = 0;
    into[count++] = &amp->scalers[loss->id]->state->found;
    for (size_t i = 0; i < amp->num_guards; i++) {
        if (!is_given(loss, i)) continue;
        if (count == CAIRN__SHARE_MAX - 1) { /* the next pass reads the flag from the other word */
            into[count++] = other;
            d->passes->share_flag(d, from, into, count);
            uint32_t *swap = from;
            from = other, other = swap;
            count = 0;
        }
        into[count++] = cairn__optimizer_skip(amp->guards[i]->optimizer);
    }
    if (count) d->passes->share_flag(d, from, into, count);
}

cairn_status cairn__amp_resolve(struct cairn__unresolved *unresolved) {
    amp_context *amp = (amp_context *)unresolved;
    const struct cairn__loss *loss = &amp->ended;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    uint32_t *all[CAIRN__SHARE_MAX], *one = &amp->found[0];
    const size_t count = list_flags(amp, loss, all);
    bool touched = false;
    for (size_t i = 0; i < amp->num_guards; i++) {
        if (is_given(loss, i)) touched |= cairn__guard_check(amp->guards[i], count ? all : &one, count ? count : 1);
    }
    if (touched && !count) share(amp, loss);
    cairn__trace("amp", "look_at_loss", loss->id, 0, begin_ns);
    return CAIRN_OK;
}

/* Backward adds to gradients, so those of the last loss are checked first. With delay_unscale, and if both losses have
 * the same scaler and optimizers, they are checked together later, which saves a read. */
static cairn_status check_last_loss(amp_context *amp) {
    const bool only_ours = amp->env->unresolved == &amp->unresolved && !amp->unresolved.next;
    const bool is_same = amp->begun.id == amp->ended.id &&
                         memcmp(amp->begun.guards, amp->ended.guards, num_words(amp) * sizeof(uint64_t)) == 0;
    if (!only_ours || !amp->ended.delayed || !is_same) return cairn__env_resolve(amp->env);
    for (size_t i = 0; i < amp->num_guards; i++) amp->guards[i]->checks_late |= is_given(&amp->ended, i);
    return CAIRN_OK;
}

/* ---- scaling ---- */

/* Scales the loss. Every set that the given optimizers update records whether the loss itself is infinite or NaN; other
 * ranks learn of it with the gradients. The pass that scales the loss also checks it, for the first set. */
static cairn_tensor *scale(amp_context *amp, cairn_tensor *loss) {
    cairn_tensor *scaled = NULL;
    for (size_t i = 0; i < amp->num_guards && cairn__amp_checks(amp); i++) {
        size_t count = 0;
        if (!is_given(&amp->begun, i)) continue;
        struct cairn_param_set *const *sets = cairn__optimizer_sets(amp->guards[i]->optimizer, &count);
        for (size_t k = 0; k < count; k++) {
            uint32_t *const found = cairn__param_set_begin_loss(sets[k]);
            if (!found) continue; /* a set of the user's, whose loss Cairn does not see */
            if (scaled) {
                if (cairn__loss_check(loss, found) != CAIRN_OK) return NULL;
            } else if (!(scaled = cairn__scaler_scale(amp->scalers[amp->begun.id], loss, found))) {
                return NULL;
            }
        }
    }
    return scaled ? scaled : cairn__scaler_scale(amp->scalers[amp->begun.id], loss, NULL);
}

/* ---- begin and end ---- */

static void set_open(amp_context *amp, bool open) {
    if (open != amp->open) amp->env->open_losses += open ? 1 : -1;
    amp->open = open;
}

/* Checks the options and stores them in amp->begun. */
static cairn_status begin_loss(amp_context *amp, const struct amp_loss_options *o) {
    cairn_status st = CAIRN_OK;
    REQUIRE(o->loss_id >= 0 && o->loss_id < amp->policy.num_losses, CAIRN_EINVAL,
            "amp_scale_loss: loss_id is %d; it must be from 0 to %d (amp_options.num_losses - 1)", o->loss_id,
            amp->policy.num_losses - 1);
    REQUIRE(o->num_optimizers >= 0, CAIRN_EINVAL, "amp_scale_loss: num_optimizers is %d; it must not be negative",
            o->num_optimizers);
    REQUIRE(!o->optimizers == !o->num_optimizers, CAIRN_EINVAL,
            "amp_scale_loss: num_optimizers is %d, but optimizers is %s; set both, or neither for all optimizers "
            "of the context",
            o->num_optimizers, o->optimizers ? "set" : "NULL");
    REQUIRE(o->micro_batch >= 0 && o->micro_batch <= INT32_MAX, CAIRN_EINVAL,
            "amp_scale_loss: micro_batch is %lld; it must be from 1, or 0 to be counted", (long long)o->micro_batch);
    const cairn_switch switches[] = {o->delay_unscale, o->delay_overflow_check};
    for (int i = 0; i < 2; i++) {
        REQUIRE(switches[i] == CAIRN_DEFAULT || switches[i] == CAIRN_ON || switches[i] == CAIRN_OFF, CAIRN_EINVAL,
                "amp_scale_loss: %s is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF",
                i ? "delay_overflow_check" : "delay_unscale", (int)switches[i]);
    }
    memset(amp->begun.guards, o->num_optimizers ? 0 : 0xff, num_words(amp) * sizeof(uint64_t));
    for (int i = 0; i < o->num_optimizers; i++) {
        size_t index = 0;
        REQUIRE(cairn__amp_guard_of(amp, o->optimizers[i], &index), CAIRN_EINVAL,
                "amp_scale_loss: the optimizer was not given to amp_initialize");
        amp->begun.guards[index / 64] |= UINT64_C(1) << (index % 64);
    }
    amp->begun.id = o->loss_id;
    amp->begun.micro_batch = (int)o->micro_batch;
    TRY(check_last_loss(amp));
out:
    return st;
}

static cairn_status check_closed(const amp_context *amp) {
    REQUIRE(!amp->open, CAIRN_ESTATE,
            "amp_scale_loss: the last scaled loss was not ended; call amp_scale_loss_end after its cairn_backward");
    return CAIRN_OK;
}

static void set_delayed(amp_context *amp, const struct amp_loss_options *o) {
    amp->begun.delayed = o->delay_unscale == CAIRN_ON || o->delay_overflow_check == CAIRN_ON;
}

cairn_status amp_scale_loss_with(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options,
                                 cairn_tensor **scaled) {
    REQUIRE(amp && scaled, CAIRN_EINVAL, "amp_scale_loss: amp and scaled must be set");
    cairn_status st = CAIRN_OK;
    struct amp_loss_options o = {.struct_size = sizeof(o)};
    TRY(cairn__options_read(&o, sizeof(o), options, "amp_loss_options"));
    TRY(check_closed(amp));
    if (!loss) return cairn_backward(NULL); /* reports why loss is NULL */
    REQUIRE(!o.grad, CAIRN_EINVAL, "amp_scale_loss: amp_loss_options.grad is for amp_backward_with");
    if (amp->policy.enabled) {
        TRY(begin_loss(amp, &o));
        loss = scale(amp, loss);
        if (!loss) return cairn_backward(NULL);
    }
    set_delayed(amp, &o);
    set_open(amp, true);
    *scaled = loss;
out:
    return st;
}

cairn_status amp_scale_loss(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer, cairn_tensor **scaled) {
    return amp_scale_loss_with(amp, loss,
                               amp_loss_options(.num_optimizers = optimizer ? 1 : 0,
                                                .optimizers = optimizer ? &optimizer : NULL),
                               scaled);
}

/* The loss is over: no backward of it can follow. */
static void end_loss(const amp_context *amp) {
    for (size_t i = 0; i < amp->num_guards; i++) {
        size_t count = 0;
        struct cairn_param_set *const *sets = cairn__optimizer_sets(amp->guards[i]->optimizer, &count);
        for (size_t k = 0; k < count; k++) cairn__param_set_end_loss(sets[k]);
    }
}

static void note_loss(amp_context *amp) {
    const struct cairn__loss *loss = &amp->begun;
    amp->ended.id = loss->id;
    amp->ended.delayed = loss->delayed;
    memcpy(amp->ended.guards, loss->guards, num_words(amp) * sizeof(uint64_t));
    for (size_t i = 0; i < amp->num_guards; i++) {
        if (is_given(loss, i))
            cairn__guard_add_loss(amp->guards[i], loss->id, cairn__guard_is_unsynced(amp->guards[i]),
                                  loss->micro_batch);
    }
    cairn__scaler_add_pending(amp->scalers[loss->id]);
    if (cairn__amp_checks(amp)) cairn__env_list_unresolved(amp->env, &amp->unresolved);
}

cairn_status amp_scale_loss_end(amp_context *amp) {
    REQUIRE(amp, CAIRN_EINVAL, "amp_scale_loss_end: amp is NULL");
    REQUIRE(amp->open, CAIRN_ESTATE, "amp_scale_loss_end: call amp_scale_loss first");
    set_open(amp, false);
    end_loss(amp);
    if (amp->policy.enabled) note_loss(amp);
    return CAIRN_OK;
}

/* Begins a loss whose gradient is given, already multiplied by this scaler's scale. */
static cairn_status begin_given(amp_context *amp, const struct amp_loss_options *o,
                                const struct cairn__loss_scale **cell) {
    cairn_status st = CAIRN_OK;
    *cell = NULL;
    TRY(check_closed(amp));
    if (amp->policy.enabled) {
        TRY(begin_loss(amp, o));
        TRY(cairn__scaler_use_scale(amp->scalers[amp->begun.id], cell));
    }
    set_delayed(amp, o);
    set_open(amp, true);
out:
    return st;
}

cairn_status amp_backward_with(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options) {
    REQUIRE(amp, CAIRN_EINVAL, "amp_backward: amp is NULL");
    cairn_tensor *scaled = loss;
    const struct cairn__loss_scale *cell = NULL;
    struct amp_loss_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "amp_loss_options"));
    TRY(o.grad ? begin_given(amp, &o, &cell) : amp_scale_loss_with(amp, loss, &o, &scaled));
    st = o.grad ? cairn__backward_scaled(scaled, o.grad, false, cell) : cairn_backward(scaled);
    if (st == CAIRN_OK) return amp_scale_loss_end(amp);
    set_open(amp, false); /* the caller gets this error; the next amp_scale_loss must not fail for it */
    end_loss(amp);
out:
    return st;
}

cairn_status amp_backward(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer) {
    return amp_backward_with(amp, loss,
                             amp_loss_options(.num_optimizers = optimizer ? 1 : 0,
                                              .optimizers = optimizer ? &optimizer : NULL));
}

/* ---- scalers ---- */

amp_scaler *amp_scaler_of(amp_context *amp, int loss_id) {
    return amp && loss_id >= 0 && loss_id < amp->policy.num_losses ? amp->scalers[loss_id] : NULL;
}

int64_t amp_unskipped_steps(amp_context *amp) {
    if (!amp) return 0;
    return amp->scalers[0]->known.unskipped;
}

int amp_state_dict(amp_context *amp, char *text, size_t nbytes) {
    if (!amp) {
        (void)cairn__fail(CAIRN_EINVAL, "amp_state_dict: amp is NULL");
        return -1;
    }
    return cairn__state_write(amp->scalers, (size_t)amp->policy.num_losses, text, nbytes);
}

cairn_status amp_load_state_dict(amp_context *amp, const char *text) {
    REQUIRE(amp, CAIRN_EINVAL, "amp_load_state_dict: amp is NULL");
    return cairn__state_read(amp->scalers, (size_t)amp->policy.num_losses, text);
}
