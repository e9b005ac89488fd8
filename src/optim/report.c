/* Reports of steps, read as they arrive: on the CPU before cairn_step returns, on a GPU usually during the next
 * step. */
#include "core/trace.h"
#include "device/reports.h"
#include "optim/optim.h"
#include "optim/report.h"

struct cairn__step_report cairn__optimizer_last_report(const cairn_optimizer *o) {
    struct cairn__step_report last;
    cairn__reports_last(o->reports, sizeof(last), &last);
    return last;
}

static cairn_status tell(struct cairn_optimizer *o, const struct cairn__step_report *r) {
    const int64_t step = (int64_t)r->number;
    cairn__trace("optim", r->stepped ? "step" : "step_skipped", r->steps + r->skipped, 0, 0);
    if (cairn__trace_on()) {
        const struct cairn__param_group *first = o->groups;
        if (r->scale > 0) cairn__trace_scalar("optim", "loss_scale", step, r->scale);
        if (o->num_groups > 0)
            cairn__trace_scalar("optim", "lr", step, cairn__group_rates(&first->schedule, r->steps, r->skipped).lr);
        cairn__trace_scalar("optim", "skipped", step, (double)r->skipped);
    }
    if (!o->guard.after) return CAIRN_OK;
    return o->guard.after(o->guard.ctx, r, o->arrays.report_overflows + r->number % CAIRN__REPORTS * (o->count + 1));
}

cairn_status cairn__optimizer_read_reports(struct cairn_optimizer *o) {
    cairn_status worst = CAIRN_OK;
    struct cairn__step_report r;
    while (cairn__reports_next(o->reports, sizeof(r), &o->last_read, &r)) {
        const cairn_status st = tell(o, &r);
        if (o->queued < o->last_read) o->queued = o->last_read;
        if (st != CAIRN_OK) worst = st;
    }
    return worst;
}

static cairn_status reader_read(struct cairn__report_reader *reader) {
    return cairn__optimizer_read_reports((cairn_optimizer *)((char *)reader - offsetof(cairn_optimizer, reader)));
}

void cairn__optimizer_link_reader(struct cairn_optimizer *o) {
    o->reader = (struct cairn__report_reader){.read = reader_read, .next = o->env->readers};
    o->env->readers = &o->reader;
}

void cairn__optimizer_unlink_reader(struct cairn_optimizer *o) {
    struct cairn__report_reader **at = &o->env->readers;
    while (*at && *at != &o->reader) at = &(*at)->next;
    if (*at) *at = o->reader.next;
}
