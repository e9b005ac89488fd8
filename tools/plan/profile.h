/* A model's measured times: a profile, which is a JSON file.
 *
 *     {
 *       "format": "cairn-profile", "version": 1,
 *       "model": "MLP 6 x 1024^2, batch 128",
 *       "forward_ns": 9210000, "backward_ns": 18400000, "optimizer_ns": 4100000,
 *       "parameters": [
 *         {"name": "0.weight", "elements": 1048576, "dtype": "f32", "wire": "f32", "ready_ns": 18350000},
 *         ...
 *       ]
 *     }
 *
 * parameters are in the order of registration. ready_ns counts from the start of backward and, as all times, excludes
 * processor time of communication; absent or null: the parameter gets no gradient, and zeros are sent at the end of
 * backward. wire is the type on the wire; absent: dtype. Other fields are ignored. */
#ifndef PLAN_PROFILE_H
#define PLAN_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "cairn/core.h"

struct profile_param {
    size_t n; /* elements */
    cairn_dtype dtype, wire;
    double ready_ns; /* at most the profile's backward_ns */
};

struct profile {
    char *model;
    double forward_ns, backward_ns, optimizer_ns;
    struct profile_param *params; /* [count], at least one */
    size_t count;
};

/* False after a message. Times of gradients past the end of backward are set to its end. */
bool profile_read(const char *file, struct profile *out);
void profile_free(struct profile *p);

/* Bytes that are reduced per step, without padding. */
double profile_nbytes(const struct profile *p);

/* "f32", "f16", "bf16" ...; 0 = there is no such type. */
cairn_dtype dtype_named(const char *name);

#endif
