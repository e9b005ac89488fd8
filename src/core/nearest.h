/* Which of several names was probably meant by one that is wrong. */
#ifndef CAIRN__CORE_NEAREST_H
#define CAIRN__CORE_NEAREST_H

enum { CAIRN__NEAREST_MAX = 64 }; /* letters of a name; longer ones are like no other */

struct cairn__nearest {
    const char *written; /* set by the caller; the rest is 0 before the first name */
    const char *name;    /* the nearest one yet, the first of equals; NULL = none is near */
    int distance;
};

/* Letters are added, taken away, replaced, or swapped with the next: up to 2 of them, 1 in names of less than 8 letters
 * and none in names of less than 4. Source: the optimal string alignment distance. */
void cairn__nearest_try(struct cairn__nearest *nearest, const char *name);

#endif
