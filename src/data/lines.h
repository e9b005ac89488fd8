/* Files with one record per line. An index of where records begin gives random access.
 *
 * The index is a file too, written atomically. It is used while the data file's size, time of last change, first and
 * last bytes, and the rule for which lines are records are those it was made for; otherwise it is rebuilt. Its format
 * is Cairn's own (lines.c) and may change with each version. */
#ifndef CAIRN__DATA_LINES_H
#define CAIRN__DATA_LINES_H

#include <stdbool.h>

#include "data/fields.h"

struct cairn__lines;

struct cairn__lines_options {
    const char *index; /* its path; NULL = the data's path + ".cairn-index" */
    bool has_header;   /* the first line is not a record */
    /* (optional: NULL = all) Whether a line, without its end, is a record. Empty lines never are. */
    bool (*is_record)(void *ctx, const char *line, size_t nbytes);
    void *ctx;
    uint64_t question; /* a hash of what is_record depends on */
};

/* Errors: CAIRN_EINVAL not a regular file, or a line of over 64 MiB; CAIRN_ESYSTEM; CAIRN_ENOMEM. If the index cannot
 * be written, it is kept in memory only, with a warning. */
cairn_status cairn__lines_open(const char *path, const struct cairn__lines_options *options, struct cairn__lines **out);
void cairn__lines_close(struct cairn__lines **lines);

int64_t cairn__lines_count(const struct cairn__lines *lines);

/* Adds a field to line: the record's bytes as u8, without the end of the line, followed by a 0. Errors: CAIRN_EINVAL
 * the file was truncated; CAIRN_ESYSTEM; CAIRN_ENOMEM. Any thread. */
cairn_status cairn__lines_read(const struct cairn__lines *lines, int64_t record, cairn_fields *line);

/* The number of the record's line in the file, from 1, for messages. Errors: as of cairn__lines_read. Any thread. Cost:
 * reads up to a thousand records before it. */
cairn_status cairn__lines_number(const struct cairn__lines *lines, int64_t record, int64_t *line);

/* Adds the first line of a file in the same way. Errors: as of cairn__lines_open. */
cairn_status cairn__lines_header(const char *path, cairn_fields *line);

#endif
