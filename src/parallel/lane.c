/* Messages between GPUs.
 *
 * A lane is a group of two ranks with one direction: the first rank sends, the second receives. A communicator runs its
 * operations in order in one stream, and a send blocks that stream until its receive has begun. If two neighbours sent
 * and received over one communicator, they would wait for each other; with 1F1B in the first steady step. So a rank has
 * up to four lanes: activations and gradients, in and out.
 *
 * No schedule can deadlock. Message k of a lane waits for message k - 1, for the action that makes it, and for the
 * receiver's actions before the one that needs it. An action waits for the message that it needs and, if it sends
 * message k, for the end of message k - slots of that lane. By these rules tests/parallel/plan_test.c plays all
 * schedules to their end. Both ends launch the same messages, one at a time and without delay: a launch of two messages
 * would wait for what only the second needs. The action that needs a message posts its receive. A receive that was on
 * the GPU earlier would block calls that wait for the whole GPU (allocating memory, loading a kernel), and with them
 * actions that the sender may wait for.
 *
 * The host has to know what arrives, but can read a parcel in device memory only once the device has received it. So
 * parcels are sent only in the first call with a batch of a given shape, and each end keeps them; later calls send only
 * the arrays. */
#include <string.h>

#include "core/alloc.h"
#include "parallel/pipeline.h"

/* ---- making ---- */

/* Lanes without a common rank are created in the same turn: first the even lanes, then the odd ones, then the last lane
 * if it closes a ring of an odd number of ranks. */
static int turn_of(int lane, int ranks) {
    return lane == ranks - 1 && ranks % 2 ? 2 : lane % 2;
}

static cairn_status make_head(const struct cairn__hop *hop, void **head) {
    if (*head) return CAIRN_OK;
    return cairn__device_alloc(hop->device, CAIRN__HOLDS_STATE, sizeof(struct cairn__parcel), head);
}

cairn_status cairn__lanes_make(struct cairn__hop *hop) {
    cairn_status st = CAIRN_OK;
    TRY(make_head(hop, &hop->slots[0].head));
    TRY(make_head(hop, &hop->head));
out:
    return st;
}

/* Lane i leads from place i to place i + 1. A place is a rank, counted in the direction of the hop. */
cairn_status cairn__lanes_connect(struct cairn__hop *hop, cairn_group *group, bool is_back, bool is_ring) {
    const int ranks = cairn_group_size(group), rank = cairn_group_rank(group);
    const int place = is_back ? ranks - 1 - rank : rank, before = (place + ranks - 1) % ranks;
    const bool sends = is_ring || place < ranks - 1, receives = is_ring || place > 0;
    cairn_status st = CAIRN_OK;
    hop->to = 1;
    hop->from = 0;
    for (int turn = 0; turn < 3; turn++) {
        const bool is_sender = sends && turn_of(place, ranks) == turn;
        const bool is_receiver = receives && turn_of(before, ranks) == turn;
        cairn_group *made = NULL;
        if (turn == 2 && !(is_ring && ranks % 2)) break;
        TRY(cairn_group_split(group, is_sender ? place : is_receiver ? before : -1, is_sender ? 0 : 1, NULL, &made));
        if (is_sender) hop->out = made;
        if (is_receiver) hop->in = made;
        /* A library may connect two ranks at their first message, and both hosts then wait. So the first message is
         * sent here, where both are. */
        if (made)
            TRY(is_sender ? cairn_send(hop->out, hop->slots[0].head, 1, CAIRN_I64, hop->to, NULL)
                          : cairn_recv(hop->in, hop->head, 1, CAIRN_I64, hop->from, NULL));
    }
out:
    return st;
}

/* ---- parcels ---- */

static cairn_status keep(struct cairn__told *told, const struct cairn__parcel *parcel) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&told->parcels, &told->capacity, told->count + 1, sizeof(told->parcels[0])));
    told->parcels[told->count++] = *parcel;
out:
    return st;
}

/* Sends, and launches the send. */
static cairn_status post(struct cairn__hop *hop, const void *x, size_t n, cairn_dtype dtype, cairn_work **work) {
    cairn_status st = CAIRN_OK;
    TRY(cairn_send(hop->out, x, n, dtype, hop->to, work));
    TRY(cairn__group_progress(hop->out));
out:
    return st;
}

/* If the lane was aborted meanwhile, nothing arrived, and cairn__group_progress returns the error. */
cairn_status cairn__lane_hear(struct cairn__hop *hop, struct cairn__parcel *parcel) {
    struct cairn__told *told = &hop->received;
    cairn_status st = CAIRN_OK;
    if (hop->is_known) {
        REQUIRE(told->next < told->count, CAIRN_EINTERNAL, "pipeline: a message was not told of");
        *parcel = told->parcels[told->next++];
        return CAIRN_OK;
    }
    TRY(cairn_recv(hop->in, hop->head, CAIRN__PARCEL_WORDS, CAIRN_I64, hop->from, NULL));
    TRY(cairn__device_download(hop->device, parcel, hop->head, sizeof(*parcel)));
    TRY(cairn__group_progress(hop->in));
    TRY(keep(told, parcel));
out:
    return st;
}

/* ---- arrays ---- */

cairn_status cairn__lane_send(struct cairn__hop *hop, struct cairn__slot *slot, const void *memory) {
    const struct cairn__parcel *parcel = &slot->parcel;
    const size_t n = cairn__parcel_numel(parcel);
    struct cairn__told *told = &hop->sent;
    cairn_status st = CAIRN_OK;
    if (hop->is_known) {
        REQUIRE(
            told->next < told->count && memcmp(&told->parcels[told->next], parcel, sizeof(*parcel)) == 0, CAIRN_ENOTSUP,
            "pipeline: what micro-batch %lld sends has another shape or type than in the call before, or a gradient "
            "where there was none; between GPUs these may change with the shape of the input, the number of its rows, "
            "and which parameters are frozen, alone",
            (long long)parcel->micro_batch);
        told->next++;
    } else {
        TRY(keep(told, parcel));
        TRY(make_head(hop, &slot->head));
        TRY(cairn__device_upload(hop->device, slot->head, parcel, sizeof(*parcel)));
        TRY(post(hop, slot->head, CAIRN__PARCEL_WORDS, CAIRN_I64, &slot->works[0]));
    }
    if (n > 0) TRY(post(hop, memory, n, cairn__parcel_dtype(parcel), &slot->works[1]));
out:
    return st;
}

/* ---- a call ---- */

void cairn__lanes_begin(struct cairn__hop *hop, bool is_known) {
    hop->is_known = is_known;
    if (!is_known) hop->sent.count = hop->received.count = 0;
    hop->sent.next = hop->received.next = 0;
}

cairn_status cairn__lanes_check(struct cairn__hop *hop) {
    cairn_status st = CAIRN_OK;
    if (hop->out) TRY(cairn__group_progress(hop->out));
    if (hop->in) TRY(cairn__group_progress(hop->in));
out:
    return st;
}
