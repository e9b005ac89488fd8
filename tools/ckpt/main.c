/* cairn-ckpt: lists, checks, compares and converts checkpoints and tensor files. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>

#include "rewrite.h"
#include "tensors.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/status.h"

static const char usage[] =
    "usage: cairn-ckpt list DIR                     checkpoints, and whether each is whole\n"
    "       cairn-ckpt check PATH                   reads all of it and compares checksums\n"
    "       cairn-ckpt show PATH                    a table of its tensors\n"
    "       cairn-ckpt compare A B                  which tensors differ, and how far\n"
    "       cairn-ckpt export CHECKPOINT NAME FILE  weights and buffers of the model added as NAME, as a file\n"
    "       cairn-ckpt convert FROM FILE            a file in another type, cut into several, or joined\n"
    "\n"
    "options of export and convert:\n"
    "       --type f32|f16|bf16                     of floats; without, each keeps its own\n"
    "       --max-file-size 5GB                     several files FILE-00001-of-00003... with an index, where it is "
    "more\n"
    "\n"
    "PATH, A, B and FROM are folders step-N (not FROM), files of safetensors, indexes of several (.index.json), or "
    "folders\nwith a model.safetensors or its index.\n"
    "\n"
    "Exit code: 0; 1 where a file cannot be read or is broken, or two are different; 2 for wrong use.\n";

enum { BROKEN = 1, WRONG_USE = 2, NAME_WIDTH = 56 };

static int failed(void) {
    fputs("cairn-ckpt: ", stderr);
    put_text(stderr, cairn_last_error(), 0);
    fputs("\n", stderr);
    return BROKEN;
}

static int wrong_use(void) {
    fputs(usage, stderr);
    return WRONG_USE;
}

/* ---- list ---- */

static void put_size(uint64_t nbytes, char text[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)nbytes;
    int unit = 0;
    while (n >= 1024 && unit < 4) n /= 1024, unit++;
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", n, units[unit]);
}

static int list(char **args) {
    int64_t *steps = NULL;
    size_t count = 0;
    int code = 0;
    if (cairn__checkpoint_steps(args[0], &steps, &count) != CAIRN_OK) return failed();
    if (count == 0) printf("%s has no checkpoints\n", args[0]);
    for (size_t i = 0; i < count; i++) {
        char path[CAIRN__MAX_PATH], size[32], when[32] = "";
        struct tensors t;
        struct stat s;
        uint64_t nbytes = 0;
        if (cairn__checkpoint_path(args[0], steps[i], path) != CAIRN_OK) return failed();
        const time_t saved = stat(path, &s) == 0 ? s.st_mtime : 0;
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", localtime(&saved));
        const bool is_open = tensors_open(path, &t) == CAIRN_OK;
        const bool is_whole = is_open && tensors_check(&t) == CAIRN_OK;
        for (size_t f = 0; is_open && f < t.manifest.num_files; f++) nbytes += t.manifest.files[f].nbytes;
        put_size(nbytes, size);
        if (is_whole) {
            printf("%s  %s  %10s  %d rank%s\n", path, when, size, t.manifest.ranks, t.manifest.ranks == 1 ? "" : "s");
        } else {
            printf("%s  not whole: ", path);
            put_text(stdout, cairn_last_error(), 0);
            printf("\n");
        }
        if (!is_whole) code = BROKEN;
        if (is_open) tensors_close(&t);
    }
    cairn__free(steps);
    return code;
}

/* ---- check, show ---- */

static int check(char **args) {
    struct tensors t;
    if (tensors_open(args[0], &t) != CAIRN_OK) return failed();
    const int code = tensors_check(&t) == CAIRN_OK ? 0 : failed();
    if (code == 0)
        printf("%s is whole: %zu tensors in %zu file%s\n", args[0], t.count, t.num_files, t.num_files == 1 ? "" : "s");
    tensors_close(&t);
    return code;
}

static int show(char **args) {
    struct tensors t;
    uint64_t nbytes = 0;
    if (tensors_open(args[0], &t) != CAIRN_OK) return failed();
    if (t.manifest.num_files) printf("step %" PRId64 ", saved on %d ranks\n", t.manifest.step, t.manifest.ranks);
    for (size_t i = 0; i < t.count; i++) {
        char shape[128], size[32];
        const struct tensor *one = &t.at[i];
        tensor_put_shape(one->info, shape);
        put_size(one->info->nbytes, size);
        nbytes += one->info->nbytes;
        put_text(stdout, one->name, NAME_WIDTH);
        printf(" %-8s %-24s %10s\n", cairn__safetensors_type_name(one->info->type), shape, size);
    }
    char all[32];
    put_size(nbytes, all);
    printf("%zu tensors, %s\n", t.count, all);
    tensors_close(&t);
    return 0;
}

/* ---- compare ---- */

struct difference {
    size_t n, elements; /* elements: bytes for types that Cairn does not have */
    bool has_values;
    double most;   /* |a - b|; infinite where one is NaN */
    uint64_t ulps; /* largest distance between floats of one type */
};

/* Maps a float to its index in the order of all values of its type: neighbours differ by 1, both zeros are equal. */
static int64_t place(const void *x, size_t nbytes) {
    uint64_t bits = 0;
    memcpy(&bits, x, nbytes);
    const uint64_t sign = (uint64_t)1 << (8 * nbytes - 1);
    return bits & sign ? -(int64_t)(bits ^ sign) : (int64_t)bits;
}

static void compare_element(const char *a, const char *b, cairn_dtype dtype, size_t nbytes, struct difference *d) {
    double x = 0, y = 0;
    if (memcmp(a, b, nbytes) == 0) return;
    d->n++;
    if (!d->has_values) return;
    cairn__convert(&x, CAIRN_F64, a, dtype, 1);
    cairn__convert(&y, CAIRN_F64, b, dtype, 1);
    const double apart = isnan(x) || isnan(y) ? HUGE_VAL : fabs(x - y);
    if (apart > d->most) d->most = apart;
    const int64_t p = place(a, nbytes), q = place(b, nbytes);
    const uint64_t ulps = p > q ? (uint64_t)p - (uint64_t)q : (uint64_t)q - (uint64_t)p;
    if (is_float(dtype) && ulps > d->ulps) d->ulps = ulps;
}

static cairn_status compare_values(const struct tensor *a, const struct tensor *b, struct difference *d) {
    const cairn_dtype dtype = cairn__safetensors_dtype(a->info->type);
    const bool has_values = dtype && cairn__is_tensor_dtype(dtype); /* no u8: that converts to nothing */
    const size_t nbytes = has_values ? cairn_dtype_nbytes(dtype) : 1;
    char *x = NULL, *y = NULL;
    cairn_status st = CAIRN_OK;
    *d = (struct difference){.elements = a->info->nbytes / nbytes, .has_values = has_values};
    TRY(tensor_read(a, (void **)&x));
    TRY(tensor_read(b, (void **)&y));
    for (size_t i = 0; i < d->elements; i++) compare_element(x + i * nbytes, y + i * nbytes, dtype, nbytes, d);
out:
    cairn__free(x);
    cairn__free(y);
    return st;
}

static bool is_alike(const struct tensor *a, const struct tensor *b) {
    return a->info->type == b->info->type && a->info->ndim == b->info->ndim &&
           memcmp(a->info->shape, b->info->shape, (size_t)a->info->ndim * sizeof(a->info->shape[0])) == 0;
}

/* Returns whether the tensors differ; -1 = one could not be read. */
static int compare_tensor(const struct tensor *a, const struct tensor *b) {
    char first[128], second[128];
    struct difference d;
    if (!is_alike(a, b)) {
        tensor_put_shape(a->info, first);
        tensor_put_shape(b->info, second);
        put_text(stdout, a->name, NAME_WIDTH);
        printf(" %s %s, and %s %s\n", cairn__safetensors_type_name(a->info->type), first,
               cairn__safetensors_type_name(b->info->type), second);
        return 1;
    }
    if (compare_values(a, b, &d) != CAIRN_OK) return -1;
    if (d.n == 0) return 0;
    put_text(stdout, a->name, NAME_WIDTH);
    if (d.has_values) printf(" %zu of %zu differ, by %.3g", d.n, d.elements, d.most);
    else printf(" %zu of %zu bytes differ", d.n, d.elements);
    if (d.ulps) printf(", %" PRIu64 " ulps", d.ulps);
    printf(d.has_values ? " at most\n" : "\n");
    return 1;
}

static void put_single(const struct tensor *t, const struct tensors *of) {
    put_text(stdout, t->name, NAME_WIDTH);
    printf(" only in %s\n", of->path);
}

static int compare_lists(const struct tensors *a, const struct tensors *b) {
    size_t same = 0, other = 0;
    for (size_t i = 0; i < a->count; i++) {
        const struct tensor *twin = tensors_find(b, a->at[i].name);
        const int differs = twin ? compare_tensor(&a->at[i], twin) : 1;
        if (differs < 0) return failed();
        if (!twin) put_single(&a->at[i], a);
        *(differs ? &other : &same) += 1;
    }
    for (size_t i = 0; i < b->count; i++) {
        if (tensors_find(a, b->at[i].name)) continue;
        put_single(&b->at[i], b);
        other++;
    }
    printf("%zu tensors are equal to the bit, %zu are not\n", same, other);
    return other ? BROKEN : 0;
}

static int compare(char **args) {
    struct tensors a, b;
    if (tensors_open(args[0], &a) != CAIRN_OK) return failed();
    if (tensors_open(args[1], &b) != CAIRN_OK) {
        tensors_close(&a);
        return failed();
    }
    const int code = compare_lists(&a, &b);
    tensors_close(&a);
    tensors_close(&b);
    return code;
}

/* ---- export, convert ---- */

static int export(char **args, int more) {
    struct tensors t;
    struct rewrite_options o;
    size_t count;
    if (!rewrite_options_read(args + 3, more, &o)) return wrong_use();
    if (tensors_open(args[0], &t) != CAIRN_OK) return failed();
    const int code = rewrite_model(&t, args[1], args[2], &o, &count) == CAIRN_OK ? 0 : failed();
    if (code == 0) printf("%s: %zu tensors\n", args[2], count);
    tensors_close(&t);
    return code;
}

static int convert(char **args, int more) {
    struct tensors t;
    struct rewrite_options o;
    size_t count;
    if (!rewrite_options_read(args + 2, more, &o)) return wrong_use();
    if (tensors_open(args[0], &t) != CAIRN_OK) return failed();
    const int code = rewrite_files(&t, args[1], &o, &count) == CAIRN_OK ? 0 : failed();
    if (code == 0) printf("%s: %zu tensors\n", args[1], count);
    tensors_close(&t);
    return code;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    char **args = argv + 2;
    const int n = argc - 2;
    if (strcmp(command, "--help") == 0) return fputs(usage, stdout) < 0;
    if (strcmp(command, "list") == 0 && n == 1) return list(args);
    if (strcmp(command, "check") == 0 && n == 1) return check(args);
    if (strcmp(command, "show") == 0 && n == 1) return show(args);
    if (strcmp(command, "compare") == 0 && n == 2) return compare(args);
    if (strcmp(command, "export") == 0 && n >= 3) return export(args, n - 3);
    if (strcmp(command, "convert") == 0 && n >= 2) return convert(args, n - 2);
    return wrong_use();
}
