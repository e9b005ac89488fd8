#include "core/trust.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

enum { NAMES_NBYTES = 4096, ROOT = 0 };

bool cairn__has_raised_rights(void) {
    return getauxval(AT_SECURE) != 0;
}

/* Systems that give each user a group of his own make folders that it can write: a umask of 002. */
static bool is_private_group(gid_t gid, uid_t owner) {
    char user_names[NAMES_NBYTES], group_names[NAMES_NBYTES];
    struct passwd user, *has_user = NULL;
    struct group group, *has_group = NULL;
    if (getpwuid_r(owner, &user, user_names, sizeof(user_names), &has_user) != 0 || !has_user) return false;
    if (getgrgid_r(gid, &group, group_names, sizeof(group_names), &has_group) != 0 || !has_group) return false;
    for (char **member = group.gr_mem; *member; member++) {
        if (strcmp(*member, user.pw_name) != 0) return false;
    }
    return user.pw_gid == gid && strcmp(group.gr_name, user.pw_name) == 0;
}

static bool others_can_write(const struct stat *s, uid_t owner) {
    if (s->st_mode & S_IWOTH) return true;
    return (s->st_mode & S_IWGRP) && s->st_gid != ROOT && !is_private_group(s->st_gid, owner);
}

/* The host's root, who owns /tmp, has no number of his own in a container that a user began; /proc/sys is root's too.
 * Returns ROOT on a host. */
static uid_t root_of_the_host(void) {
    struct stat s;
    return stat("/proc/sys", &s) == 0 ? s.st_uid : ROOT;
}

static bool is_sticky(const struct stat *s) {
    return S_ISDIR(s->st_mode) && (s->st_mode & S_ISVTX);
}

bool cairn__is_trusted(const struct stat *s, uid_t owner, char why[CAIRN__WHY_NBYTES]) {
    const bool is_ours = s->st_uid == ROOT || s->st_uid == owner || (is_sticky(s) && s->st_uid == root_of_the_host());
    if (!is_ours) {
        snprintf(why, CAIRN__WHY_NBYTES, "belongs to user %lu", (unsigned long)s->st_uid);
    } else if (!is_sticky(s) && others_can_write(s, owner)) {
        snprintf(why, CAIRN__WHY_NBYTES, "can be written by other users (mode %04o)", (unsigned)s->st_mode & 07777);
    } else {
        return true;
    }
    return false;
}

bool cairn__is_trusted_path(const char *path, uid_t owner, char *why, size_t nbytes) {
    char whole[PATH_MAX], reason[CAIRN__WHY_NBYTES];
    struct stat s;
    if (!realpath(path, whole)) {
        snprintf(why, nbytes, "%s: %s", path, strerror(errno));
        return false;
    }
    for (int above = 0;; above++) {
        if (lstat(whole[0] ? whole : "/", &s) != 0) {
            snprintf(why, nbytes, "%s: %s", whole, strerror(errno));
            return false;
        }
        if (above < 2) s.st_mode &= ~(mode_t)S_ISVTX;
        if (!cairn__is_trusted(&s, owner, reason)) {
            snprintf(why, nbytes, "%s %s", whole[0] ? whole : "/", reason);
            return false;
        }
        if (!whole[0]) return true;
        *strrchr(whole, '/') = '\0';
    }
}
