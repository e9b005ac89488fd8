/* What loaders see of samplers. */
#ifndef CAIRN__DATA_SAMPLER_H
#define CAIRN__DATA_SAMPLER_H

#include "cairn/data.h"

/* The n of create. */
int64_t cairn__sampler_examples(const cairn_sampler *sampler);

/* The numbers that cairn_sampler_next would hand out at a position of this epoch, [0, length]; nothing moves. */
size_t cairn__sampler_peek(const cairn_sampler *sampler, int64_t position, int64_t *indices, size_t n);

#endif
