/* The folder of checkpoints. Names that begin with ".step-" are hidden: of saves under way, and of what goes. */
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

static cairn_status join(const char *dir, const char *name, char path[CAIRN__MOST_PATH]) {
    const int n = snprintf(path, CAIRN__MOST_PATH, "%s/%s", dir, name);
    REQUIRE(n > 0 && n < CAIRN__MOST_PATH, CAIRN_EINVAL, "%.200s...: the path is too long", dir);
    return CAIRN_OK;
}

cairn_status cairn__checkpoint_path(const char *dir, int64_t step, char path[CAIRN__MOST_PATH]) {
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

/* Files alone: a checkpoint has no folders, and nothing else is to be lost by a mistake. */
static cairn_status remove_folder(const char *path) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && unlink(path) == 0) return CAIRN_OK; /* a link: what it shows stays */
    if (fd < 0) return cairn__fail_errno(errno, "%s", path);
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
    char name[64], hidden[CAIRN__MOST_PATH];
    const char *last = strrchr(path, '/');
    snprintf(name, sizeof(name), ".%.40s.gone", last + 1);
    const cairn_status st = join(dir, name, hidden);
    if (st != CAIRN_OK) return st;
    if (rename(path, hidden) != 0) return cairn__fail_errno(errno, "%s", path);
    return remove_folder(hidden);
}

cairn_status cairn__checkpoint_prune(const char *dir, int64_t step, int64_t keep_last, int64_t keep_every) {
    int64_t *steps = NULL;
    size_t count = 0;
    char path[CAIRN__MOST_PATH];
    cairn_status st = CAIRN_OK;
    if (keep_last <= 0) return CAIRN_OK;
    TRY(cairn__checkpoint_steps(dir, &steps, &count));
    for (size_t i = count, kept = 1; i-- > 0;) {
        const bool stays = keep_every > 0 && steps[i] % keep_every == 0;
        if (steps[i] >= step || stays || kept++ < (size_t)keep_last) continue;
        cairn_status one = cairn__checkpoint_path(dir, steps[i], path);
        if (one == CAIRN_OK) one = cairn__checkpoint_remove(dir, path);
        if (one != CAIRN_OK) st = one; /* the others go all the same */
    }
out:
    cairn__free(steps);
    return st;
}

/* ---- a new one ---- */

/* ".step-00000100.1a2b.partial" or ".step-00000100.gone" */
static bool is_leftover(const char *name) {
    if (strncmp(name, HIDDEN, strlen(HIDDEN)) != 0) return false;
    const char *digits = name + strlen(HIDDEN), *last = strrchr(name, '.');
    return strspn(digits, "0123456789") >= 8 && (strcmp(last, ".partial") == 0 || strcmp(last, ".gone") == 0);
}

static void remove_leftovers(const char *dir) {
    char path[CAIRN__MOST_PATH];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (is_leftover(e->d_name) && join(dir, e->d_name, path) == CAIRN_OK) (void)remove_folder(path);
    }
    if (d) closedir(d);
}

cairn_status cairn__checkpoint_partial_path(const char *dir, int64_t step, uint64_t attempt,
                                            char partial[CAIRN__MOST_PATH]) {
    char name[96];
    snprintf(name, sizeof(name), HIDDEN "%08" PRId64 ".%" PRIx64 ".partial", step, attempt);
    return join(dir, name, partial);
}

static cairn_status make_folder(const char *path) {
    if (mkdir(path, 0777) == 0) return cairn__folder_sync_above(path);
    return errno == EEXIST ? CAIRN_OK : cairn__fail_errno(errno, "%s: making the folder", path);
}

/* With the folders it is in, which are touched only if one is missing. */
static cairn_status make_folders(const char *dir) {
    char path[CAIRN__MOST_PATH];
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

/* The new folder is in its place; the old one, under a hidden name, is not needed any more. */
static void remove_old(const char *path) {
    if (remove_folder(path) != CAIRN_OK)
        cairn__log(CAIRN_LOG_WARNING, "cairn_state_save: the checkpoint that was replaced is not removed: %s",
                   cairn_last_error());
}

/* Where the file system cannot exchange two names, there is no checkpoint of this step for a moment. */
static cairn_status replace(const char *dir, const char *partial, const char *path) {
    char name[64], gone[CAIRN__MOST_PATH];
    cairn_status st = CAIRN_OK;
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        TRY(cairn__folder_sync(dir));
        remove_old(partial);
        return CAIRN_OK;
    }
    if (errno != EINVAL && errno != ENOSYS) return cairn__fail_errno(errno, "%s", path);
    snprintf(name, sizeof(name), ".%.40s.gone", strrchr(path, '/') + 1);
    TRY(join(dir, name, gone));
    if (rename(path, gone) != 0) TRY(cairn__fail_errno(errno, "%s", path));
    if (rename(partial, path) != 0) {
        st = cairn__fail_errno(errno, "%s", path);
        (void)rename(gone, path);
        goto out;
    }
    TRY(cairn__folder_sync(dir));
    remove_old(gone);
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
