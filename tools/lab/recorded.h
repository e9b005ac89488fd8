/* The parts of trained.c: each adds its tables, pictures and findings. Failures stay in the result. */
#ifndef LAB_RECORDED_H
#define LAB_RECORDED_H

#include "record.h"
#include "result.h"

/* A formatted finding. */
void recorded_say(struct lab_result *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Loss, loss scale, rates and all others, a picture each. */
void recorded_scalars(struct lab_result *r, const struct record *record);

/* Exponents over the steps: a panel for each parameter or module. */
void recorded_exponents(struct lab_result *r, const struct record *record);

/* A table of all parameters, the worst of them, and gradients before and after the reduction. */
void recorded_parameters(struct lab_result *r, const struct record *record);

/* What f16 would lose and skip at each loss scale. */
void recorded_scales(struct lab_result *r, const struct record *record);

/* Each rank's own gradients if they were recorded, otherwise those that the optimizer received. */
enum tensor_kind recorded_gradients(const struct record *record);

/* Tensors of one kind, sorted by the share of elements that f16 rounds to 0. Free *out [*count] with cairn__free; NULL
 * = none. */
cairn_status recorded_worst(const struct record *record, enum tensor_kind kind, const struct tensor_record ***out,
                            size_t *count);

enum { MOST_PANELS = 24 };

#endif
