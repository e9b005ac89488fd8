/* A temporary folder for a test, removed with its contents at the end. Needs cmocka. */
#ifndef TESTS_STATE_FOLDER_H
#define TESTS_STATE_FOLDER_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    const char *above = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/cairn-state-XXXXXX", above && strlen(above) < 32 ? above : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_one(const char *path, const struct stat *s, int kind, struct FTW *at) {
    (void)s, (void)kind, (void)at;
    return remove(path);
}

static inline int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* The path of a file in the folder; a few calls' results are good at one time. */
static inline const char *in_folder(const char *name) {
    static _Thread_local char paths[4][256];
    static _Thread_local int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static inline int count_files(void) {
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static inline void write_file(const char *path, const void *bytes, size_t nbytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

#endif
