#include "flow.h"

#include <math.h>
#include <stdlib.h>

#include "parallel/plan.h"
#include "../common/say.h"

/* A rank's messages in one direction. */
struct way {
    double *received; /* [number of messages] time of receipt; NAN = not yet */
    int sent, taken;
    double free; /* when the previous message has left */
};

struct rank {
    struct cairn__action *actions;
    int next;
    bool sends; /* the action at next has finished computing at `time`, and its result waits to be sent */
    double time;
    struct way ahead, back;
};

struct sim {
    const struct pipe *pipe;
    struct flow *flow;
    struct rank *ranks;
    int slots, stages;
    double *inputs, *grads; /* [stages][micro_batches] time of arrival; NAN = not yet */
};

static double rows_of(const struct sim *s, int m) {
    const int64_t left = s->pipe->rows - (int64_t)m * s->flow->split;
    return (double)(left < s->flow->split ? left : s->flow->split);
}

static int stage_of(const struct sim *s, int rank, const struct cairn__action *a) {
    return a->chunk * s->flow->ranks + rank;
}

/* When the action's input is available; NAN = not known yet. */
static double ready(const struct sim *s, int stage, const struct cairn__action *a) {
    const size_t at = (size_t)stage * (size_t)s->flow->micro_batches + (size_t)a->micro_batch;
    if (a->is_backward) return stage == s->stages - 1 ? 0 : s->grads[at];
    return stage == 0 ? 0 : s->inputs[at];
}

static int neighbour(const struct sim *s, int rank, int by) {
    return (rank + by + s->flow->ranks) % s->flow->ranks;
}

/* Returns false if the input is not available yet. */
static bool compute(struct sim *s, int r) {
    struct rank *rank = &s->ranks[r];
    const struct cairn__action *a = &rank->actions[rank->next];
    const int stage = stage_of(s, r, a);
    const struct stage *costs = &s->pipe->stages->list[stage];
    const double since = ready(s, stage, a);
    if (isnan(since)) return false;
    struct turn *turn = &s->flow->list[r * s->flow->turns + rank->next];
    turn->is_backward = a->is_backward;
    turn->stage = stage;
    turn->micro_batch = a->micro_batch;
    turn->begin = fmax(rank->time, since);
    turn->end = turn->begin + cost_ns(a->is_backward ? costs->backward : costs->forward, rows_of(s, a->micro_batch));
    if (s->flow->ranks > 1 && a->is_backward && stage < s->stages - 1) {
        struct way *from = &s->ranks[neighbour(s, r, 1)].back;
        from->received[from->taken++] = turn->begin;
    } else if (s->flow->ranks > 1 && !a->is_backward && stage > 0) {
        struct way *from = &s->ranks[neighbour(s, r, -1)].ahead;
        from->received[from->taken++] = turn->begin;
    }
    rank->time = turn->end;
    rank->sends = true;
    return true;
}

/* Returns false if the slot is not free yet. */
static bool dispatch(struct sim *s, int r) {
    struct rank *rank = &s->ranks[r];
    const struct cairn__action *a = &rank->actions[rank->next];
    const int stage = stage_of(s, r, a), other = a->is_backward ? stage - 1 : stage + 1;
    struct way *way = a->is_backward ? &rank->back : &rank->ahead;
    if (other >= 0 && other < s->stages) {
        double *arrives =
            &(a->is_backward ? s->grads
                             : s->inputs)[(size_t)other * (size_t)s->flow->micro_batches + (size_t)a->micro_batch];
        const struct link *link = s->pipe->link;
        const int before = way->sent - s->slots;
        const double nbytes =
            s->pipe->stages->list[a->is_backward ? other : stage].output_nbytes * rows_of(s, a->micro_batch);
        if (s->flow->ranks == 1) {
            *arrives = rank->time;
        } else {
            if (before >= 0 && isnan(way->received[before])) return false;
            if (before >= 0) rank->time = fmax(rank->time, way->received[before]);
            const double begin = fmax(rank->time, way->free), bytes = link->beta_ns * nbytes;
            *arrives = begin + link->alpha_ns + bytes;
            way->free = begin + bytes;
            rank->time += link->share * (link->alpha_ns + bytes);
        }
        way->sent++;
    }
    rank->sends = false;
    rank->next++;
    return true;
}

static void run(struct sim *s) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->flow->ranks; r++) {
            struct rank *rank = &s->ranks[r];
            while (rank->next < s->flow->turns && (rank->sends ? dispatch(s, r) : compute(s, r))) moved = true;
        }
    }
}

static double *unknown(size_t n) {
    double *list = must(malloc(n * sizeof(*list)));
    for (size_t i = 0; i < n; i++) list[i] = NAN;
    return list;
}

static void sum_up(struct flow *f, const struct pipe *pipe) {
    double busy = 0;
    for (int r = 0; r < f->ranks; r++) {
        double held = 0, most = 0;
        for (int i = 0; i < f->turns; i++) {
            const struct turn *t = &f->list[r * f->turns + i];
            const int64_t left = pipe->rows - (int64_t)t->micro_batch * f->split;
            held += (t->is_backward ? -1 : 1) * pipe->stages->list[t->stage].held_nbytes *
                    (double)(left < f->split ? left : f->split);
            most = fmax(most, held);
            busy += t->end - t->begin;
            f->end = fmax(f->end, t->end);
        }
        f->held = fmax(f->held, most);
        if (f->in_flight_of[r] > f->in_flight) f->in_flight = f->in_flight_of[r];
    }
    f->idle = f->end > 0 ? fmax(1 - busy / (f->end * f->ranks), 0) : 0;
}

void flow_run(const struct pipe *pipe, int64_t split, struct flow *out) {
    const int ranks = (int)pipe->stages->count / pipe->modules, m = (int)((pipe->rows + split - 1) / split);
    const int turns = 2 * pipe->modules * m;
    *out = (struct flow){.ranks = ranks, .turns = turns, .micro_batches = m, .split = split};
    out->list = must(calloc((size_t)ranks * (size_t)turns, sizeof(*out->list)));
    out->in_flight_of = must(calloc((size_t)ranks, sizeof(*out->in_flight_of)));
    struct sim s = {.pipe = pipe,
                    .flow = out,
                    .ranks = must(calloc((size_t)ranks, sizeof(*s.ranks))),
                    .slots = cairn__pipeline_slots(pipe->schedule, ranks),
                    .stages = (int)pipe->stages->count,
                    .inputs = unknown(pipe->stages->count * (size_t)m),
                    .grads = unknown(pipe->stages->count * (size_t)m)};
    for (int r = 0; r < ranks; r++) {
        struct rank *rank = &s.ranks[r];
        rank->actions = must(calloc((size_t)turns, sizeof(*rank->actions)));
        rank->ahead.received = unknown((size_t)turns);
        rank->back.received = unknown((size_t)turns);
        cairn__pipeline_plan(pipe->schedule, r, ranks, pipe->modules, m, rank->actions);
        out->in_flight_of[r] = cairn__pipeline_plan_in_flight(rank->actions, (size_t)turns);
    }
    run(&s);
    sum_up(out, pipe);
    for (int r = 0; r < ranks; r++) {
        free(s.ranks[r].actions);
        free(s.ranks[r].ahead.received);
        free(s.ranks[r].back.received);
    }
    free(s.ranks);
    free(s.inputs);
    free(s.grads);
}

void flow_free(struct flow *f) {
    free(f->list);
    free(f->in_flight_of);
    *f = (struct flow){0};
}

/* ---- the search ---- */

int64_t split_for(int64_t rows, int64_t micro_batches) {
    return (rows + micro_batches - 1) / micro_batches;
}

size_t flow_search(const struct pipe *pipe, struct flow **list) {
    const int64_t most = pipe->rows < MAX_SEARCHED ? pipe->rows : MAX_SEARCHED;
    size_t count = 0;
    *list = must(calloc((size_t)most, sizeof(**list)));
    for (int64_t m = 1; m <= most; m++) {
        const int64_t split = split_for(pipe->rows, m);
        if (count > 0 && (*list)[count - 1].split == split) continue;
        struct flow *f = &(*list)[count++];
        flow_run(pipe, split, f);
        free(f->list); /* of all together they would be too large */
        f->list = NULL;
    }
    return count;
}

/* Rows in flight; equal for all that hold the whole batch. */
static int64_t rows_in_flight(const struct flow *f) {
    return f->in_flight < f->micro_batches ? f->in_flight * f->split : INT64_MAX;
}

size_t flow_best(const struct flow *list, size_t count) {
    size_t shortest = 0;
    for (size_t i = 1; i < count; i++) {
        if (list[i].end < list[shortest].end * (1 - 1e-9)) shortest = i;
    }
    size_t best = shortest;
    for (size_t i = 0; i < count; i++) {
        if (list[i].end > list[shortest].end * (1 + FLAT)) continue;
        if (rows_in_flight(&list[i]) < rows_in_flight(&list[best])) best = i;
    }
    return best;
}
