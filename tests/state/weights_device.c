/* Saving and loading weights in another device's memory gives the same files and values as on the CPU.
 *
 *     weights_device DEVICE [required]
 *
 * Exits with 77 if the device does not exist, or with 1 if it is required. */
#include <unistd.h>

#include "../check.h"
#include "cairn/cairn.h"
#include "core/alloc.h"
#include "state/file.h"

enum { SKIP = 77 };

static char folder[64];

static const char *in_folder(const char *name) {
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

struct model {
    cairn_module *net;
    cairn_optimizer *sgd;
    amp_context *amp;
};

/* More elements than one block of conversions has. */
static struct model make(cairn_env *env, uint64_t seed, amp_opt_level level, cairn_dtype half) {
    struct model m = {0};
    cairn_manual_seed(env, seed);
    m.net = cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 600, 500), cairn_layer_norm(env, CAIRN_SHAPE(500), 0),
                                                cairn_linear(env, 500, 3)));
    MUST(m.net);
    MUST_OK(cairn_sgd_create(cairn_module_params(m.net), NULL, &m.sgd));
    MUST_OK(amp_initialize(env, m.net, m.sgd, amp_options(.opt_level = level, .half_type = half), &m.amp));
    return m;
}

static void end(struct model *m) {
    amp_destroy(&m->amp);
    cairn_optimizer_destroy(&m->sgd);
    cairn_module_destroy(&m->net);
}

static bool same_files(const char *a, const char *b) {
    char *text[2] = {NULL};
    struct cairn__file_facts facts[2];
    MUST_OK(cairn__file_read(a, 0, 1 << 24, &text[0], &facts[0]));
    MUST_OK(cairn__file_read(b, 0, 1 << 24, &text[1], &facts[1]));
    const bool same = facts[0].nbytes == facts[1].nbytes && memcmp(text[0], text[1], facts[0].nbytes) == 0;
    cairn__free(text[0]);
    cairn__free(text[1]);
    return same;
}

/* Made and saved on one device, loaded and saved on the other. */
static void travel(cairn_env *from, cairn_env *to, amp_opt_level level, cairn_dtype half, cairn_dtype saved) {
    struct model m = make(from, 1, level, half);
    MUST_OK(cairn_module_save(m.net, in_folder("a"), cairn_weights_options(.dtype = saved)));
    end(&m);
    m = make(to, 2, level, half);
    MUST_OK(cairn_module_load(m.net, in_folder("a"), NULL, NULL));
    MUST_OK(cairn_module_save(m.net, in_folder("b"), cairn_weights_options(.dtype = saved)));
    end(&m);
    MUST(same_files(in_folder("a"), in_folder("b")));
}

int main(int argc, char **argv) {
    cairn_env *cpu = NULL, *device = NULL;
    const bool is_required = argc > 2 && strcmp(argv[2], "required") == 0;
    const cairn_status st =
        cairn_env_create(NULL, NULL, cairn_env_options(.device = argc > 1 ? argv[1] : "cpu"), &device);
    if (st != CAIRN_OK) {
        fprintf(stderr, "skipped: %s\n", cairn_last_error());
        return is_required ? 1 : SKIP;
    }
    MUST_OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = "cpu"), &cpu));
    snprintf(folder, sizeof(folder), "/tmp/cairn-weights-XXXXXX");
    MUST(mkdtemp(folder) != NULL);
    static const struct {
        amp_opt_level level;
        cairn_dtype half, saved;
    } cases[] = {{AMP_O0, CAIRN_F16, (cairn_dtype)0}, {AMP_O0, CAIRN_F16, CAIRN_F16},
                 {AMP_O2, CAIRN_F16, (cairn_dtype)0}, {AMP_O2, CAIRN_BF16, CAIRN_BF16},
                 {AMP_O3, CAIRN_F16, (cairn_dtype)0}, {AMP_O3, CAIRN_BF16, CAIRN_F32}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        travel(device, device, cases[i].level, cases[i].half, cases[i].saved);
        travel(device, cpu, cases[i].level, cases[i].half, cases[i].saved);
        travel(cpu, device, cases[i].level, cases[i].half, cases[i].saved);
    }
    unlink(in_folder("a"));
    unlink(in_folder("b"));
    MUST(rmdir(folder) == 0);
    cairn_env_destroy(&device);
    cairn_env_destroy(&cpu);
    return 0;
}
