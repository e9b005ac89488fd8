/* MNLI's files as batches of tokens. */
#ifndef EXAMPLES_BERT_MNLI_H
#define EXAMPLES_BERT_MNLI_H

#include <cairn/cairn.h>

#include "config.h"
#include "tokenizer.h"

/* The tensors of a batch, by their places; n pairs, the longest of which has T tokens. */
enum {
    MNLI_IDS,    /* i32 [n, T] */
    MNLI_TYPES,  /* i32 [n, T] */
    MNLI_LABELS, /* i64 [n]: classes, in the model's order */
    MNLI_MASK,   /* bool [n, T]: false = padding */
};

/* How text becomes tokens; outlives what reads by it. */
struct mnli_text {
    bert_tokenizer *tokenizer;
    size_t max_length;
    struct cairn_pad_options padding;
};

/* The tokenizer of a folder of Hugging Face's: vocab.txt, and tokenizer_config.json where there is one, whose
 * do_lower_case, strip_accents and tokenize_chinese_chars count. A pair has at most max_length tokens.
 * Errors: those of bert_tokenizer_create; CAIRN_EINVAL a tokenizer_config.json that is broken; more tokens than the
 * model has; max_length is more than its positions. */
cairn_status mnli_text_open(struct mnli_text *text, const char *folder, const struct bert_config *config,
                            int64_t max_length);
void mnli_text_close(struct mnli_text *text);

/* The names of config's classes, as the files have them, where the model has none yet ("LABEL_0"): entailment, neutral
 * and contradiction, as GLUE numbers them. Errors: CAIRN_EINVAL the model has other classes. */
cairn_status mnli_set_labels(struct bert_config *config);

/* A file of pairs: MNLI's own (.jsonl) or GLUE's (.tsv). */
struct mnli_file {
    const char *path;
    cairn_dataset *lines, *tokens; /* tokens: what a loader takes, with mnli_collate */
};

/* Opens a file; records whose label is "-" are left out. config's labels are those that it may have, and outlive it, as
 * text does. Errors: those of cairn_text_dataset_create; CAIRN_EINVAL no record is left. */
cairn_status mnli_file_open(struct mnli_file *file, const char *path, const struct bert_config *config,
                            struct mnli_text *text);
void mnli_file_close(struct mnli_file *file);

/* A loader of its batches, by sampler. */
cairn_status mnli_loader_create(cairn_env *env, const struct mnli_file *file, struct mnli_text *text,
                                cairn_sampler *sampler, int64_t batch, int64_t workers, cairn_loader **out);

#endif
