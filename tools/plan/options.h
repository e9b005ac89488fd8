/* cairn-plan's options. */
#ifndef PLAN_OPTIONS_H
#define PLAN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "cairn/core.h"
#include "link.h"
#include "../common/values.h"

struct options {
    const char *profile, *link, *node_link, *svg; /* svg NULL = none */
    int ranks[MAX_VALUES];
    size_t num_ranks;
    size_t caps[MAX_VALUES]; /* bytes */
    size_t num_caps;
    size_t first_cap; /* 0 = ddp_options' */
    enum algorithm algorithm;
    int node_ranks;
    double share;     /* below 0: the link's */
    cairn_dtype wire; /* 0: the profile's */
    bool suggest, json;
};

/* False for a wrong option, after a message. --help and --version print and exit. */
bool options_parse(struct options *o, int argc, char **argv);

#endif
