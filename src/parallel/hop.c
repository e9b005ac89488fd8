/* Messages between neighbours.
 *
 * What is sent is copied into a slot, so that its memory is free at once. Where the group has memory of its own, slots
 * are there, and the receiver copies from them (shm) when it comes, without this rank. How large arrays are is known
 * only when they have been sent: the first ones go from memory of the hop's, and the next step begins with all ranks
 * making room. */

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

/* Groups know no bool. */
static cairn_dtype type_of(const struct cairn__parcel *parcel) {
    return parcel->dtype == CAIRN_BOOL ? CAIRN_U8 : (cairn_dtype)parcel->dtype;
}

enum { WORDS = sizeof(struct cairn__parcel) / sizeof(int64_t) };

static bool is_alone(const struct cairn__hop *hop) {
    return cairn_group_size(hop->channel) == 1;
}

/* ---- making and ending ---- */

cairn_status cairn__hop_create(struct cairn_device *device, cairn_group *channel, int to, int from, int num_slots,
                               struct cairn__hop *out) {
    *out = (struct cairn__hop){.device = device, .channel = channel, .to = to, .from = from, .num_slots = num_slots};
    return cairn__calloc((size_t)num_slots, sizeof(out->slots[0]), (void **)&out->slots);
}

/* The group's memory and works go with it. */
void cairn__hop_end(struct cairn__hop *hop) {
    cairn_group_destroy(&hop->channel);
    for (int i = 0; hop->slots && i < hop->num_slots; i++) cairn__device_free(hop->device, hop->slots[i].memory);
    cairn__free(hop->slots);
    *hop = (struct cairn__hop){0};
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
    slot->is_full = is_alone(hop);
    if (slot->is_full) return CAIRN_OK;
    TRY(cairn_send(hop->channel, &slot->parcel, WORDS, CAIRN_I64, hop->to, &slot->works[0]));
    if (nbytes > 0)
        TRY(cairn_send(hop->channel, memory, cairn__parcel_numel(parcel), type_of(parcel), hop->to, &slot->works[1]));
out:
    return st;
}

/* From memory that it sees the receiver copies by itself; elsewhere this rank has to move it on. */
cairn_status cairn__hop_flush(struct cairn__hop *hop) {
    const bool moves_alone = cairn__group_shares_memory(hop->channel) && hop->largest <= hop->part;
    return is_alone(hop) || moves_alone ? CAIRN_OK : finish_all(hop);
}

/* ---- receiving ---- */

cairn_status cairn__hop_receive(struct cairn__hop *hop, struct cairn__parcel *parcel) {
    if (!is_alone(hop)) return cairn_recv(hop->channel, parcel, WORDS, CAIRN_I64, hop->from, NULL);
    const struct cairn__slot *slot = &hop->slots[hop->oldest];
    REQUIRE(slot->is_full, CAIRN_EINTERNAL, "pipeline: a rank alone receives what it has not sent");
    *parcel = slot->parcel;
    return CAIRN_OK;
}

cairn_status cairn__hop_receive_values(struct cairn__hop *hop, const struct cairn__parcel *parcel, void *values) {
    const size_t n = cairn__parcel_numel(parcel);
    if (!is_alone(hop))
        return n == 0 ? CAIRN_OK : cairn_recv(hop->channel, values, n, type_of(parcel), hop->from, NULL);
    struct cairn__slot *slot = &hop->slots[hop->oldest];
    cairn_status st = CAIRN_OK;
    if (n > 0) TRY(cairn__device_copy(hop->device, values, slot->sent, cairn__parcel_nbytes(parcel)));
    slot->is_full = false;
    hop->oldest = (hop->oldest + 1) % hop->num_slots;
out:
    return st;
}

/* ---- group memory ---- */

cairn_status cairn__hop_share(struct cairn__hop *hop, size_t nbytes) {
    const size_t part = (nbytes + CAIRN__ALIGN - 1) / CAIRN__ALIGN * CAIRN__ALIGN;
    cairn_status st = CAIRN_OK;
    void *memory = NULL;
    if (part <= hop->part || is_alone(hop)) return CAIRN_OK;
    TRY(finish_all(hop));
    memory = hop->shared;
    hop->shared = NULL;
    hop->part = 0;
    if (memory) TRY(cairn_group_free(hop->channel, &memory));
    TRY(cairn_group_alloc(hop->channel, (size_t)hop->num_slots * part, &memory));
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
