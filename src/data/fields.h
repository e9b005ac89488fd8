/* Fields from inside: arrays whose memory is reused. */
#ifndef CAIRN__DATA_FIELDS_H
#define CAIRN__DATA_FIELDS_H

#include "cairn/loader.h"

/* pinned: a device's, which the caller of cairn_loader_next makes and frees (loader.c), and which is used where it
 * suffices. */
struct cairn__field_memory {
    void *data, *pinned;
    size_t nbytes, pinned_nbytes;
};

struct cairn_fields {
    cairn_fields *next; /* of scratch (scratch.h) */
    int count;
    struct cairn_field fields[CAIRN_MAX_FIELDS];
    struct cairn__field_memory memory[CAIRN_MAX_FIELDS]; /* field i's; of those that have been there, too */
};

/* For collate functions. CAIRN_EINVAL: examples have other numbers of fields than the first. */
cairn_status cairn__fields_check_count(const cairn_fields *const *examples, size_t n);

/* CAIRN_EINVAL: `field` of number i of a batch has another type or shape than that of its first example, whose
 * dimensions below `free` do not count. */
cairn_status cairn__fields_check_alike(const struct cairn_field *first, const struct cairn_field *f, int field,
                                       size_t i, int free);

/* Adds field of all examples, one behind the other. */
cairn_status cairn__fields_stack(const cairn_fields *const *examples, size_t n, int field, cairn_fields *batch);

/* Adds a field of n bytes of text, u8 [n], with a 0 behind them; text NULL: undefined bytes. */
cairn_status cairn__fields_add_text(cairn_fields *fields, const char *text, size_t n);

/* The last field, which is text, gets n bytes, the first of which it keeps, and a 0 behind them; *text is where it is
 * then. */
cairn_status cairn__fields_grow_text(cairn_fields *fields, size_t n, char **text);

#endif
