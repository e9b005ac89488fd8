#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "description.h"
#include "core/alloc.h"
#include "core/status.h"
#include "observe/out.h"
#include "state/file.h"

static const char DESCRIPTION[] = "result.json";

enum { MOST_NBYTES = 1 << 28 }; /* size limit of files to read */

cairn_status store_path(char path[STORE_PATH_NBYTES], const char *folder, const char *name) {
    const int n = snprintf(path, STORE_PATH_NBYTES, "%s/%s", folder, name);
    REQUIRE(n < STORE_PATH_NBYTES, CAIRN_EINVAL, "%.100s...: the path is too long", folder);
    return CAIRN_OK;
}

cairn_status store_write_text(const char *path, const char *text, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    struct cairn__writer *w = NULL;
    TRY(cairn__writer_create(path, 0, &w));
    TRY(cairn__writer_write(w, text, nbytes));
    TRY(cairn__writer_commit(&w, NULL));
out:
    if (w) cairn__writer_discard(&w);
    return st;
}

/* Makes a folder and its parents. */
static cairn_status make_folders(const char *path) {
    char copy[STORE_PATH_NBYTES];
    const int n = snprintf(copy, sizeof(copy), "%s", path);
    REQUIRE(n >= 0 && (size_t)n < sizeof(copy), CAIRN_EINVAL, "%.100s...: the path is too long", path);
    return cairn__out_make_folder(copy);
}

/* ---- CSV (RFC 4180) ---- */

static void put_cell_text(FILE *out, const char *text) {
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"') fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void put_table(FILE *out, const struct lab_table *t) {
    for (size_t c = 0; c < t->num_columns; c++) {
        char heading[256];
        const char *unit = t->columns[c].unit;
        snprintf(heading, sizeof(heading), unit && unit[0] ? "%s (%s)" : "%s", t->columns[c].name, unit);
        if (c > 0) fputc(',', out);
        put_cell_text(out, heading);
    }
    fputs("\n", out);
    for (size_t row = 0; row < table_rows(t); row++) {
        for (size_t c = 0; c < t->num_columns; c++) {
            char text[32];
            const struct lab_cell *cell = table_cell(t, row, c);
            if (c > 0) fputc(',', out);
            put_cell_text(out, cell->text ? cell->text : number_text(cell->number, text));
        }
        fputs("\n", out);
    }
}

static cairn_status write_table(const char *folder, const struct lab_table *t) {
    char path[STORE_PATH_NBYTES], name[256];
    char *text = NULL;
    size_t nbytes = 0;
    cairn_status st = CAIRN_OK;
    FILE *out = open_memstream(&text, &nbytes);
    REQUIRE(out, CAIRN_ENOMEM, "out of memory");
    put_table(out, t);
    if (fclose(out) != 0) TRY(cairn__fail(CAIRN_ENOMEM, "out of memory"));
    snprintf(name, sizeof(name), "%s.csv", t->name);
    TRY(store_path(path, folder, name));
    TRY(store_write_text(path, text, nbytes));
out:
    free(text);
    return st;
}

/* Unquotes the cell at *text in place and moves *text past it and its comma or line end. NULL if a quote is not closed
 * or text follows the closing quote. */
static char *take_cell(char **text, bool *ends_row) {
    char *cell = *text, *from = cell, *to = cell;
    const bool is_quoted = *from == '"';
    if (is_quoted) {
        for (from++; *from && (*from != '"' || from[1] == '"'); *to++ = *from++) {
            if (*from == '"') from++;
        }
        if (*from++ != '"') return NULL;
    } else {
        from = to = from + strcspn(from, ",\n");
    }
    if (*from && *from != ',' && *from != '\n') return NULL; /* text after a closing quote */
    *ends_row = *from != ',';
    if (*from) from++;
    *text = from;
    *to = '\0';
    return cell;
}

static cairn_status read_rows(const char *path, char *text, struct lab_table *t) {
    bool ends_row = false;
    while (*text && !ends_row) { /* skips the headings, which the description has too */
        if (!take_cell(&text, &ends_row)) return cairn__fail(CAIRN_EINVAL, "%s: its first line does not end", path);
    }
    for (size_t i = 0; *text; i++) {
        const size_t column = i % t->num_columns, row = i / t->num_columns + 2;
        char *end, *cell = take_cell(&text, &ends_row);
        REQUIRE(cell && ends_row == (column + 1 == t->num_columns), CAIRN_EINVAL, "%s: row %zu has not %zu cells", path,
                row, t->num_columns);
        if (!t->columns[column].unit) {
            lab_put_text(t, cell);
            continue;
        }
        const double number = strtod(cell, &end);
        REQUIRE(end != cell && *end == '\0', CAIRN_EINVAL, "%s: '%.40s' in row %zu is no number", path, cell, row);
        lab_put(t, number);
    }
    return *t->failed;
}

static cairn_status read_table(const char *folder, struct lab_table *t) {
    char path[STORE_PATH_NBYTES], name[256], *text = NULL;
    cairn_status st = CAIRN_OK;
    snprintf(name, sizeof(name), "%s.csv", t->name);
    TRY(store_path(path, folder, name));
    TRY(cairn__file_read(path, 0, MOST_NBYTES, &text, NULL));
    TRY(read_rows(path, text, t));
out:
    cairn__free(text);
    return st;
}

/* ---- results ---- */

static cairn_status write_tables(const char *folder, const struct lab_result *result) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < result->num_tables && st == CAIRN_OK; i++) st = write_table(folder, result->tables[i]);
    return st;
}

cairn_status store_write(const char *folder, const struct lab_result *result) {
    char path[STORE_PATH_NBYTES], file[STORE_PATH_NBYTES], *text = NULL;
    cairn_status st = CAIRN_OK;
    TRY(store_path(path, folder, result->name));
    TRY(make_folders(path));
    TRY(store_path(file, path, DESCRIPTION));
    if (unlink(file) != 0 && errno != ENOENT) TRY(cairn__fail_errno(errno, "%s cannot be removed", file));
    TRY(write_tables(path, result));
    TRY(description_make(result, &text));
    TRY(store_write_text(file, text, strlen(text)));
out:
    free(text);
    return st;
}

bool store_has(const char *folder, const char *name) {
    char path[STORE_PATH_NBYTES], file[STORE_PATH_NBYTES];
    struct stat s;
    return store_path(path, folder, name) == CAIRN_OK && store_path(file, path, DESCRIPTION) == CAIRN_OK &&
           stat(file, &s) == 0;
}

cairn_status store_read(const char *folder, const char *name, struct lab_result *out) {
    char path[STORE_PATH_NBYTES], file[STORE_PATH_NBYTES], *text = NULL;
    cairn_status st = CAIRN_OK;
    *out = (struct lab_result){0};
    TRY(store_path(path, folder, name));
    TRY(store_path(file, path, DESCRIPTION));
    TRY(cairn__file_read(file, 0, MOST_NBYTES, &text, NULL));
    TRY(description_read(file, text, out));
    if (strcmp(out->name, name) != 0)
        TRY(cairn__fail(CAIRN_EINVAL, "%s is of '%s'; the folder has another name", file, out->name));
    for (size_t i = 0; i < out->num_tables; i++) TRY(read_table(path, out->tables[i]));
    TRY(result_check(out));
out:
    cairn__free(text);
    return st;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

cairn_status store_list(const char *folder, char ***names, size_t *count) {
    cairn_status st = CAIRN_OK;
    size_t room = 0;
    *names = NULL;
    *count = 0;
    DIR *d = opendir(folder);
    if (!d) return errno == ENOENT ? CAIRN_OK : cairn__fail_errno(errno, "%s", folder);
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || !store_has(folder, e->d_name)) continue;
        TRY(cairn__grow((void **)names, &room, *count + 1, sizeof(**names)));
        TRY(cairn__strdup(e->d_name, &(*names)[*count]));
        ++*count;
    }
    if (*count > 1) qsort(*names, *count, sizeof(**names), compare_names);
out:
    closedir(d);
    return st;
}
