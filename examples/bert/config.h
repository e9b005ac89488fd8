/* BERT's sizes and labels: Hugging Face's config.json.
 *
 * Optional fields take Hugging Face's default when the file lacks them. Keys that have no field here (architectures,
 * transformers_version, a tokenizer's) are kept and written back. Functions return a status; cairn_last_error() names
 * the file and the key. Threads: there is no shared state. */
#ifndef EXAMPLES_BERT_CONFIG_H
#define EXAMPLES_BERT_CONFIG_H

#include <cairn/cairn.h>

struct bert_config {
    int64_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads; /* required; heads divide hidden_size */
    int64_t intermediate_size, max_position_embeddings;                      /* required */
    int64_t type_vocab_size;                                                 /* 2 */
    int64_t pad_token_id;                                                    /* 0; null in the file reads as -1: none */

    double hidden_dropout_prob, attention_probs_dropout_prob; /* 0.1; at least 0 and below 1 */
    double classifier_dropout;                                /* null or missing reads as -1: hidden_dropout_prob */
    double layer_norm_eps, initializer_range;                 /* 1e-12, 0.02 */

    const char *hidden_act; /* "gelu" (by erf), "gelu_new", "gelu_pytorch_tanh" (by tanh), "relu", "silu", "swish" */
    cairn_tensor *(*activation)(cairn_tensor *x); /* the function that hidden_act names */

    int num_labels; /* the size of id2label, else num_labels, else 2 */
    char **labels;  /* labels[i] is the name of class i, from id2label; "LABEL_i" if the file has no names */

    struct json_t *file; /* the whole file as read, for bert_config_write; NULL = nothing was read */
};

/* Reads path, or config.json in the folder path. Call bert_config_clear to free *config, after a failure too.
 * Errors: CAIRN_ESYSTEM the file cannot be read; CAIRN_EINVAL it is not JSON, a value is missing, of another type or
 * out of range, or labels contradict each other; CAIRN_ENOTSUP it needs an unsupported feature: a model other than
 * BERT, a decoder, relative positions, pruned heads, quantised weights, another activation or problem type;
 * CAIRN_ENOMEM. */
cairn_status bert_config_read(struct bert_config *config, const char *path);

/* Replaces the class names, for a new classifier: copies names[0..n-1], which must be distinct; NULL = "LABEL_0", ...
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM; the labels are then unchanged. */
cairn_status bert_config_set_labels(struct bert_config *config, int n, const char *const *names);

/* Writes folder/config.json atomically, for weights saved in dtype (f32, f16 or bf16) in the same folder.
 * Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status bert_config_write(const struct bert_config *config, const char *folder, cairn_dtype dtype);

void bert_config_clear(struct bert_config *config);

#endif
