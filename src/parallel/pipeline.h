/* Internals of a pipeline. */
#ifndef CAIRN__PARALLEL_PIPELINE_H
#define CAIRN__PARALLEL_PIPELINE_H

#include "comm/group.h"
#include "core/status.h"
#include "device/env.h"
#include "nn/hooks.h"
#include "optim/hooks.h"
#include "parallel/plan.h"

/* ---- hop.c, lane.c: messages to one neighbour, and from the other ---- */

/* The header that precedes an array. Only int64_t: it is sent as CAIRN_I64. */
struct cairn__parcel {
    int64_t chunk; /* the receiver's */
    int64_t micro_batch;
    int64_t present;    /* 0 = no array follows: no gradient reached the stage's input */
    int64_t wants_grad; /* of an activation: the sender expects its gradient */
    int64_t dtype, ndim;
    int64_t shape[CAIRN_MAX_DIMS];
};

/* A message in flight, with a copy of its array. */
struct cairn__slot {
    struct cairn__parcel parcel;
    void *memory; /* the hop's own device memory, if the slot's part of group memory is too small */
    size_t room;
    void *head;           /* the parcel in device memory; of lanes */
    cairn_work *works[2]; /* sends of the parcel and of the array; NULL = done */
    const void *sent;     /* where the array is, for a rank that is its own neighbour */
    bool is_full;         /* not received yet; of a rank that is its own neighbour */
};

/* The parcels of a call's messages through one lane, in order. */
struct cairn__told {
    struct cairn__parcel *parcels;
    size_t count, capacity, next;
};

/* One direction: this rank sends to one neighbour and receives from the other. */
struct cairn__hop {
    struct cairn_device *device;
    cairn_group *out, *in; /* on the CPU both are one channel of all ranks; on GPUs, lanes; NULL = no neighbour */
    int to, from;          /* ranks of out and in */
    bool is_alone;         /* this rank is its own neighbour */
    bool has_lanes;
    struct cairn__slot *slots;
    int num_slots, next, oldest;
    char *shared;   /* group memory: one part per slot */
    size_t part;    /* bytes of a part */
    size_t largest; /* bytes of the largest array sent so far */

    /* of lanes */
    bool is_known; /* this call's messages have the parcels of the previous call's: only arrays are sent */
    struct cairn__told sent, received;
    void *head; /* device memory: the received parcel */
};

/* A hop without groups. Errors: CAIRN_ENOMEM. */
cairn_status cairn__hop_create(struct cairn_device *device, int num_slots, struct cairn__hop *out);
/* Creates the hop's groups; collective. The hop sends to the next rank of group, or to the previous one if is_back.
 * is_ring: the last rank and the first are neighbours, too. */
cairn_status cairn__hop_connect(struct cairn__hop *hop, cairn_group *group, bool is_back, bool is_ring);
void cairn__hop_end(struct cairn__hop *hop);

/* Call before a call's messages. is_known, the same on all ranks: these messages have the parcels of the previous
 * call's, which succeeded. */
void cairn__hop_begin(struct cairn__hop *hop, bool is_known);

/* Copies the array of *parcel, dense in device memory, and sends both. Waits if all slots are in flight. */
cairn_status cairn__hop_send(struct cairn__hop *hop, const struct cairn__parcel *parcel, const void *values);

/* Receive the next message: first the parcel, then its array, if present, into device memory. */
cairn_status cairn__hop_receive(struct cairn__hop *hop, struct cairn__parcel *parcel);
cairn_status cairn__hop_receive_values(struct cairn__hop *hop, const struct cairn__parcel *parcel, void *values);

/* Allocates group memory for an array of nbytes in every slot. Collective; nbytes is the same on every rank. Errors:
 * cairn_group_alloc's. */
cairn_status cairn__hop_share(struct cairn__hop *hop, size_t nbytes);

/* Completes the messages in flight that cannot arrive without this rank: waits for them, or lets the device's stream
 * wait. */
cairn_status cairn__hop_flush(struct cairn__hop *hop);

/* Ends the groups because this rank failed with status; the last error has the sentence. Returns status. */
cairn_status cairn__hop_kill(struct cairn__hop *hop, cairn_status status);

size_t cairn__parcel_numel(const struct cairn__parcel *parcel);
size_t cairn__parcel_nbytes(const struct cairn__parcel *parcel);
cairn_dtype cairn__parcel_dtype(const struct cairn__parcel *parcel); /* of the group's calls */

/* ---- lane.c: messages between GPUs ---- */

enum { CAIRN__PARCEL_WORDS = sizeof(struct cairn__parcel) / sizeof(int64_t) };

cairn_status cairn__lanes_make(struct cairn__hop *hop); /* allocates the parcels that connecting sends */
/* As cairn__hop_connect. */
cairn_status cairn__lanes_connect(struct cairn__hop *hop, cairn_group *group, bool is_back, bool is_ring);
void cairn__lanes_begin(struct cairn__hop *hop, bool is_known);
cairn_status cairn__lanes_check(struct cairn__hop *hop); /* returns the error of a failed lane, if any */
/* The parcel of the next message: the previous call's if is_known, otherwise received; the host waits for it. */
cairn_status cairn__lane_hear(struct cairn__hop *hop, struct cairn__parcel *parcel);
/* Sends a parcel, unless is_known, and its array, dense in device memory. Errors: CAIRN_ENOTSUP is_known, but the
 * parcel differs from the previous call's. */
cairn_status cairn__lane_send(struct cairn__hop *hop, struct cairn__slot *slot, const void *memory);

/* ---- a pipeline ---- */

/* One micro-batch in one of the rank's modules, between its forward and its backward. */
struct cairn__flight {
    cairn_tensor *from; /* where its backward starts: the stage's output, or the loss; NULL = no backward */
    bool owes_grad;     /* the gradient of the stage's input has still to be sent */
};

/* A parameter of this rank that is tied to those of other ranks. */
struct cairn__tie {
    cairn_group *group; /* the ranks that have the parameter */
    struct cairn__param *param;
    float *before;   /* device memory for the gradient of earlier steps; NULL = never needed so far */
    bool has_before; /* `before` holds a gradient */
    struct cairn__tie *next;
};

struct cairn_pipeline {
    cairn_env *env;
    cairn_module **modules; /* [chunks] */
    int chunks, rank, ranks;
    struct cairn_pipeline_options options;
    ddp_context **ddp;             /* [chunks], each may be NULL */
    cairn_group *channel;          /* all stages, for the hosts' own messages; without lanes, ahead's group */
    struct cairn__hop ahead, back; /* activations to the next rank, gradients to the previous one */
    cairn_tensor *anchors[2];      /* scalar inputs of the receive operation; the second wants a gradient */

    struct cairn__action *actions;
    struct cairn__flight *flights; /* [chunks * micro-batches] */
    size_t actions_capacity, flights_capacity;
    void *grad; /* device memory: the gradient received last */
    size_t grad_room;
    int in_flight;  /* of the last step */
    uint64_t terms; /* run.terms of the last call, if it succeeded; 0 = none */
    void *losses;   /* device memory: one loss per micro-batch, on the last stage's rank */
    size_t losses_room;

    struct cairn__partners partners;
    cairn_group *partner_group; /* the ranks with optimizers; NULL = this rank has none, or no other has */
    char stages[48], name[64];  /* "stage 1", "stage 1 (rank 1)" */
    struct cairn__tie *ties;
};

static inline bool cairn__pipeline_has_first(const cairn_pipeline *p) {
    return p->rank == 0;
}

static inline bool cairn__pipeline_has_last(const cairn_pipeline *p) {
    return p->rank == p->ranks - 1;
}

static inline struct cairn__flight *cairn__pipeline_flight(const cairn_pipeline *p, int chunk, int micro_batches,
                                                           int micro_batch) {
    return &p->flights[chunk * micro_batches + micro_batch];
}

/* ---- receive.c ---- */

/* Receives the next activation, which must be for this chunk and micro-batch. The backward of the returned tensor sends
 * its gradient back. NULL on error. */
cairn_tensor *cairn__pipeline_receive(cairn_pipeline *p, int chunk, int micro_batch, struct cairn__flight *flight);

/* Tells the previous stage that no gradient reached the activation that it sent. */
cairn_status cairn__pipeline_answer_none(cairn_pipeline *p, int chunk, int micro_batch);

/* ---- ties.c ---- */

cairn_status cairn__ties_begin(cairn_pipeline *p); /* sets gradients of earlier steps aside */
cairn_status cairn__ties_sum(cairn_pipeline *p);   /* adds the gradients of all ranks and of earlier steps */
/* cairn__partners.counts: the first rank that has a tied parameter counts its gradient. */
bool cairn__ties_counts(void *ctx, const struct cairn__param *param);
void cairn__ties_end(cairn_pipeline *p);

#endif
