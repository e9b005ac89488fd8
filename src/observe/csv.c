/* Scalars as comma-separated values, one per line, so that new names may appear at any time. Source: RFC 4180. */
#include "observe/csv.h"

#include <inttypes.h>
#include <math.h>

#include "core/alloc.h"
#include "device/env.h"
#include "observe/names.h"
#include "observe/out.h"
#include "observe/writer.h"

enum { LINE = 1024, NAME = 600 };

struct csv {
    struct cairn_writer base;
    struct cairn__out out;
    uint64_t began_ns;
};

/* Quotes the name, with inner quotes doubled, if it would break the line. Cuts a name that is too long. */
static void quote(const char *name, char out[NAME]) {
    size_t used = 0;
    const bool needs = strpbrk(name, ",\"\r\n") != NULL;
    if (needs) out[used++] = '"';
    for (; *name && used + 4 < NAME; name++) {
        if (*name == '"') out[used++] = '"';
        out[used++] = *name;
    }
    if (needs) out[used++] = '"';
    out[used] = '\0';
}

static void hear(struct cairn_writer *writer, const struct cairn__event *e) {
    struct csv *c = (struct csv *)writer;
    char line[LINE], name[NAME], value[40];
    if (e->kind != CAIRN__SCALAR) return;
    quote(e->what, name);
    if (isnan(e->value)) snprintf(value, sizeof(value), "nan"); /* printf prints a sign for some */
    else snprintf(value, sizeof(value), "%.17g", e->value);
    const double seconds = e->end_ns > c->began_ns ? (double)(e->end_ns - c->began_ns) * 1e-9 : 0;
    const int n = snprintf(line, sizeof(line), "%" PRId64 ",%s,%s,%.6f\n", e->index, name, value, seconds);
    if (n > 0 && n < LINE) cairn__out_put(&c->out, line, (size_t)n, e->end_ns);
}

static cairn_status flush(struct cairn_writer *writer) {
    return cairn__out_flush_loudly(&((struct csv *)writer)->out);
}

static void end(struct cairn_writer *writer, bool is_own) {
    cairn__out_close(&((struct csv *)writer)->out, is_own);
    cairn__free(writer);
}

cairn_status cairn__csv_open(int rank, int size, const char *path, cairn_writer **out) {
    static const struct cairn__writer_kind kind = {.hear = hear, .flush = flush, .end = end};
    static const char head[] = "step,name,value,seconds\n";
    struct csv *c = NULL;
    char name[CAIRN__OBSERVE_PATH];
    cairn_status st = CAIRN_OK;
    (void)size;
    TRY(cairn__path_of_rank(path, rank, name));
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    *c = (struct csv){.base = {.kind = &kind, .rank = rank}, .out.fd = -1, .began_ns = cairn__now_ns()};
    TRY(cairn__out_open(&c->out, "CSV file", name, ""));
    cairn__out_put(&c->out, head, sizeof(head) - 1, 0);
    TRY(cairn__out_flush_loudly(&c->out));
    TRY(cairn__writer_begin(&c->base));
    *out = &c->base;
    return CAIRN_OK;
out:
    if (c) cairn__out_close(&c->out, false);
    cairn__free(c);
    return st;
}

cairn_status cairn_csv_create(cairn_env *env, const char *path, cairn_writer **out) {
    REQUIRE(env && path && out, CAIRN_EINVAL, "cairn_csv_create: env, path and out must be set");
    return cairn__csv_open(env->rank, env->size, path, out);
}
