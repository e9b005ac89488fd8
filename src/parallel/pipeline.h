/* A pipeline from inside. */
#ifndef CAIRN__PARALLEL_PIPELINE_H
#define CAIRN__PARALLEL_PIPELINE_H

#include "comm/group.h"
#include "core/status.h"
#include "device/env.h"
#include "nn/hooks.h"
#include "optim/hooks.h"
#include "parallel/plan.h"

/* ---- hop.c, lane.c: messages to one neighbour, and from the other ---- */

/* What goes ahead of an array: whole numbers alone. */
struct cairn__parcel {
    int64_t chunk; /* of the receiver */
    int64_t micro_batch;
    int64_t present;    /* 0: there is no array: of a gradient, none reached the stage's input */
    int64_t wants_grad; /* of an activation: its gradient is to come back */
    int64_t dtype, ndim;
    int64_t shape[CAIRN_MAX_DIMS];
};

/* A message on its way: its array is copied here. */
struct cairn__slot {
    struct cairn__parcel parcel;
    void *memory; /* device memory of the hop's own, where the group has none that is large enough */
    size_t room;
    void *head;           /* of a lane, device memory: the parcel */
    cairn_work *works[2]; /* of the parcel and of the array; NULL = done */
    const void *sent;     /* where the array stands; of a rank that is its own neighbour */
    bool is_full;
};

/* The parcels of a call's messages through one lane, in their order. */
struct cairn__told {
    struct cairn__parcel *parcels;
    size_t count, capacity, next;
};

/* A direction: this rank sends to one neighbour and receives from the other. */
struct cairn__hop {
    struct cairn_device *device;
    cairn_group *out, *in; /* of host memory one channel of all ranks; of GPUs' lanes, NULL where there is none */
    int to, from;          /* ranks of out and in */
    bool is_alone;         /* this rank is its own neighbour */
    bool has_lanes;
    struct cairn__slot *slots;
    int num_slots, next, oldest;
    char *shared;   /* group memory: a part for each slot */
    size_t part;    /* bytes of one */
    size_t largest; /* array sent so far, in bytes */

    /* of lanes */
    bool is_known; /* this call's messages are those of the one before: arrays travel alone */
    struct cairn__told sent, received;
    void *head; /* device memory: the parcel that arrives */
};

/* A hop without groups. Errors: CAIRN_ENOMEM. */
cairn_status cairn__hop_create(struct cairn_device *device, int num_slots, struct cairn__hop *out);
/* Makes its groups, of which it sends ahead to the next rank of group, or back to the one before. is_ring: also between
 * the last rank and the first. Collective. */
cairn_status cairn__hop_connect(struct cairn__hop *hop, cairn_group *group, bool is_back, bool is_ring);
void cairn__hop_end(struct cairn__hop *hop);

/* Before a call's messages. is_known, the same on all ranks: they are those of the one before, which went well. */
void cairn__hop_begin(struct cairn__hop *hop, bool is_known);

/* Copies the array of *parcel, dense in device memory, and sends both; waits where all slots are on their way. */
cairn_status cairn__hop_send(struct cairn__hop *hop, const struct cairn__parcel *parcel, const void *values);

/* The next message: first the parcel, then, where it is present, its array into device memory. */
cairn_status cairn__hop_receive(struct cairn__hop *hop, struct cairn__parcel *parcel);
cairn_status cairn__hop_receive_values(struct cairn__hop *hop, const struct cairn__parcel *parcel, void *values);

/* Group memory for arrays of nbytes in every slot, the same on every rank; collective. Errors: cairn_group_alloc's. */
cairn_status cairn__hop_share(struct cairn__hop *hop, size_t nbytes);

/* What is on its way and needs this rank to get there has arrived, or the device's stream waits for it. */
cairn_status cairn__hop_flush(struct cairn__hop *hop);

/* This rank has failed with status, whose sentence is the last error: ends the groups. Returns status. */
cairn_status cairn__hop_kill(struct cairn__hop *hop, cairn_status status);

size_t cairn__parcel_numel(const struct cairn__parcel *parcel);
size_t cairn__parcel_nbytes(const struct cairn__parcel *parcel);
cairn_dtype cairn__parcel_dtype(const struct cairn__parcel *parcel); /* as groups know it */

/* ---- lane.c: the same between GPUs ---- */

enum { CAIRN__PARCEL_WORDS = sizeof(struct cairn__parcel) / sizeof(int64_t) };

cairn_status cairn__lanes_make(struct cairn__hop *hop); /* what connecting sends from and to */
/* Of one direction; as cairn__hop_connect. */
cairn_status cairn__lanes_connect(struct cairn__hop *hop, cairn_group *group, bool is_back, bool is_ring);
void cairn__lanes_begin(struct cairn__hop *hop, bool is_known);
cairn_status cairn__lanes_check(struct cairn__hop *hop); /* that none has failed, as far as this rank knows */
/* Says what comes, and hears what does: the first time in a message, which the host that receives it waits for. Errors:
 * CAIRN_ENOTSUP this call's messages were to be those of the one before, and this one is not. */
cairn_status cairn__lane_hear(struct cairn__hop *hop, struct cairn__parcel *parcel);
/* A parcel and its array, dense in device memory. */
cairn_status cairn__lane_send(struct cairn__hop *hop, struct cairn__slot *slot, const void *memory);

/* ---- a pipeline ---- */

/* One micro-batch in one of the rank's modules. */
struct cairn__flight {
    cairn_tensor *from; /* what its backward begins with: the stage's output, or the loss. NULL: it has none */
    bool owes_grad;     /* the gradient of the stage's input is to be sent */
};

struct cairn__tie {
    cairn_group *group; /* of the ranks that have the parameter */
    struct cairn__param *param;
    float *before;   /* device memory: the gradient of earlier steps; NULL = none was ever */
    bool has_before; /* there is one now */
    struct cairn__tie *next;
};

struct cairn_pipeline {
    cairn_env *env;
    cairn_module **modules; /* [chunks] */
    int chunks, rank, ranks;
    struct cairn_pipeline_options options;
    ddp_context **ddp;             /* [chunks], each NULL where there is none */
    cairn_group *channel;          /* of all stages, for words of the host; without lanes it is ahead's */
    struct cairn__hop ahead, back; /* activations to the next rank, gradients to the one before */
    cairn_tensor *anchors[2];      /* scalars, inputs of what is received: the second one wants a gradient */

    struct cairn__action *actions;
    struct cairn__flight *flights; /* [chunks * micro-batches] */
    size_t actions_capacity, flights_capacity;
    void *grad; /* device memory: the gradient that came last */
    size_t grad_room;
    int in_flight;  /* of the last step */
    uint64_t terms; /* a hash of the last call's, which went well; 0 = there is none */
    void *losses;   /* device memory: of the micro-batches, where the last stage is */
    size_t losses_room;

    struct cairn__partners partners;
    cairn_group *partner_group; /* of the ranks with optimizers; NULL = this one has none, or is alone */
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

/* The next activation that arrives, for this chunk and micro-batch: a result whose gradient goes back by itself. NULL
 * on error. */
cairn_tensor *cairn__pipeline_receive(cairn_pipeline *p, int chunk, int micro_batch, struct cairn__flight *flight);

/* Tells the stage before that no gradient reached what it sent. */
cairn_status cairn__pipeline_answer_none(cairn_pipeline *p, int chunk, int micro_batch);

/* ---- ties.c ---- */

cairn_status cairn__ties_begin(cairn_pipeline *p); /* puts gradients of earlier steps aside */
cairn_status cairn__ties_sum(cairn_pipeline *p);   /* of all ranks, and of earlier steps */
bool cairn__ties_counts(void *ctx, const struct cairn__param *param);
void cairn__ties_end(cairn_pipeline *p);

#endif
