/* cairn-ckpt: looks at checkpoints and at files of tensors. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>

#include "tensors.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "core/status.h"

static const char usage[] =
    "usage: cairn-ckpt list DIR                         checkpoints, and whether each is whole\n"
    "       cairn-ckpt check PATH                       reads all of it and compares checksums\n"
    "       cairn-ckpt show PATH                        a table of its tensors\n"
    "       cairn-ckpt compare A B                      which tensors differ, and how far\n"
    "       cairn-ckpt export CHECKPOINT NAME FILE [--type f32|f16|bf16]\n"
    "                                                   weights and buffers of the model added as NAME, as one file\n"
    "PATH, A and B are folders step-N, or files of safetensors. exit code: 0; 1 = broken, or different; 2 = wrong "
    "use\n";

enum { BROKEN = 1, WRONG_USE = 2 };

static int failed(void) {
    fprintf(stderr, "cairn-ckpt: %s\n", cairn_last_error());
    return BROKEN;
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
        char path[CAIRN__MOST_PATH], size[32], when[32] = "";
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
        if (is_whole)
            printf("%s  %s  %10s  %d rank%s\n", path, when, size, t.manifest.ranks, t.manifest.ranks == 1 ? "" : "s");
        else printf("%s  not whole: %s\n", path, cairn_last_error());
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
        printf("%-56s %-8s %-24s %10s\n", one->name, cairn__safetensors_type_name(one->info->type), shape, size);
    }
    char all[32];
    put_size(nbytes, all);
    printf("%zu tensors, %s\n", t.count, all);
    tensors_close(&t);
    return 0;
}

/* ---- compare ---- */

struct difference {
    size_t n, elements;
    double most;   /* |a - b|; infinite where one is NaN */
    uint64_t ulps; /* most, between floats of one type */
};

/* Places on the line of all values of a float type, so that neighbours are 1 apart; both zeros are one place. */
static int64_t place(const void *x, size_t nbytes) {
    uint64_t bits = 0;
    memcpy(&bits, x, nbytes);
    const uint64_t sign = (uint64_t)1 << (8 * nbytes - 1);
    return bits & sign ? -(int64_t)(bits ^ sign) : (int64_t)bits;
}

static bool is_float(cairn_dtype d) {
    return d == CAIRN_F64 || d == CAIRN_F32 || d == CAIRN_F16 || d == CAIRN_BF16;
}

static void compare_element(const char *a, const char *b, cairn_dtype dtype, size_t nbytes, struct difference *d) {
    double x = 0, y = 0;
    if (memcmp(a, b, nbytes) == 0) return;
    d->n++;
    if (!dtype) return;
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
    const size_t nbytes = dtype ? cairn_dtype_nbytes(dtype) : 1;
    char *x = NULL, *y = NULL;
    cairn_status st = CAIRN_OK;
    *d = (struct difference){.elements = a->info->nbytes / nbytes};
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

/* Whether it differs; -1 = it could not be read. */
static int compare_tensor(const struct tensor *a, const struct tensor *b) {
    char first[128], second[128];
    struct difference d;
    if (!is_alike(a, b)) {
        tensor_put_shape(a->info, first);
        tensor_put_shape(b->info, second);
        printf("%-56s %s %s, and %s %s\n", a->name, cairn__safetensors_type_name(a->info->type), first,
               cairn__safetensors_type_name(b->info->type), second);
        return 1;
    }
    if (compare_values(a, b, &d) != CAIRN_OK) return -1;
    if (d.n == 0) return 0;
    printf("%-56s %zu of %zu differ, by %.3g", a->name, d.n, d.elements, d.most);
    if (d.ulps) printf(", %" PRIu64 " ulps", d.ulps);
    printf(" at most\n");
    return 1;
}

static int compare_lists(const struct tensors *a, const struct tensors *b) {
    size_t same = 0, other = 0;
    for (size_t i = 0; i < a->count; i++) {
        const struct tensor *twin = tensors_find(b, a->at[i].name);
        const int differs = twin ? compare_tensor(&a->at[i], twin) : 1;
        if (differs < 0) return failed();
        if (!twin) printf("%-56s only in %s\n", a->at[i].name, a->path);
        *(differs ? &other : &same) += 1;
    }
    for (size_t i = 0; i < b->count; i++) {
        if (tensors_find(a, b->at[i].name)) continue;
        printf("%-56s only in %s\n", b->at[i].name, b->path);
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

/* ---- export ---- */

struct export {
    const struct tensor **from;
    struct cairn__safetensors_tensor *to;
    size_t count;
    cairn_dtype type; /* of floats; 0 = as they are */
};

/* What a model's state has beside its weights and buffers. */
static bool is_weight(const char *name, const char *model, size_t n) {
    return strncmp(name, model, n) == 0 && name[n] == '/' && strcmp(name + n + 1, "requires_grad") != 0;
}

static cairn_status choose(const struct tensors *t, const char *model, struct export *e) {
    const size_t n = strlen(model);
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(t->count + 1, sizeof(e->from[0]), (void **)&e->from));
    TRY(cairn__calloc(t->count + 1, sizeof(e->to[0]), (void **)&e->to));
    for (size_t i = 0; i < t->count; i++) {
        const struct tensor *one = &t->at[i];
        if (!is_weight(one->name, model, n)) continue;
        struct cairn__safetensors_tensor *to = &e->to[e->count];
        *to = *one->info;
        to->name = one->name + n + 1;
        if (e->type && is_float(cairn__safetensors_dtype(to->type))) to->type = cairn__safetensors_type(e->type);
        e->from[e->count++] = one;
    }
    if (e->count == 0)
        TRY(cairn__fail(CAIRN_EINVAL, "%s has no model '%s': cairn-ckpt show lists what it has", t->path, model));
out:
    return st;
}

static cairn_status write_tensor(const struct export *e, size_t i, struct cairn__safetensors_writer *w) {
    const cairn_dtype from = cairn__safetensors_dtype(e->from[i]->info->type);
    const cairn_dtype to = cairn__safetensors_dtype(e->to[i].type);
    void *x = NULL, *y = NULL;
    cairn_status st = CAIRN_OK;
    TRY(tensor_read(e->from[i], &x));
    if (from == to) {
        TRY(cairn__safetensors_write(w, x, e->from[i]->info->nbytes));
    } else {
        const size_t n = e->from[i]->info->nbytes / cairn_dtype_nbytes(from);
        TRY(cairn__alloc(n * cairn_dtype_nbytes(to), &y));
        cairn__convert(y, to, x, from, n);
        TRY(cairn__safetensors_write(w, y, n * cairn_dtype_nbytes(to)));
    }
out:
    cairn__free(x);
    cairn__free(y);
    return st;
}

static cairn_status export_to(const struct tensors *t, const char *model, const char *path, struct export *e) {
    const struct cairn__safetensors_text metadata = {"format", "pt"};
    struct cairn__safetensors_writer *w = NULL;
    cairn_status st = CAIRN_OK;
    TRY(choose(t, model, e));
    TRY(cairn__safetensors_create(path, 0, e->to, e->count, &metadata, 1, &w));
    for (size_t k = 0; k < e->count; k++) TRY(write_tensor(e, cairn__safetensors_nth(w, k), w));
    TRY(cairn__safetensors_commit(&w, NULL));
out:
    cairn__safetensors_discard(&w);
    cairn__free(e->from);
    cairn__free(e->to);
    return st;
}

static bool read_type(const char *text, cairn_dtype *out) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, cairn_dtype_name(types[i])) == 0) *out = types[i];
    }
    return *out != 0;
}

static int export(char **args, int more) {
    struct tensors t;
    struct export e = {.type = (cairn_dtype)0};
    if (more && (more != 2 || strcmp(args[3], "--type") != 0 || !read_type(args[4], &e.type))) {
        fputs(usage, stderr);
        return WRONG_USE;
    }
    if (tensors_open(args[0], &t) != CAIRN_OK) return failed();
    const int code = export_to(&t, args[1], args[2], &e) == CAIRN_OK ? 0 : failed();
    if (code == 0) printf("%s: %zu tensors\n", args[2], e.count);
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
    fputs(usage, stderr);
    return WRONG_USE;
}
