/* What ddp reports of a context. One table names the fields, for the file and for the log. */
#include "cairn/ddp_logging.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/utf8.h"
#include "core/vars.h"
#include "ddp/context.h"

enum { OFF, INFO, DETAIL };
static const char *const debug_names[] = {[OFF] = "OFF", [INFO] = "INFO", [DETAIL] = "DETAIL"};

/* ---- texts ---- */

static void end_text(struct cairn__ddp_text *t) {
    cairn__free(t->text);
    *t = (struct cairn__ddp_text){0};
}

static const char *text_of(const struct cairn__ddp_text *t) {
    return t->text ? t->text : "";
}

static void clear(struct cairn__ddp_text *t) {
    t->used = 0;
    if (t->text) t->text[0] = '\0';
}

static cairn_status append(struct cairn__ddp_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static cairn_status append(struct cairn__ddp_text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&t->text, &t->capacity, t->used + (size_t)n + 1, 1));
    va_start(args, format);
    t->used += (size_t)vsnprintf(t->text + t->used, (size_t)n + 1, format, args);
    va_end(args);
out:
    return st;
}

static int env_rank(const struct ddp_context *d) {
    return cairn_group_env_rank(d->channel, cairn_group_rank(d->channel));
}

static const char *comma(const struct cairn__ddp_text *t) {
    return t->used ? ", " : "";
}

/* ---- the fields ---- */

static cairn_status tell_sizes(const struct ddp_context *d, struct cairn__ddp_text *t) {
    cairn_status st = CAIRN_OK;
    clear(t);
    for (size_t b = 0; b < d->plan.count; b++) {
        const struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
        TRY(append(t, "%s%zu", comma(t), bucket->n * cairn_dtype_nbytes(bucket->dtype)));
    }
out:
    return st;
}

static cairn_status tell_all(ddp_context *d) {
    char module[128] = "";
    cairn_status st = CAIRN_OK;
    clear(&d->log.module_name);
    if (d->model && cairn_module_format(d->model, module, sizeof(module)) < 0) return cairn__last_status();
    /* "Sequential(\n  (0): Linear(..." begins with it. */
    TRY(append(&d->log.module_name, "%.*s", (int)strcspn(module, "("), module));
    bool told[CAIRN_U8 + 1] = {false};
    clear(&d->log.dtypes);
    for (size_t s = 0; s < d->num_slots; s++) {
        const cairn_dtype dtype = d->slots[s].param->dtype;
        if (told[dtype]) continue;
        told[dtype] = true;
        TRY(append(&d->log.dtypes, "%s%s", comma(&d->log.dtypes), cairn_dtype_name(dtype)));
    }
    clear(&d->log.ready_order);
    for (size_t i = 0; i < d->times.num_ready; i++)
        TRY(append(&d->log.ready_order, "%s%zu", comma(&d->log.ready_order),
                   d->slots[d->times.ready_order[i]].param->index));
    clear(&d->log.error);
    if (cairn__group_progress(d->channel) != CAIRN_OK) TRY(append(&d->log.error, "%s", cairn_last_error()));
    if (d->rebuilt) {
        TRY(tell_sizes(d, &d->log.rebuilt_bucket_sizes));
        clear(&d->log.param_indices);
        for (size_t b = 0; b < d->plan.count; b++) {
            const struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
            for (size_t k = 0; k < bucket->count; k++)
                TRY(append(&d->log.param_indices, "%s%zu", k ? " " : comma(&d->log.param_indices),
                           d->slots[bucket->items[k]].param->index));
        }
    }
out:
    return st;
}

/* ---- the struct ---- */

static void fill_facts(const struct ddp_context *d, struct ddp_logging_data *out) {
    const struct ddp_options *o = &d->options;
    out->module_name = text_of(&d->log.module_name);
    out->backend_name = cairn_group_backend(d->channel);
    out->comm_hook = d->has_hook && d->hook.name ? d->hook.name : "";
    out->dtypes = text_of(&d->log.dtypes);
    out->torch_distributed_debug = debug_names[d->log.debug];
    out->world_size = cairn_group_size(d->channel);
    out->rank = cairn_group_rank(d->channel);
    out->num_parameter_tensors = (int64_t)d->num_slots;
    for (size_t s = 0; s < d->num_slots; s++) {
        const struct cairn__param *p = d->slots[s].param;
        out->total_parameter_size_bytes += (int64_t)(p->n * cairn_dtype_nbytes(p->dtype));
        out->unused_parameter_size += d->times.iteration > 0 && d->times.ready[s] == 0;
    }
    out->bucket_cap_bytes = (int64_t)o->bucket_nbytes;
    out->first_bucket_cap_bytes = (int64_t)o->first_bucket_nbytes;
    out->broadcast_buffers = o->broadcast_buffers == CAIRN_ON;
    out->find_unused_parameters = o->find_unused_parameters == CAIRN_ON;
    out->gradient_as_bucket_view = o->gradient_as_bucket_view == CAIRN_ON;
    out->static_graph = o->static_graph == CAIRN_ON;
    out->error = text_of(&d->log.error);
    out->has_error = out->error[0] != '\0';
}

static void fill_times(const struct ddp_context *d, struct ddp_logging_data *out) {
    const struct cairn__ddp_moments *m = &d->times.last;
    const struct cairn__ddp_parts last = cairn__ddp_times_last(&d->times), *sum = &d->times.sum;
    const uint64_t n = d->times.iteration ? (uint64_t)d->times.iteration : 1;
    out->iteration = d->times.iteration;
    out->forward_compute_time = (int64_t)last.forward;
    out->backward_compute_time = (int64_t)last.backward;
    out->backward_comm_time = (int64_t)last.comm;
    out->backward_compute_comm_overlap_time = (int64_t)last.overlap;
    out->backward_comm_busy_time = (int64_t)last.busy;
    out->backward_exposed_comm_time = (int64_t)last.exposed;
    out->avg_forward_compute_time = (int64_t)(sum->forward / n);
    out->avg_backward_compute_time = (int64_t)(sum->backward / n);
    out->avg_backward_comm_time = (int64_t)(sum->comm / n);
    out->avg_backward_compute_comm_overlap_time = (int64_t)(sum->overlap / n);
    out->avg_backward_comm_busy_time = (int64_t)(sum->busy / n);
    out->avg_backward_exposed_comm_time = (int64_t)(sum->exposed / n);
    out->avg_outside_time = (int64_t)(sum->outside / n);
    out->forward_compute_time_start = (int64_t)m->forward_begin;
    out->backward_compute_time_start = (int64_t)m->backward_begin;
    out->backward_compute_time_end = (int64_t)m->compute_end;
    out->backward_comm_time_start = (int64_t)m->comm_begin;
    out->backward_comm_time_end = (int64_t)m->comm_end;
}

cairn_status ddp_get_logging_data(ddp_context *ddp, struct ddp_logging_data *out) {
    REQUIRE(ddp && out, CAIRN_EINVAL, "ddp_get_logging_data: ddp and out must be set");
    const size_t room = out->struct_size;
    REQUIRE(room >= sizeof(room) && room <= 65536, CAIRN_EINVAL,
            "ddp_get_logging_data: struct_size is %zu; begin with DDP_LOGGING_DATA_INIT", room);
    struct ddp_logging_data told = DDP_LOGGING_DATA_INIT;
    cairn_status st = CAIRN_OK;
    TRY(tell_all(ddp));
    fill_facts(ddp, &told);
    told.bucket_sizes = text_of(&ddp->log.bucket_sizes);
    told.has_rebuilt_buckets = ddp->rebuilt;
    told.rebuilt_bucket_sizes = text_of(&ddp->log.rebuilt_bucket_sizes);
    told.rebuilt_per_bucket_param_indices = text_of(&ddp->log.param_indices);
    told.prev_iteration_grad_ready_order_indices = text_of(&ddp->log.ready_order);
    fill_times(ddp, &told);
    told.struct_size = room < sizeof(told) ? room : sizeof(told); /* the size that the caller was compiled with */
    memcpy(out, &told, told.struct_size);
out:
    return st;
}

/* ---- the table ---- */

enum kind { TEXT, NUMBER };

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
};

#define TEXT_FIELD(name) \
    { #name, TEXT, offsetof(struct ddp_logging_data, name) }
#define NUMBER_FIELD(name) \
    { #name, NUMBER, offsetof(struct ddp_logging_data, name) }

static const struct field fields[] = {
    TEXT_FIELD(module_name),
    TEXT_FIELD(backend_name),
    TEXT_FIELD(comm_hook),
    TEXT_FIELD(dtypes),
    TEXT_FIELD(torch_distributed_debug),
    NUMBER_FIELD(world_size),
    NUMBER_FIELD(rank),
    NUMBER_FIELD(num_parameter_tensors),
    NUMBER_FIELD(total_parameter_size_bytes),
    NUMBER_FIELD(bucket_cap_bytes),
    NUMBER_FIELD(first_bucket_cap_bytes),
    NUMBER_FIELD(broadcast_buffers),
    NUMBER_FIELD(find_unused_parameters),
    NUMBER_FIELD(gradient_as_bucket_view),
    NUMBER_FIELD(static_graph),
    TEXT_FIELD(bucket_sizes),
    NUMBER_FIELD(has_rebuilt_buckets),
    TEXT_FIELD(rebuilt_bucket_sizes),
    TEXT_FIELD(rebuilt_per_bucket_param_indices),
    TEXT_FIELD(prev_iteration_grad_ready_order_indices),
    NUMBER_FIELD(iteration),
    NUMBER_FIELD(unused_parameter_size),
    NUMBER_FIELD(forward_compute_time),
    NUMBER_FIELD(backward_compute_time),
    NUMBER_FIELD(backward_comm_time),
    NUMBER_FIELD(backward_compute_comm_overlap_time),
    NUMBER_FIELD(avg_forward_compute_time),
    NUMBER_FIELD(avg_backward_compute_time),
    NUMBER_FIELD(avg_backward_comm_time),
    NUMBER_FIELD(avg_backward_compute_comm_overlap_time),
    NUMBER_FIELD(forward_compute_time_start),
    NUMBER_FIELD(backward_compute_time_start),
    NUMBER_FIELD(backward_compute_time_end),
    NUMBER_FIELD(backward_comm_time_start),
    NUMBER_FIELD(backward_comm_time_end),
    NUMBER_FIELD(backward_comm_busy_time),
    NUMBER_FIELD(avg_backward_comm_busy_time),
    NUMBER_FIELD(backward_exposed_comm_time),
    NUMBER_FIELD(avg_backward_exposed_comm_time),
    NUMBER_FIELD(avg_outside_time),
    NUMBER_FIELD(has_error),
    TEXT_FIELD(error),
};
enum { NUM_FIELDS = sizeof(fields) / sizeof(fields[0]) };

static const char *text_at(const struct ddp_logging_data *data, const struct field *f) {
    return *(const char *const *)(const void *)((const char *)data + f->offset);
}

static int64_t number_at(const struct ddp_logging_data *data, const struct field *f) {
    return *(const int64_t *)(const void *)((const char *)data + f->offset);
}

/* ---- the file ---- */

static void write_string(FILE *file, const char *text) {
    fputc('"', file);
    for (size_t length; *text; text += length) {
        const uint32_t c = cairn__utf8_decode(text, &length);
        /* Bytes of a name that are not UTF-8 become U+FFFD: JSON readers refuse them. */
        if (c == '"' || c == '\\') fprintf(file, "\\%c", *text);
        else if (c < 0x20 || c == CAIRN__NO_CHARACTER) fprintf(file, "\\u%04x", c);
        else fwrite(text, 1, length, file);
    }
    fputc('"', file);
}

static bool write_file(FILE *file, const struct ddp_context *d, const struct ddp_logging_data *data) {
    fprintf(file, "{\n  \"format\": \"cairn-profile\",\n  \"version\": 1,\n  \"model\": ");
    write_string(file, data->module_name);
    fprintf(file, ",\n");
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        fprintf(file, "  \"%s\": ", fields[i].name);
        if (fields[i].kind == TEXT) write_string(file, text_at(data, &fields[i]));
        else fprintf(file, "%" PRId64, number_at(data, &fields[i]));
        fprintf(file, ",\n");
    }
    /* What cairn-plan reads. */
    const struct cairn__ddp_sample median = cairn__ddp_times_median(&d->times);
    fprintf(file, "  \"forward_ns\": %" PRIu64 ",\n  \"backward_ns\": %" PRIu64 ",\n  \"optimizer_ns\": %" PRIu64 ",\n",
            median.forward, median.backward, median.outside);
    fprintf(file, "  \"parameters\": [\n");
    for (size_t s = 0; s < d->num_slots; s++) {
        const struct cairn__param *p = d->slots[s].param;
        const uint64_t ready = cairn__ddp_times_median_ready(&d->times, s);
        fprintf(file, "    {\"name\": ");
        write_string(file, p->name);
        fprintf(file, ", \"elements\": %zu, \"dtype\": \"%s\", \"wire\": \"%s\", \"ready_ns\": ", p->n,
                cairn_dtype_name(p->dtype), cairn_dtype_name(d->slots[s].wire));
        if (ready) fprintf(file, "%" PRIu64, ready);
        else fprintf(file, "null");
        fprintf(file, "}%s\n", s + 1 < d->num_slots ? "," : "");
    }
    fprintf(file, "  ]\n");
    fprintf(file, "}\n");
    const bool good = !ferror(file);
    return fclose(file) == 0 && good;
}

/* A device or a pipe, which must not be replaced by a file. */
static bool is_special(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode);
}

/* is_new: the file must not exist yet, because others may foresee its name and put a link there in a shared folder. */
static FILE *open_temporary(const char *path, bool is_new) {
    if (is_new) (void)unlink(path); /* of an earlier process with this number */
    const int fd = open(path, is_new ? O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC : O_WRONLY | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file && fd >= 0) close(fd);
    return file;
}

cairn_status ddp_write_logging_data(ddp_context *ddp, const char *path) {
    REQUIRE(ddp && path && *path, CAIRN_EINVAL, "ddp_write_logging_data: ddp and path must be set");
    struct ddp_logging_data data = DDP_LOGGING_DATA_INIT;
    struct cairn__ddp_text temporary = {0};
    FILE *file = NULL;
    cairn_status st = CAIRN_OK;
    TRY(ddp_get_logging_data(ddp, &data));
    const bool renames = !is_special(path);
    /* Other groups' first ranks, and other runs, may be writing the same file. */
    TRY(renames ? append(&temporary, "%s.%d.%ld.tmp", path, env_rank(ddp), (long)getpid())
                : append(&temporary, "%s", path));
    file = open_temporary(temporary.text, renames);
    if (!file || !write_file(file, ddp, &data) || (renames && rename(temporary.text, path) != 0)) {
        st = cairn__fail(CAIRN_ESYSTEM, "ddp_write_logging_data: '%s' could not be written: %s", path, strerror(errno));
        if (file && renames) (void)remove(temporary.text);
    }
out:
    end_text(&temporary);
    return st;
}

/* ---- by themselves ---- */

static int read_debug(void) {
    const char *word = cairn__var("TORCH_DISTRIBUTED_DEBUG");
    for (int level = OFF; word && level <= DETAIL; level++) {
        if (strcasecmp(word, debug_names[level]) == 0) return level;
    }
    if (word)
        cairn__log(CAIRN_LOG_WARNING, "TORCH_DISTRIBUTED_DEBUG='%s' is not OFF, INFO or DETAIL: it counts as OFF",
                   word);
    return OFF;
}

bool cairn__ddp_log_wants_file(void) {
    return cairn__var("CAIRN_DDP_LOG") != NULL;
}

/* The file that CAIRN_DDP_LOG names for this rank; "" = none. */
static cairn_status name_file(const struct ddp_context *d, struct cairn__ddp_text *path) {
    const char *name = cairn__var("CAIRN_DDP_LOG"), *at = name ? strstr(name, "%r") : NULL;
    if (!name || (!at && cairn_group_rank(d->channel) != 0)) return CAIRN_OK;
    return at ? append(path, "%.*s%d%s", (int)(at - name), name, env_rank(d), at + 2) : append(path, "%s", name);
}

/* A file that cannot be written is logged once. */
static void leave_file(ddp_context *d) {
    if (!d->log.path.used) return;
    d->log.left_ns = cairn__now_ns();
    if (ddp_write_logging_data(d, d->log.path.text) == CAIRN_OK) return;
    cairn__log(CAIRN_LOG_ERROR, "%s", cairn_last_error());
    clear(&d->log.path);
}

/* Many programs end without destroying anything, so the file is written during training: after iterations 1, 2, 4, 8,
 * ..., so that short runs leave one, and every second. The time this takes counts in no part of an iteration. */
static void leave_file_if_due(ddp_context *d) {
    const uint64_t n = (uint64_t)d->times.iteration;
    if (!d->log.path.used) return;
    if ((n & (n - 1)) != 0 && cairn__now_ns() - d->log.left_ns < UINT64_C(1000000000)) return;
    if (is_special(d->log.path.text)) return;
    leave_file(d);
    d->times.last.settled = cairn__now_ns();
}

static void log_facts(ddp_context *d) {
    struct ddp_logging_data data = DDP_LOGGING_DATA_INIT;
    struct cairn__ddp_text line = {0};
    cairn_status st = CAIRN_OK;
    TRY(ddp_get_logging_data(d, &data));
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (strstr(f->name, "_time")) continue; /* nothing has been measured */
        TRY(f->kind == TEXT ? append(&line, "%s%s: %s", comma(&line), f->name, text_at(&data, f))
                            : append(&line, "%s%s: %" PRId64, comma(&line), f->name, number_at(&data, f)));
    }
    cairn__log(CAIRN_LOG_NOTICE, "%s: %s", d->call, line.text);
out:
    end_text(&line);
}

void cairn__ddp_log_made(ddp_context *d) {
    d->log.debug = read_debug();
    (void)tell_sizes(d, &d->log.bucket_sizes); /* without memory it stays short */
    if (name_file(d, &d->log.path) != CAIRN_OK) cairn__log(CAIRN_LOG_ERROR, "%s", cairn_last_error());
    if (d->log.debug >= INFO) log_facts(d);
}

void cairn__ddp_log_settled(ddp_context *d) {
    const struct cairn__ddp_parts *sum = &d->times.sum;
    const double n = 1e6 * (double)d->times.iteration;                      /* to ms */
    if (d->times.iteration == 1) (void)tell_sizes(d, &d->log.bucket_sizes); /* a hook may have changed what travels */
    leave_file_if_due(d);
    /* torch: kDDPRuntimeLoggingSampleRate */
    if (d->log.debug < DETAIL || (d->times.iteration > 10 && d->times.iteration % 100 != 0)) return;
    cairn__log(CAIRN_LOG_NOTICE,
               "ddp: iteration %" PRId64
               ", rank %d of %d, averages in ms: forward compute %.3f, backward compute %.3f, backward "
               "comm. %.3f, comm./compute overlap %.3f, exposed comm. %.3f",
               d->times.iteration, cairn_group_rank(d->channel), cairn_group_size(d->channel), (double)sum->forward / n,
               (double)sum->backward / n, (double)sum->comm / n, (double)sum->overlap / n, (double)sum->exposed / n);
}

void cairn__ddp_log_end(ddp_context *d) {
    struct cairn__ddp_text *const texts[] = {&d->log.module_name,   &d->log.dtypes,
                                             &d->log.bucket_sizes,  &d->log.rebuilt_bucket_sizes,
                                             &d->log.param_indices, &d->log.ready_order,
                                             &d->log.error,         &d->log.path};
    if (d->times.iteration > 0) leave_file(d);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) end_text(texts[i]);
}
