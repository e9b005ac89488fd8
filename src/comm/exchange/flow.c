/* Progress of flows: every poll starts the transfers that can start and tests those in flight. */
#include <assert.h>
#include <string.h>

#include "comm/exchange/parts.h"
#include "core/alloc.h"
#include "core/status.h"

/* ---- queues ---- */

static cairn_status take_flow(struct exchange *x, struct flow **out) {
    struct flow *f = x->free_flows;
    cairn_status st = CAIRN_OK;
    if (f) {
        x->free_flows = f->next;
        memset(f, 0, sizeof(*f));
    } else {
        TRY(cairn__calloc(1, sizeof(*f), (void **)&f));
    }
    *out = f;
out:
    return st;
}

cairn_status cairn__exchange_queue(struct exchange *x, cairn_work *work) {
    const struct cairn__call *call = &work->request.call;
    const struct exchange_shape *shape = cairn__exchange_shape(x, call);
    const bool is_message = cairn__call_is_message(call), stages = shape && shape->stages;
    const bool is_short = stages && cairn__exchange_staged_nbytes(x, shape, call, call->n) <= EXCHANGE_SHORT_NBYTES;
    struct flow *f = NULL;
    cairn_status st = CAIRN_OK;
    if (is_message && !x->lanes) TRY(cairn__calloc(2 * (size_t)x->group->size, sizeof(*x->lanes), (void **)&x->lanes));
    if (is_short && !x->short_staging)
        TRY(cairn__alloc(EXCHANGE_AHEAD * EXCHANGE_SHORT_NBYTES, (void **)&x->short_staging));
    if (stages && !is_short && !x->staging) TRY(cairn__alloc(EXCHANGE_AHEAD * x->stride, (void **)&x->staging));
    TRY(take_flow(x, &f));
    f->work = work;
    f->shape = shape;
    f->staging = is_short ? x->short_staging : x->staging;
    f->stride = is_short ? EXCHANGE_SHORT_NBYTES : x->stride;
    if (shape) {
        f->per_block = cairn__exchange_per_block(x, shape, call);
        f->blocks = (call->n + f->per_block - 1) / f->per_block;
        assert(!stages || cairn__exchange_staged_nbytes(x, shape, call,
                                                        call->n < f->per_block ? call->n : f->per_block) <= f->stride);
    }
    struct flow_queue *q = &x->collectives;
    if (is_message) q = &x->lanes[(call->kind == CAIRN__RECV) * x->group->size + call->peer];
    if (q->head) {
        q->tail->next = f;
    } else {
        q->head = f;
    }
    q->tail = f;
    x->messages += is_message;
out:
    return st;
}

static void free_list(struct flow *f) {
    while (f) {
        struct flow *next = f->next;
        cairn__free(f);
        f = next;
    }
}

void cairn__exchange_free_flows(struct exchange *x) {
    free_list(x->collectives.head);
    free_list(x->free_flows);
    for (int i = 0; x->lanes && i < 2 * x->group->size; i++) free_list(x->lanes[i].head);
    cairn__free(x->lanes);
}

/* ---- transfers ---- */

static struct cairn__transfer blank(struct exchange *x) {
    const size_t nbytes = (size_t)x->group->size * sizeof(size_t);
    for (int i = 0; i < 4; i++) memset(x->at[i], 0, nbytes);
    return (
        struct cairn__transfer){.dst_at = x->at[0], .dst_nbytes = x->at[1], .src_at = x->at[2], .src_nbytes = x->at[3]};
}

/* Adds the rank and the call, which the engine does not know, to the engine's error. */
static cairn_status add_call(const struct exchange *x, const struct flow *f, cairn_status st) {
    char rank[80], what[128];
    if (st == CAIRN_OK) return st;
    cairn__group_name_rank(x->group, x->group->rank, rank, sizeof(rank));
    cairn__call_describe(&f->work->request.call, what, sizeof(what));
    return cairn__fail(st, "%s was in %s: %s", rank, what, cairn_last_error());
}

static struct cairn__engine *engine_of(const struct exchange *x, const struct flow *f) {
    return f->stage == FLOW_ANSWERS ? x->answers : x->engine;
}

static cairn_status start(struct exchange *x, const struct flow *f, const struct cairn__transfer *t,
                          struct cairn__moving **out) {
    x->moved = true;
    return add_call(x, f, x->ops->start(engine_of(x, f), t, out));
}

/* Tests the transfer; *moving is NULL once it is done, or if there was nothing to do. */
static cairn_status poll_transfer(struct exchange *x, const struct flow *f, struct cairn__moving **moving) {
    bool done = false;
    if (!*moving) return CAIRN_OK;
    cairn_status st = add_call(x, f, x->ops->test(engine_of(x, f), *moving, &done));
    if (st == CAIRN_OK && done) {
        *moving = NULL;
        x->moved = true;
    }
    return st;
}

typedef void (*fill_fn)(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t);

static cairn_status start_block(struct exchange *x, struct flow *f, fill_fn fill, size_t block,
                                struct cairn__moving **out) {
    if (!fill || !x->engine) return CAIRN_OK;
    struct cairn__transfer t = blank(x);
    fill(x, f, block, &t);
    return start(x, f, &t, out);
}

static struct cairn__moving **first_of(struct flow *f, size_t block) {
    return &f->first[block % EXCHANGE_AHEAD];
}

static struct cairn__moving **second_of(struct flow *f, size_t block) {
    return &f->second[block % EXCHANGE_AHEAD];
}

/* ---- words ---- */

void cairn__exchange_words(struct exchange *x, struct cairn__transfer *t) {
    *t = blank(x);
    t->kind = CAIRN__MOVE_ALLGATHER;
    t->dst = x->words;
    for (int r = 0; r < x->group->size; r++) {
        x->at[0][r] = (size_t)r * sizeof(*x->words);
        x->at[1][r] = sizeof(*x->words);
    }
}

/* Moves a message's word to the receiver, or, in the other direction, the receiver's word to the sender. */
static cairn_status move_word(struct exchange *x, struct flow *f, enum flow_stage stage) {
    const bool sends = (f->mine.call.kind == CAIRN__SEND) == (stage == FLOW_WORDS);
    struct cairn__transfer t = blank(x);
    t.kind = sends ? CAIRN__MOVE_SEND : CAIRN__MOVE_RECV;
    t.src = &f->mine;
    t.dst = &f->theirs;
    t.nbytes = sizeof(f->mine);
    t.peer = f->mine.call.peer;
    f->stage = stage;
    return start(x, f, &t, &f->word_moving);
}

/* ---- one flow ---- */

static cairn_status begin(struct exchange *x, struct flow *f) {
    const bool has_words = x->check || !f->shape;
    f->mine = (struct exchange_word){.call = f->work->request.call, .found = f->work->request.found};
    f->stage = FLOW_WORDS;
    if (!x->engine) x->words[0] = f->mine;
    if (!has_words || !x->engine) return CAIRN_OK;
    if (cairn__call_is_message(&f->mine.call)) return move_word(x, f, FLOW_WORDS);
    struct cairn__transfer t;
    cairn__exchange_words(x, &t);
    x->words[x->group->rank] = f->mine;
    return start(x, f, &t, &f->word_moving);
}

/* Called once the words have arrived. */
static cairn_status compare(struct exchange *x, struct flow *f) {
    const bool has_words = x->engine && (x->check || !f->shape), message = cairn__call_is_message(&f->mine.call);
    if (has_words && message && f->stage == FLOW_WORDS) return move_word(x, f, FLOW_ANSWERS);
    if (has_words && message && !cairn__calls_agree(&f->mine.call, &f->theirs.call))
        return cairn__fail_mismatch(x->group, x->group->rank, &f->mine.call, f->mine.call.peer, &f->theirs.call);
    for (int r = 1; has_words && !message && r < x->group->size; r++) { /* all ranks find the same pair */
        if (!cairn__calls_agree(&x->words[0].call, &x->words[r].call))
            return cairn__fail_mismatch(x->group, 0, &x->words[0].call, r, &x->words[r].call);
    }
    if (f->shape && f->shape->begin) f->shape->begin(x, f);
    f->stage = FLOW_MOVES;
    return CAIRN_OK;
}

static cairn_status exchange_calls(struct exchange *x, struct flow *f) {
    cairn_status st = CAIRN_OK;
    while (f->stage != FLOW_MOVES) {
        TRY(poll_transfer(x, f, &f->word_moving));
        if (f->word_moving) break;
        TRY(compare(x, f));
    }
out:
    return st;
}

static bool may_combine(struct flow *f) {
    const size_t b = f->combined;
    if (b == f->started || *first_of(f, b) || *second_of(f, b)) return false;
    return f->started == f->blocks || f->started == b + EXCHANGE_AHEAD;
}

static cairn_status may_start(struct exchange *x, struct flow *f, bool *may) {
    *may = f->started < f->blocks && f->started < f->combined + EXCHANGE_AHEAD;
    return *may && f->shape->may_start ? f->shape->may_start(x, f, f->started, may) : CAIRN_OK;
}

static cairn_status move_blocks(struct exchange *x, struct flow *f) {
    cairn_status st = CAIRN_OK;
    bool starts = false;
    for (int i = 0; i < EXCHANGE_AHEAD; i++) {
        TRY(poll_transfer(x, f, &f->first[i]));
        TRY(poll_transfer(x, f, &f->second[i]));
    }
    for (;;) {
        if (f->shape->take_turn) f->shape->take_turn(x, f);
        TRY(may_start(x, f, &starts));
        if (starts) {
            TRY(start_block(x, f, f->shape->first, f->started, first_of(f, f->started)));
            f->started++;
        } else if (may_combine(f)) {
            if (f->shape->combine) f->shape->combine(x, f, f->combined);
            TRY(start_block(x, f, f->shape->second, f->combined, second_of(f, f->combined)));
            f->combined++;
        } else {
            break;
        }
    }
out:
    return st;
}

static bool is_through(struct exchange *x, struct flow *f) {
    if (f->stage != FLOW_MOVES || f->combined < f->blocks) return false;
    for (int i = 0; i < EXCHANGE_AHEAD; i++) {
        if (f->second[i]) return false;
    }
    return !f->shape || !f->shape->may_end || f->shape->may_end(x, f);
}

/* ---- all ---- */

static cairn_status move_queue(struct exchange *x, struct flow_queue *q) {
    cairn_status st = CAIRN_OK;
    while (q->head) {
        struct flow *f = q->head;
        uint32_t found = 0;
        if (f->stage == FLOW_QUEUED) TRY(begin(x, f));
        TRY(exchange_calls(x, f));
        if (f->stage == FLOW_MOVES && f->shape) TRY(move_blocks(x, f));
        if (!is_through(x, f)) break;
        cairn_work *work = f->work;
        x->moved = true;
        x->messages -= cairn__call_is_message(&work->request.call);
        q->head = f->next;
        f->next = x->free_flows;
        x->free_flows = f;
        for (int r = 0; !f->shape && r < x->group->size; r++) found |= x->words[r].found;
        cairn__work_complete(work, found);
    }
out:
    return st;
}

cairn_status cairn__exchange_step(struct exchange *x) {
    cairn_status st = CAIRN_OK;
    x->moved = false;
    TRY(move_queue(x, &x->collectives));
    for (int i = 0; x->messages > 0 && i < 2 * x->group->size; i++) TRY(move_queue(x, &x->lanes[i]));
out:
    return st;
}
