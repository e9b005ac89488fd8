/* File names that contain the rank's number. */
#ifndef CAIRN__OBSERVE_NAMES_H
#define CAIRN__OBSERVE_NAMES_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"

enum { CAIRN__OBSERVE_PATH = 4096 };

/* path with %r replaced by the rank's number. Errors: CAIRN_EINVAL too long. */
static inline cairn_status cairn__path_of_rank(const char *path, int rank, char out[CAIRN__OBSERVE_PATH]) {
    const char *at = strstr(path, "%r");
    const int n = at ? snprintf(out, CAIRN__OBSERVE_PATH, "%.*s%d%s", (int)(at - path), path, rank, at + 2)
                     : snprintf(out, CAIRN__OBSERVE_PATH, "%s", path);
    REQUIRE(n >= 0 && n < CAIRN__OBSERVE_PATH, CAIRN_EINVAL,
            "the name '%.100s...' of a file is too long; it may have %d bytes", path, CAIRN__OBSERVE_PATH - 1);
    return CAIRN_OK;
}

/* The name of a rank's part of a timeline: t.rank3.json for t.json. */
static inline cairn_status cairn__path_of_part(const char *path, int rank, char out[CAIRN__OBSERVE_PATH]) {
    const size_t length = strlen(path), end = sizeof(".json") - 1;
    const bool has_end = length > end && strcmp(path + length - end, ".json") == 0;
    const int n =
        snprintf(out, CAIRN__OBSERVE_PATH, "%.*s.rank%d.json", (int)(has_end ? length - end : length), path, rank);
    REQUIRE(n >= 0 && n < CAIRN__OBSERVE_PATH, CAIRN_EINVAL,
            "the name '%.100s...' of a timeline is too long; it may have %d bytes", path, CAIRN__OBSERVE_PATH - 20);
    return CAIRN_OK;
}

#endif
