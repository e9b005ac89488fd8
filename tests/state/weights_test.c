/* Saving and loading weights: at every level, under other names, in parts, in several files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "cairn/cairn.h"
#include "core/alloc.h"
#include "core/half.h"
#include "folder.h"
#include "nn/hooks.h"
#include "param/param.h"
#include "param/stateful.h"
#include "state/safetensors.h"

#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, make_both, end_both)

static int make_both(void **state) {
    return make_folder(NULL) || make_env(state);
}

static int end_both(void **state) {
    return end_env(state) || remove_folder(NULL);
}

/* ---- a module with parameters and buffers of many shapes ---- */

static cairn_module *make_net(cairn_env *env, uint64_t seed) {
    cairn_manual_seed(env, seed);
    cairn_module *net =
        cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, 2, 4, 3, NULL), cairn_batch_norm(env, 4, 0, 0),
                                            cairn_flatten_from(env, 1), cairn_linear(env, 16, 6),
                                            cairn_layer_norm(env, CAIRN_SHAPE(6), 0)));
    assert_non_null(net);
    for (size_t i = 0; i < cairn_module_num_buffers(net); i++) { /* statistics that are not those of a new module */
        cairn_tensor *t = cairn_module_buffer(net, i, NULL);
        if (cairn_tensor_dtype(t) == CAIRN_F32) OK(cairn_init_uniform(t, 1, 2));
    }
    return net;
}

/* All memory of the module, as one array of bytes. */
struct bytes {
    unsigned char at[8192];
    size_t n;
};

static void add_bytes(struct bytes *b, const void *p, size_t nbytes) {
    assert_true(b->n + nbytes <= sizeof(b->at));
    memcpy(b->at + b->n, p, nbytes);
    b->n += nbytes;
}

static struct bytes bytes_of(cairn_module *net) {
    struct bytes b = {.n = 0};
    const cairn_param_set *set = cairn_module_params(net);
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        add_bytes(&b, p->data, p->n * cairn_dtype_nbytes(p->dtype));
        if (p->master) add_bytes(&b, p->master, p->n * sizeof(float));
    }
    for (size_t i = 0; i < cairn_module_num_buffers(net); i++) {
        cairn_tensor *t = cairn_module_buffer(net, i, NULL);
        add_bytes(&b, cairn__tensor_memory(t),
                  (size_t)cairn_tensor_numel(t) * cairn_dtype_nbytes(cairn_tensor_dtype(t)));
    }
    return b;
}

static bool same_bytes(const struct bytes *a, const struct bytes *b) {
    return a->n == b->n && memcmp(a->at, b->at, a->n) == 0;
}

static enum cairn__safetensors_type type_in(const char *path, const char *name) {
    struct cairn__safetensors *f = NULL;
    OK(cairn__safetensors_open(path, 0, &f));
    const struct cairn__safetensors_tensor *t = cairn__safetensors_find(f, name);
    const enum cairn__safetensors_type type = t ? t->type : CAIRN__SAFETENSORS_NONE;
    cairn__safetensors_close(&f);
    return type;
}

/* ---- there and back ---- */

static void weights_come_back_to_the_bit_at_every_level(void **state) {
    static const struct {
        amp_opt_level level;
        cairn_dtype half;
    } cases[] = {{AMP_O0, CAIRN_F16},  {AMP_O1, CAIRN_F16}, {AMP_O2, CAIRN_F16},
                 {AMP_O2, CAIRN_BF16}, {AMP_O3, CAIRN_F16}, {AMP_O3, CAIRN_BF16}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bytes bytes[2];
        for (int k = 0; k < 2; k++) {
            cairn_module *net = make_net(*state, 1 + (uint64_t)k);
            cairn_optimizer *sgd = NULL;
            amp_context *amp = NULL;
            OK(cairn_sgd_create(cairn_module_params(net), NULL, &sgd));
            OK(amp_initialize(*state, net, sgd, amp_options(.opt_level = cases[i].level, .half_type = cases[i].half),
                              &amp));
            OK(k == 0 ? cairn_module_save(net, in_folder("x"), NULL)
                      : cairn_module_load(net, in_folder("x"), NULL, NULL));
            bytes[k] = bytes_of(net);
            amp_destroy(&amp);
            cairn_optimizer_destroy(&sgd);
            cairn_module_destroy(&net);
        }
        assert_true(same_bytes(&bytes[0], &bytes[1]));
        const enum cairn__safetensors_type half = cairn__safetensors_type(cases[i].half);
        assert_int_equal(type_in(in_folder("x"), "3.weight"), cases[i].level == AMP_O3 ? half : CAIRN__SAFETENSORS_F32);
        assert_int_equal(type_in(in_folder("x"), "1.num_batches_tracked"), CAIRN__SAFETENSORS_I64);
    }
}

static void a_half_file_is_rounded_once_and_loads_into_f32(void **state) {
    static const cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    for (int i = 0; i < 2; i++) {
        cairn_module *net = make_net(*state, 1);
        const struct cairn__param *p = cairn_module_params(net)->params[0];
        float before[72];
        memcpy(before, p->data, sizeof(before));
        OK(cairn_module_save(net, in_folder("x"), cairn_weights_options(.dtype = halves[i])));
        assert_int_equal(type_in(in_folder("x"), "0.weight"), cairn__safetensors_type(halves[i]));
        assert_int_equal(type_in(in_folder("x"), "1.running_var"), cairn__safetensors_type(halves[i]));
        assert_int_equal(type_in(in_folder("x"), "1.num_batches_tracked"), CAIRN__SAFETENSORS_I64);
        const uint64_t version = p->version;
        OK(cairn_module_load(net, in_folder("x"), NULL, NULL));
        for (int k = 0; k < 72; k++) {
            const float half = i == 0 ? cairn__f16_to_f32(cairn__f32_to_f16(before[k]))
                                      : cairn__bf16_to_f32(cairn__f32_to_bf16(before[k]));
            assert_true(((const float *)p->data)[k] == half);
        }
        assert_true(p->version > version);
        cairn_module_destroy(&net);
    }
}

static void weights_of_a_users_own_memory_come_back(void **state) {
    float a[6] = {1, 2, 3, 4, 5, 6}, b[4] = {7, 8, 9, 10};
    uint16_t h[2] = {0x3c00, 0x4000};
    cairn_param_set *set = NULL;
    OK(cairn_param_set_create(*state,
                              (cairn_param[]){{.name = "a", .data = a, .dtype = CAIRN_F32, .ndim = 2, .shape = {2, 3}},
                                              {.name = "b", .data = b, .dtype = CAIRN_F32, .ndim = 1, .shape = {4}},
                                              {.name = "h", .data = h, .dtype = CAIRN_F16, .ndim = 1, .shape = {2}}},
                              3, &set));
    OK(cairn_param_set_save(set, in_folder("x"), NULL));
    memset(a, 0, sizeof(a));
    memset(b, 0, sizeof(b));
    memset(h, 0, sizeof(h));
    OK(cairn_param_set_load(set, in_folder("x"), NULL, NULL));
    for (int i = 0; i < 6; i++) assert_true(a[i] == 1 + (float)i);
    assert_true(b[3] == 10 && h[0] == 0x3c00 && h[1] == 0x4000);
    cairn_param_set_destroy(&set);
}

/* Two parameters in one memory. */
static void tied_weights_are_saved_once_and_both_come_back(void **state) {
    float w[2][3] = {{1, 2, 3}, {4, 5, 6}};
    cairn_param_set *set = NULL;
    struct cairn__safetensors *f = NULL;
    const cairn_param params[] = {{.name = "embedding", .data = w, .dtype = CAIRN_F32, .ndim = 2, .shape = {2, 3}},
                                  {.name = "decoder", .data = w, .dtype = CAIRN_F32, .ndim = 2, .shape = {2, 3}}};
    OK(cairn_param_set_create(*state, params, 2, &set));
    OK(cairn_param_set_save(set, in_folder("x"), NULL));
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_int_equal(cairn__safetensors_count(f), 1);
    assert_string_equal(cairn__safetensors_metadata(f, "decoder"), "embedding");
    assert_string_equal(cairn__safetensors_metadata(f, "format"), "pt");
    cairn__safetensors_close(&f);
    memset(w, 0, sizeof(w));
    struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
    OK(cairn_param_set_load(set, in_folder("x"), NULL, &report));
    assert_true(w[1][2] == 6);
    assert_int_equal(report.loaded, 2);
    cairn_param_set_destroy(&set);
}

/* Two memories, one name in the file. */
static void two_names_that_the_table_makes_one_must_be_equal(void **state) {
    float w[3] = {1, 2, 3}, v[3] = {1, 2, 3};
    cairn_param_set *set = NULL;
    const struct cairn_weights_name names[] = {{"v", "w"}};
    const struct cairn_weights_options *options = cairn_weights_options(.names = names, .num_names = 1);
    const cairn_param params[] = {{.name = "w", .data = w, .dtype = CAIRN_F32, .ndim = 1, .shape = {3}},
                                  {.name = "v", .data = v, .dtype = CAIRN_F32, .ndim = 1, .shape = {3}}};
    OK(cairn_param_set_create(*state, params, 2, &set));
    OK(cairn_param_set_save(set, in_folder("x"), options));
    v[2] = 4;
    REFUSED(cairn_param_set_save(set, in_folder("x"), options), CAIRN_EINVAL,
            "'w' and 'v' would both be 'w' there, and they are not equal");
    OK(cairn_param_set_load(set, in_folder("x"), options, NULL));
    assert_true(v[2] == 3);
    cairn_param_set_destroy(&set);
}

static void write_tensors(const char *path, const struct cairn__safetensors_tensor *tensors, size_t n,
                          const void *bytes) {
    struct cairn__safetensors_writer *w = NULL;
    const char *at = bytes;
    OK(cairn__safetensors_create(path, 0, tensors, n, NULL, 0, &w));
    for (size_t k = 0; k < n; k++) {
        const uint64_t nbytes = cairn__safetensors_nbytes(&tensors[cairn__safetensors_nth(w, k)]);
        OK(cairn__safetensors_write(w, at, nbytes));
        at += nbytes;
    }
    OK(cairn__safetensors_commit(&w, NULL));
}

/* ---- names ---- */

struct array {
    const char *name;
    int ndim;
    int64_t shape[2];
};

static cairn_param_set *make_set(cairn_env *env, const struct array *arrays, size_t n, float *memory) {
    cairn_param_set *set = NULL;
    cairn_param params[8];
    for (size_t i = 0; i < n; i++) {
        params[i] = (cairn_param){.name = arrays[i].name, .data = memory, .dtype = CAIRN_F32, .ndim = arrays[i].ndim};
        memcpy(params[i].shape, arrays[i].shape, sizeof(arrays[i].shape));
        memory += 16; /* room of each */
    }
    OK(cairn_param_set_create(env, params, n, &set));
    return set;
}

static void a_table_gives_the_names_of_another_project(void **state) {
    static const struct array ours[] = {{"layers.0.attention.in_proj_weight", 2, {6, 2}},
                                        {"layers.11.attention.in_proj_weight", 2, {6, 2}},
                                        {"layers.0.linear1.bias", 1, {3}},
                                        {"word", 2, {3, 2}},
                                        {"scratch", 1, {1}}};
    static const char *const theirs[] = {"bert.encoder.layer.0.attention.self.query.weight",
                                         "bert.encoder.layer.0.attention.self.key.weight",
                                         "bert.encoder.layer.0.attention.self.value.weight",
                                         "bert.encoder.layer.11.attention.self.value.weight",
                                         "bert.encoder.layer.0.intermediate.dense.bias",
                                         "bert.embeddings.word_embeddings.weight"};
    const struct cairn_weights_name names[] = {
        {"layers.*.attention.in_proj_*", "encoder.layer.*.attention.self.query.*|encoder.layer.*.attention.self.key.*|"
                                         "encoder.layer.*.attention.self.value.*"},
        {"layers.*.linear1.*", "encoder.layer.*.intermediate.dense.*"},
        {"word", "embeddings.word_embeddings.weight"},
        {"scratch", NULL},
        {"*", "never.*"},
    };
    const struct cairn_weights_options *options =
        cairn_weights_options(.names = names, .num_names = 5, .prefix = "bert.");
    float memory[8 * 16], before[8 * 16];
    struct cairn__safetensors *f = NULL;
    for (int i = 0; i < 8 * 16; i++) before[i] = memory[i] = (float)i;
    cairn_param_set *set = make_set(*state, ours, 5, memory);
    OK(cairn_param_set_save(set, in_folder("x"), options));
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_int_equal(cairn__safetensors_count(f), 8);
    for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++) {
        if (!cairn__safetensors_find(f, theirs[i])) fail_msg("there is no %s", theirs[i]);
    }
    const struct cairn__safetensors_tensor *value = cairn__safetensors_find(f, theirs[2]);
    assert_true(value->ndim == 2 && value->shape[0] == 2 && value->shape[1] == 2);
    cairn__safetensors_close(&f);
    memset(memory, 0, sizeof(memory));
    OK(cairn_param_set_load(set, in_folder("x"), options, NULL));
    assert_memory_equal(memory, before, 12 * sizeof(float));
    assert_memory_equal(memory + 48, before + 48, 6 * sizeof(float));
    assert_true(memory[64] == 0);
    cairn_param_set_destroy(&set);
}

static cairn_tensor *no_forward(cairn_module *m, void *context, cairn_tensor *const *inputs, int count) {
    (void)m, (void)context, (void)count;
    return inputs[0];
}

/* docs/weights.md */
static void the_guides_table_gives_the_names_of_hugging_faces_bert(void **state) {
    static const struct cairn_weights_name bert[] = {
        {"layers.*.self_attn.in_proj_*", "encoder.layer.*.attention.self.query.*|encoder.layer.*.attention.self.key.*|"
                                         "encoder.layer.*.attention.self.value.*"},
        {"layers.*.self_attn.out_proj.*", "encoder.layer.*.attention.output.dense.*"},
        {"layers.*.norm1.*", "encoder.layer.*.attention.output.LayerNorm.*"},
        {"layers.*.linear1.*", "encoder.layer.*.intermediate.dense.*"},
        {"layers.*.linear2.*", "encoder.layer.*.output.dense.*"},
        {"layers.*.norm2.*", "encoder.layer.*.output.LayerNorm.*"},
        {"word.weight", "embeddings.word_embeddings.weight"},
        {"norm.*", "embeddings.LayerNorm.*"},
    };
    static const char *const theirs[] = {
        "attention.self.query",       "attention.self.key", "attention.self.value", "attention.output.dense",
        "attention.output.LayerNorm", "intermediate.dense", "output.dense",         "output.LayerNorm"};
    const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Bert", .forward = no_forward};
    cairn_module *net = cairn_module_create(*state, &ops, NULL);
    cairn_module_add_child(net, "word", cairn_embedding(*state, 5, 4, -1));
    cairn_module_add_child(net, "norm", cairn_layer_norm(*state, CAIRN_SHAPE(4), 0));
    cairn_module_add_child(net, "layers",
                           cairn_sequential(*state,
                                            CAIRN_MODULES(cairn_transformer_encoder_layer(*state, 4, 2, 8, NULL),
                                                          cairn_transformer_encoder_layer(*state, 4, 2, 8, NULL))));
    struct cairn__safetensors *f = NULL;
    OK(cairn_module_save(net, in_folder("x"), cairn_weights_options(.names = bert, .num_names = 8)));
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_int_equal(cairn__safetensors_count(f), 3 + 2 * 2 * 8);
    for (int layer = 0; layer < 2; layer++) {
        for (size_t i = 0; i < 16; i++) {
            char name[128];
            snprintf(name, sizeof(name), "encoder.layer.%d.%s.%s", layer, theirs[i / 2], i % 2 ? "weight" : "bias");
            if (!cairn__safetensors_find(f, name)) fail_msg("there is no %s", name);
        }
    }
    assert_non_null(cairn__safetensors_find(f, "embeddings.word_embeddings.weight"));
    cairn__safetensors_close(&f);
    OK(cairn_module_load(net, in_folder("x"), cairn_weights_options(.names = bert, .num_names = 8), NULL));
    cairn_module_destroy(&net);
}

/* A name may be longer than what files of others have. */
static void a_rule_matches_a_name_of_any_length(void **state) {
    char ours[400], want[400];
    float memory[16] = {0};
    struct cairn__safetensors *f = NULL;
    memset(ours, 'x', sizeof(ours) - 1);
    memcpy(ours, "old.", 4);
    ours[sizeof(ours) - 1] = 0;
    snprintf(want, sizeof(want), "new.%s", ours + 4);
    const struct cairn_weights_name name = {"old.*", "new.*"};
    const struct cairn_weights_options *options = cairn_weights_options(.names = &name, .num_names = 1);
    cairn_param_set *set = make_set(*state, &(struct array){ours, 1, {1}}, 1, memory);
    OK(cairn_param_set_save(set, in_folder("x"), options));
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_non_null(cairn__safetensors_find(f, want));
    cairn__safetensors_close(&f);
    OK(cairn_param_set_load(set, in_folder("x"), options, NULL));
    cairn_param_set_destroy(&set);
}

static void stars_take_as_little_as_the_rest_allows(void **state) {
    static const struct {
        const char *ours, *pattern, *file, *want; /* want NULL: the pattern does not match */
    } cases[] = {{"a.b.b.c", "*.b.*", "*-*", "a-b.c"},
                 {"a.b.c.b.c", "a*c", "*", ".b.c.b."},
                 {"abcabc", "*abc", "*!", "abc!"},
                 {"aXbYbZc", "a*b*c", "*,*", "X,YbZ"},
                 {"a", "*a*", "<*,*>", "<,>"},
                 {"aab", "*ab", "*", "a"},
                 {"abab", "**b", "*,*", ",aba"},
                 {"ab", "a*b*c", "x", NULL},
                 {"abc", "abcd", "x", NULL},
                 {"abcd", "abc", "x", NULL},
                 {"a*c", "a*c", "b*", "b*"},
                 {"abc", "*", "*", "abc"},
                 {"123456789", "*2*3*4*5*6*7*8*9*", "x", NULL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct cairn_weights_name name = {cases[i].pattern, cases[i].file};
        const struct cairn_weights_options *options = cairn_weights_options(.names = &name, .num_names = 1);
        float memory[16] = {0};
        struct cairn__safetensors *f = NULL;
        check_as(cases[i].ours);
        cairn_param_set *set = make_set(*state, &(struct array){cases[i].ours, 1, {2}}, 1, memory);
        OK(cairn_param_set_save(set, in_folder("x"), options));
        OK(cairn__safetensors_open(in_folder("x"), 0, &f));
        const char *want = cases[i].want ? cases[i].want : cases[i].ours;
        if (!cairn__safetensors_find(f, want)) fail_msg("%sthere is no %s", check_who, want);
        cairn__safetensors_close(&f);
        cairn_param_set_destroy(&set);
    }
    check_who[0] = 0;
}

static void what_a_rule_excludes_is_not_unexpected(void **state) {
    static const struct array ours[] = {{"a", 1, {1}}, {"b", 1, {1}}};
    const struct cairn_weights_name name = {"b*", NULL};
    float memory[32] = {1};
    struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
    cairn_param_set *set = make_set(*state, ours, 2, memory);
    for (int has_prefix = 0; has_prefix < 2; has_prefix++) {
        const char *prefix = has_prefix ? "net." : NULL;
        const struct cairn_weights_options *options =
            cairn_weights_options(.names = &name, .num_names = 1, .prefix = prefix);
        memory[16] = 2;
        OK(cairn_param_set_save(set, in_folder("x"), cairn_weights_options(.prefix = prefix)));
        memory[16] = 3;
        OK(cairn_param_set_load(set, in_folder("x"), options, &report));
        assert_int_equal(report.loaded, 1);
        assert_int_equal(report.unexpected, 0);
        assert_true(memory[16] == 3);
    }
    static const int64_t one[] = {1}; /* the program has no bb */
    const struct cairn__safetensors_tensor theirs[] = {{"a", CAIRN__SAFETENSORS_F32, 1, one, 0, 0},
                                                       {"bb", CAIRN__SAFETENSORS_F32, 1, one, 0, 0}};
    write_tensors(in_folder("x"), theirs, 2, "12345678");
    REFUSED(cairn_param_set_load(set, in_folder("x"), cairn_weights_options(.names = &name, .num_names = 1), NULL),
            CAIRN_EINVAL, "1 unexpected: unexpected in the file: bb");
    cairn_param_set_destroy(&set);
}

static void rules_that_give_no_name_are_refused(void **state) {
    static const struct array ours[] = {{"a.weight", 2, {5, 2}}};
    static const struct {
        struct cairn_weights_name name;
        const char *words;
    } bad[] = {{{"a.*", "b.*.*"}, "more stars on the right"},
               {{"a.*", "b|c"}, "'a.weight' cannot be cut into 2 equal parts: its first dimension is 5"},
               {{"a.*", ""}, "no tensor can be called ''"},
               {{"*", "__metadata__"}, "no tensor can be called '__metadata__'"}};
    float memory[16] = {0};
    cairn_param_set *set = make_set(*state, ours, 1, memory);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        REFUSED(cairn_param_set_save(set, in_folder("x"), cairn_weights_options(.names = &bad[i].name, .num_names = 1)),
                CAIRN_EINVAL, bad[i].words);
    }
    REFUSED(cairn_param_set_save(set, in_folder("x"), cairn_weights_options(.match = "b*")), CAIRN_EINVAL,
            "no tensor matches 'b*'");
    REFUSED(cairn_param_set_save(set, in_folder("x"), cairn_weights_options(.dtype = CAIRN_F64)), CAIRN_EINVAL,
            "dtype is f64");
    REFUSED(cairn_param_set_save(set, "", NULL), CAIRN_EINVAL, "object and path must be set");
    REFUSED(cairn_param_set_save(set, NULL, NULL), CAIRN_EINVAL, "object and path must be set");
    assert_int_equal(count_files(), 0);
    cairn_param_set_destroy(&set);
}

static void a_part_is_saved_and_loaded_alone(void **state) {
    static const struct array ours[] = {{"encoder.w", 1, {2}}, {"head.w", 1, {2}}};
    float memory[32];
    struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
    for (int i = 0; i < 32; i++) memory[i] = (float)i + 1;
    cairn_param_set *set = make_set(*state, ours, 2, memory);
    OK(cairn_param_set_save(set, in_folder("all"), NULL));
    OK(cairn_param_set_save(set, in_folder("head"), cairn_weights_options(.match = "head.*")));
    memset(memory, 0, sizeof(memory));
    OK(cairn_param_set_load(set, in_folder("all"), cairn_weights_options(.match = "encoder.*"), &report));
    assert_true(memory[1] == 2 && memory[17] == 0);
    assert_int_equal(report.loaded, 1);
    assert_int_equal(report.unexpected, 0);
    REFUSED(cairn_param_set_load(set, in_folder("head"), NULL, &report), CAIRN_EINVAL,
            "does not fit, and nothing was loaded: 1 missing: missing in the file: encoder.w");
    assert_true(memory[17] == 0);
    OK(cairn_param_set_load(set, in_folder("head"), cairn_weights_options(.match = "head.*"), NULL));
    assert_true(memory[17] == 18);
    cairn_param_set_destroy(&set);
}

/* ---- what does not fit ---- */

static void strict_changes_nothing_and_lenient_loads_what_fits(void **state) {
    static const struct array ours[] = {{"fits", 1, {2}}, {"gone", 1, {1}}, {"wide", 2, {2, 3}}, {"whole", 1, {2}}};
    static const int64_t two[] = {2}, turned[] = {3, 2};
    const struct cairn__safetensors_tensor theirs[] = {{"fits", CAIRN__SAFETENSORS_F32, 1, two, 0, 0},
                                                       {"more", CAIRN__SAFETENSORS_F32, 1, two, 0, 0},
                                                       {"skipped.x", CAIRN__SAFETENSORS_F32, 1, two, 0, 0},
                                                       {"wide", CAIRN__SAFETENSORS_F32, 2, turned, 0, 0},
                                                       {"whole", CAIRN__SAFETENSORS_I32, 1, two, 0, 0}};
    static const char text[] = "missing in the file: gone\n"
                               "unexpected in the file: more\n"
                               "of another shape: wide ([2, 3], and in the file [3, 2])\n"
                               "of another type: whole (f32, and in the file I32)";
    static const struct cairn_weights_name names[] = {{NULL, "skipped.*"}};
    const float values[14] = {5, 6};
    float memory[64] = {0};
    cairn_param_set *set = make_set(*state, ours, 4, memory);
    write_tensors(in_folder("x"), theirs, 5, values);
    for (int lenient = 0; lenient < 2; lenient++) {
        struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
        const struct cairn_weights_options *options =
            cairn_weights_options(.strict = lenient ? CAIRN_OFF : CAIRN_DEFAULT, .names = names, .num_names = 1);
        const cairn_status st = cairn_param_set_load(set, in_folder("x"), options, &report);
        assert_int_equal(st, lenient ? CAIRN_OK : CAIRN_EINVAL);
        assert_true(memory[0] == (lenient ? 5 : 0) && memory[1] == (lenient ? 6 : 0));
        if (!lenient) SAYS("loaded: 1 missing, 1 unexpected, 1 of another shape, 1 of another type: missing in");
        assert_string_equal(report.text, text);
        assert_int_equal(report.loaded, 1);
        assert_int_equal(report.missing, 1);
        assert_int_equal(report.unexpected, 1);
        assert_int_equal(report.other_shape, 1);
        assert_int_equal(report.other_type, 1);
    }
    REFUSED(cairn_param_set_load(set, in_folder("x"), NULL, &(struct cairn_weights_report){0}), CAIRN_EINVAL,
            "CAIRN_WEIGHTS_REPORT_INIT");
    cairn_param_set_destroy(&set);
}

static void a_long_report_says_how_many_it_leaves_out(void **state) {
    enum { MANY = 300 };
    struct cairn__safetensors_tensor theirs[MANY];
    static char names[MANY][32];
    static const int64_t none = 0;
    float memory[16] = {0};
    struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof(names[i]), "stranger.%d.weight", i);
        theirs[i] = (struct cairn__safetensors_tensor){names[i], CAIRN__SAFETENSORS_F32, 1, &none, 0, 0};
    }
    write_tensors(in_folder("x"), theirs, MANY, "");
    cairn_param_set *set = make_set(*state, &(struct array){"w", 1, {1}}, 1, memory);
    OK(cairn_param_set_load(set, in_folder("x"), cairn_weights_options(.strict = CAIRN_OFF), &report));
    assert_int_equal(report.unexpected, MANY);
    assert_non_null(strstr(report.text, "unexpected in the file: stranger.0.weight, stranger.1.weight"));
    assert_non_null(strstr(report.text, " more"));
    REFUSED(cairn_param_set_load(set, in_folder("x"), NULL, NULL), CAIRN_EINVAL,
            ": 1 missing, 300 unexpected: missing");
    cairn_param_set_destroy(&set);
}

static void every_float_type_loads_into_every_other(void **state) {
    static const int64_t two[] = {2};
    static const struct {
        enum cairn__safetensors_type type;
        unsigned char bytes[16];
    } cases[] = {{CAIRN__SAFETENSORS_F16, {0, 0x3e, 0, 0xc0}},
                 {CAIRN__SAFETENSORS_BF16, {0xc0, 0x3f, 0, 0xc0}},
                 {CAIRN__SAFETENSORS_F32, {0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0}},
                 {CAIRN__SAFETENSORS_F64, {0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0xc0}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct cairn__safetensors_tensor theirs[] = {{"a", cases[i].type, 1, two, 0, 0}};
        float a[2] = {0};
        uint16_t h[2] = {0};
        cairn_param_set *set = NULL, *halves = NULL;
        write_tensors(in_folder("x"), theirs, 1, cases[i].bytes);
        OK(cairn_param_set_create(*state,
                                  &(cairn_param){.name = "a", .data = a, .dtype = CAIRN_F32, .ndim = 1, .shape = {2}},
                                  1, &set));
        OK(cairn_param_set_create(*state,
                                  &(cairn_param){.name = "a", .data = h, .dtype = CAIRN_F16, .ndim = 1, .shape = {2}},
                                  1, &halves));
        OK(cairn_param_set_load(set, in_folder("x"), NULL, NULL));
        OK(cairn_param_set_load(halves, in_folder("x"), NULL, NULL));
        assert_true(a[0] == 1.5f && a[1] == -2);
        assert_true(h[0] == 0x3e00 && h[1] == 0xc000);
        cairn_param_set_destroy(&set);
        cairn_param_set_destroy(&halves);
    }
}

/* ---- several files ---- */

static void large_weights_go_to_several_files_with_an_index(void **state) {
    cairn_module *net = make_net(*state, 1), *other = make_net(*state, 2);
    struct cairn_weights_options *options = cairn_weights_options(.max_file_nbytes = 400);
    OK(cairn_module_save(net, in_folder("model.safetensors"), NULL));
    OK(cairn_module_save(net, in_folder("model.safetensors"), options));
    assert_int_not_equal(access(in_folder("model.safetensors"), F_OK), 0);
    assert_int_equal(access(in_folder("model.safetensors.index.json"), F_OK), 0);
    assert_int_equal(access(in_folder("model-00001-of-00003.safetensors"), F_OK), 0);
    assert_int_equal(count_files(), 4);
    const char *paths[] = {folder, in_folder("model.safetensors"), in_folder("model.safetensors.index.json")};
    const struct bytes before = bytes_of(net);
    for (int i = 0; i < 3; i++) {
        cairn_module_destroy(&other);
        other = make_net(*state, 3);
        OK(cairn_module_load(other, paths[i], NULL, NULL));
        const struct bytes after = bytes_of(other);
        assert_true(same_bytes(&before, &after));
    }
    OK(cairn_module_save(net, in_folder("model.safetensors"), NULL)); /* one again: the index goes */
    assert_int_not_equal(access(in_folder("model.safetensors.index.json"), F_OK), 0);
    OK(cairn_module_load(other, folder, NULL, NULL));
    cairn_module_destroy(&net);
    cairn_module_destroy(&other);
}

/* A limit of a file's size in place of a disk that is full: it hits the shards, and then their index. */
static void a_save_without_room_leaves_the_several_files_of_before(void **state) {
    cairn_module *old = make_net(*state, 1), *new = make_net(*state, 2), *loaded = make_net(*state, 3);
    const struct cairn_weights_options *options = cairn_weights_options(.max_file_nbytes = 300);
    const struct bytes before = bytes_of(old), after = bytes_of(new);
    struct rlimit all, few;
    bool hits_index = false;
    cairn_status st = CAIRN_ESYSTEM;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    OK(cairn_module_save(old, in_folder("model.safetensors"), options));
    for (rlim_t room = 0; st != CAIRN_OK; room += 50) {
        few = (struct rlimit){room, all.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
        st = cairn_module_save(new, in_folder("model.safetensors"), options);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
        if (st != CAIRN_OK) {
            assert_int_equal(st, CAIRN_ESYSTEM);
            SAYS(strerror(EFBIG));
            hits_index |= strstr(cairn_last_error(), "index.json: ") != NULL;
        }
        assert_int_equal(count_files(), 5);
        OK(cairn_module_load(loaded, in_folder("model.safetensors"), NULL, NULL));
        const struct bytes found = bytes_of(loaded);
        assert_true(same_bytes(&found, st == CAIRN_OK ? &after : &before));
    }
    assert_true(hits_index);
    cairn_module_destroy(&old);
    cairn_module_destroy(&new);
    cairn_module_destroy(&loaded);
}

/* Files that are not open: more than a process may have. */
static void a_save_has_one_file_open_at_a_time(void **state) {
    cairn_module *net = make_net(*state, 1);
    struct rlimit all, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    const int next = dup(0);
    close(next);
    few = (struct rlimit){(rlim_t)next + 2, all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    const cairn_status st =
        cairn_module_save(net, in_folder("model.safetensors"), cairn_weights_options(.max_file_nbytes = 1));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    OK(st);
    assert_int_equal(count_files(), 12); /* 11 tensors, and the index */
    cairn_module_destroy(&net);
}

static void has_file(const char *name, bool is_there) {
    if ((access(in_folder(name), F_OK) == 0) != is_there) fail_msg("%s is %sthere", name, is_there ? "not " : "");
}

static void files_of_an_earlier_save_go_and_no_others(void **state) {
    cairn_module *net = make_net(*state, 1);
    static const char *const others[] = {"other-00001-of-00005.safetensors", "model-00009-of-00009.safetensors",
                                         "model-1-of-00005.safetensors"};
    char path[256], index[2000];
    snprintf(path, sizeof(path), "%s", in_folder("model.safetensors"));
    OK(cairn_module_save(net, path, cairn_weights_options(.max_file_nbytes = 300)));
    has_file("model-00004-of-00004.safetensors", true);
    OK(cairn_module_save(net, path, cairn_weights_options(.max_file_nbytes = 400)));
    assert_int_equal(count_files(), 4);
    has_file("model-00001-of-00003.safetensors", true);
    has_file("model-00001-of-00004.safetensors", false);
    for (int i = 0; i < 3; i++) write_file(in_folder(others[i]), "x", 1);
    const int n = snprintf(index, sizeof(index),
                           "{\"weight_map\": {\"a\": \"%s\", \"b\": \"model-00002-of-00003.safetensors\", \"c\": "
                           "\"../x\", \"d\": 1, \"e\": \"%s\", \"f\": \"model-00007-of-00008.safetensors\"}}",
                           others[0], others[2]);
    write_file(in_folder("model.safetensors.index.json"), index, (size_t)n);
    write_file(in_folder("model-00007-of-00008.safetensors"), "x", 1);
    OK(cairn_module_save(net, path, NULL));
    for (int i = 0; i < 3; i++) has_file(others[i], true); /* of another path, not in the index, not named so */
    has_file("model-00007-of-00008.safetensors", false);
    has_file("model-00002-of-00003.safetensors", false);
    has_file("model-00001-of-00003.safetensors", true); /* the index did not list it any more */
    OK(cairn_module_load(net, path, NULL, NULL));
    cairn_module_destroy(&net);
}

static void indexes_that_are_wrong_are_refused_with_a_sentence(void **state) {
    static const struct {
        const char *text, *words;
    } bad[] = {{"", "broken in line"},
               {"[]", "it has no weight_map"},
               {"{\"metadata\": {}}", "it has no weight_map"},
               {"{\"weight_map\": []}", "it has no weight_map"},
               {"{\"weight_map\": {\"a\": 1}}", "the file of 'a' is no text"},
               {"{\"weight_map\": {\"a\": \"one\", \"a\": \"one\"}}", "duplicate object key"},
               {"{\"weight_map\": {\"a\": \"../x/one\"}}", "'../x/one' is no file of its folder"},
               {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "'/etc/passwd' is no file of its folder"},
               {"{\"weight_map\": {\"a\": \"..\"}}", "'..' is no file of its folder"},
               {"{\"weight_map\": {\"a\": \"\"}}", "'' is no file of its folder"},
               {"{\"weight_map\": {\"a\": \"x.index.json\"}}", "safetensors file"},
               {"{\"weight_map\": {\"b\": \"one\"}}", "'b' is not in "},
               {"{\"weight_map\": {\"a\\u0000\": \"one\"}}", "broken in line 1"},
               {"{\"a\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "an index nests less deep"}};
    static const int64_t one[] = {1};
    float memory[16] = {0};
    const struct cairn__safetensors_tensor theirs[] = {{"a", CAIRN__SAFETENSORS_F32, 1, one, 0, 0}};
    cairn_param_set *set = make_set(*state, &(struct array){"a", 1, {1}}, 1, memory);
    write_tensors(in_folder("one"), theirs, 1, "1234");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        check_as(bad[i].text);
        write_file(in_folder("x.index.json"), bad[i].text, strlen(bad[i].text));
        REFUSED(cairn_param_set_load(set, in_folder("x.index.json"), NULL, NULL), CAIRN_EINVAL, bad[i].words);
    }
    check_who[0] = 0;
    static const char gone[] = "{\"weight_map\": {\"a\": \"gone\"}}", good[] = "{\"weight_map\": {\"a\": \"one\"}}";
    write_file(in_folder("x.index.json"), gone, sizeof(gone) - 1);
    REFUSED(cairn_param_set_load(set, in_folder("x"), NULL, NULL), CAIRN_ESYSTEM, "/gone");
    write_file(in_folder("x.index.json"), good, sizeof(good) - 1);
    OK(cairn_param_set_load(set, in_folder("x"), NULL, NULL));
    REFUSED(cairn_param_set_load(set, folder, NULL, NULL), CAIRN_EINVAL, "a folder without model.safetensors");
    REFUSED(cairn_param_set_load(set, in_folder("none"), NULL, NULL), CAIRN_ESYSTEM, "/none");
    cairn_param_set_destroy(&set);
}

/* ---- when ---- */

static void what_has_no_weights_of_its_own_is_refused(void **state) {
    cairn_module *net = cairn_linear(*state, 2, 2), *outer = cairn_sequential(*state, 1, &net);
    REFUSED(cairn_module_save(net, in_folder("x"), NULL), CAIRN_ESTATE, "give the outermost module");
    REFUSED(cairn_weights_save(cairn__env_stateful(*state), in_folder("x"), NULL), CAIRN_EINVAL,
            "an object of kind 'environment' has no weights");
    assert_int_not_equal(cairn_module_save(NULL, in_folder("x"), NULL), CAIRN_OK);
    assert_int_equal(count_files(), 0);
    cairn_module_destroy(&outer);
}

static void weights_are_saved_while_gradients_wait_for_their_step(void **state) {
    cairn_module *net = cairn_linear(*state, 2, 2);
    cairn_tensor *x = cairn_randn(*state, CAIRN_F32, CAIRN_SHAPE(1, 2));
    OK(cairn_backward(cairn_mean(cairn_module_forward(net, x))));
    OK(cairn_module_save(net, in_folder("x"), NULL));
    OK(cairn_module_load(net, in_folder("x"), NULL, NULL));
    cairn_tensor_destroy(&x);
    cairn_module_destroy(&net);
}

static void nothing_of_a_save_or_a_load_stays_in_memory(void **state) {
    cairn_module *net = make_net(*state, 1);
    const uint64_t alive = cairn__alloc_counters().alive;
    OK(cairn_module_save(net, in_folder("model.safetensors"), cairn_weights_options(.max_file_nbytes = 400)));
    OK(cairn_module_load(net, folder, NULL, NULL));
    assert_int_equal(cairn__alloc_counters().alive, alive);
    cairn_module_destroy(&net);
}

static void memory_that_runs_out_anywhere_is_an_error(void **state) {
    cairn_module *net = make_net(*state, 1);
    const struct bytes before = bytes_of(net);
    const struct cairn_weights_options *options = cairn_weights_options(.max_file_nbytes = 400, .dtype = CAIRN_F16);
    for (int what = 0; what < 2; what++) {
        cairn_status st = CAIRN_ENOMEM;
        for (int i = 1; st != CAIRN_OK; i++) {
            const uint64_t alive = cairn__alloc_counters().alive;
            fail_in = i;
            st = what == 0 ? cairn_module_save(net, in_folder("model.safetensors"), options)
                           : cairn_module_load(net, folder, cairn_weights_options(.dtype = CAIRN_F16), NULL);
            fail_in = 0;
            assert_true(st == CAIRN_OK || st == CAIRN_ENOMEM);
            assert_int_equal(cairn__alloc_counters().alive, alive);
            if (what == 0 && st != CAIRN_OK) assert_int_equal(count_files(), 0);
            if (what == 0) continue;
            const struct bytes after = bytes_of(net);
            assert_int_equal(after.n, before.n);
        }
    }
    cairn_module_destroy(&net);
}

/* ---- a disk that fails ---- */

static int reads_left = -1; /* < 0: no limit */

ssize_t __real_pread64(int fd, void *to, size_t nbytes, off_t at);
ssize_t __wrap_pread64(int fd, void *to, size_t nbytes, off_t at);
ssize_t __wrap_pread64(int fd, void *to, size_t nbytes, off_t at) {
    if (reads_left == 0) {
        errno = EIO;
        return -1;
    }
    if (reads_left > 0) reads_left--;
    return __real_pread64(fd, to, nbytes, at);
}

static void a_read_that_fails_half_way_leaves_half_weights_as_their_masters(void **state) {
    bool is_half_way = false;
    cairn_status st = CAIRN_ESYSTEM;
    cairn_module *net = make_net(*state, 1);
    OK(cairn_module_save(net, in_folder("x"), NULL));
    cairn_module_destroy(&net);
    net = make_net(*state, 2);
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    OK(cairn_sgd_create(cairn_module_params(net), NULL, &sgd));
    OK(amp_initialize(*state, net, sgd, amp_options(.opt_level = AMP_O2), &amp));
    const struct bytes before = bytes_of(net);
    const cairn_param_set *set = cairn_module_params(net);
    for (int limit = 0; st != CAIRN_OK; limit++) {
        reads_left = limit;
        st = cairn_module_load(net, in_folder("x"), NULL, NULL);
        reads_left = -1;
        if (st != CAIRN_OK) {
            assert_int_equal(st, CAIRN_ESYSTEM);
            SAYS("/x: reading at byte ");
        }
        const struct bytes after = bytes_of(net);
        is_half_way |= st != CAIRN_OK && !same_bytes(&before, &after);
        for (size_t i = 0; i < set->count; i++) {
            const struct cairn__param *p = set->params[i];
            for (size_t k = 0; p->master && k < p->n; k++)
                assert_int_equal(((const uint16_t *)p->data)[k], cairn__f32_to_f16(p->master[k]));
        }
    }
    assert_true(is_half_way);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&net);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_BOTH(weights_come_back_to_the_bit_at_every_level),
        WITH_BOTH(a_half_file_is_rounded_once_and_loads_into_f32),
        WITH_BOTH(weights_of_a_users_own_memory_come_back),
        WITH_BOTH(tied_weights_are_saved_once_and_both_come_back),
        WITH_BOTH(two_names_that_the_table_makes_one_must_be_equal),
        WITH_BOTH(a_table_gives_the_names_of_another_project),
        WITH_BOTH(the_guides_table_gives_the_names_of_hugging_faces_bert),
        WITH_BOTH(a_rule_matches_a_name_of_any_length),
        WITH_BOTH(stars_take_as_little_as_the_rest_allows),
        WITH_BOTH(what_a_rule_excludes_is_not_unexpected),
        WITH_BOTH(rules_that_give_no_name_are_refused),
        WITH_BOTH(a_part_is_saved_and_loaded_alone),
        WITH_BOTH(strict_changes_nothing_and_lenient_loads_what_fits),
        WITH_BOTH(a_long_report_says_how_many_it_leaves_out),
        WITH_BOTH(every_float_type_loads_into_every_other),
        WITH_BOTH(large_weights_go_to_several_files_with_an_index),
        WITH_BOTH(a_save_without_room_leaves_the_several_files_of_before),
        WITH_BOTH(a_save_has_one_file_open_at_a_time),
        WITH_BOTH(files_of_an_earlier_save_go_and_no_others),
        WITH_BOTH(indexes_that_are_wrong_are_refused_with_a_sentence),
        WITH_BOTH(what_has_no_weights_of_its_own_is_refused),
        WITH_BOTH(weights_are_saved_while_gradients_wait_for_their_step),
        WITH_BOTH(memory_that_runs_out_anywhere_is_an_error),
        WITH_BOTH(a_read_that_fails_half_way_leaves_half_weights_as_their_masters),
        WITH_BOTH(nothing_of_a_save_or_a_load_stays_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
