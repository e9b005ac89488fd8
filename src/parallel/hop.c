/* Messages between neighbours.
 *
 * An array is copied into a slot before it is sent, so the caller may reuse its memory at once. If the group has memory
 * of its own, the slots are there, and the receiver copies from them (shm) without this rank's help. Sizes are known
 * only once arrays have been sent: the first ones are sent from the hop's own memory, and all ranks allocate group
 * memory as the next step begins. */

#include "core/alloc.h"
#include "core/trace.h"
#include "parallel/pipeline.h"

size_t cairn__parcel_numel(const struct cairn__parcel *parcel) {
    size_t n = 1;
    for (int64_t d = 0; d < parcel->ndim; d++) n *= (size_t)parcel->shape[d];
    return parcel->present ? n : 0;
}

size_t cairn__parcel_nbytes(const struct cairn__parcel *parcel) {
    return cairn__parcel_numel(parcel) * cairn_dtype_nbytes((cairn_dtype)parcel->dtype);
}

/* Groups have no bool type. */
cairn_dtype cairn__parcel_dtype(const struct cairn__parcel *parcel) {
    return parcel->dtype == CAIRN_BOOL ? CAIRN_U8 : (cairn_dtype)parcel->dtype;
}

/* ---- making and ending ---- */

cairn_status cairn__hop_create(struct cairn_device *device, int num_slots, struct cairn__hop *out) {
    cairn_status st = CAIRN_OK;
    *out = (struct cairn__hop){.device = device, .num_slots = num_slots};
    TRY(cairn__calloc((size_t)num_slots, sizeof(out->slots[0]), (void **)&out->slots));
    if (!cairn__is_on_host(device)) TRY(cairn__lanes_make(out));
out:
    return st;
}

/* Each direction has its own channel, so gradients do not queue behind activations. */
cairn_status cairn__hop_connect(struct cairn__hop *hop, cairn_group *group, bool is_back, bool is_ring) {
    const int rank = cairn_group_rank(group), ranks = cairn_group_size(group);
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    cairn_status st = CAIRN_OK;
    hop->is_alone = ranks == 1;
    hop->has_lanes = ranks > 1 && !cairn__is_on_host(hop->device);
    if (hop->has_lanes) return cairn__lanes_connect(hop, group, is_back, is_ring);
    TRY(cairn_group_new(group, NULL, 0, NULL, &hop->out));
    hop->in = hop->out;
    hop->to = is_back ? before : next;
    hop->from = is_back ? next : before;
out:
    return st;
}

/* Destroying a group frees its memory and its works. */
void cairn__hop_end(struct cairn__hop *hop) {
    if (hop->in == hop->out) hop->in = NULL;
    cairn_group_destroy(&hop->out);
    cairn_group_destroy(&hop->in);
    for (int i = 0; hop->slots && i < hop->num_slots; i++) {
        cairn__device_free(hop->device, hop->slots[i].memory);
        cairn__device_free(hop->device, hop->slots[i].head);
    }
    cairn__device_free(hop->device, hop->head);
    cairn__free(hop->sent.parcels);
    cairn__free(hop->received.parcels);
    cairn__free(hop->slots);
    *hop = (struct cairn__hop){0};
}

void cairn__hop_begin(struct cairn__hop *hop, bool is_known) {
    if (hop->has_lanes) cairn__lanes_begin(hop, is_known);
}

/* Lanes are aborted without a message: the pipeline's channel carries it, and the peers look there. */
cairn_status cairn__hop_kill(struct cairn__hop *hop, cairn_status status) {
    if (!hop->has_lanes) return cairn__group_kill(hop->out, status);
    cairn_group_abort(hop->out);
    cairn_group_abort(hop->in);
    return status;
}

/* ---- slots ---- */

static cairn_status finish(struct cairn__slot *slot) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < 2; i++) {
        if (slot->works[i]) TRY(cairn_work_wait(&slot->works[i]));
    }
out:
    return st;
}

static cairn_status finish_all(struct cairn__hop *hop) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < hop->num_slots; i++) TRY(finish(&hop->slots[i]));
out:
    return st;
}

static cairn_status make_room(struct cairn__hop *hop, struct cairn__slot *slot, size_t nbytes, void **out) {
    cairn_status st = CAIRN_OK;
    if (hop->shared && nbytes <= hop->part) {
        *out = hop->shared + (size_t)(slot - hop->slots) * hop->part;
        return CAIRN_OK;
    }
    if (nbytes > slot->room) {
        cairn__device_free(hop->device, slot->memory);
        slot->memory = NULL;
        slot->room = 0;
        TRY(cairn__device_alloc(hop->device, CAIRN__HOLDS_TAPE, nbytes, &slot->memory));
        slot->room = nbytes;
    }
    *out = slot->memory;
out:
    return st;
}

/* ---- sending ---- */

static cairn_status send_both(struct cairn__hop *hop, struct cairn__slot *slot, const void *memory) {
    const size_t n = cairn__parcel_numel(&slot->parcel);
    cairn_status st = CAIRN_OK;
    TRY(cairn_send(hop->out, &slot->parcel, CAIRN__PARCEL_WORDS, CAIRN_I64, hop->to, &slot->works[0]));
    if (n > 0) TRY(cairn_send(hop->out, memory, n, cairn__parcel_dtype(&slot->parcel), hop->to, &slot->works[1]));
out:
    return st;
}

cairn_status cairn__hop_send(struct cairn__hop *hop, const struct cairn__parcel *parcel, const void *values) {
    struct cairn__slot *slot = &hop->slots[hop->next];
    const size_t nbytes = cairn__parcel_nbytes(parcel);
    cairn_status st = CAIRN_OK;
    void *memory = NULL;
    REQUIRE(!slot->is_full, CAIRN_EINTERNAL, "pipeline: a rank alone sends more than it receives");
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    TRY(finish(slot));
    cairn__trace("parallel", "wait", parcel->micro_batch, 0, begin_ns);
    TRY(make_room(hop, slot, nbytes, &memory));
    slot->parcel = *parcel;
    slot->sent = memory;
    if (nbytes > 0) TRY(cairn__device_copy(hop->device, memory, values, nbytes));
    hop->next = (hop->next + 1) % hop->num_slots;
    if (nbytes > hop->largest) hop->largest = nbytes;
    slot->is_full = hop->is_alone;
    if (slot->is_full) return CAIRN_OK;
    st = hop->has_lanes ? cairn__lane_send(hop, slot, memory) : send_both(hop, slot, memory);
out:
    return st;
}

/* From memory that the receiver sees, it copies by itself; other messages need this rank to make progress. */
cairn_status cairn__hop_flush(struct cairn__hop *hop) {
    if (hop->is_alone) return CAIRN_OK;
    const bool moves_alone = hop->out && cairn__group_shares_memory(hop->out) && hop->largest <= hop->part;
    cairn_status st = CAIRN_OK;
    if (!moves_alone) TRY(finish_all(hop));
    if (hop->has_lanes) TRY(cairn__lanes_check(hop));
out:
    return st;
}

/* ---- receiving ---- */

cairn_status cairn__hop_receive(struct cairn__hop *hop, struct cairn__parcel *parcel) {
    if (hop->has_lanes) return cairn__lane_hear(hop, parcel);
    if (!hop->is_alone) return cairn_recv(hop->in, parcel, CAIRN__PARCEL_WORDS, CAIRN_I64, hop->from, NULL);
    const struct cairn__slot *slot = &hop->slots[hop->oldest];
    REQUIRE(slot->is_full, CAIRN_EINTERNAL, "pipeline: a rank alone receives what it has not sent");
    *parcel = slot->parcel;
    return CAIRN_OK;
}

cairn_status cairn__hop_receive_values(struct cairn__hop *hop, const struct cairn__parcel *parcel, void *values) {
    const size_t n = cairn__parcel_numel(parcel);
    cairn_status st = CAIRN_OK;
    if (hop->is_alone) {
        struct cairn__slot *slot = &hop->slots[hop->oldest];
        TRY(cairn__device_copy(hop->device, values, slot->sent, cairn__parcel_nbytes(&slot->parcel)));
        slot->is_full = false;
        hop->oldest = (hop->oldest + 1) % hop->num_slots;
    } else if (n > 0) {
        TRY(cairn_recv(hop->in, values, n, cairn__parcel_dtype(parcel), hop->from, NULL));
    }
out:
    return st;
}

/* ---- group memory ---- */

cairn_status cairn__hop_share(struct cairn__hop *hop, size_t nbytes) {
    const size_t part = (nbytes + CAIRN__ALIGN - 1) / CAIRN__ALIGN * CAIRN__ALIGN;
    cairn_status st = CAIRN_OK;
    void *memory = NULL;
    if (part <= hop->part || hop->is_alone || hop->has_lanes) return CAIRN_OK;
    TRY(finish_all(hop));
    memory = hop->shared;
    hop->shared = NULL;
    hop->part = 0;
    if (memory) TRY(cairn_group_free(hop->out, &memory));
    TRY(cairn_group_alloc(hop->out, (size_t)hop->num_slots * part, &memory));
    hop->shared = memory;
    hop->part = part;
    for (int i = 0; i < hop->num_slots; i++) {
        cairn__device_free(hop->device, hop->slots[i].memory);
        hop->slots[i].memory = NULL;
        hop->slots[i].room = 0;
    }
out:
    return st;
}
