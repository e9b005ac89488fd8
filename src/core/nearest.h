/* Finds the name that was probably meant by a misspelt one. */
#ifndef CAIRN__CORE_NEAREST_H
#define CAIRN__CORE_NEAREST_H

enum { CAIRN__NEAREST_MAX = 64 }; /* length of a name; longer names match nothing */

struct cairn__nearest {
    const char *written; /* the misspelt name, set by the caller; other fields are 0 before the first try */
    const char *name;    /* the nearest name so far, the first of equals; NULL = none is near */
    int distance;
};

/* Compares name with the misspelt one. Near means at most 2 letters inserted, deleted, replaced or swapped with the
 * next; at most 1 if the misspelt name has less than 8 letters, none if it has less than 4. Source: the optimal string
 * alignment distance. */
void cairn__nearest_try(struct cairn__nearest *nearest, const char *name);

#endif
