/* Maps the model's tensors to the names in files. */
#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* P: prefix of the encoder's names; W, B: names of a normalisation's weight and bias. The first rule that matches
 * applies (cairn/weights.h). */
#define NAMES(P, W, B)                                                                                         \
    {                                                                                                          \
        {"bert.*.attention.in_proj_*",                                                                         \
         P "*.attention.self.query.*|" P "*.attention.self.key.*|" P "*.attention.self.value.*"},              \
            {"bert.*.attention.out_proj.*", P "*.attention.output.dense.*"},                                   \
            {"bert.*.attention_norm.weight", P "*.attention.output.LayerNorm." W},                             \
            {"bert.*.attention_norm.bias", P "*.attention.output.LayerNorm." B},                               \
            {"bert.*.output_norm.weight", P "*.output.LayerNorm." W},                                          \
            {"bert.*.output_norm.bias", P "*.output.LayerNorm." B},                                            \
            {"bert.*.intermediate.*", P "*.intermediate.dense.*"}, {"bert.*.output.*", P "*.output.dense.*"},  \
            {"bert.embeddings.norm.weight", P "embeddings.LayerNorm." W},                                      \
            {"bert.embeddings.norm.bias", P "embeddings.LayerNorm." B}, {"bert.pooler.*", P "pooler.dense.*"}, \
            {"bert.*", P "*"}, {NULL, "*position_ids"}, {NULL, "cls.*"},                                       \
    }
enum { RULES = 14, NAMINGS = 4 };

/* bert_save writes the first naming. */
static const struct cairn_weights_name namings[NAMINGS][RULES] = {
    NAMES("bert.", "weight", "bias"),
    NAMES("bert.", "gamma", "beta"),
    NAMES("", "weight", "bias"),
    NAMES("", "gamma", "beta"),
};

static cairn_status load_part(cairn_module *model, const char *path, int naming, const char *match,
                              struct cairn_weights_report *report) {
    return cairn_module_load(model, path,
                             cairn_weights_options(.names = namings[naming], .num_names = RULES, .match = match),
                             report);
}

/* Whether the report lists both tensors of a part as missing. The report names all missing tensors if they are few. */
static int lacks(const struct cairn_weights_report *report, const char *weight, const char *bias) {
    return strstr(report->text, weight) && strstr(report->text, bias);
}

/* What to load if exactly the head, the pooler or both are missing: pretrained[head missing][pooler missing]. */
static const struct {
    const char *parts[2], *words;
} pretrained[2][2] = {
    [1][0] = {{"bert.*"}, "classification head: it starts"},
    [0][1] = {{"bert.e*", "classifier.*"}, "pooler: it starts"},
    [1][1] = {{"bert.e*"}, "pooler and no classification head: they start"},
};

static cairn_status load_fitting(cairn_module *model, const char *path, int naming, char *note, size_t nbytes) {
    struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
    cairn_status st = load_part(model, path, naming, NULL, &report);
    const int head = lacks(&report, "classifier.weight", "classifier.bias");
    const int pooler = lacks(&report, "pooler.dense.weight", "pooler.dense.bias");
    if (st != CAIRN_EINVAL || report.missing == 0 || report.missing != (size_t)(2 * (head + pooler)) ||
        report.other_shape || report.other_type || report.unexpected)
        return st;
    st = CAIRN_OK;
    for (int i = 0; i < 2 && st == CAIRN_OK && pretrained[head][pooler].parts[i]; i++)
        st = load_part(model, path, naming, pretrained[head][pooler].parts[i], NULL);
    if (st == CAIRN_OK && note)
        snprintf(note, nbytes, "%s has no %s from random values", path, pretrained[head][pooler].words);
    return st;
}

/* A failed strict load changes nothing, so all namings can be tried; the one with the most matches is the file's. */
cairn_status bert_load(cairn_module *model, const char *path, char *note, size_t nbytes) {
    size_t most = 0;
    int best = 0;
    if (note && nbytes > 0) note[0] = '\0';
    for (int i = 0; i < NAMINGS; i++) {
        struct cairn_weights_report report = CAIRN_WEIGHTS_REPORT_INIT;
        const cairn_status st = load_part(model, path, i, NULL, &report);
        if (st != CAIRN_EINVAL) return st;
        if (report.loaded > most) most = report.loaded, best = i;
    }
    return load_fitting(model, path, best, note, nbytes);
}

cairn_status bert_save(cairn_module *model, const struct bert_config *config, const char *folder, cairn_dtype dtype) {
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/model.safetensors", folder) >= (int)sizeof(path))
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: the path is too long", folder);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return cairn_dataset_fail(CAIRN_ESYSTEM, "%s: the folder cannot be made: %s", folder, strerror(errno));
    const cairn_status st =
        cairn_module_save(model, path, cairn_weights_options(.names = namings[0], .num_names = RULES, .dtype = dtype));
    return st == CAIRN_OK ? bert_config_write(config, folder, dtype) : st;
}
