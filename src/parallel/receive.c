/* Receives activations, as an operation that this room adds to nn's: the values of its result come from the previous
 * stage, and its backward sends the gradient back. Contributions to the gradient are thus added up in the activation's
 * type, as in a graph that is not cut here, and the tape owns the values' memory. */
#include <string.h>

#include "core/trace.h"
#include "parallel/pipeline.h"

struct receiving {
    struct cairn__guest guest;
    cairn_pipeline *pipeline;
    struct cairn__flight *flight;
    struct cairn__parcel parcel;
};

static const struct receiving *receiving_of(const struct cairn__node *node) {
    return cairn__node_attrs(node);
}

static cairn_status infer(const struct cairn__node *node) {
    const struct cairn__parcel *parcel = &receiving_of(node)->parcel;
    return cairn__infer_as(node, (cairn_dtype)parcel->dtype, (int)parcel->ndim, parcel->shape);
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct receiving *r = receiving_of(node);
    (void)tape;
    return cairn__hop_receive_values(&r->pipeline->ahead, &r->parcel, cairn__tensor_values(cairn__node_result(node)));
}

/* The chunk of the sender. The first rank receives from the last rank's previous chunk. */
static int64_t senders_chunk(const cairn_pipeline *p, int64_t chunk) {
    return cairn__pipeline_has_first(p) ? chunk - 1 : chunk;
}

/* The anchor gets no gradient, because none is read. */
static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const struct receiving *r = receiving_of(node);
    struct cairn__parcel parcel = r->parcel;
    (void)tape;
    parcel.chunk = senders_chunk(r->pipeline, parcel.chunk);
    r->flight->owes_grad = false;
    return cairn__hop_send(&r->pipeline->back, &parcel, dy);
}

static const struct cairn__guest_op receive = {.name = "pipeline_receive",
                                               .keeps_types = true,
                                               .reads_nothing = true,
                                               .infer = infer,
                                               .forward = forward,
                                               .backward = backward};

static cairn_status take_parcel(cairn_pipeline *p, int chunk, int micro_batch, struct cairn__parcel *parcel) {
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__hop_receive(&p->ahead, parcel));
    cairn__trace("parallel", "wait", micro_batch, 0, begin_ns);
    REQUIRE(parcel->chunk == chunk && parcel->micro_batch == micro_batch, CAIRN_EINTERNAL,
            "pipeline: micro-batch %lld for module %lld arrived where micro-batch %d for module %d was expected",
            (long long)parcel->micro_batch, (long long)parcel->chunk, micro_batch, chunk);
out:
    return st;
}

cairn_tensor *cairn__pipeline_receive(cairn_pipeline *p, int chunk, int micro_batch, struct cairn__flight *flight) {
    struct receiving attrs = {.guest = {&receive}, .pipeline = p, .flight = flight};
    if (take_parcel(p, chunk, micro_batch, &attrs.parcel) != CAIRN_OK) return NULL;
    flight->owes_grad = attrs.parcel.wants_grad != 0;
    return cairn__apply_guest(&attrs.guest, sizeof(attrs), 1, &p->anchors[flight->owes_grad]);
}

cairn_status cairn__pipeline_answer_none(cairn_pipeline *p, int chunk, int micro_batch) {
    const struct cairn__parcel parcel = {.chunk = senders_chunk(p, chunk),
                                         .micro_batch = micro_batch,
                                         .dtype = CAIRN_F32};
    return cairn__hop_send(&p->back, &parcel, NULL);
}
