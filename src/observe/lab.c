/* The files that cairn-lab reads: one line of JSON for each fact, scalar and histogram. docs/observing.md has the
 * format. Source: RFC 8259; JSON Lines. */
#include "observe/lab.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/vars.h"
#include "device/env.h"
#include "observe/exponents.h"
#include "observe/json.h"
#include "observe/names.h"
#include "observe/out.h"
#include "observe/writer.h"

enum { LINE = 64 * 1024, NAME = 1200, FORMAT = 1, EVERY = 10 };

struct lab {
    struct cairn_writer base;
    struct cairn__out out;
    uint64_t began_ns;
    char line[LINE]; /* line being built */
    size_t used;     /* LINE = too long */
};

/* ---- lines ---- */

static void __attribute__((format(printf, 2, 3))) append(struct lab *l, const char *format, ...) {
    const size_t room = LINE - l->used;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(l->line + l->used, room, format, args);
    va_end(args);
    l->used = n < 0 || (size_t)n >= room ? LINE : l->used + (size_t)n;
}

/* {"kind":"scalar","room":"optim","name":"lr","step":1 */
static void begin_line(struct lab *l, const struct cairn__event *e, const char *kind, bool has_step) {
    char name[NAME];
    cairn__json_escape(e->what, name, sizeof(name));
    l->used = 0;
    append(l, "{\"kind\":\"%s\",\"room\":\"%s\",\"name\":\"%s\"", kind, e->room, name);
    if (has_step) append(l, ",\"step\":%" PRId64, e->index);
}

static void end_line(struct lab *l, uint64_t now) {
    append(l, ",\"seconds\":%.6f}\n", now > l->began_ns ? (double)(now - l->began_ns) * 1e-9 : 0);
    if (l->used < LINE) cairn__out_put(&l->out, l->line, l->used, now);
}

static void put_fact(struct lab *l, const struct cairn__event *e) {
    char value[NAME];
    cairn__json_escape(e->text, value, sizeof(value));
    begin_line(l, e, "fact", false);
    append(l, ",\"value\":\"%s\"", value);
    end_line(l, e->end_ns);
}

static void put_scalar(struct lab *l, const struct cairn__event *e) {
    char value[CAIRN__JSON_NUMBER];
    begin_line(l, e, "scalar", true);
    append(l, ",\"value\":%s", cairn__json_number(e->value, value));
    end_line(l, e->end_ns);
}

static void append_numbers(struct lab *l, const char *key, const double *values, size_t count) {
    char value[CAIRN__JSON_NUMBER];
    append(l, ",\"%s\":[", key);
    for (size_t i = 0; i < count; i++) append(l, "%s%s", i ? "," : "", cairn__json_number(values[i], value));
    append(l, "]");
}

static void append_exponents(struct lab *l, const struct cairn_exponents *e) {
    int first = 0, end = CAIRN_NUM_BINADES;
    append(l,
           ",\"count\":%" PRIu64 ",\"zero\":%" PRIu64 ",\"inf\":%" PRIu64 ",\"nan\":%" PRIu64 ",\"below\":%" PRIu64
           ",\"above\":%" PRIu64,
           cairn_exponents_total(e), e->zeros, e->infs, e->nans, e->below, e->above);
    while (first < end && !e->binades[first]) first++;
    while (end > first && !e->binades[end - 1]) end--;
    append(l, ",\"first\":%d,\"counts\":[", first < end ? CAIRN_LEAST_BINADE + first : 0);
    for (int b = first; b < end; b++) append(l, "%s%" PRIu64, b > first ? "," : "", e->binades[b]);
    append(l, "]");
}

static void put_histogram(struct lab *l, const struct cairn__event *e) {
    const struct cairn_histogram *h = e->histogram;
    struct cairn_exponents counts;
    char scale[CAIRN__JSON_NUMBER];
    begin_line(l, e, "histogram", true);
    if (h->dtype) append(l, ",\"type\":\"%s\"", cairn_dtype_name(h->dtype));
    append(l, ",\"scale\":%s", cairn__json_number(h->scale != 0 ? h->scale : 1, scale));
    if (h->exponents && cairn__exponents_read("CAIRN_LAB", h->exponents, &counts) == CAIRN_OK) {
        append_exponents(l, &counts);
    } else {
        append_numbers(l, "limits", h->limits, h->num_buckets);
        append_numbers(l, "counts", h->counts, h->num_buckets);
    }
    end_line(l, e->end_ns);
}

static void hear(struct cairn_writer *writer, const struct cairn__event *e) {
    struct lab *l = (struct lab *)writer;
    if (e->kind == CAIRN__FACT) put_fact(l, e);
    if (e->kind == CAIRN__SCALAR) put_scalar(l, e);
    if (e->kind == CAIRN__HISTOGRAM) put_histogram(l, e);
}

/* ---- making and ending ---- */

static cairn_status flush(struct cairn_writer *writer) {
    return cairn__out_flush_loudly(&((struct lab *)writer)->out);
}

static void end(struct cairn_writer *writer, bool is_own) {
    cairn__out_close(&((struct lab *)writer)->out, is_own);
    cairn__free(writer);
}

/* every 0: the recorder is the program's own. */
static cairn_status open_lab(int rank, int size, const char *folder, int64_t every, cairn_writer **out) {
    static const struct cairn__writer_kind kind = {.hear = hear, .flush = flush, .end = end};
    struct lab *l = NULL;
    char path[CAIRN__OBSERVE_PATH];
    cairn_status st = CAIRN_OK;
    TRY(cairn__path_of_rank(folder, rank, path));
    TRY(cairn__out_make_folder(path));
    const size_t used = strlen(path);
    const int n = snprintf(path + used, sizeof(path) - used, "/rank%d.jsonl", rank);
    REQUIRE(n > 0 && (size_t)n < sizeof(path) - used, CAIRN_EINVAL, "the folder's name '%.100s...' is too long", path);
    TRY(cairn__calloc(1, sizeof(*l), (void **)&l));
    l->base = (struct cairn_writer){.kind = &kind, .rank = rank};
    l->out.fd = -1;
    l->began_ns = cairn__now_ns();
    TRY(cairn__out_open(&l->out, "file of the laboratory", path, ""));
    append(l, "{\"kind\":\"run\",\"format\":%d,\"cairn\":\"%s\",\"rank\":%d,\"ranks\":%d", (int)FORMAT,
           cairn_version_string(), rank, size);
    if (every) append(l, ",\"every\":%" PRId64, every);
    append(l, "}\n");
    cairn__out_put(&l->out, l->line, l->used, 0);
    TRY(cairn__out_flush_loudly(&l->out));
    TRY(cairn__writer_begin(&l->base));
    *out = &l->base;
    return CAIRN_OK;
out:
    if (l) cairn__out_close(&l->out, false);
    cairn__free(l);
    return st;
}

int64_t cairn__lab_every(bool logs) {
    bool present = false;
    long every = EVERY;
    if (cairn__var_int("CAIRN_LAB_EVERY", 1, 1000000000, &present, &every) != CAIRN_OK && logs)
        cairn__log(CAIRN_LOG_ERROR, "%s; exponents are recorded every %d steps", cairn_last_error(), (int)EVERY);
    return every;
}

cairn_status cairn__lab_open(int rank, int size, const char *folder, cairn_writer **out) {
    return open_lab(rank, size, folder, cairn__lab_every(true), out);
}

cairn_status cairn_lab_create(cairn_env *env, const char *folder, cairn_writer **out) {
    REQUIRE(env && folder && folder[0] && out, CAIRN_EINVAL, "cairn_lab_create: env, folder and out must be set");
    return open_lab(env->rank, env->size, folder, 0, out);
}
