/* The whole file is read into memory and split into lines in place. The hash table is at most half full. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unicode.h"
#include "vocabulary.h"

enum { MOST_NBYTES = 1 << 30 };

static cairn_status no_memory(size_t nbytes) {
    return cairn_dataset_fail(CAIRN_ENOMEM, "no memory for a vocabulary (%zu bytes)", nbytes);
}

static cairn_status failed(const char *path) {
    return cairn_dataset_fail(errno == ENOMEM ? CAIRN_ENOMEM : CAIRN_ESYSTEM, "%s: %s", path, strerror(errno));
}

/* Reads an open file and appends a line end. */
static cairn_status read_whole(int fd, const char *path, char **text, size_t *nbytes) {
    struct stat s;
    if (fstat(fd, &s) != 0) return failed(path);
    if (!S_ISREG(s.st_mode)) return cairn_dataset_fail(CAIRN_EINVAL, "%s: not a regular file", path);
    if (s.st_size > MOST_NBYTES)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: has %lld bytes; a vocab.txt has at most 1 GiB", path,
                                  (long long)s.st_size);
    *text = malloc((size_t)s.st_size + 1);
    if (!*text) return no_memory((size_t)s.st_size + 1);
    *nbytes = 0;
    while (*nbytes < (size_t)s.st_size) {
        const ssize_t got = read(fd, *text + *nbytes, (size_t)s.st_size - *nbytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return failed(path);
        if (got == 0) break; /* the file was truncated meanwhile */
        *nbytes += (size_t)got;
    }
    if (*nbytes > 0 && (*text)[*nbytes - 1] != '\n') (*text)[(*nbytes)++] = '\n';
    return CAIRN_OK;
}

static cairn_status read_file(struct bert_vocabulary *v, const char *path, size_t *nbytes) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe without a writer would block */
    if (fd < 0) return failed(path);
    const cairn_status st = read_whole(fd, path, &v->text, nbytes);
    close(fd);
    return st;
}

/* Returns the end of a line without trailing white space, which `tokenizers` strips. */
static char *trimmed(char *begin, char *end) {
    while (end > begin) {
        size_t length;
        char *c = end - 1;
        while (c > begin && ((unsigned char)*c & 0xc0) == 0x80) c--;
        if (!bert_is_space(bert_utf8_decode((unsigned char *)c, (size_t)(end - c), &length))) break;
        end = c;
    }
    return end;
}

static cairn_status cut_into_lines(struct bert_vocabulary *v, const char *path, size_t nbytes) {
    size_t lines = 0, characters = 0, length;
    const unsigned char *s = (const unsigned char *)v->text;
    for (size_t i = 0; i < nbytes; i += length, characters++) {
        if (bert_utf8_decode(s + i, nbytes - i, &length) == BERT_NO_CHARACTER && s[i] != 0xef)
            return cairn_dataset_fail(CAIRN_EINVAL, "%s: line %zu is not UTF-8; a vocab.txt has a token a line", path,
                                      lines + 1);
        if (s[i] == 0)
            return cairn_dataset_fail(CAIRN_EINVAL, "%s: line %zu has a zero byte; a vocab.txt has a token a line",
                                      path, lines + 1);
        lines += s[i] == '\n';
    }
    v->tokens = calloc(lines + 1, sizeof(*v->tokens));
    for (v->mask = 1; v->mask < 2 * characters; v->mask *= 2) {}
    v->edges = calloc(v->mask--, sizeof(*v->edges));
    if (!v->tokens || !v->edges) return no_memory(nbytes * sizeof(*v->edges));
    for (char *at = v->text; at < v->text + nbytes;) {
        char *end = strchr(at, '\n');
        *trimmed(at, end) = 0;
        v->tokens[v->n++] = at;
        at = end + 1;
    }
    return CAIRN_OK;
}

/* Inserts a token; it replaces an earlier equal one. */
static void plant(struct bert_vocabulary *v, uint32_t root, const char *token, int32_t id) {
    struct bert_edge *edge = NULL;
    size_t left = strlen(token), length;
    for (uint32_t node = root; left > 0; token += length, left -= length, node = edge->to) {
        const uint32_t c = bert_utf8_decode((const unsigned char *)token, left, &length);
        edge = bert_edge_at(v, node, c);
        if (!edge->to) *edge = (struct bert_edge){.from = node, .c = c, .to = v->num_nodes++, .id = -1};
    }
    if (edge) edge->id = id;
    else v->bare[root] = id;
}

cairn_status bert_vocabulary_read(struct bert_vocabulary *v, const char *path) {
    size_t nbytes = 0;
    *v = (struct bert_vocabulary){.num_nodes = 2, .bare = {-1, -1}};
    cairn_status st = read_file(v, path, &nbytes);
    if (st == CAIRN_OK) st = cut_into_lines(v, path, nbytes);
    if (st != CAIRN_OK) {
        bert_vocabulary_clear(v);
        return st;
    }
    for (int32_t id = 0; id < v->n; id++) {
        const bool is_rest = strncmp(v->tokens[id], "##", 2) == 0;
        plant(v, is_rest ? BERT_ROOT_OF_REST : BERT_ROOT, v->tokens[id] + (is_rest ? 2 : 0), id);
    }
    return CAIRN_OK;
}

int32_t bert_vocabulary_find(const struct bert_vocabulary *v, const char *token) {
    const bool is_rest = strncmp(token, "##", 2) == 0;
    const struct bert_edge *edge = NULL;
    size_t left = strlen(token), length;
    if (is_rest) {
        token += 2;
        left -= 2;
    }
    for (uint32_t node = is_rest ? BERT_ROOT_OF_REST : BERT_ROOT; left > 0; token += length, left -= length) {
        edge = bert_edge_at(v, node, bert_utf8_decode((const unsigned char *)token, left, &length));
        if (!edge->to) return -1;
        node = edge->to;
    }
    return edge ? edge->id : v->bare[is_rest ? BERT_ROOT_OF_REST : BERT_ROOT];
}

void bert_vocabulary_clear(struct bert_vocabulary *v) {
    free(v->text);
    free(v->tokens);
    free(v->edges);
    *v = (struct bert_vocabulary){0};
}
