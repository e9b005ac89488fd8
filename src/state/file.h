/* Files that exist whole or not at all, and files that are read without trust.
 *
 * A writer makes PATH.partial-NUMBER beside the file and renames it when all of it is on the disk: a reader that opens
 * PATH finds the old file or the new one, also after a power cut. A process that is killed leaves the partial file,
 * which no reader looks at. Every error of a writer names the path, and leaves what was there before.
 *
 * A reader uses pread and never maps: a file that is cut while it is read is an error, and not SIGBUS.
 *
 * Both hash what passes by XXH3-64 (libxxhash, seed 0): the number that a manifest holds.
 * Threads: one writer or reader is used by one thread at a time; a reader that does not hash by several. */
#ifndef CAIRN__STATE_FILE_H
#define CAIRN__STATE_FILE_H

#include <stdbool.h>

#include "cairn/core.h"

/* ---- writing ---- */

struct cairn__writer;

enum cairn__writer_flags {
    /* Writes PATH itself: a file of a folder that is renamed when all of its files are there. */
    CAIRN__WRITER_IN_PLACE = 1,
};

/* What a manifest holds of a file. */
struct cairn__file_facts {
    uint64_t nbytes, hash;
};

/* Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status cairn__writer_create(const char *path, unsigned flags, struct cairn__writer **out);

/* Appends; small pieces are gathered. A file-size limit is an error as a full disk is: the program gets no SIGXFSZ.
 * After an error nothing is written any more, and commit repeats the error. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__writer_write(struct cairn__writer *w, const void *data, size_t nbytes);

/* All of commit that can fail for want of room: the bytes are on the disk, under the partial name, and the file is
 * closed. Nothing is written after it. A caller that replaces several files finishes all before it commits the first.
 * Errors: CAIRN_ESYSTEM. */
cairn_status cairn__writer_finish(struct cairn__writer *w);

/* Finishes and ends the writer, on failure as discard does. Returns when the file, its name and its size are on the
 * disk; in place, the name is on the disk with cairn__folder_sync of its folder. facts: may be NULL; written on
 * success. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__writer_commit(struct cairn__writer **w, struct cairn__file_facts *facts);

/* Ends the writer and removes what it has written. */
void cairn__writer_discard(struct cairn__writer **w);

/* Brings the names of a folder's files onto the disk, and of the folder that holds path. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__folder_sync(const char *path);
cairn_status cairn__folder_sync_above(const char *path);

/* ---- reading ---- */

struct cairn__reader;

enum cairn__reader_flags {
    CAIRN__READER_NO_LINK = 1, /* refuses a symbolic link */
    CAIRN__READER_HASHES = 2,  /* hashes on the way what reads bring: cairn__reader_hash then reads the rest alone */
};

/* Errors, each with the path: CAIRN_ESYSTEM it cannot be opened; CAIRN_EINVAL it is not a regular file, or a link;
 * CAIRN_ENOMEM. */
cairn_status cairn__reader_open(const char *path, unsigned flags, struct cairn__reader **out);

void cairn__reader_close(struct cairn__reader **r);

const char *cairn__reader_path(const struct cairn__reader *r);

/* When it was opened. */
uint64_t cairn__reader_nbytes(const struct cairn__reader *r);

/* Reads [at, at + nbytes). Errors: CAIRN_EINVAL the file ends before; CAIRN_ESYSTEM. `to` is undefined then. */
cairn_status cairn__reader_read(struct cairn__reader *r, uint64_t at, void *to, size_t nbytes);

/* The hash of the whole file. With CAIRN__READER_HASHES, bytes that were read in order are not read again; a read
 * behind what is hashed brings the bytes between by itself. Errors: as of cairn__reader_read. */
cairn_status cairn__reader_hash(struct cairn__reader *r, uint64_t *hash);

/* All of a small file, with a 0 behind it; *text is to be freed by cairn__free. flags: of readers. facts: may be NULL.
 * Errors: CAIRN_EINVAL longer than `most` bytes; as of cairn__reader_open and cairn__reader_read. */
cairn_status cairn__file_read(const char *path, unsigned flags, size_t most, char **text,
                              struct cairn__file_facts *facts);

#endif
