/* Files of a record a line, of which any record is read alone, by an index of where they begin.
 *
 * The index is a file, too: written once, whole or not at all, and used as long as the data's size, time of its last
 * change and both ends are those that it was made of, and the question which lines are records is the same. Else it is
 * made anew. Its form is Cairn's own (lines.c) and may change with each version. */
#ifndef CAIRN__DATA_LINES_H
#define CAIRN__DATA_LINES_H

#include <stdbool.h>

#include "data/fields.h"

struct cairn__lines;

struct cairn__lines_options {
    const char *index; /* its path; NULL = the data's, and ".cairn-index" behind it */
    bool has_header;   /* the first line is no record */
    /* (optional: NULL = all) Whether a line, without its end, is a record. Lines without characters never are. */
    bool (*is_record)(void *ctx, const char *line, size_t nbytes);
    void *ctx;
    uint64_t question; /* a hash of what is_record goes by */
};

/* Errors: CAIRN_EINVAL not a regular file, or a line of over 64 MiB; CAIRN_ESYSTEM; CAIRN_ENOMEM. An index that cannot
 * be written is made in memory alone, with a warning. */
cairn_status cairn__lines_open(const char *path, const struct cairn__lines_options *options, struct cairn__lines **out);
void cairn__lines_close(struct cairn__lines **lines);

int64_t cairn__lines_count(const struct cairn__lines *lines);

/* Adds a field to line: the record's bytes as u8, without the end of the line, with a 0 behind them. Errors:
 * CAIRN_EINVAL the file has been cut; CAIRN_ESYSTEM; CAIRN_ENOMEM. Any thread. */
cairn_status cairn__lines_read(const struct cairn__lines *lines, int64_t record, cairn_fields *line);

/* The line of the file in which the record is, from 1, for messages. Errors: as of cairn__lines_read. Any thread. Cost:
 * up to a thousand records before it are read. */
cairn_status cairn__lines_number(const struct cairn__lines *lines, int64_t record, int64_t *line);

/* The same with the first line of a file. Errors: as of cairn__lines_open. */
cairn_status cairn__lines_header(const char *path, cairn_fields *line);

#endif
