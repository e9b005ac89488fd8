/* Fields, internal interface: arrays whose memory is reused. */
#ifndef CAIRN__DATA_FIELDS_H
#define CAIRN__DATA_FIELDS_H

#include "cairn/loader.h"

/* pinned: the device's pinned memory, which the thread that calls cairn_loader_next allocates and frees (loader.c);
 * used if it is large enough. */
struct cairn__field_memory {
    void *data, *pinned;
    size_t nbytes, pinned_nbytes;
};

struct cairn_fields {
    cairn_fields *next; /* in scratch's list (scratch.h) */
    int count;
    struct cairn_field fields[CAIRN_MAX_FIELDS];
    struct cairn__field_memory memory[CAIRN_MAX_FIELDS]; /* of field i, also of fields that were there before */
};

/* For collate functions. CAIRN_EINVAL: an example's number of fields differs from the first one's. */
cairn_status cairn__fields_check_count(const cairn_fields *const *examples, size_t n);

/* CAIRN_EINVAL: `field` of example i of a batch has another type or shape than that of the first example. Dimensions
 * below `free` may differ. */
cairn_status cairn__fields_check_alike(const struct cairn_field *first, const struct cairn_field *f, int field,
                                       size_t i, int free);

/* Adds `field` of all examples, stacked. */
cairn_status cairn__fields_stack(const cairn_fields *const *examples, size_t n, int field, cairn_fields *batch);

/* Adds a field of n bytes of text, u8 [n], followed by a 0. text NULL: the bytes are undefined. */
cairn_status cairn__fields_add_text(cairn_fields *fields, const char *text, size_t n);

/* Grows the last field, which is text, to n bytes, followed by a 0. Existing bytes are kept. *text is its new
 * address. */
cairn_status cairn__fields_grow_text(cairn_fields *fields, size_t n, char **text);

#endif
