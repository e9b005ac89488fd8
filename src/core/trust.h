/* Who else could write a file, and whether this process has more rights than the user who started it. */
#ifndef CAIRN__CORE_TRUST_H
#define CAIRN__CORE_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

enum { CAIRN__WHY_NBYTES = 80 };

/* Whether the program is set-user-ID, set-group-ID or has capabilities of its file: then secure_getenv(3) reads
 * nothing. */
bool cairn__has_raised_rights(void);

/* Whether only root and owner can write the file or folder: it belongs to one of them, and neither others nor a group
 * may write it, except the group that bears owner's name and has no other member. A folder that others can write is
 * trusted where it has the sticky bit, with which they cannot replace files of owner, as /tmp. False: why is "belongs
 * to user 7" or "can be written by other users (mode 0777)". */
bool cairn__is_trusted(const struct stat *s, uid_t owner, char why[CAIRN__WHY_NBYTES]);

/* The same of a file, its folder and all folders above it, by the path without symbolic links; why names the one that
 * is not. The sticky bit does not help the folder of the file. False too where one of them cannot be looked at. */
bool cairn__is_trusted_path(const char *path, uid_t owner, char *why, size_t nbytes);

#endif
