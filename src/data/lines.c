/* Lines and their index. An index has a header of HEAD words, the offset of each record, and, for messages, the line
 * number of each STRIDE-th record; 8 bytes each in the machine's byte order. */
#include "data/lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/status.h"
#include "data/file.h"
#include "state/file.h"

enum { PIECE = 1 << 20, MAX_LINE = 1 << 26, EDGE = 1 << 16, FIRST_READ = 4096, STRIDE = 1024 };

/* The words of an index's head. */
enum { MAGIC, VERSION, QUESTION, DATA_NBYTES, DATA_CHANGED, DATA_EDGES, COUNT, HASH, HEAD };
#define THE_MAGIC   UINT64_C(0x7865646e692d6e63) /* "cn-index" */
#define THE_VERSION 2

struct cairn__lines {
    struct cairn__file file;
    uint64_t head[HEAD];
    int64_t *begins; /* [count] */
    size_t count, room;
    int64_t *marks; /* [marks_of(count)] the line, from 1, in which record i * STRIDE begins */
    size_t mark_room;
    int64_t line; /* current line while the index is built */
};

static size_t marks_of(size_t count) {
    return count / STRIDE + (count % STRIDE != 0);
}

/* ---- the head for an index of this file ---- */

/* FNV over words, the last one padded with zeros. */
static uint64_t hash_words(uint64_t hash, const void *data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)data + i, nbytes - i < sizeof(word) ? nbytes - i : sizeof(word));
        hash = cairn__hash_word(hash, word);
    }
    return hash;
}

/* Hashes the file's first and last bytes, to detect a file rewritten within one tick of the file system's clock. */
static cairn_status hash_edges(const struct cairn__file *f, uint64_t *hash) {
    const size_t n = f->nbytes < EDGE ? (size_t)f->nbytes : EDGE;
    char *edge = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(EDGE, (void **)&edge));
    TRY(cairn__file_read_at(f, edge, n, 0));
    *hash = hash_words(CAIRN__HASH_START, edge, n);
    TRY(cairn__file_read_at(f, edge, n, f->nbytes - (int64_t)n));
    *hash = hash_words(*hash, edge, n);
out:
    cairn__free(edge);
    return st;
}

static uint64_t hash_records(const struct cairn__lines *l) {
    const uint64_t hash = hash_words(CAIRN__HASH_START, l->begins, l->count * sizeof(l->begins[0]));
    return hash_words(hash, l->marks, marks_of(l->count) * sizeof(l->marks[0]));
}

static cairn_status write_head(struct cairn__lines *l, const struct cairn__lines_options *o) {
    l->head[MAGIC] = THE_MAGIC;
    l->head[VERSION] = THE_VERSION;
    l->head[QUESTION] = cairn__hash_word(o->question, o->has_header);
    l->head[DATA_NBYTES] = (uint64_t)l->file.nbytes;
    l->head[DATA_CHANGED] = (uint64_t)l->file.changed_ns;
    return hash_edges(&l->file, &l->head[DATA_EDGES]);
}

/* ---- building an index ---- */

static size_t without_end(const char *line, size_t nbytes) {
    return nbytes > 0 && line[nbytes - 1] == '\r' ? nbytes - 1 : nbytes;
}

static cairn_status add_line(struct cairn__lines *l, const struct cairn__lines_options *o, const char *line,
                             size_t nbytes, int64_t at) {
    cairn_status st = CAIRN_OK;
    if (without_end(line, nbytes) == 0) return CAIRN_OK;
    if (o->is_record && !o->is_record(o->ctx, line, without_end(line, nbytes))) return CAIRN_OK;
    TRY(cairn__grow((void **)&l->begins, &l->room, l->count + 1, sizeof(l->begins[0])));
    if (l->count % STRIDE == 0) {
        TRY(cairn__grow((void **)&l->marks, &l->mark_room, l->count / STRIDE + 1, sizeof(l->marks[0])));
        l->marks[l->count / STRIDE] = l->line;
    }
    l->begins[l->count++] = at;
out:
    return st;
}

/* Adds the complete lines of text, which begins at byte `at`, and returns their bytes. At the end of the file the last
 * line needs no end. */
static cairn_status add_lines(struct cairn__lines *l, const struct cairn__lines_options *o, const char *text,
                              size_t nbytes, int64_t at, size_t *taken) {
    const bool is_end = at + (int64_t)nbytes == l->file.nbytes;
    cairn_status st = CAIRN_OK;
    size_t i = 0;
    while (i < nbytes) {
        const char *end = memchr(text + i, '\n', nbytes - i);
        if (!end && !is_end) break;
        const size_t line = end ? (size_t)(end - text) - i : nbytes - i;
        TRY(add_line(l, o, text + i, line, at + (int64_t)i));
        l->line++;
        i += line + (end != NULL);
    }
    *taken = i;
out:
    return st;
}

static cairn_status refuse_line(const char *path, int64_t line) {
    return cairn__fail(CAIRN_EINVAL, "%s: line %" PRId64 " is longer than 64 MiB; a record is to be a line", path,
                       line);
}

static cairn_status scan(struct cairn__lines *l, const struct cairn__lines_options *o, int64_t begin) {
    char *text = NULL;
    size_t room = PIECE, have = 0, taken = 0;
    int64_t at = begin; /* of text */
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(room, (void **)&text));
    while (at + (int64_t)have < l->file.nbytes) {
        if (have == room) {
            if (room >= MAX_LINE) TRY(refuse_line(l->file.path, l->line));
            TRY(cairn__grow((void **)&text, &room, 2 * room, 1));
        }
        const int64_t left = l->file.nbytes - at - (int64_t)have;
        const size_t n = left < (int64_t)(room - have) ? (size_t)left : room - have;
        TRY(cairn__file_read_at(&l->file, text + have, n, at + (int64_t)have));
        have += n;
        TRY(add_lines(l, o, text, have, at, &taken));
        memmove(text, text + taken, have - taken);
        have -= taken;
        at += (int64_t)taken;
    }
out:
    cairn__free(text);
    return st;
}

static cairn_status write_index(struct cairn__lines *l, const char *path) {
    struct cairn__writer *w = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__writer_create(path, 0, &w));
    TRY(cairn__writer_write(w, l->head, sizeof(l->head)));
    TRY(cairn__writer_write(w, l->begins, l->count * sizeof(l->begins[0])));
    TRY(cairn__writer_write(w, l->marks, marks_of(l->count) * sizeof(l->marks[0])));
    TRY(cairn__writer_commit(&w, NULL));
out:
    cairn__writer_discard(&w);
    return st;
}

/* ---- using one ---- */

/* Reads the rest of an index whose head matches; whether it agrees with the head. */
static bool take_records(struct cairn__lines *l, const struct cairn__file *f, const uint64_t head[HEAD]) {
    const uint64_t words = ((uint64_t)f->nbytes - HEAD * sizeof(head[0])) / sizeof(head[0]);
    if (head[COUNT] > words || words - head[COUNT] != marks_of(head[COUNT])) return false;
    const size_t nbytes = (size_t)head[COUNT] * sizeof(l->begins[0]);
    const size_t of_marks = marks_of(head[COUNT]) * sizeof(l->marks[0]);
    const int64_t at = HEAD * (int64_t)sizeof(head[0]);
    if (cairn__alloc(nbytes, (void **)&l->begins) != CAIRN_OK || cairn__alloc(of_marks, (void **)&l->marks) != CAIRN_OK)
        return false;
    if (cairn__file_read_at(f, l->begins, nbytes, at) != CAIRN_OK ||
        cairn__file_read_at(f, l->marks, of_marks, at + (int64_t)nbytes) != CAIRN_OK)
        return false;
    l->count = (size_t)head[COUNT];
    bool is_good = hash_records(l) == head[HASH];
    for (size_t i = 0; is_good && i < l->count; i++)
        is_good = l->begins[i] > (i ? l->begins[i - 1] : -1) && l->begins[i] < l->file.nbytes;
    return is_good;
}

/* Loads the index at path into l; whether it belongs to this file and is complete. Every value is checked, so that no
 * index file makes Cairn read outside the data. */
static bool take_index(struct cairn__lines *l, const char *path) {
    struct cairn__file f;
    uint64_t head[HEAD];
    if (cairn__file_open(&f, path) != CAIRN_OK) return false;
    const bool is_good = f.nbytes >= (int64_t)sizeof(head) &&
                         cairn__file_read_at(&f, head, sizeof(head), 0) == CAIRN_OK &&
                         memcmp(head, l->head, COUNT * sizeof(head[0])) == 0 && take_records(l, &f, head);
    if (!is_good) {
        cairn__free(l->begins);
        cairn__free(l->marks);
        l->begins = l->marks = NULL;
        l->count = l->room = l->mark_room = 0;
    }
    cairn__file_close(&f);
    return is_good;
}

/* ---- reading ---- */

/* Reads the line that begins at `at`, of at most `most` bytes with its end, into a field, and returns its length in the
 * file. */
static cairn_status read_line(const struct cairn__file *f, int64_t at, int64_t most, cairn_fields *line,
                              size_t *length) {
    size_t have = 0;
    const char *end = NULL;
    char *text;
    cairn_status st = CAIRN_OK;
    TRY(cairn__fields_add_text(line, NULL, 0));
    while (!end && (int64_t)have < most) {
        const size_t next = have ? 2 * have : FIRST_READ, room = (int64_t)next < most ? next : (size_t)most;
        TRY(cairn__fields_grow_text(line, room, &text));
        TRY(cairn__file_read_at(f, text + have, room - have, at + (int64_t)have));
        end = memchr(text + have, '\n', room - have);
        have = room;
    }
    TRY(cairn__fields_grow_text(line, have, &text));
    *length = end ? (size_t)(end - text) : have;
    TRY(cairn__fields_grow_text(line, without_end(text, *length), &text));
out:
    return st;
}

cairn_status cairn__lines_read(const struct cairn__lines *l, int64_t record, cairn_fields *line) {
    const size_t next = (size_t)record + 1;
    const int64_t at = l->begins[record], most = (next < l->count ? l->begins[next] : l->file.nbytes) - at;
    size_t length;
    return read_line(&l->file, at, most <= MAX_LINE ? most : MAX_LINE + 1, line, &length);
}

cairn_status cairn__lines_number(const struct cairn__lines *l, int64_t record, int64_t *line) {
    const size_t mark = (size_t)record / STRIDE;
    char piece[FIRST_READ];
    cairn_status st = CAIRN_OK;
    *line = l->marks[mark];
    for (int64_t at = l->begins[mark * STRIDE], end = l->begins[record]; at < end; at += FIRST_READ) {
        const size_t n = end - at < FIRST_READ ? (size_t)(end - at) : FIRST_READ;
        TRY(cairn__file_read_at(&l->file, piece, n, at));
        for (size_t i = 0; i < n; i++) *line += piece[i] == '\n';
    }
out:
    return st;
}

/* Skips a UTF-8 byte order mark, which is not part of the first line. */
static cairn_status find_begin(const struct cairn__file *f, int64_t *begin) {
    static const char mark[] = {'\xef', '\xbb', '\xbf'};
    char first[sizeof(mark)];
    cairn_status st = CAIRN_OK;
    *begin = 0;
    if (f->nbytes < (int64_t)sizeof(first)) return CAIRN_OK;
    TRY(cairn__file_read_at(f, first, sizeof(first), 0));
    if (memcmp(first, mark, sizeof(mark)) == 0) *begin = sizeof(mark);
out:
    return st;
}

/* Reads the line that begins at `begin`; *end is where the next one begins. */
static cairn_status read_first(const struct cairn__file *f, int64_t begin, cairn_fields *line, int64_t *end) {
    const int64_t left = f->nbytes - begin;
    size_t length;
    cairn_status st = CAIRN_OK;
    TRY(read_line(f, begin, left <= MAX_LINE ? left : MAX_LINE + 1, line, &length));
    if (length > MAX_LINE) TRY(refuse_line(f->path, 1));
    *end = begin + (int64_t)length + 1;
out:
    return st;
}

cairn_status cairn__lines_header(const char *path, cairn_fields *line) {
    struct cairn__file f;
    int64_t begin, end;
    cairn_status st = CAIRN_OK;
    TRY(cairn__file_open(&f, path));
    TRY(find_begin(&f, &begin));
    TRY(read_first(&f, begin, line, &end));
out:
    cairn__file_close(&f);
    return st;
}

static cairn_status find_records(struct cairn__lines *l, bool has_header, int64_t *begin) {
    cairn_fields *line = NULL;
    cairn_status st = CAIRN_OK;
    TRY(find_begin(&l->file, begin));
    if (!has_header) return CAIRN_OK;
    TRY(cairn_fields_create(&line));
    TRY(read_first(&l->file, *begin, line, begin));
out:
    cairn_fields_destroy(&line);
    return st;
}

cairn_status cairn__lines_open(const char *path, const struct cairn__lines_options *o, struct cairn__lines **out) {
    struct cairn__lines *l = NULL;
    char *beside = NULL;
    const size_t room = strlen(path) + sizeof(".cairn-index");
    int64_t begin;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*l), (void **)&l));
    l->file.fd = -1;
    TRY(cairn__file_open(&l->file, path));
    TRY(cairn__alloc(room, (void **)&beside));
    snprintf(beside, room, "%s.cairn-index", path);
    TRY(find_records(l, o->has_header, &begin));
    TRY(write_head(l, o));
    const char *index = o->index ? o->index : beside;
    if (!take_index(l, index)) {
        l->line = o->has_header ? 2 : 1;
        TRY(scan(l, o, begin));
        l->head[COUNT] = l->count;
        l->head[HASH] = hash_records(l);
        if (write_index(l, index) != CAIRN_OK)
            cairn__log(CAIRN_LOG_WARNING, "the index of %s is made anew each time: %s", path, cairn_last_error());
    }
    *out = l;
    l = NULL;
out:
    cairn__free(beside);
    cairn__lines_close(&l);
    return st;
}

void cairn__lines_close(struct cairn__lines **lines) {
    struct cairn__lines *l = *lines;
    if (!l) return;
    cairn__file_close(&l->file);
    cairn__free(l->begins);
    cairn__free(l->marks);
    cairn__free(l);
    *lines = NULL;
}

int64_t cairn__lines_count(const struct cairn__lines *l) {
    return (int64_t)l->count;
}
