/* What programs that train beside PyTorch share: values that both sides make, and what of a training is compared. */
#ifndef BENCH_TRAINING_H
#define BENCH_TRAINING_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/cairn.h"

/* Of the wall's clock; processor time of the whole process, which other programs on the machine do not add to. */
double bench_now_us(void);
double bench_cpu_us(void);

/* Between -1/2 and 1/2; as in bench_ops.c and the programs of PyTorch. */
float bench_value(uint32_t stream, size_t i);

size_t bench_numel(const cairn_param *p);

/* Writes folder/what as f32, one parameter after the other: what is "gradients", those of f32 and bf16, or "weights",
 * the masters. false: it says on stderr what went wrong. */
bool bench_save(cairn_module *model, const char *folder, const char *what);

/* Of what the model computes with, by words of four bytes. */
cairn_status bench_hash_weights(cairn_module *model, uint64_t *hash);

#endif
