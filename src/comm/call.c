#include "comm/call.h"

#include <inttypes.h>
#include <stdio.h>

#include "comm/group_backend.h"
#include "core/status.h"

const char *cairn__call_name(enum cairn__call_kind kind) {
    static const char *const names[] = {
        [CAIRN__ALLREDUCE] = "all-reduce",
        [CAIRN__REDUCE] = "reduce",
        [CAIRN__BROADCAST] = "broadcast",
        [CAIRN__ALLGATHER] = "all-gather",
        [CAIRN__REDUCE_SCATTER] = "reduce-scatter",
        [CAIRN__ALLTOALL] = "all-to-all",
        [CAIRN__SEND] = "send",
        [CAIRN__RECV] = "receive",
        [CAIRN__BARRIER] = "barrier",
        [CAIRN__ALLOC] = "group allocation",
        [CAIRN__FREE] = "cairn_group_free (or ddp_destroy)",
        [CAIRN__AGREE] = "agreement",
    };
    return (size_t)kind < sizeof(names) / sizeof(names[0]) && names[kind] ? names[kind] : "unknown collective";
}

static const char *redop_name(cairn_redop op) {
    static const char *const names[] = {[CAIRN_SUM] = "sum",
                                        [CAIRN_AVG] = "average",
                                        [CAIRN_MIN] = "minimum",
                                        [CAIRN_MAX] = "maximum",
                                        [CAIRN_PROD] = "product"};
    return (size_t)op < sizeof(names) / sizeof(names[0]) && names[op] ? names[op] : "?";
}

void cairn__group_name_rank(const cairn_group *group, int rank, char *text, size_t nbytes) {
    if (group->is_of_all) {
        snprintf(text, nbytes, "rank %d", rank);
    } else {
        snprintf(text, nbytes, "rank %d of group %lld (rank %d of all)", rank,
                 (long long)(group->index / CAIRN__MAX_RANKS), group->env_ranks[rank]);
    }
}

bool cairn__calls_agree(const struct cairn__call *a, const struct cairn__call *b) {
    const bool same = a->number == b->number && a->n == b->n && a->dtype == b->dtype;
    if (cairn__call_is_message(a) && cairn__call_is_message(b)) return same && a->kind != b->kind;
    return same && a->kind == b->kind && a->redop == b->redop && a->root == b->root;
}

/* What a call brings beside its name: "5 f32 to sum". "" where that is nothing. */
static void describe_values(const struct cairn__call *c, char *text, size_t nbytes) {
    const char *type = cairn_dtype_name((cairn_dtype)c->dtype), *op = redop_name((cairn_redop)c->redop);
    const uint64_t n = c->n;
    switch ((enum cairn__call_kind)c->kind) {
    case CAIRN__ALLREDUCE:
    case CAIRN__REDUCE_SCATTER:
        if (c->divisor > 0) snprintf(text, nbytes, "%" PRIu64 " %s to %s over %d", n, type, op, c->divisor);
        else snprintf(text, nbytes, "%" PRIu64 " %s to %s", n, type, op);
        break;
    case CAIRN__REDUCE:
        snprintf(text, nbytes, "%" PRIu64 " %s to %s at rank %d", n, type, op, c->root);
        break;
    case CAIRN__BROADCAST:
        snprintf(text, nbytes, "%" PRIu64 " %s from rank %d", n, type, c->root);
        break;
    case CAIRN__RECV:
        snprintf(text, nbytes, "%" PRIu64 " %s from rank %d", n, type, c->peer);
        break;
    case CAIRN__SEND:
        snprintf(text, nbytes, "%" PRIu64 " %s to rank %d", n, type, c->peer);
        break;
    case CAIRN__ALLGATHER:
    case CAIRN__ALLTOALL:
        snprintf(text, nbytes, "%" PRIu64 " %s", n, type);
        break;
    case CAIRN__ALLOC:
        snprintf(text, nbytes, "%" PRIu64 " bytes", n);
        break;
    case CAIRN__FREE:
        snprintf(text, nbytes, "allocation %" PRIu64, n);
        break;
    default:
        snprintf(text, nbytes, "%s", "");
    }
}

void cairn__call_describe(const struct cairn__call *call, char *text, size_t nbytes) {
    char values[64];
    describe_values(call, values, sizeof(values));
    if (call->number == 0) {
        snprintf(text, nbytes, "the group's creation");
    } else {
        snprintf(text, nbytes, "%s number %" PRIu64 "%s%s", cairn__call_name((enum cairn__call_kind)call->kind),
                 call->number, values[0] ? " of " : "", values);
    }
}

/* ---- disagreement ---- */

/* "all-reduce of 5 f32 to sum" */
static void describe_whole(const struct cairn__call *call, char *text, size_t nbytes) {
    char values[64];
    describe_values(call, values, sizeof(values));
    snprintf(text, nbytes, "%s%s%s", cairn__call_name((enum cairn__call_kind)call->kind), values[0] ? " of " : "",
             values);
}

struct caller {
    char name[80];
    const struct cairn__call *call;
};

static struct caller caller_of(const cairn_group *group, int rank, const struct cairn__call *call) {
    struct caller caller = {.call = call};
    cairn__group_name_rank(group, rank, caller.name, sizeof(caller.name));
    return caller;
}

static cairn_status fail_message(const struct caller *from, const struct caller *to) {
    const struct cairn__call *sent = from->call, *received = to->call;
    return cairn__fail(CAIRN_EPEER,
                       "message number %" PRIu64 " from %s to %s: %s sends %" PRIu64 " %s, %s receives %" PRIu64
                       " %s; both ranks must pass the same count and type",
                       sent->number, from->name, to->name, from->name, sent->n,
                       cairn_dtype_name((cairn_dtype)sent->dtype), to->name, received->n,
                       cairn_dtype_name((cairn_dtype)received->dtype));
}

static cairn_status fail_collective(const struct caller *low, const struct caller *high) {
    static const char *const advice = "every rank must issue the same collectives in the same order";
    const struct cairn__call *a = low->call, *b = high->call;
    char of_a[128], of_b[128];
    if (a->number != b->number) {
        cairn__call_describe(a, of_a, sizeof(of_a));
        cairn__call_describe(b, of_b, sizeof(of_b));
        return cairn__fail(CAIRN_EPEER, "%s is in %s, %s in %s; %s", low->name, of_a, high->name, of_b, advice);
    }
    const bool same_kind = a->kind == b->kind;
    (same_kind ? describe_values : describe_whole)(a, of_a, sizeof(of_a));
    (same_kind ? describe_values : describe_whole)(b, of_b, sizeof(of_b));
    return cairn__fail(CAIRN_EPEER, "%s number %" PRIu64 ": %s issues %s, %s issues %s; %s",
                       same_kind ? cairn__call_name((enum cairn__call_kind)a->kind) : "collective", a->number,
                       low->name, of_a, high->name, of_b, advice);
}

cairn_status cairn__fail_mismatch(const cairn_group *group, int rank, const struct cairn__call *call, int other,
                                  const struct cairn__call *others) {
    const struct caller mine = caller_of(group, rank, call), theirs = caller_of(group, other, others);
    if (cairn__call_is_message(call) && cairn__call_is_message(others)) {
        return call->kind == CAIRN__SEND ? fail_message(&mine, &theirs) : fail_message(&theirs, &mine);
    }
    return rank < other ? fail_collective(&mine, &theirs) : fail_collective(&theirs, &mine);
}
