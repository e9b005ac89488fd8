/* BERT's sizes and labels: Hugging Face's config.json.
 *
 * A field that is not said to be needed has Hugging Face's default where the file lacks it. What no field here is of
 * (architectures, transformers_version, a tokenizer's) is kept, and written again. Calls that fail return their status,
 * and cairn_last_error() is a sentence with the file and the key. Threads: none of it is shared. */
#ifndef EXAMPLES_BERT_CONFIG_H
#define EXAMPLES_BERT_CONFIG_H

#include <cairn/cairn.h>

struct bert_config {
    int64_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads; /* needed; heads divide hidden_size */
    int64_t intermediate_size, max_position_embeddings;                      /* needed */
    int64_t type_vocab_size;                                                 /* 2 */
    int64_t pad_token_id;                                                    /* 0; null in the file is -1: none */

    double hidden_dropout_prob, attention_probs_dropout_prob; /* 0.1; at least 0 and below 1 */
    double classifier_dropout;                                /* null, or absent, is -1: hidden_dropout_prob */
    double layer_norm_eps, initializer_range;                 /* 1e-12, 0.02 */

    const char *hidden_act; /* "gelu" (by erf), "gelu_new", "gelu_pytorch_tanh" (by tanh), "relu", "silu", "swish" */
    cairn_tensor *(*activation)(cairn_tensor *x); /* what hidden_act names */

    int num_labels; /* as id2label has; num_labels; 2 */
    char **labels;  /* id2label: labels[i] is the name of class i; "LABEL_i" where the file names none */

    struct json_t *file; /* all that was read, for what is written; NULL = nothing was */
};

/* Reads path, or config.json in the folder path. bert_config_clear ends what is in *config, after a failure too.
 * Errors: CAIRN_ESYSTEM it cannot be read; CAIRN_EINVAL it is no JSON, a value is missing, of another type or out of
 * range, labels contradict one another; CAIRN_ENOTSUP it wants what is not here: another model than BERT, a decoder,
 * relative positions, pruned heads, quantised weights, another activation or kind of problem; CAIRN_ENOMEM. */
cairn_status bert_config_read(struct bert_config *config, const char *path);

/* Names the classes anew, for a new head: names[0..n-1], none twice, are copied; NULL = "LABEL_0", ...
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM; the labels are then as they were. */
cairn_status bert_config_set_labels(struct bert_config *config, int n, const char *const *names);

/* Writes folder/config.json, whole or not at all, for weights that are saved in dtype (f32, f16 or bf16) beside it.
 * Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status bert_config_write(const struct bert_config *config, const char *folder, cairn_dtype dtype);

void bert_config_clear(struct bert_config *config);

#endif
