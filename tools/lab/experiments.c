#include "experiments.h"

extern const struct lab_experiment lab_running_sum;
extern const struct lab_experiment lab_accumulate;
extern const struct lab_experiment lab_allreduce_error;
extern const struct lab_experiment lab_gradients;
extern const struct lab_experiment lab_scale_sweep;
extern const struct lab_experiment lab_scalers;
extern const struct lab_experiment lab_masters;
extern const struct lab_experiment lab_levels;
extern const struct lab_experiment lab_overflow;
extern const struct lab_experiment lab_overlap;

const struct lab_experiment *const lab_experiments[] = {
    &lab_running_sum, &lab_accumulate, &lab_allreduce_error, &lab_gradients, &lab_scale_sweep,
    &lab_scalers,     &lab_masters,    &lab_levels,          &lab_overflow,  &lab_overlap,
};
const size_t lab_num_experiments = sizeof(lab_experiments) / sizeof(lab_experiments[0]);
