/* Shared by programs that train for a comparison with PyTorch: values that both sides generate, and the results that
 * are compared. */
#ifndef BENCH_TRAINING_H
#define BENCH_TRAINING_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/cairn.h"

/* Wall-clock time; and processor time of the whole process, which does not include other programs. */
double bench_now_us(void);
double bench_cpu_us(void);

/* Returns a value between -1/2 and 1/2, the same as in bench_ops.c and PyTorch's programs. */
float bench_value(uint32_t stream, size_t i);

size_t bench_numel(const cairn_param *p);

/* Writes folder/what as f32, one parameter after the other. what: "gradients" (f32 or bf16 ones) or "weights" (the
 * masters). Returns false after a message on stderr. */
bool bench_save(cairn_module *model, const char *folder, const char *what);

/* Hash of the weights that the model computes with, by words of four bytes. */
cairn_status bench_hash_weights(cairn_module *model, uint64_t *hash);

#endif
