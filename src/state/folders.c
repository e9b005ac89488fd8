/* The folder of checkpoints. Names that begin with ".step-" are hidden: saves in progress, and folders being
 * removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "state/file.h"
#include "state/state_internal.h"

#define SHOWN  "step-"
#define HIDDEN ".step-"

static cairn_status join(const char *dir, const char *name, char path[CAIRN__MAX_PATH]) {
    const int n = snprintf(path, CAIRN__MAX_PATH, "%s/%s", dir, name);
    REQUIRE(n > 0 && n < CAIRN__MAX_PATH, CAIRN_EINVAL, "%.200s...: the path is too long", dir);
    return CAIRN_OK;
}

cairn_status cairn__checkpoint_path(const char *dir, int64_t step, char path[CAIRN__MAX_PATH]) {
    char name[64];
    snprintf(name, sizeof(name), SHOWN "%08" PRId64, step);
    return join(dir, name, path);
}

/* "step-00000100"; -1 = another name. */
static int64_t step_of(const char *name) {
    if (strncmp(name, SHOWN, strlen(SHOWN)) != 0) return -1;
    const char *digits = name + strlen(SHOWN);
    const size_t n = strspn(digits, "0123456789");
    if (n < 8 || n > 18 || digits[n] || (n > 8 && digits[0] == '0')) return -1;
    return strtoll(digits, NULL, 10);
}

static int compare_steps(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

cairn_status cairn__checkpoint_steps(const char *dir, int64_t **steps, size_t *count) {
    size_t capacity = 0;
    cairn_status st = CAIRN_OK;
    *steps = NULL;
    *count = 0;
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT) return CAIRN_OK;
    if (!d) return cairn__fail_errno(errno, "%s", dir);
    for (const struct dirent *e; st == CAIRN_OK && (e = readdir(d));) {
        const int64_t step = step_of(e->d_name);
        if (step < 0) continue;
        st = cairn__grow((void **)steps, &capacity, *count + 1, sizeof(**steps));
        if (st == CAIRN_OK) (*steps)[(*count)++] = step;
    }
    closedir(d);
    if (*count) qsort(*steps, *count, sizeof(**steps), compare_steps);
    return st;
}

/* ---- removing ---- */

/* Removes files only: a checkpoint has no folders, and a mistake must not remove anything else. */
static cairn_status remove_folder(const char *path) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), errnum = errno;
    if (fd < 0 && unlink(path) == 0) return CAIRN_OK; /* a symbolic link: its target stays */
    if (fd < 0) return cairn__fail_errno(errnum, "%s", path);
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return cairn__fail(CAIRN_ENOMEM, "%s: no memory to list it", path);
    }
    for (const struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlinkat(fd, e->d_name, 0);
    }
    closedir(d);
    if (rmdir(path) != 0) return cairn__fail_errno(errno, "%s", path);
    return CAIRN_OK;
}

cairn_status cairn__checkpoint_remove(const char *dir, const char *path) {
    char name[64], hidden[CAIRN__MAX_PATH];
    const char *last = strrchr(path, '/');
    snprintf(name, sizeof(name), ".%.40s.gone", last + 1);
    const cairn_status st = join(dir, name, hidden);
    if (st != CAIRN_OK) return st;
    if (rename(path, hidden) != 0) return cairn__fail_errno(errno, "%s", path);
    return remove_folder(hidden);
}

/* Whether it is a checkpoint: a folder with this name from another program is kept. */
static bool is_checkpoint(const char *path) {
    char manifest[CAIRN__MAX_PATH + 32];
    struct stat s;
    snprintf(manifest, sizeof(manifest), "%s/checkpoint.json", path);
    return lstat(path, &s) == 0 && (S_ISLNK(s.st_mode) || lstat(manifest, &s) == 0);
}

cairn_status cairn__checkpoint_prune(const char *dir, int64_t step, int64_t keep_last, int64_t keep_every) {
    int64_t *steps = NULL;
    size_t count = 0;
    char path[CAIRN__MAX_PATH];
    cairn_status st = CAIRN_OK;
    if (keep_last <= 0) return CAIRN_OK;
    TRY(cairn__checkpoint_steps(dir, &steps, &count));
    int64_t newer = 0; /* including this one */
    for (size_t i = count; i-- > 0;) {
        const bool stays = keep_every > 0 && steps[i] % keep_every == 0;
        if (steps[i] > step || newer++ < keep_last || stays) continue;
        cairn_status one = cairn__checkpoint_path(dir, steps[i], path);
        if (one == CAIRN_OK && is_checkpoint(path)) one = cairn__checkpoint_remove(dir, path);
        if (one != CAIRN_OK) st = one; /* continue with the others */
    }
out:
    cairn__free(steps);
    return st;
}

/* ---- a new one ---- */

/* ".step-00000100.1a2b.partial" and ".step-00000100.gone". ".step-00000100.old" was complete, and is the only
 * checkpoint of its step if a program died between the two renames of replace. */
static bool is_hidden(const char *name, const char *kind) {
    if (strncmp(name, HIDDEN, strlen(HIDDEN)) != 0) return false;
    const char *digits = name + strlen(HIDDEN);
    return strspn(digits, "0123456789") >= 8 && strcmp(strrchr(name, '.'), kind) == 0;
}

static void remove_leftovers(const char *dir) {
    char path[CAIRN__MAX_PATH];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const bool goes =
            is_hidden(e->d_name, ".partial") || is_hidden(e->d_name, ".gone") || is_hidden(e->d_name, ".old");
        if (goes && join(dir, e->d_name, path) == CAIRN_OK) (void)remove_folder(path);
    }
    if (d) closedir(d);
}

void cairn__checkpoint_restore(const char *dir) {
    char hidden[CAIRN__MAX_PATH], path[CAIRN__MAX_PATH], name[64];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const char *digits = e->d_name + strlen(HIDDEN);
        if (!is_hidden(e->d_name, ".old")) continue;
        snprintf(name, sizeof(name), SHOWN "%.*s", (int)strspn(digits, "0123456789"), digits);
        if (join(dir, e->d_name, hidden) == CAIRN_OK && join(dir, name, path) == CAIRN_OK && access(path, F_OK) != 0)
            (void)rename(hidden, path);
    }
    if (d) closedir(d);
}

cairn_status cairn__checkpoint_partial_path(const char *dir, int64_t step, uint64_t attempt,
                                            char partial[CAIRN__MAX_PATH]) {
    char name[96];
    snprintf(name, sizeof(name), HIDDEN "%08" PRId64 ".%" PRIx64 ".partial", step, attempt);
    return join(dir, name, partial);
}

static cairn_status make_folder(const char *path) {
    struct stat s;
    if (mkdir(path, 0777) == 0) return cairn__folder_sync_above(path);
    const int errnum = errno; /* not always EEXIST if it exists */
    const bool is_there = stat(path, &s) == 0 && (S_ISDIR(s.st_mode) || errnum == EEXIST);
    return is_there ? CAIRN_OK : cairn__fail_errno(errnum, "%s: making the folder", path);
}

/* Creates dir and its missing parents; existing ones are not touched. */
static cairn_status make_folders(const char *dir) {
    char path[CAIRN__MAX_PATH];
    struct stat s;
    cairn_status st = CAIRN_OK;
    snprintf(path, sizeof(path), "%s", dir);
    for (char *c = path + 1; *c && stat(dir, &s) != 0 && errno == ENOENT; c++) {
        if (*c != '/') continue;
        *c = 0;
        if (stat(path, &s) != 0) TRY(make_folder(path));
        *c = '/';
    }
    TRY(make_folder(dir));
out:
    return st;
}

cairn_status cairn__checkpoint_begin(const char *dir, const char *partial) {
    cairn_status st = CAIRN_OK;
    TRY(make_folders(dir));
    cairn__checkpoint_restore(dir);
    remove_leftovers(dir);
    if (mkdir(partial, 0777) != 0) TRY(cairn__fail_errno(errno, "%s: making the folder", partial));
out:
    return st;
}

void cairn__checkpoint_abandon(const char *partial) {
    char cause[1024];
    const cairn_status before = cairn__last_status();
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    (void)remove_folder(partial);
    (void)cairn__fail(before, "%s", cause);
}

/* The new folder is in place; the old one, under a hidden name, is no longer needed. */
static void remove_old(const char *path) {
    if (remove_folder(path) != CAIRN_OK)
        cairn__log(CAIRN_LOG_WARNING, "cairn_state_save: the checkpoint that was replaced is not removed: %s",
                   cairn_last_error());
}

/* If the file system cannot exchange two names (NFS), the old checkpoint has another name for a moment, from which
 * cairn__checkpoint_restore can restore it. */
static cairn_status replace(const char *dir, const char *partial, const char *path) {
    char name[64], old[CAIRN__MAX_PATH];
    cairn_status st = CAIRN_OK;
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        TRY(cairn__folder_sync(dir));
        remove_old(partial);
        return CAIRN_OK;
    }
    if (errno != EINVAL && errno != ENOSYS) return cairn__fail_errno(errno, "%s", path);
    snprintf(name, sizeof(name), ".%.40s.old", strrchr(path, '/') + 1);
    TRY(join(dir, name, old));
    if (rename(path, old) != 0) TRY(cairn__fail_errno(errno, "%s", path));
    if (rename(partial, path) != 0) {
        st = cairn__fail_errno(errno, "%s", path);
        (void)rename(old, path);
        goto out;
    }
    TRY(cairn__folder_sync(dir));
    remove_old(old);
out:
    return st;
}

cairn_status cairn__checkpoint_publish(const char *dir, const char *partial, const char *path) {
    struct stat s;
    cairn_status st = CAIRN_OK;
    TRY(cairn__folder_sync(partial));
    if (lstat(path, &s) == 0) TRY(replace(dir, partial, path));
    else if (rename(partial, path) != 0) TRY(cairn__fail_errno(errno, "%s", path));
    TRY(cairn__folder_sync(dir));
out:
    return st;
}
