/* examples/bert without Hugging Face: valid and invalid config.json, forward, files, dropout, amp levels. test_bert.py
 * compares values with Hugging Face's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "../state/folder.h"
#include "model.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>

enum { VOCAB = 40, WIDTH = 24, POSITIONS = 16, LABELS = 3, LENGTH = 9, BATCH = 4, MOST = 64 };

static const char whole[] =
    "{'model_type': 'bert', 'vocab_size': 40, 'hidden_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 3,"
    " 'intermediate_size': 48, 'max_position_embeddings': 16, 'num_labels': 3}";

/* The text with ' for ", as a file: config.json of a folder that is made for it. */
static const char *written(const char *text) {
    const char *at = in_folder("model/config.json");
    char json[4096];
    (void)mkdir(in_folder("model"), 0777);
    assert_true((size_t)snprintf(json, sizeof(json), "%s", text) < sizeof(json));
    for (char *c = json; *c; c++) *c = *c == '\'' ? '"' : *c;
    write_file(at, json, strlen(json));
    return at;
}

/* whole, with one more key, which may stand for one that is there. */
static const char *with(const char *key, const char *value) {
    static char text[2048];
    json_error_t error;
    char quoted[512];
    snprintf(text, sizeof(text), "%s", whole);
    for (char *c = text; *c; c++) *c = *c == '\'' ? '"' : *c;
    snprintf(quoted, sizeof(quoted), "%s", value);
    for (char *c = quoted; *c; c++) *c = *c == '\'' ? '"' : *c;
    json_t *all = json_loads(text, 0, &error), *one = json_loads(quoted, JSON_DECODE_ANY, &error);
    assert_non_null(all);
    assert_non_null(one);
    assert_int_equal(json_object_set_new(all, key, one), 0);
    char *dumped = json_dumps(all, 0);
    snprintf(text, sizeof(text), "%s", dumped);
    free(dumped);
    json_decref(all);
    return text;
}

/* ---- config.json ---- */

static void a_file_with_only_sizes_gets_hugging_faces_defaults(void **state) {
    struct bert_config c;
    (void)state;
    written(whole);
    OK(bert_config_read(&c, in_folder("model")));
    assert_int_equal(c.hidden_size, WIDTH);
    assert_int_equal(c.type_vocab_size, 2);
    assert_int_equal(c.pad_token_id, 0);
    assert_true(c.hidden_dropout_prob == 0.1 && c.attention_probs_dropout_prob == 0.1 && c.classifier_dropout < 0);
    assert_true(c.layer_norm_eps == 1e-12 && c.initializer_range == 0.02);
    assert_string_equal(c.hidden_act, "gelu");
    assert_ptr_equal(c.activation, cairn_gelu);
    assert_int_equal(c.num_labels, 3);
    assert_string_equal(c.labels[2], "LABEL_2");
    bert_config_clear(&c);
}

/* Each changes one key of a whole file. */
static const struct {
    const char *key, *value;
    cairn_status status;
    const char *words;
} wrong[] = {
    {"hidden_size", "null", CAIRN_EINVAL, "'hidden_size' is missing"},
    {"hidden_size", "24.0", CAIRN_EINVAL, "'hidden_size' is 24.0; it must be an integer from 1 to 1048576"},
    {"hidden_size", "'24'", CAIRN_EINVAL, "'hidden_size' is \"24\"; it must be an integer"},
    {"hidden_size", "25", CAIRN_EINVAL, "'hidden_size' is 25, which 3 of 'num_attention_heads' do not divide"},
    {"num_hidden_layers", "0", CAIRN_EINVAL, "'num_hidden_layers' is 0; it must be an integer from 1 to 1000"},
    {"num_hidden_layers", "1001", CAIRN_EINVAL, "from 1 to 1000"},
    {"num_attention_heads", "-3", CAIRN_EINVAL, "'num_attention_heads' is -3"},
    {"intermediate_size", "[]", CAIRN_EINVAL, "'intermediate_size' is []"},
    {"max_position_embeddings", "2147483648", CAIRN_EINVAL, "from 1 to 2147483647"},
    {"vocab_size", "true", CAIRN_EINVAL, "'vocab_size' is true"},
    {"type_vocab_size", "0", CAIRN_EINVAL, "'type_vocab_size' is 0"},
    {"hidden_dropout_prob", "1", CAIRN_EINVAL,
     "'hidden_dropout_prob' is 1; it must be a number that is at least 0 and"},
    {"attention_probs_dropout_prob", "-0.5", CAIRN_EINVAL, "'attention_probs_dropout_prob' is -0.5"},
    {"classifier_dropout", "'none'", CAIRN_EINVAL, "'classifier_dropout' is \"none\""},
    {"layer_norm_eps", "0", CAIRN_EINVAL, "'layer_norm_eps' is 0"},
    {"initializer_range", "-1", CAIRN_EINVAL, "'initializer_range' is -1"},
    {"pad_token_id", "40", CAIRN_EINVAL, "'pad_token_id' is 40; it must be null or a token, from 0 to 39"},
    {"pad_token_id", "-1", CAIRN_EINVAL, "'pad_token_id' is -1"},
    {"hidden_act", "'mish'", CAIRN_ENOTSUP, "'hidden_act' is \"mish\"; this program has gelu, gelu_new"},
    {"hidden_act", "7", CAIRN_ENOTSUP, "'hidden_act' is 7"},
    {"model_type", "'roberta'", CAIRN_ENOTSUP, "'model_type' is \"roberta\"; this program is for \"bert\" alone"},
    {"position_embedding_type", "'relative_key'", CAIRN_ENOTSUP, "this program is for \"absolute\" alone"},
    {"problem_type", "'regression'", CAIRN_ENOTSUP, "for \"single_label_classification\" alone"},
    {"is_decoder", "true", CAIRN_ENOTSUP, "'is_decoder' is true; this program has no decoders"},
    {"add_cross_attention", "true", CAIRN_ENOTSUP, "no cross attention"},
    {"pruned_heads", "{'1': [0]}", CAIRN_ENOTSUP, "'pruned_heads' is {\"1\":[0]}; this program has no pruned heads"},
    {"quantization_config", "{'bits': 8}", CAIRN_ENOTSUP, "no quantised weights"},
    {"num_labels", "0", CAIRN_EINVAL, "'num_labels' is 0; it must be an integer from 1 to 100000"},
    {"num_labels", "'3'", CAIRN_EINVAL, "'num_labels' is \"3\""},
    {"id2label", "{'0': 'a', '1': 'b'}", CAIRN_EINVAL, "'num_labels' is 3, but 'id2label' has 2 labels"},
    {"id2label", "{'0': 'a', '1': 'b', '3': 'c'}", CAIRN_EINVAL, "none that is a text under \"2\""},
    {"id2label", "{'0': 'a', '1': 'b', '2': 5}", CAIRN_EINVAL, "none that is a text under \"2\""},
    {"id2label", "{'0': 'a', '1': 'b', '2': 'a'}", CAIRN_EINVAL, "'id2label': label 2 is again \"a\""},
    {"id2label", "['a', 'b', 'c']", CAIRN_EINVAL, "'id2label' is [\"a\",\"b\",\"c\"]; it must be an object"},
    {"label2id", "{'a': 0, 'b': 1, 'c': 2}", CAIRN_EINVAL, "'label2id' stands without 'id2label'"},
};

static void each_wrong_value_is_named_with_its_file(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct bert_config c;
        char who[200];
        snprintf(who, sizeof(who), "%s is %s", wrong[i].key, wrong[i].value);
        check_as(who);
        const char *path = written(with(wrong[i].key, wrong[i].value));
        const cairn_status st = bert_config_read(&c, path);
        if (st != wrong[i].status) fail_msg("%s: status %s: %s", who, cairn_status_name(st), cairn_last_error());
        SAYS(wrong[i].words);
        SAYS("model/config.json: ");
        bert_config_clear(&c);
    }
    check_who[0] = '\0';
}

static void read_refused(const char *text, cairn_status status, const char *words) {
    struct bert_config c;
    written(text);
    REFUSED(bert_config_read(&c, in_folder("model")), status, words);
    bert_config_clear(&c);
}

static void a_file_that_is_no_config_is_refused(void **state) {
    struct bert_config c;
    (void)state;
    read_refused("{'hidden_size': 24,", CAIRN_EINVAL, "no valid JSON");
    read_refused("[1]", CAIRN_EINVAL, "is [1]; a config.json is an object");
    read_refused("", CAIRN_EINVAL, "no valid JSON");
    read_refused("{'hidden_size': 24, 'hidden_size': 24}", CAIRN_EINVAL, "duplicate");
    read_refused("{'hidden_size': 24}", CAIRN_EINVAL, "'vocab_size' is missing");
    REFUSED(bert_config_read(&c, in_folder("none")), CAIRN_ESYSTEM, "none: cannot be opened: No such file");
    bert_config_clear(&c);
}

static void labels_that_contradict_are_refused(void **state) {
    struct bert_config c;
    (void)state;
    static const char labelled[] =
        "{'vocab_size': 40, 'hidden_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 3,"
        "'intermediate_size': 48, 'max_position_embeddings': 16, "
        "'id2label': {'0': 'yes', '1': 'no'}, 'label2id': %s}";
    static const struct {
        const char *ids, *words;
    } tables[] = {{"{'yes': 1, 'no': 0}", "class 0 is \"yes\" in 'id2label', which 'label2id' does not say"},
                  {"{'yes': 0, 'maybe': 1}", "class 1 is \"no\""},
                  {"{'yes': 0}", "it must have the 2 labels of 'id2label'"},
                  {"{'yes': 0, 'no': '1'}", "class 1 is \"no\""}};
    char text[1024];
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        snprintf(text, sizeof(text), labelled, tables[i].ids);
        read_refused(text, CAIRN_EINVAL, tables[i].words);
    }
    snprintf(text, sizeof(text), labelled, "{'no': 1, 'yes': 0}");
    OK(bert_config_read(&c, written(text)));
    assert_int_equal(c.num_labels, 2);
    assert_string_equal(c.labels[0], "yes");
    REFUSED(bert_config_set_labels(&c, 0, NULL), CAIRN_EINVAL, "0 labels; there must be 1 to 100000");
    REFUSED(bert_config_set_labels(&c, 2, (const char *const[]){"a", "a"}), CAIRN_EINVAL, "label 1 is again \"a\"");
    assert_string_equal(c.labels[1], "no");
    bert_config_clear(&c);
}

static void what_is_written_is_read_again_with_what_else_the_file_had(void **state) {
    struct bert_config c, again;
    json_error_t error;
    (void)state;
    OK(bert_config_read(&c, written(with("architectures", "['Other']"))));
    json_object_set_new(c.file, "keep", json_pack("[i]", 7));
    OK(bert_config_set_labels(&c, 2, (const char *const[]){"x", "y"}));
    c.pad_token_id = -1;
    c.classifier_dropout = 0.25;
    OK(bert_config_write(&c, folder, CAIRN_BF16));
    OK(bert_config_read(&again, folder));
    assert_int_equal(again.num_labels, 2);
    assert_string_equal(again.labels[1], "y");
    assert_int_equal(again.pad_token_id, -1);
    assert_true(again.classifier_dropout == 0.25 && again.layer_norm_eps == 1e-12);
    assert_int_equal(again.intermediate_size, 48);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(again.file, "keep"), 0)), 7);
    assert_string_equal(json_string_value(json_object_get(again.file, "dtype")), "bfloat16");
    assert_null(json_object_get(again.file, "num_labels"));
    json_t *text = json_load_file(in_folder("config.json"), 0, &error);
    assert_non_null(text);
    json_decref(text);
    REFUSED(bert_config_write(&c, in_folder("none"), CAIRN_F32), CAIRN_ESYSTEM,
            "none/config.json: cannot be written: No such");
    bert_config_clear(&c);
    bert_config_clear(&again);
}

/* ---- the model ---- */

struct inputs {
    cairn_tensor *at[BERT_INPUTS], *labels;
};

static struct inputs make_inputs(cairn_env *env) {
    int64_t ids[BATCH * LENGTH], mask[BATCH * LENGTH], types[BATCH * LENGTH], labels[BATCH];
    for (int i = 0; i < BATCH * LENGTH; i++) {
        mask[i] = i % LENGTH < LENGTH - i / LENGTH;
        ids[i] = mask[i] ? 1 + i * 7 % (VOCAB - 1) : 0;
        types[i] = mask[i] && i % LENGTH > 3;
    }
    for (int i = 0; i < BATCH; i++) labels[i] = i % LABELS;
    struct inputs in = {{cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(BATCH, LENGTH), ids),
                         cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(BATCH, LENGTH), mask),
                         cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(BATCH, LENGTH), types)},
                        cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(BATCH), labels)};
    assert_true(in.at[0] && in.at[1] && in.at[2] && in.labels);
    return in;
}

static void end_inputs(struct inputs *in) {
    for (int i = 0; i < BERT_INPUTS; i++) cairn_tensor_destroy(&in->at[i]);
    cairn_tensor_destroy(&in->labels);
}

static struct bert_config read_config(const char *text) {
    struct bert_config c;
    OK(bert_config_read(&c, written(text)));
    return c;
}

static cairn_module *make_model(cairn_env *env, const struct bert_config *c, cairn_switch again) {
    cairn_module *model = bert_create(env, c, &(struct bert_options){.gradient_checkpointing = again});
    if (!model) fail_msg("%s", cairn_last_error());
    return model;
}

static cairn_tensor *loss_of(cairn_module *model, const struct inputs *in) {
    return cairn_cross_entropy(cairn_module_forward_n(model, in->at, BERT_INPUTS), in->labels, NULL);
}

static size_t elements(const cairn_param *p) {
    size_t n = 1;
    for (int d = 0; d < p->ndim; d++) n *= (size_t)p->shape[d];
    return n;
}

/* A hash of all weights, or gradients: FNV-1a over their bytes. */
static uint64_t hash_of(cairn_module *model, bool of_gradients) {
    cairn_param_set *set = cairn_module_params(model);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        OK(cairn_param_set_get(set, i, &p));
        const unsigned char *bytes = of_gradients ? p.grad : p.data;
        assert_non_null(bytes);
        for (size_t b = 0; b < elements(&p) * sizeof(float); b++) hash = (hash ^ bytes[b]) * 0x100000001b3u;
    }
    return hash;
}

static void inputs_that_do_not_fit_are_refused(void **state) {
    cairn_env *env = *state;
    struct bert_config c = read_config(whole);
    cairn_module *model = make_model(env, &c, CAIRN_OFF);
    struct inputs in = make_inputs(env);
    cairn_tensor *of[] = {cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(2, POSITIONS + 1)),
                          cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(BATCH)),
                          cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(2, LENGTH))};
    NO_TENSOR(cairn_module_forward(model, of[0]),
              "bert: the tokens are 17 long; this model has positions for 1 to 16, so cut them to "
              "max_position_embeddings");
    NO_TENSOR(cairn_module_forward(model, of[1]), "bert: the tokens have 1 dimensions; they must be [batch, length]");
    NO_TENSOR(cairn_module_forward_n(model, (cairn_tensor *[]){in.at[BERT_IDS], of[2]}, 2),
              "bert: the mask must be [4, 9] as the tokens are");
    NO_TENSOR(cairn_module_forward_n(model, (cairn_tensor *[]){in.at[BERT_IDS], NULL, of[1]}, 3),
              "bert: the token types must be [4, 9] as the tokens are");
    NO_TENSOR(cairn_module_forward_n(model, (cairn_tensor *[]){in.at[0], NULL, NULL, in.at[1]}, 4),
              "bert: 4 inputs; it takes tokens, a mask and token types");
    OK(cairn_release_results(env));
    for (int i = 0; i < 3; i++) cairn_tensor_destroy(&of[i]);
    end_inputs(&in);
    cairn_module_destroy(&model);
    bert_config_clear(&c);
}

static void dropout_is_for_training_alone_and_layers_computed_again_draw_the_same(void **state) {
    cairn_env *env = *state;
    struct bert_config c = read_config(with("classifier_dropout", "0.4"));
    struct inputs in = make_inputs(env);
    uint64_t weights[2], grads[2];
    float losses[2], evaluated[2];
    for (int again = 0; again < 2; again++) {
        cairn_manual_seed(env, 5);
        cairn_module *model = make_model(env, &c, again ? CAIRN_ON : CAIRN_OFF);
        weights[again] = hash_of(model, false);
        cairn_tensor *loss = loss_of(model, &in);
        OK(cairn_backward(loss));
        losses[again] = cairn_tensor_item(loss);
        grads[again] = hash_of(model, true);
        assert_true(cairn_tensor_item(loss_of(model, &in)) != losses[again]); /* other numbers */
        cairn_module_train(model, 0);
        evaluated[again] = cairn_tensor_item(loss_of(model, &in));
        assert_true(cairn_tensor_item(loss_of(model, &in)) == evaluated[again]);
        assert_true(evaluated[again] != losses[again] && isfinite(losses[again]));
        OK(cairn_release_results(env));
        cairn_module_destroy(&model);
    }
    assert_true(weights[0] == weights[1] && evaluated[0] == evaluated[1]);
    assert_true(losses[0] == losses[1]);
    assert_true(grads[0] == grads[1]);
    end_inputs(&in);
    bert_config_clear(&c);
}

/* Attention's dropout, and the one of what each layer adds, alone each: the loss is another one than without. */
static void each_dropout_does_something(void **state) {
    cairn_env *env = *state;
    struct bert_config c = read_config(whole);
    struct inputs in = make_inputs(env);
    float losses[4];
    for (int i = 0; i < 4; i++) {
        c.hidden_dropout_prob = i == 1 ? 0.3 : 0;
        c.attention_probs_dropout_prob = i == 2 ? 0.3 : 0;
        c.classifier_dropout = i == 3 ? 0.3 : 0;
        cairn_manual_seed(env, 6);
        cairn_module *model = make_model(env, &c, CAIRN_OFF);
        losses[i] = cairn_tensor_item(loss_of(model, &in));
        OK(cairn_release_results(env));
        cairn_module_destroy(&model);
        for (int j = 0; j < i; j++) assert_true(losses[i] != losses[j]);
    }
    end_inputs(&in);
    bert_config_clear(&c);
}

static void creating_a_model_without_enough_memory_leaves_nothing_behind(void **state) {
    cairn_env *env = *state;
    struct bert_config c = read_config(whole);
    int failed = 0;
    cairn_module *model = NULL;
    for (; !model && failed < 10000; failed++) {
        fail_in = failed + 1;
        model = bert_create(env, &c, NULL);
        fail_in = 0;
        if (!model) assert_true(cairn_last_error()[0] != '\0');
    }
    assert_non_null(model);
    assert_in_range(failed, 50, 9999);
    cairn_module_destroy(&model);
    bert_config_clear(&c);
}

/* ---- files ---- */

static void a_file_of_another_structure_is_refused_and_nothing_changes(void **state) {
    static const struct {
        const char *key, *value, *words;
    } others[] = {
        {"num_labels", "2", "classifier.weight ([3, 24], and in the file [2, 24])"},
        {"num_hidden_layers", "1", "16 missing: missing in the file: bert.encoder.layer.1.attention.self.query.weight"},
        {"num_hidden_layers", "3", "16 unexpected: unexpected in the file: bert.encoder.layer.2."},
        {"max_position_embeddings", "17",
         "bert.embeddings.position_embeddings.weight ([16, 24], and in the file [17, 24])"},
    };
    cairn_env *env = *state;
    struct bert_config c = read_config(whole);
    cairn_module *model = make_model(env, &c, CAIRN_OFF);
    const uint64_t before = hash_of(model, false);
    char note[200] = "?";
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct bert_config o = read_config(with(others[i].key, others[i].value));
        cairn_module *other = make_model(env, &o, CAIRN_OFF);
        OK(bert_save(other, &o, in_folder("other"), CAIRN_F32));
        REFUSED(bert_load(model, in_folder("other"), note, sizeof(note)), CAIRN_EINVAL, others[i].words);
        assert_string_equal(note, "");
        assert_true(hash_of(model, false) == before);
        cairn_module_destroy(&other);
        bert_config_clear(&o);
    }
    REFUSED(bert_load(model, in_folder("nowhere"), NULL, 0), CAIRN_ESYSTEM, "nowhere");
    write_file(in_folder("broken.safetensors"), "no weights", 10);
    REFUSED(bert_load(model, in_folder("broken.safetensors"), NULL, 0), CAIRN_EINVAL, "broken.safetensors");
    write_file(in_folder("a_file"), "", 0);
    REFUSED(bert_save(model, &c, in_folder("a_file/below"), CAIRN_F32), CAIRN_ESYSTEM,
            "a_file/below: the folder cannot be made: Not a directory");
    assert_true(hash_of(model, false) == before);
    cairn_module_destroy(&model);
    bert_config_clear(&c);
}

/* Gives tensors of other/model.safetensors another name of the same length, `most` of them. */
static void rename_in_file(const char *from, const char *to, int most) {
    static char bytes[1 << 20];
    const char *path = in_folder("other/model.safetensors");
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof(bytes), f);
    fclose(f);
    assert_true(n < sizeof(bytes) && strlen(from) == strlen(to));
    char *at = bytes;
    for (int i = 0; i < most; i++) {
        at = memmem(at, n - (size_t)(at - bytes), from, strlen(from));
        assert_non_null(at);
        memcpy(at, to, strlen(to));
    }
    write_file(path, bytes, n);
}

/* How many of a part's weights, without biases, are another model's. */
static int equal_weights(cairn_module *a, cairn_module *b, const char *prefix) {
    cairn_param_set *sets[] = {cairn_module_params(a), cairn_module_params(b)};
    int equal = 0;
    for (size_t i = 0; i < cairn_param_set_count(sets[0]); i++) {
        cairn_param p, q;
        OK(cairn_param_set_get(sets[0], i, &p));
        OK(cairn_param_set_get(sets[1], i, &q));
        if (strncmp(p.name, prefix, strlen(prefix)) != 0 || p.ndim < 2) continue;
        equal += memcmp(p.data, q.data, elements(&p) * sizeof(float)) == 0;
    }
    return equal;
}

static void a_head_or_a_pooler_that_a_file_lacks_stays_as_initialised_and_it_is_said(void **state) {
    static const struct {
        bool head, pooler;
        const char *words;
    } files[] = {{true, false, "other has no classification head: it starts from random values"},
                 {false, true, "other has no pooler: it starts from random values"},
                 {true, true, "other has no pooler and no classification head: they start from random values"}};
    cairn_env *env = *state;
    struct bert_config c = read_config(whole);
    char note[200];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        cairn_module *saved = make_model(env, &c, CAIRN_OFF), *model = make_model(env, &c, CAIRN_OFF);
        OK(bert_save(saved, &c, in_folder("other"), CAIRN_F32));
        if (files[i].head) rename_in_file("classifier.", "cls.sifier.", 2);
        if (files[i].pooler) rename_in_file("bert.pooler.", "cls.tpooler.", 2);
        OK(bert_load(model, in_folder("other"), note, sizeof(note)));
        if (!strstr(note, files[i].words)) fail_msg("'%s' is not in '%s'", files[i].words, note);
        assert_int_equal(equal_weights(model, saved, "bert.e"), 11); /* three tables, and four of each layer */
        assert_int_equal(equal_weights(model, saved, "bert.pooler"), !files[i].pooler);
        assert_int_equal(equal_weights(model, saved, "classifier"), !files[i].head);
        cairn_module_destroy(&saved);
        cairn_module_destroy(&model);
    }
    bert_config_clear(&c);
}

static void half_a_head_is_refused_and_nothing_changes(void **state) {
    cairn_env *env = *state;
    struct bert_config c = read_config(whole);
    cairn_module *saved = make_model(env, &c, CAIRN_OFF), *model = make_model(env, &c, CAIRN_OFF);
    const uint64_t before = hash_of(model, false);
    OK(bert_save(saved, &c, in_folder("other"), CAIRN_F32));
    rename_in_file("classifier.", "cls.sifier.", 1);
    REFUSED(bert_load(model, in_folder("other"), NULL, 0), CAIRN_EINVAL, "1 missing: missing in the file: classifier.");
    rename_in_file("bert.pooler.", "cls.tpooler.", 1); /* as many as a head has, but of two parts */
    REFUSED(bert_load(model, in_folder("other"), NULL, 0), CAIRN_EINVAL,
            "2 missing: missing in the file: bert.pooler.");
    rename_in_file("classifier.", "alassifier.", 1); /* all of a head, and a stranger */
    REFUSED(bert_load(model, in_folder("other"), NULL, 0), CAIRN_EINVAL, "1 unexpected: ");
    assert_true(hash_of(model, false) == before);
    cairn_module_destroy(&saved);
    cairn_module_destroy(&model);
    bert_config_clear(&c);
}

/* Some steps on one batch, whose loss falls; masters come back from the file to the bit. */
static void trains_at(cairn_env *env, amp_opt_level level, cairn_switch again) {
    struct bert_config c = read_config(whole);
    struct cairn_adam_options hyper = CAIRN_ADAMW_OPTIONS_INIT;
    struct inputs in = make_inputs(env);
    cairn_optimizer *adamw;
    amp_context *amp;
    float first = 0, last = 0;
    hyper.lr = 3e-3f;
    cairn_manual_seed(env, 8);
    cairn_module *model = make_model(env, &c, again), *copy;
    OK(cairn_adamw_create(cairn_module_params(model), &hyper, &adamw));
    OK(amp_initialize(env, model, adamw, amp_options(.opt_level = level, .half_type = CAIRN_BF16), &amp));
    for (int step = 0; step < 30; step++) {
        cairn_zero_grad(adamw);
        cairn_tensor *loss = loss_of(model, &in);
        OK(amp_backward(amp, loss, adamw));
        OK(cairn_step(adamw));
        last = cairn_tensor_item(loss);
        if (step == 0) first = last;
    }
    assert_true(first > 0.9f && first < 1.4f);
    if (!(last < first / 3)) fail_msg("%sthe loss went from %g to %g", check_who, first, last);
    OK(bert_save(model, &c, in_folder("trained"), CAIRN_F32));
    copy = make_model(env, &c, CAIRN_OFF);
    OK(bert_load(copy, in_folder("trained"), NULL, 0));
    cairn_param_set *set = cairn_module_params(model), *copied = cairn_module_params(copy);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        OK(cairn_param_set_get(copied, i, &p));
        assert_non_null(cairn_param_master(set, i));
        assert_memory_equal(p.data, cairn_param_master(set, i), elements(&p) * sizeof(float));
    }
    cairn_zero_grad(adamw);
    end_inputs(&in);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&adamw);
    cairn_module_destroy(&copy);
    cairn_module_destroy(&model);
    bert_config_clear(&c);
}

static void every_level_trains_and_saves_its_masters(void **state) {
    static const amp_opt_level levels[] = {AMP_O0, AMP_O1, AMP_O2};
    for (int i = 0; i < 6; i++) {
        check_as((const char *[]){"O0", "O1", "O2", "O0 again", "O1 again", "O2 again"}[i]);
        trains_at(*state, levels[i % 3], i < 3 ? CAIRN_OFF : CAIRN_ON);
    }
    check_who[0] = '\0';
}

int main(void) {
    const struct CMUnitTest config[] = {
        cmocka_unit_test(a_file_with_only_sizes_gets_hugging_faces_defaults),
        cmocka_unit_test(each_wrong_value_is_named_with_its_file),
        cmocka_unit_test(a_file_that_is_no_config_is_refused),
        cmocka_unit_test(labels_that_contradict_are_refused),
        cmocka_unit_test(what_is_written_is_read_again_with_what_else_the_file_had),
    };
    const struct CMUnitTest model[] = {
        cmocka_unit_test(inputs_that_do_not_fit_are_refused),
        cmocka_unit_test(dropout_is_for_training_alone_and_layers_computed_again_draw_the_same),
        cmocka_unit_test(each_dropout_does_something),
        cmocka_unit_test(creating_a_model_without_enough_memory_leaves_nothing_behind),
        cmocka_unit_test(a_file_of_another_structure_is_refused_and_nothing_changes),
        cmocka_unit_test(a_head_or_a_pooler_that_a_file_lacks_stays_as_initialised_and_it_is_said),
        cmocka_unit_test(half_a_head_is_refused_and_nothing_changes),
        cmocka_unit_test(every_level_trains_and_saves_its_masters),
    };
    if (make_folder(NULL) != 0) return 1;
    const int failed = cmocka_run_group_tests(config, NULL, NULL) + cmocka_run_group_tests(model, make_env, end_env);
    return remove_folder(NULL) == 0 && failed == 0 ? 0 : 1;
}
