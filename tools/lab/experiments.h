/* All experiments, in the order of `cairn-lab list`. */
#ifndef LAB_EXPERIMENTS_H
#define LAB_EXPERIMENTS_H

#include "experiment.h"

extern const struct lab_experiment *const lab_experiments[];
extern const size_t lab_num_experiments;

#endif
