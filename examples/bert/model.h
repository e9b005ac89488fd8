/* BERT for sequence classification from Cairn's modules, with weights that Hugging Face reads and writes.
 *
 *     struct bert_config config;
 *     CAIRN_CHECK(bert_config_read(&config, "bert-base-cased"));
 *     CAIRN_CHECK(bert_config_set_labels(&config, 3, (const char *const[]){"entailment", "neutral", "contradiction"}));
 *     cairn_module *model = bert_create(env, &config, NULL);
 *     CAIRN_CHECK(bert_load(model, "bert-base-cased", note, sizeof(note)));  // before amp_initialize and ddp_create
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

/* Indices of the inputs. */
enum {
    BERT_IDS,   /* [B, T] i32 or i64: tokens; T is at most max_position_embeddings */
    BERT_MASK,  /* [B, T] bool or integers: 0 = padding, which is masked out of attention; NULL = no padding */
    BERT_TYPES, /* [B, T] i32 or i64: 0 for the first sentence, 1 for the second; NULL = all 0 */
    BERT_INPUTS
};

struct bert_options {
    /* Default OFF. ON: training keeps only the activations between layers and recomputes those inside a layer in
     * backward (cairn_checkpoint). Outputs and gradients have the same bits. */
    cairn_switch gradient_checkpointing;
};

/* Creates the classifier: from the inputs above to logits f32 [B, num_labels] (half if amp casts the classifier's
 * product). Weights and embeddings are drawn from N(0, initializer_range); biases and the padding token's row are 0,
 * normalisations 1 and 0. Dropout probabilities are config's; cairn_module_train(model, 0) turns dropout off. The
 * children are "bert", with "bert.embeddings", "bert.encoder.layer.0", ... and "bert.pooler", and "classifier";
 * weights.c maps them to the names in files. options may be NULL. Destroy with cairn_module_destroy. Returns NULL on
 * error, see cairn_last_error(). */
cairn_module *bert_create(cairn_env *env, const struct bert_config *config, const struct bert_options *options);

/* Loads weights from a safetensors file, an index of several, or a folder (cairn/weights.h), by Hugging Face's names:
 * with the prefix "bert." or, as a file of BertModel has them, without; also with "gamma" and "beta" for
 * normalisations, as in files from before 2019. Other tensors of a pre-trained file ("cls.*", position_ids) are
 * ignored.
 *
 * A file without a classifier or pooler holds a pre-trained encoder: the missing parts keep their values, and note
 * receives a sentence that says so, to print on one rank; "" = nothing was missing. note may be NULL.
 * Errors: those of cairn_weights_load; the error names the tensors that are missing, unexpected or of another shape,
 * and nothing is loaded. */
cairn_status bert_load(cairn_module *model, const char *path, char *note, size_t nbytes);

/* Writes folder/model.safetensors and folder/config.json, which BertForSequenceClassification.from_pretrained reads;
 * creates the folder if needed. dtype: CAIRN_F32 (at O2 the master weights), CAIRN_F16 or CAIRN_BF16. Call on one rank,
 * between steps.
 * Errors: those of cairn_weights_save and bert_config_write; CAIRN_ESYSTEM the folder cannot be made. */
cairn_status bert_save(cairn_module *model, const struct bert_config *config, const char *folder, cairn_dtype dtype);

#endif
