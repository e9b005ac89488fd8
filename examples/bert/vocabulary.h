/* The tokens of a vocab.txt, with a search for the longest token at the start of a word or of its remainder. */
#ifndef EXAMPLES_BERT_VOCABULARY_H
#define EXAMPLES_BERT_VOCABULARY_H

#include <cairn/cairn.h>

#include <stddef.h>
#include <stdint.h>

/* Two tries with their edges in one hash table: one of all tokens, one of the "##" tokens without the prefix. Nodes are
 * numbered; these are the roots. */
enum { BERT_ROOT = 0, BERT_ROOT_OF_REST = 1 };

struct bert_edge {
    uint32_t from, c;
    uint32_t to; /* 0 = empty entry */
    int32_t id;  /* of the token that ends at `to`; -1 = no token */
};

struct bert_vocabulary {
    char *text;          /* the file's text, each line terminated by 0 */
    const char **tokens; /* [n] by id */
    int32_t n;
    struct bert_edge *edges; /* [mask + 1] */
    size_t mask;
    uint32_t num_nodes;
    int32_t bare[2]; /* ids of the tokens "" and "##", which match no word; -1 = not in the vocabulary */
};

cairn_status bert_vocabulary_read(struct bert_vocabulary *v, const char *path);
void bert_vocabulary_clear(struct bert_vocabulary *v);

/* Returns the id of a token as written in the file, or -1. */
int32_t bert_vocabulary_find(const struct bert_vocabulary *v, const char *token);

static inline size_t bert_edge_place(uint32_t from, uint32_t c) {
    const uint64_t h = ((uint64_t)from << 21 | c) * 0x9E3779B97F4A7C15ull;
    return (size_t)(h >> 32 ^ h >> 17);
}

/* Returns the edge from a node by c, or the empty entry for it. */
static inline struct bert_edge *bert_edge_at(const struct bert_vocabulary *v, uint32_t from, uint32_t c) {
    size_t i = bert_edge_place(from, c) & v->mask;
    while (v->edges[i].to && (v->edges[i].from != from || v->edges[i].c != c)) i = (i + 1) & v->mask;
    return &v->edges[i];
}

/* Finds the longest token that is a prefix of the n characters in the trie at root: returns its id and sets *length, or
 * returns -1. */
static inline int32_t bert_longest(const struct bert_vocabulary *v, uint32_t root, const uint32_t *c, size_t n,
                                   size_t *length) {
    int32_t id = -1;
    uint32_t node = root;
    for (size_t i = 0; i < n; i++) {
        const struct bert_edge *edge = bert_edge_at(v, node, c[i]);
        if (!edge->to) break;
        node = edge->to;
        if (edge->id < 0) continue;
        id = edge->id;
        *length = i + 1;
    }
    return id;
}

#endif
