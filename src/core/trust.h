/* Checks who can write a file, and whether this process has more rights than the user who started it. */
#ifndef CAIRN__CORE_TRUST_H
#define CAIRN__CORE_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

enum { CAIRN__WHY_NBYTES = 80 };

/* Whether the program is set-user-ID, set-group-ID or has file capabilities; secure_getenv(3) returns NULL then. */
bool cairn__has_raised_rights(void);

/* Whether only root and owner can write the file or folder: it belongs to one of them, and neither others nor a group
 * may write it, except the group that has owner's name and no other member. A folder that others can write is trusted
 * if it has the sticky bit, as /tmp has: others cannot replace owner's files there. If false, why is "belongs to user
 * 7" or "can be written by other users (mode 0777)". */
bool cairn__is_trusted(const struct stat *s, uid_t owner, char why[CAIRN__WHY_NBYTES]);

/* Whether a file, its folder and all folders above it are trusted, after symbolic links are resolved; why names the one
 * that is not. For the file's own folder the sticky bit is not enough. Also false if one of them cannot be examined. */
bool cairn__is_trusted_path(const char *path, uid_t owner, char *why, size_t nbytes);

#endif
