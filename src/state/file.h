/* Atomic writing of files, and reading of untrusted files.
 *
 * A writer writes PATH.partial-NUMBER and renames it to PATH once all of it is on the disk, so a reader that opens PATH
 * finds the old file or the new one, even after a power cut. A killed process leaves the partial file, which no reader
 * opens. Every error of a writer names the path, and leaves the old file.
 *
 * A reader uses pread and never maps a file, so a file truncated while it is read is an error and not a SIGBUS.
 *
 * Both hash the bytes by XXH3-64 (libxxhash, seed 0), the hash in manifests. Threads: one thread at a time may use a
 * writer or reader; several may use a reader that does not hash. */
#ifndef CAIRN__STATE_FILE_H
#define CAIRN__STATE_FILE_H

#include <stdbool.h>

#include "cairn/core.h"

/* ---- writing ---- */

struct cairn__writer;

enum cairn__writer_flags {
    /* Writes PATH itself: for a file in a folder that is renamed once all of its files are written. */
    CAIRN__WRITER_IN_PLACE = 1,
};

/* What a manifest says of a file. */
struct cairn__file_facts {
    uint64_t nbytes, hash;
};

/* Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status cairn__writer_create(const char *path, unsigned flags, struct cairn__writer **out);

/* Appends bytes; small pieces are buffered. Exceeding a file-size limit is an error like a full disk, and raises no
 * SIGXFSZ. After an error nothing more is written, and commit returns the error again. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__writer_write(struct cairn__writer *w, const void *data, size_t nbytes);

/* Does the part of commit that can fail for lack of space: on return the bytes are on the disk, under the partial name,
 * and the file is closed. Write nothing afterwards. A caller that replaces several files finishes all of them before it
 * commits the first. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__writer_finish(struct cairn__writer *w);

/* Finishes the file and destroys the writer, on failure as discard does. Returns when the file, its name and its size
 * are on the disk. With CAIRN__WRITER_IN_PLACE, the name is on the disk only after cairn__folder_sync of its folder.
 * facts may be NULL; written on success. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__writer_commit(struct cairn__writer **w, struct cairn__file_facts *facts);

/* Destroys the writer and removes its file. */
void cairn__writer_discard(struct cairn__writer **w);

/* Sync the names of a folder's files, or those of the folder that contains path, to the disk. Errors: CAIRN_ESYSTEM. */
cairn_status cairn__folder_sync(const char *path);
cairn_status cairn__folder_sync_above(const char *path);

/* ---- reading ---- */

struct cairn__reader;

enum cairn__reader_flags {
    CAIRN__READER_NO_LINK = 1, /* refuses a symbolic link */
    CAIRN__READER_HASHES = 2,  /* hashes bytes as they are read; cairn__reader_hash then reads only the rest */
};

/* Errors, each with the path: CAIRN_ESYSTEM it cannot be opened; CAIRN_EINVAL it is not a regular file, or is a
 * symbolic link with CAIRN__READER_NO_LINK; CAIRN_ENOMEM. */
cairn_status cairn__reader_open(const char *path, unsigned flags, struct cairn__reader **out);

void cairn__reader_close(struct cairn__reader **r);

const char *cairn__reader_path(const struct cairn__reader *r);

/* The size of the file when it was opened. */
uint64_t cairn__reader_nbytes(const struct cairn__reader *r);

/* Reads [at, at + nbytes). Errors: CAIRN_EINVAL the file ends before; CAIRN_ESYSTEM. On an error `to` is undefined. */
cairn_status cairn__reader_read(struct cairn__reader *r, uint64_t at, void *to, size_t nbytes);

/* The hash of the whole file. With CAIRN__READER_HASHES, bytes read in order are not read again; a read that skips
 * bytes makes the reader read those too. Errors: as of cairn__reader_read. */
cairn_status cairn__reader_hash(struct cairn__reader *r, uint64_t *hash);

/* Reads a small file whole and appends a 0; free *text with cairn__free. flags: of readers. facts: may be NULL. Errors:
 * CAIRN_EINVAL longer than `most` bytes; as of cairn__reader_open and cairn__reader_read. */
cairn_status cairn__file_read(const char *path, unsigned flags, size_t most, char **text,
                              struct cairn__file_facts *facts);

#endif
