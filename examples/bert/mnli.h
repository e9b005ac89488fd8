/* Batches of tokens from MNLI's files. */
#ifndef EXAMPLES_BERT_MNLI_H
#define EXAMPLES_BERT_MNLI_H

#include <cairn/cairn.h>

#include "config.h"
#include "tokenizer.h"

/* Indices of a batch's tensors. A batch has n pairs; the longest has T tokens. */
enum {
    MNLI_IDS,    /* i32 [n, T] */
    MNLI_TYPES,  /* i32 [n, T] */
    MNLI_LABELS, /* i64 [n]: class indices of the model */
    MNLI_MASK,   /* bool [n, T]: false = padding */
};

/* Tokenizer and settings. Must outlive the files and loaders that use it. */
struct mnli_text {
    bert_tokenizer *tokenizer;
    size_t max_length;
    struct cairn_pad_options padding;
};

/* Opens the tokenizer in a Hugging Face folder: vocab.txt, and do_lower_case, strip_accents and tokenize_chinese_chars
 * of tokenizer_config.json if that file exists. A pair is cut to max_length tokens.
 * Errors: those of bert_tokenizer_create; CAIRN_EINVAL tokenizer_config.json is invalid, the vocabulary is larger than
 * the model's, or max_length exceeds the model's positions. */
cairn_status mnli_text_open(struct mnli_text *text, const char *folder, const struct bert_config *config,
                            int64_t max_length);
void mnli_text_close(struct mnli_text *text);

/* Names config's classes if the model has no names yet ("LABEL_0"): entailment, neutral and contradiction, in GLUE's
 * order. Errors: CAIRN_EINVAL the model has other classes. */
cairn_status mnli_set_labels(struct bert_config *config);

/* A file of pairs: MNLI's own (.jsonl) or GLUE's (.tsv). */
struct mnli_file {
    const char *path;
    cairn_dataset *lines, *tokens; /* tokens: pass this one to a loader, with mnli_collate */
};

/* Opens a file; records with the label "-" are skipped, and other labels must be among config's. config's labels and
 * text must outlive the file. Errors: those of cairn_text_dataset_create; CAIRN_EINVAL no record is left. */
cairn_status mnli_file_open(struct mnli_file *file, const char *path, const struct bert_config *config,
                            struct mnli_text *text);
void mnli_file_close(struct mnli_file *file);

/* Creates a loader of the file's batches, in the sampler's order. */
cairn_status mnli_loader_create(cairn_env *env, const struct mnli_file *file, struct mnli_text *text,
                                cairn_sampler *sampler, int64_t batch, int64_t workers, cairn_loader **out);

#endif
