#include "mnli.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRY(call)                       \
    do {                                \
        const cairn_status s_ = (call); \
        if (s_ != CAIRN_OK) return s_;  \
    } while (0)

/* ---- the tokenizer ---- */

static cairn_status take_switch(const json_t *file, const char *path, const char *key, cairn_switch *out) {
    const json_t *value = json_object_get(file, key);
    if (!value || json_is_null(value)) return CAIRN_OK;
    if (!json_is_boolean(value))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: '%s' must be true, false or null", path, key);
    *out = json_is_true(value) ? CAIRN_ON : CAIRN_OFF;
    return CAIRN_OK;
}

/* If the folder lacks the file, BertTokenizer's defaults apply. */
static cairn_status read_settings(const char *folder, struct bert_tokenizer_options *options) {
    char path[4096];
    json_error_t error;
    if (snprintf(path, sizeof(path), "%s/tokenizer_config.json", folder) >= (int)sizeof(path))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: the path is too long", folder);
    if (access(path, F_OK) != 0) return CAIRN_OK;
    json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(file)) {
        json_decref(file);
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: no object of JSON: %s", path, file ? "another value" : error.text);
    }
    cairn_status st = take_switch(file, path, "do_lower_case", &options->do_lower_case);
    if (st == CAIRN_OK) st = take_switch(file, path, "strip_accents", &options->strip_accents);
    if (st == CAIRN_OK) st = take_switch(file, path, "tokenize_chinese_chars", &options->tokenize_chinese_chars);
    json_decref(file);
    return st;
}

cairn_status mnli_text_open(struct mnli_text *text, const char *folder, const struct bert_config *config,
                            int64_t max_length) {
    char path[4096];
    struct bert_tokenizer_options options = {.struct_size = sizeof(options)};
    *text = (struct mnli_text){.max_length = (size_t)max_length};
    if (max_length > config->max_position_embeddings)
        return cairn_dataset_fail(CAIRN_EINVAL,
                                  "--max-length is %" PRId64 ", but the model has %" PRId64 " positions: give at most "
                                  "these",
                                  max_length, config->max_position_embeddings);
    TRY(read_settings(folder, &options));
    snprintf(path, sizeof(path), "%s/vocab.txt", folder); /* fits: shorter than tokenizer_config.json */
    TRY(bert_tokenizer_create(path, &options, &text->tokenizer));
    if (bert_tokenizer_size(text->tokenizer) > config->vocab_size)
        return cairn_dataset_fail(CAIRN_EINVAL,
                                  "%s has %" PRId32 " tokens, but 'vocab_size' in config.json is %" PRId64
                                  ": they are of different models",
                                  path, bert_tokenizer_size(text->tokenizer), config->vocab_size);
    text->padding =
        *cairn_pad_options(.fields = 1U << MNLI_IDS | 1U << MNLI_TYPES, .mask = CAIRN_ON, .mask_of = MNLI_IDS);
    text->padding.values[MNLI_IDS] = bert_tokenizer_id(text->tokenizer, "[PAD]");
    return CAIRN_OK;
}

void mnli_text_close(struct mnli_text *text) {
    bert_tokenizer_destroy(&text->tokenizer);
}

/* ---- classes ---- */

static const char *const classes[] = {"entailment", "neutral", "contradiction"};
enum { CLASSES = 3 };

static int has_class(const struct bert_config *config, const char *name) {
    for (int i = 0; i < config->num_labels; i++) {
        if (strcmp(config->labels[i], name) == 0) return 1;
    }
    return 0;
}

cairn_status mnli_set_labels(struct bert_config *config) {
    int found = 0;
    for (int i = 0; i < CLASSES; i++) found += has_class(config, classes[i]);
    if (found == CLASSES && config->num_labels == CLASSES) return CAIRN_OK;
    if (strncmp(config->labels[0], "LABEL_", 6) == 0) return bert_config_set_labels(config, CLASSES, classes);
    return cairn_dataset_fail(CAIRN_EINVAL,
                              "the model has %d classes, of which the first is \"%s\"; those of MNLI are entailment, "
                              "neutral and contradiction: remove 'id2label' and 'label2id' from its config.json, and "
                              "the classifier's weights",
                              config->num_labels, config->labels[0]);
}

/* ---- files ---- */

static struct bert_text text_of(const cairn_fields *from, int i) {
    const struct cairn_field *f = cairn_fields_at(from, i);
    return (struct bert_text){f->data, (size_t)f->shape[0]};
}

/* Turns the two texts and the label of a pair into tokens. */
static cairn_status tokenize(void *ctx, const cairn_fields *from, struct cairn_random *random, cairn_fields *example) {
    const struct mnli_text *text = ctx;
    bert_encoding e = BERT_ENCODING_INIT;
    const struct cairn_field *label = cairn_fields_at(from, 2);
    (void)random;
    cairn_status st = bert_tokenizer_encode(text->tokenizer, text_of(from, 0), text_of(from, 1),
                                            bert_encode_options(.max_length = text->max_length), &e);
    const int64_t n = (int64_t)e.n;
    if (st == CAIRN_OK) st = cairn_fields_add_values(example, CAIRN_I32, 1, &n, e.ids);
    if (st == CAIRN_OK) st = cairn_fields_add_values(example, CAIRN_I32, 1, &n, e.types);
    if (st == CAIRN_OK) st = cairn_fields_add_values(example, label->dtype, 0, NULL, label->data);
    bert_encoding_finish(&e);
    return st;
}

cairn_status mnli_file_open(struct mnli_file *file, const char *path, const struct bert_config *config,
                            struct mnli_text *text) {
    *file = (struct mnli_file){.path = path};
    TRY(cairn_text_dataset_create(path, CAIRN_COLUMNS("sentence1", "sentence2"),
                                  cairn_text_options(.label = "gold_label", .num_labels = config->num_labels,
                                                     .labels = (const char *const *)config->labels, .dropped = "-"),
                                  &file->lines));
    if (cairn_dataset_count(file->lines) == 0)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: there is no pair with a label in it", path);
    return cairn_map_dataset_create(file->lines, tokenize, text, &file->tokens);
}

void mnli_file_close(struct mnli_file *file) {
    cairn_dataset_destroy(&file->tokens);
    cairn_dataset_destroy(&file->lines);
}

cairn_status mnli_loader_create(cairn_env *env, const struct mnli_file *file, struct mnli_text *text,
                                cairn_sampler *sampler, int64_t batch, int64_t workers, cairn_loader **out) {
    return cairn_loader_create(env, file->tokens, sampler, (size_t)batch,
                               cairn_loader_options(.workers = (int)workers, .collate = cairn_collate_pad,
                                                    .collate_ctx = &text->padding),
                               out);
}
