/* Mutated config.json files: reading either succeeds, with values that a model can be built from and that survive being
 * written, or fails with a message that names the file. */
#include <fcntl.h>

#include "../fuzz.h"
#include "config.h"

static const char *const seeds[] = {
    "{\"model_type\":\"bert\",\"vocab_size\":30522,\"hidden_size\":768,\"num_hidden_layers\":12,"
    "\"num_attention_heads\":12,\"intermediate_size\":3072,\"max_position_embeddings\":512,\"type_vocab_size\":2,"
    "\"hidden_act\":\"gelu\",\"hidden_dropout_prob\":0.1,\"attention_probs_dropout_prob\":0.1,\"layer_norm_eps\":1e-12,"
    "\"initializer_range\":0.02,\"pad_token_id\":0,\"classifier_dropout\":null,\"pruned_heads\":{},"
    "\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"},\"label2id\":{\"a\":0,\"b\":1,\"c\":2},\"num_labels\":3}",
    ("{\"vocab_size\":9,\"hidden_size\":4,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"intermediate_size\":8,"
     "\"max_position_embeddings\":5,\"num_labels\":7,\"is_decoder\":false,\"position_embedding_type\":\"absolute\"}"),
    "{\"label2id\":{\"x\":1}}",
};

static size_t fuzz_seed(int i, uint8_t *out) {
    if (i >= (int)(sizeof(seeds) / sizeof(seeds[0]))) return 0;
    memcpy(out, seeds[i], strlen(seeds[i]));
    return strlen(seeds[i]);
}

static void check_values(const struct bert_config *c) {
    FUZZ_CHECK(c->vocab_size > 0 && c->intermediate_size > 0 && c->max_position_embeddings > 0);
    FUZZ_CHECK(c->num_attention_heads > 0 && c->hidden_size % c->num_attention_heads == 0);
    FUZZ_CHECK(c->num_hidden_layers > 0 && c->num_hidden_layers <= 1000 && c->type_vocab_size > 0);
    FUZZ_CHECK(c->pad_token_id >= -1 && c->pad_token_id < c->vocab_size);
    FUZZ_CHECK(c->hidden_dropout_prob >= 0 && c->hidden_dropout_prob < 1 && c->layer_norm_eps > 0);
    FUZZ_CHECK(c->hidden_act && c->activation && c->num_labels > 0);
    for (int i = 0; i < c->num_labels; i++) FUZZ_CHECK(c->labels[i]);
}

static char folder[64], path[96];

static void end_folder(void) {
    unlink(path);
    rmdir(folder);
}

static void make_folder(void) {
    snprintf(folder, sizeof(folder), "/dev/shm/bert-fuzz-XXXXXX"); /* disks flush what is written over */
    if (!mkdtemp(folder)) snprintf(folder, sizeof(folder), "/tmp/cairn-fuzz-XXXXXX");
    FUZZ_CHECK(access(folder, F_OK) == 0 || mkdtemp(folder));
    atexit(end_folder);
    snprintf(path, sizeof(path), "%s/config.json", folder);
}

static void check_written(const struct bert_config *c) {
    struct bert_config again;
    FUZZ_CHECK(bert_config_write(c, folder, CAIRN_F32) == CAIRN_OK);
    FUZZ_CHECK(bert_config_read(&again, folder) == CAIRN_OK);
    FUZZ_CHECK(again.hidden_size == c->hidden_size && again.layer_norm_eps == c->layer_norm_eps);
    FUZZ_CHECK(again.classifier_dropout == c->classifier_dropout && again.pad_token_id == c->pad_token_id);
    FUZZ_CHECK(again.hidden_act == c->hidden_act && again.num_labels == c->num_labels);
    for (int i = 0; i < c->num_labels; i++) FUZZ_CHECK(strcmp(again.labels[i], c->labels[i]) == 0);
    bert_config_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct bert_config c;
    if (!folder[0]) make_folder();
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, data, nbytes) == (ssize_t)nbytes && close(fd) == 0);
    const cairn_status st = bert_config_read(&c, path);
    FUZZ_CHECK(st == CAIRN_OK || st == CAIRN_EINVAL || st == CAIRN_ENOTSUP);
    if (st == CAIRN_OK) {
        check_values(&c);
        check_written(&c);
    } else {
        FUZZ_CHECK(strncmp(cairn_last_error(), path, strlen(path)) == 0);
    }
    bert_config_clear(&c);
    return 0;
}
