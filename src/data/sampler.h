/* Samplers' interface for loaders. */
#ifndef CAIRN__DATA_SAMPLER_H
#define CAIRN__DATA_SAMPLER_H

#include "cairn/data.h"

/* The number of examples that create was given. */
int64_t cairn__sampler_examples(const cairn_sampler *sampler);

/* The indices that cairn_sampler_next would return at a position of this epoch, [0, length]. Does not move the
 * sampler. */
size_t cairn__sampler_peek(const cairn_sampler *sampler, int64_t position, int64_t *indices, size_t n);

#endif
