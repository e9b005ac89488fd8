/* Datasets, internal interface. */
#ifndef CAIRN__DATA_DATASET_H
#define CAIRN__DATA_DATASET_H

#include "cairn/loader.h"

struct cairn_dataset {
    void *self;
    int64_t count;
    struct cairn_dataset_functions functions;
};

#endif
