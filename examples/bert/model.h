/* BERT for sequence classification from Cairn's modules, with weights that Hugging Face reads and writes.
 *
 *     struct bert_config config;
 *     CAIRN_CHECK(bert_config_read(&config, "bert-base-cased"));
 *     CAIRN_CHECK(bert_config_set_labels(&config, 3, (const char *const[]){"entailment", "neutral", "contradiction"}));
 *     cairn_module *model = bert_create(env, &config, NULL);
 *     CAIRN_CHECK(bert_load(model, "bert-base-cased", note, sizeof(note)));  before amp_initialize and ddp_create
 *     ...
 *     cairn_tensor *inputs[BERT_INPUTS] = {[BERT_IDS] = ids, [BERT_MASK] = mask, [BERT_TYPES] = types};
 *     cairn_tensor *logits = cairn_module_forward_n(model, inputs, BERT_INPUTS);
 *     ...
 *     CAIRN_CHECK(bert_save(model, &config, "fine-tuned", CAIRN_F32));
 *
 * Threads: as the module's. Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
 * Understanding", 2018; the structure is that of transformers' BertForSequenceClassification. */
#ifndef EXAMPLES_BERT_MODEL_H
#define EXAMPLES_BERT_MODEL_H

#include <cairn/cairn.h>

#include "config.h"

/* The inputs, by their places. */
enum {
    BERT_IDS,   /* [B, T] i32 or i64: tokens; T is at most max_position_embeddings */
    BERT_MASK,  /* [B, T] bool or integers: 0 = padding, to which nothing attends; NULL = there is none */
    BERT_TYPES, /* [B, T] i32 or i64: 0 of the first sentence, 1 of the second; NULL = all 0 */
    BERT_INPUTS
};

struct bert_options {
    /* ON: in training the values inside of a layer are computed again in backward (cairn_checkpoint): between layers
     * alone they are kept. Outputs and gradients have the same bits. OFF */
    cairn_switch gradient_checkpointing;
};

/* The classifier: inputs as above to logits f32 [B, num_labels] (half where amp makes the classifier's product half).
 * Weights and embeddings are N(0, initializer_range), biases and the padding token's row 0, normalisations 1 and 0. The
 * dropouts are config's; cairn_module_train(model, 0) ends them. Its children are "bert", with "bert.embeddings",
 * "bert.encoder.layer.0", ... and "bert.pooler", and "classifier"; weights.c has names in files. options may be NULL.
 * Ended by cairn_module_destroy. NULL on error, with cairn_last_error(). */
cairn_module *bert_create(cairn_env *env, const struct bert_config *config, const struct bert_options *options);

/* Loads weights: a safetensors file, an index of several, or a folder (cairn/weights.h), with the names that Hugging
 * Face gives them, under "bert." or, as BertModel alone is saved, without; with "gamma" and "beta" for a
 * normalisation's, as files before 2019 have. What else a pre-trained file has ("cls.*", position_ids) is passed over.
 *
 * A file without a classifier, or without a pooler, is a pre-trained encoder's: what it lacks stays as it is, which
 * after bert_create is as initialised, and note says so: a sentence to print on one rank; "" = the file has everything.
 * note may be NULL.
 * Errors: those of cairn_weights_load; what is missing, unexpected or of another shape is named, and nothing is
 * loaded. */
cairn_status bert_load(cairn_module *model, const char *path, char *note, size_t nbytes);

/* Writes folder/model.safetensors and folder/config.json, which BertForSequenceClassification.from_pretrained reads;
 * makes the folder where there is none. dtype: CAIRN_F32, which at O2 are the masters, CAIRN_F16 or CAIRN_BF16. Called
 * on one rank, between steps.
 * Errors: those of cairn_weights_save and bert_config_write; CAIRN_ESYSTEM the folder cannot be made. */
cairn_status bert_save(cairn_module *model, const struct bert_config *config, const char *folder, cairn_dtype dtype);

#endif
