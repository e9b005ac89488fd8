/* Each field is a row of a table. A field is checked before the next one is read, so the error names the first wrong
 * value. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRY(call)                       \
    do {                                \
        const cairn_status s_ = (call); \
        if (s_ != CAIRN_OK) return s_;  \
    } while (0)

struct size_field {
    const char *key;
    size_t at;
    int64_t least, most, otherwise; /* otherwise: the default; 0 = the field is required */
};

#define SIZE(name, least, most, otherwise) \
    { #name, offsetof(struct bert_config, name), least, most, otherwise }
static const struct size_field sizes[] = {
    SIZE(vocab_size, 1, INT32_MAX, 0),      SIZE(hidden_size, 1, 1 << 20, 0),
    SIZE(num_hidden_layers, 1, 1000, 0),    SIZE(num_attention_heads, 1, 1 << 20, 0),
    SIZE(intermediate_size, 1, 1 << 24, 0), SIZE(max_position_embeddings, 1, INT32_MAX, 0),
    SIZE(type_vocab_size, 1, INT32_MAX, 2),
};
#define NUM_SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct number_field {
    const char *key;
    size_t at;
    double least, below, otherwise; /* least <= value < below */
};

#define NUMBER(name, least, below, otherwise) \
    { #name, offsetof(struct bert_config, name), least, below, otherwise }
static const struct number_field numbers[] = {
    NUMBER(hidden_dropout_prob, 0, 1, 0.1),  NUMBER(attention_probs_dropout_prob, 0, 1, 0.1),
    NUMBER(classifier_dropout, 0, 1, -1),    NUMBER(layer_norm_eps, 1e-30, 1, 1e-12),
    NUMBER(initializer_range, 0, 1e6, 0.02),
};
#define NUM_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static const struct {
    const char *name;
    cairn_tensor *(*op)(cairn_tensor *x);
} activations[] = {
    {"gelu", cairn_gelu}, {"gelu_new", cairn_gelu_tanh}, {"gelu_pytorch_tanh", cairn_gelu_tanh},
    {"relu", cairn_relu}, {"silu", cairn_silu},          {"swish", cairn_silu},
};
#define NUM_ACTIVATIONS (sizeof(activations) / sizeof(activations[0]))

static int64_t *size_of(struct bert_config *c, const struct size_field *f) {
    return (int64_t *)(void *)((char *)c + f->at);
}

static double *number_of(struct bert_config *c, const struct number_field *f) {
    return (double *)(void *)((char *)c + f->at);
}

/* Formats a value of the file for an error message; at most nbytes - 1 characters. */
static const char *shown(const json_t *value, char *text, size_t nbytes) {
    char *all = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    snprintf(text, nbytes, "%s", all ? all : "?");
    free(all);
    return text;
}
#define SHOWN(value) shown(value, (char[80]){0}, 80)

/* Returns NULL if the key is missing or null. */
static const json_t *value_of(const struct bert_config *c, const char *key) {
    const json_t *value = json_object_get(c->file, key);
    return json_is_null(value) ? NULL : value;
}

/* ---- sizes and numbers ---- */

static cairn_status read_size(struct bert_config *c, const char *path, const struct size_field *f) {
    const json_t *value = value_of(c, f->key);
    *size_of(c, f) = f->otherwise;
    if (!value && f->otherwise) return CAIRN_OK;
    if (!value)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: '%s' is missing; a BERT's config.json has it", path, f->key);
    const int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < f->least || n > f->most)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: '%s' is %s; it must be an integer from %" PRId64 " to %" PRId64,
                                  path, f->key, SHOWN(value), f->least, f->most);
    *size_of(c, f) = n;
    return CAIRN_OK;
}

static cairn_status read_number(struct bert_config *c, const char *path, const struct number_field *f) {
    const json_t *value = value_of(c, f->key);
    *number_of(c, f) = f->otherwise;
    if (!value) return CAIRN_OK;
    const double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= f->least && x < f->below))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: '%s' is %s; it must be a number that is at least %g and below %g",
                                  path, f->key, SHOWN(value), f->least, f->below);
    *number_of(c, f) = x;
    return CAIRN_OK;
}

/* null means no padding token, and a missing key means 0, as in Hugging Face. */
static cairn_status read_padding(struct bert_config *c, const char *path) {
    const json_t *value = json_object_get(c->file, "pad_token_id");
    c->pad_token_id = json_is_null(value) ? -1 : 0;
    if (!value || json_is_null(value)) return CAIRN_OK;
    c->pad_token_id = json_integer_value(value);
    if (!json_is_integer(value) || c->pad_token_id < 0 || c->pad_token_id >= c->vocab_size)
        return cairn_dataset_fail(CAIRN_EINVAL,
                                  "%s: 'pad_token_id' is %s; it must be null or a token, from 0 to %" PRId64, path,
                                  SHOWN(value), c->vocab_size - 1);
    return CAIRN_OK;
}

static cairn_status read_activation(struct bert_config *c, const char *path) {
    const json_t *value = value_of(c, "hidden_act");
    const char *name = value ? json_string_value(value) : "gelu";
    for (size_t i = 0; name && i < NUM_ACTIVATIONS; i++) {
        if (strcmp(activations[i].name, name) != 0) continue;
        c->hidden_act = activations[i].name;
        c->activation = activations[i].op;
        return CAIRN_OK;
    }
    return cairn_dataset_fail(
        CAIRN_ENOTSUP,
        "%s: 'hidden_act' is %s; this program has gelu, gelu_new, gelu_pytorch_tanh, relu, silu and swish", path,
        SHOWN(value));
}

/* ---- what Cairn does not support ---- */

static cairn_status want_text(const struct bert_config *c, const char *path, const char *key, const char *wanted) {
    const json_t *value = value_of(c, key);
    if (!value || (json_is_string(value) && strcmp(json_string_value(value), wanted) == 0)) return CAIRN_OK;
    return cairn_dataset_fail(CAIRN_ENOTSUP, "%s: '%s' is %s; this program is for \"%s\" alone", path, key,
                              SHOWN(value), wanted);
}

/* Absent, null, false or empty. */
static cairn_status want_none(const struct bert_config *c, const char *path, const char *key, const char *what) {
    const json_t *value = value_of(c, key);
    if (!value || json_is_false(value) || (json_is_object(value) && json_object_size(value) == 0)) return CAIRN_OK;
    return cairn_dataset_fail(CAIRN_ENOTSUP, "%s: '%s' is %s; this program has no %s", path, key, SHOWN(value), what);
}

static cairn_status check_kind(const struct bert_config *c, const char *path) {
    TRY(want_text(c, path, "model_type", "bert"));
    TRY(want_text(c, path, "position_embedding_type", "absolute"));
    TRY(want_text(c, path, "problem_type", "single_label_classification"));
    TRY(want_none(c, path, "is_decoder", "decoders"));
    TRY(want_none(c, path, "add_cross_attention", "cross attention"));
    TRY(want_none(c, path, "is_encoder_decoder", "decoders"));
    TRY(want_none(c, path, "pruned_heads", "pruned heads"));
    return want_none(c, path, "quantization_config", "quantised weights");
}

/* ---- labels ---- */

static void free_labels(char **labels, int n) {
    for (int i = 0; labels && i < n; i++) free(labels[i]);
    free(labels);
}

static cairn_status take_labels(struct bert_config *c, int n, const char *const *names) {
    char number[32], **labels = calloc((size_t)n, sizeof(labels[0]));
    int done = 0;
    while (labels && done < n) {
        snprintf(number, sizeof(number), "LABEL_%d", done);
        labels[done] = strdup(names ? names[done] : number);
        if (!labels[done]) break;
        done++;
    }
    if (done < n) {
        free_labels(labels, done);
        return cairn_dataset_fail(CAIRN_ENOMEM, "there is no memory for the names of %d labels", n);
    }
    free_labels(c->labels, c->num_labels);
    c->labels = labels;
    c->num_labels = n;
    return CAIRN_OK;
}

enum { MOST_LABELS = 100000 };

/* from: the source of the names for error messages: file and key, or the call. */
static cairn_status check_labels(const char *from, int n, const char *const *names) {
    json_t *seen = json_object();
    cairn_status st = seen ? CAIRN_OK : cairn_dataset_fail(CAIRN_ENOMEM, "%s: there is no memory", from);
    for (int i = 0; st == CAIRN_OK && i < n; i++) {
        if (!names[i] || json_object_get(seen, names[i]))
            st = cairn_dataset_fail(CAIRN_EINVAL, "%s: label %d is %s%s%s; each class needs a name of its own", from, i,
                                    names[i] ? "again \"" : "NULL", names[i] ? names[i] : "", names[i] ? "\"" : "");
        else if (json_object_set_new(seen, names[i], json_true()) != 0)
            st = cairn_dataset_fail(CAIRN_EINVAL, "%s: label %d is no UTF-8 text", from, i);
    }
    json_decref(seen);
    return st;
}

cairn_status bert_config_set_labels(struct bert_config *config, int n, const char *const *names) {
    if (n < 1 || n > MOST_LABELS)
        return cairn_dataset_fail(CAIRN_EINVAL, "bert_config_set_labels: %d labels; there must be 1 to %d", n,
                                  MOST_LABELS);
    if (names) TRY(check_labels("bert_config_set_labels", n, names));
    return take_labels(config, n, names);
}

/* Reads names[i] from id2label's key "i". The JSON file owns the strings. */
static cairn_status read_names(const struct bert_config *c, const char *path, int n, const char **names) {
    const json_t *table = value_of(c, "id2label");
    char key[32];
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%d", i);
        names[i] = json_string_value(json_object_get(table, key));
        if (!names[i])
            return cairn_dataset_fail(
                CAIRN_EINVAL,
                "%s: 'id2label' has %d labels, but none that is a text under \"%s\"; its keys are \"0\" to "
                "\"%d\"",
                path, n, key, n - 1);
    }
    return CAIRN_OK;
}

/* In some files id2label and label2id contradict each other, so the classes are unknown. */
static cairn_status check_inverse(const struct bert_config *c, const char *path, int n, const char *const *names) {
    const json_t *table = value_of(c, "label2id");
    if (!table) return CAIRN_OK;
    if (!json_is_object(table) || json_object_size(table) != (size_t)n)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: 'label2id' is %s; it must have the %d labels of 'id2label'", path,
                                  SHOWN(table), n);
    for (int i = 0; i < n; i++) {
        const json_t *id = json_object_get(table, names[i]);
        if (!json_is_integer(id) || json_integer_value(id) != i)
            return cairn_dataset_fail(
                CAIRN_EINVAL,
                "%s: class %d is \"%s\" in 'id2label', which 'label2id' does not say; make them agree, or "
                "remove 'label2id'",
                path, i, names[i]);
    }
    return CAIRN_OK;
}

static cairn_status read_named_labels(struct bert_config *c, const char *path, int n) {
    char from[4200];
    const char **names = calloc((size_t)n, sizeof(names[0]));
    if (!names) return cairn_dataset_fail(CAIRN_ENOMEM, "%s: there is no memory for %d labels", path, n);
    snprintf(from, sizeof(from), "%s: 'id2label'", path);
    cairn_status st = read_names(c, path, n, names);
    if (st == CAIRN_OK) st = check_labels(from, n, names);
    if (st == CAIRN_OK) st = check_inverse(c, path, n, names);
    if (st == CAIRN_OK) st = take_labels(c, n, names);
    free(names);
    return st;
}

static cairn_status read_labels(struct bert_config *c, const char *path) {
    const json_t *number = value_of(c, "num_labels"), *table = value_of(c, "id2label");
    const int64_t n = number ? json_integer_value(number) : table ? (int64_t)json_object_size(table) : 2;
    if ((number && !json_is_integer(number)) || (!table && (n < 1 || n > MOST_LABELS)))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: 'num_labels' is %s; it must be an integer from 1 to %d", path,
                                  SHOWN(number), MOST_LABELS);
    if (!table && value_of(c, "label2id"))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: 'label2id' stands without 'id2label'; have both, or neither",
                                  path);
    if (!table) return take_labels(c, (int)n, NULL);
    if (!json_is_object(table) || json_object_size(table) < 1 || json_object_size(table) > MOST_LABELS)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: 'id2label' is %s; it must be an object of 1 to %d labels", path,
                                  SHOWN(table), MOST_LABELS);
    if (json_object_size(table) != (size_t)n)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: 'num_labels' is %" PRId64 ", but 'id2label' has %zu labels", path,
                                  n, json_object_size(table));
    return read_named_labels(c, path, (int)n);
}

/* ---- the file ---- */

static cairn_status read_values(struct bert_config *c, const char *path) {
    TRY(check_kind(c, path));
    for (size_t i = 0; i < NUM_SIZES; i++) TRY(read_size(c, path, &sizes[i]));
    for (size_t i = 0; i < NUM_NUMBERS; i++) TRY(read_number(c, path, &numbers[i]));
    TRY(read_padding(c, path));
    TRY(read_activation(c, path));
    if (c->hidden_size % c->num_attention_heads != 0)
        return cairn_dataset_fail(CAIRN_EINVAL,
                                  "%s: 'hidden_size' is %" PRId64 ", which %" PRId64
                                  " of 'num_attention_heads' do not divide",
                                  path, c->hidden_size, c->num_attention_heads);
    return read_labels(c, path);
}

/* Returns path, or path/name if path is a folder. */
static cairn_status find(const char *path, const char *name, char *out, size_t nbytes) {
    struct stat s;
    const bool is_folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    const int n = snprintf(out, nbytes, "%s%s%s", path, is_folder ? "/" : "", is_folder ? name : "");
    return n >= 0 && (size_t)n < nbytes ? CAIRN_OK : cairn_dataset_fail(CAIRN_EINVAL, "%s: the path is too long", path);
}

cairn_status bert_config_read(struct bert_config *config, const char *path) {
    char at[4096];
    json_error_t error;
    *config = (struct bert_config){.file = NULL};
    TRY(find(path, "config.json", at, sizeof(at)));
    FILE *f = fopen(at, "rb");
    if (!f) return cairn_dataset_fail(CAIRN_ESYSTEM, "%s: cannot be opened: %s", at, strerror(errno));
    errno = 0;
    config->file = json_loadf(f, JSON_REJECT_DUPLICATES, &error);
    const int cause = ferror(f) ? errno : 0;
    fclose(f);
    if (cause) return cairn_dataset_fail(CAIRN_ESYSTEM, "%s: cannot be read: %s", at, strerror(cause));
    if (!config->file)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: line %d, column %d: no valid JSON: %s", at, error.line,
                                  error.column, error.text);
    if (!json_is_object(config->file))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: is %s; a config.json is an object of keys and values", at,
                                  SHOWN(config->file));
    return read_values(config, at);
}

void bert_config_clear(struct bert_config *config) {
    free_labels(config->labels, config->num_labels);
    json_decref(config->file);
    *config = (struct bert_config){.file = NULL};
}

/* ---- writing ---- */

/* Each returns 0, or -1 if out of memory. */
static int put_labels(json_t *to, const struct bert_config *c) {
    json_t *names = json_object(), *ids = json_object();
    char key[32];
    int st = 0;
    for (int i = 0; st == 0 && i < c->num_labels; i++) {
        snprintf(key, sizeof(key), "%d", i);
        st = json_object_set_new(names, key, json_string(c->labels[i]));
        if (st == 0) st = json_object_set_new(ids, c->labels[i], json_integer(i));
    }
    (void)json_object_del(to, "num_labels"); /* implied by id2label */
    if (json_object_set_new(to, "id2label", names) != 0) st = -1;
    return json_object_set_new(to, "label2id", ids) != 0 ? -1 : st;
}

static int put_kind(json_t *to, const struct bert_config *c, cairn_dtype dtype) {
    const char *type = dtype == CAIRN_F16 ? "float16" : dtype == CAIRN_BF16 ? "bfloat16" : "float32";
    int st = json_object_set_new(to, "model_type", json_string("bert"));
    st |= json_object_set_new(to, "architectures", json_pack("[s]", "BertForSequenceClassification"));
    st |= json_object_set_new(to, "hidden_act", json_string(c->hidden_act));
    st |= json_object_set_new(to, "pad_token_id", c->pad_token_id < 0 ? json_null() : json_integer(c->pad_token_id));
    st |= json_object_set_new(to, "dtype", json_string(type));
    return st | json_object_set_new(to, "torch_dtype", json_string(type)); /* the key's name before transformers 4.56 */
}

static json_t *pack(const struct bert_config *given, cairn_dtype dtype) {
    struct bert_config c = *given;
    json_t *to = c.file ? json_copy(c.file) : json_object();
    int st = to ? put_kind(to, &c, dtype) : -1;
    for (size_t i = 0; st == 0 && i < NUM_SIZES; i++)
        st = json_object_set_new(to, sizes[i].key, json_integer(*size_of(&c, &sizes[i])));
    for (size_t i = 0; st == 0 && i < NUM_NUMBERS; i++) {
        const double x = *number_of(&c, &numbers[i]);
        st = json_object_set_new(to, numbers[i].key, x < 0 ? json_null() : json_real(x));
    }
    if (st == 0) st = put_labels(to, &c);
    if (st == 0) return to;
    json_decref(to);
    return NULL;
}

/* Returns 15 digits if all numbers survive the round trip, so that 0.1 stays 0.1; otherwise 17, which always
 * suffice. */
static size_t precision_for(const json_t *all) {
    char *text = json_dumps(all, JSON_REAL_PRECISION(15));
    json_t *again = text ? json_loads(text, 0, NULL) : NULL;
    const size_t digits = again && json_equal(all, again) ? 15 : 17;
    json_decref(again);
    free(text);
    return JSON_REAL_PRECISION(digits);
}

/* Writes and syncs a temporary file, then renames it, so that no reader sees a partial file. */
static int write_whole(const json_t *all, const char *path, const char *partial) {
    FILE *f = fopen(partial, "wb");
    if (!f) return -1;
    int st = json_dumpf(all, f, JSON_INDENT(2) | precision_for(all));
    if (st == 0 && (fputc('\n', f) == EOF || fflush(f) != 0 || fsync(fileno(f)) != 0)) st = -1;
    if (fclose(f) != 0) st = -1;
    if (st == 0) st = rename(partial, path);
    const int cause = errno;
    if (st != 0) (void)unlink(partial);
    errno = cause;
    return st;
}

cairn_status bert_config_write(const struct bert_config *config, const char *folder, cairn_dtype dtype) {
    char path[4096], partial[4160];
    if (snprintf(path, sizeof(path), "%s/config.json", folder) >= (int)sizeof(path))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: the path is too long", folder);
    snprintf(partial, sizeof(partial), "%s.partial-%ld", path, (long)getpid());
    json_t *all = pack(config, dtype);
    if (!all) return cairn_dataset_fail(CAIRN_ENOMEM, "%s: there is no memory to write it", path);
    errno = 0;
    const int st = write_whole(all, path, partial);
    const int cause = errno;
    json_decref(all);
    return st == 0 ? CAIRN_OK : cairn_dataset_fail(CAIRN_ESYSTEM, "%s: cannot be written: %s", path, strerror(cause));
}
