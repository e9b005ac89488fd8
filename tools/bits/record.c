/* The wrapped calls and the record.
 *
 * Moments have no getter. Therefore each optimizer takes last steps, from weights of 0 with a learning rate of 1,
 * before its context is destroyed: the results depend only on moments and gradient and are not rounded away beside a
 * weight. At O3 they are rounded to the half type, so that a difference in the low bits of a moment only shows once it
 * has grown over several steps.
 *
 * Arrays of up to MAX_NUMBERS elements are written as hexadecimal numbers, larger ones as hashes: one of the whole
 * array after each step, one per 64 elements at the end. With SAME_BITS_FULL=1 all are written as numbers. */
#include "record.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16, MAX_NUMBERS = 24, HASHED = 64, LAST_STEPS = 2 };

/* --wrap takes a linker's names: where a header has made an old name a macro for a new one, the new one is wrapped. */
#define PASTE(a, b)       a##b
#define PASTE_NAMES(a, b) PASTE(a, b)
#define WRAP(name)        PASTE_NAMES(__wrap_, name)
#define REAL(name)        PASTE_NAMES(__real_, name)

struct objects {
    void *at[MOST];
    int count;
};

static struct {
    const char *path;
    FILE *file;
    bool full, at_end, no_last_steps;
    int step;
    struct objects optimizers, stepped_last, sets, own_sets, modules, amps, scalers, ddps, ddps_of_sets;
} state;

/* ---- lists of the program's objects; numbers in the record are indices into them ---- */

static int place_of(const struct objects *o, const void *object) {
    for (int i = 0; i < o->count; i++) {
        if (o->at[i] == object) return i;
    }
    return -1;
}

static void add(struct objects *o, void *object) {
    if (!object || place_of(o, object) >= 0) return;
    if (o->count == MOST) {
        fprintf(stderr, "record.c: more than %d objects of a kind\n", MOST);
        exit(1);
    }
    o->at[o->count++] = object;
}

/* Removes an object; the others keep their indices. */
static void drop(struct objects *o, const void *object) {
    const int i = place_of(o, object);
    if (i >= 0) o->at[i] = NULL;
}

/* ---- writing ---- */

void record(const char *format, ...) {
    va_list arguments;
    if (!state.file) return;
    fprintf(state.file, "step %d: ", state.step);
    va_start(arguments, format);
    vfprintf(state.file, format, arguments);
    va_end(arguments);
    fputc('\n', state.file);
}

cairn_status record_status(const char *call, cairn_status status) {
    if (status != CAIRN_OK) record("%s: %s: %s", call, cairn_status_name(status), cairn_last_error());
    return status;
}

static void write_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    record("log %d: %s", (int)level, message);
}

/* FNV-1a over words of 8 bytes, with a multiplication behind it so that upper bits reach lower ones. */
static uint64_t hash_of(const unsigned char *bytes, size_t nbytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < nbytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, nbytes - i < 8 ? nbytes - i : 8);
        hash = (hash ^ word ^ hash >> 29) * 0x100000001b3u;
    }
    return (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
}

static void write_numbers(const unsigned char *data, size_t n, size_t nbytes) {
    for (size_t i = 0; i < n; i++) {
        fputc(' ', state.file);
        for (size_t b = nbytes; b-- > 0;) fprintf(state.file, "%02x", data[i * nbytes + b]);
    }
}

static void write_hashes(const unsigned char *data, size_t n, size_t nbytes, size_t each) {
    fprintf(state.file, " hashes of %zu:", each);
    for (size_t i = 0; i < n; i += each) {
        const size_t count = n - i < each ? n - i : each;
        fprintf(state.file, " %016llx", (unsigned long long)hash_of(data + i * nbytes, count * nbytes));
    }
}

static void record_array(const char *what, const char *name, cairn_dtype dtype, const void *data, size_t n) {
    const size_t nbytes = cairn_dtype_nbytes(dtype);
    if (!state.file) return;
    fprintf(state.file, "step %d: %s of %s, %zu %s:", state.step, what, name, n, cairn_dtype_name(dtype));
    if (state.full || n <= MAX_NUMBERS) {
        write_numbers(data, n, nbytes);
    } else {
        write_hashes(data, n, nbytes, state.at_end ? HASHED : n);
    }
    fputc('\n', state.file);
}

/* ---- the state of all objects ---- */

static size_t numel(const cairn_param *p) {
    size_t n = 1;
    for (int d = 0; d < p->ndim; d++) n *= (size_t)p->shape[d];
    return n;
}

void record_params(const cairn_param *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const cairn_param *p = &params[i];
        record_array("value", p->name, p->dtype, p->data, numel(p));
        if (p->grad) record_array("gradient", p->name, CAIRN_F32, p->grad, numel(p));
    }
}

static void record_set(int place, const cairn_param_set *set) {
    char what[64];
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        if (record_status("cairn_param_set_get", cairn_param_set_get(set, i, &p)) != CAIRN_OK) continue;
        const float *master = cairn_param_master(set, i);
        snprintf(what, sizeof(what), "set %d, weights", place);
        record_array(what, p.name, p.dtype, p.data, numel(&p));
        snprintf(what, sizeof(what), "set %d, master", place);
        if (master && master != p.data) record_array(what, p.name, CAIRN_F32, master, numel(&p));
    }
}

static void record_buffers(int place, const cairn_module *module) {
    char what[64];
    for (size_t i = 0; i < cairn_module_num_buffers(module); i++) {
        const char *name = NULL;
        const cairn_tensor *t = cairn_module_buffer(module, i, &name);
        const size_t n = cairn_tensor_numel(t);
        float *values = malloc(n * sizeof(*values) + 1);
        snprintf(what, sizeof(what), "module %d, %s buffer", place, cairn_dtype_name(cairn_tensor_dtype(t)));
        if (values && record_status("cairn_tensor_read", cairn_tensor_read(t, values, n)) == CAIRN_OK)
            record_array(what, name ? name : "?", CAIRN_F32, values, n);
        free(values);
    }
}

static void record_optimizer(int place, const cairn_optimizer *o) {
    record("optimizer %d: lr %a, steps %lld, skipped %lld, last one %s", place, cairn_optimizer_lr(o),
           (long long)cairn_optimizer_steps(o), (long long)cairn_optimizer_skipped(o),
           cairn_step_skipped(o) ? "skipped" : "taken");
}

static void record_overflow(amp_context *amp, cairn_optimizer *optimizer, int place) {
    struct amp_overflow found[MOST];
    size_t count = 0;
    if (amp_last_overflow(amp, optimizer, found, MOST, &count) != CAIRN_OK) return; /* another context's */
    for (size_t i = 0; i < count && i < MOST; i++) {
        record("optimizer %d overflowed: %s, %llu inf, %llu nan, micro-batch %d, rank %d", place, found[i].name,
               (unsigned long long)found[i].infs, (unsigned long long)found[i].nans, found[i].micro_batch,
               found[i].rank);
    }
}

static void record_amp(int place, amp_context *amp) {
    static char text[1 << 16];
    const int length = amp_state_dict(amp, text, sizeof(text));
    for (int i = 0; i < length; i++) text[i] = text[i] == '\n' ? ';' : text[i];
    record("amp %d: %s", place, length >= 0 ? text : cairn_last_error());
    record("amp %d: unskipped %lld", place, (long long)amp_unskipped_steps(amp));
    for (int i = 0; i < state.optimizers.count; i++) {
        if (state.optimizers.at[i]) record_overflow(amp, state.optimizers.at[i], i);
    }
}

static void record_scaler(int place, const amp_scaler *scaler) {
    struct amp_scaler_state s = AMP_SCALER_STATE_INIT;
    if (record_status("amp_scaler_get_state", amp_scaler_get_state(scaler, &s)) != CAIRN_OK) return;
    record("scaler %d: kind %d, scale %a, grown %lld, updates %lld, last overflow %lld, hysteresis %d", place,
           (int)s.kind, s.scale, (long long)s.growth_tracker, (long long)s.updates, (long long)s.last_overflow,
           s.hysteresis_left);
}

static void record_buckets(int place, ddp_context *ddp) {
    struct ddp_logging_data d = DDP_LOGGING_DATA_INIT;
    if (record_status("ddp_get_logging_data", ddp_get_logging_data(ddp, &d)) != CAIRN_OK) return;
    record("ddp %d: %s on %s, hook '%s', %s, %lld parameters of %lld bytes, buckets %s of %lld, first %lld", place,
           d.module_name, d.backend_name, d.comm_hook, d.dtypes, (long long)d.num_parameter_tensors,
           (long long)d.total_parameter_size_bytes, d.bucket_sizes, (long long)d.bucket_cap_bytes,
           (long long)d.first_bucket_cap_bytes);
    record("ddp %d: rebuilt %lld: %s with %s; ready in order %s; iterations %lld, unused %lld; error %s", place,
           (long long)d.has_rebuilt_buckets, d.rebuilt_bucket_sizes, d.rebuilt_per_bucket_param_indices,
           d.prev_iteration_grad_ready_order_indices, (long long)d.iteration, (long long)d.unused_parameter_size,
           d.error);
}

void record_state(const char *when) {
    record("%s", when);
#define EACH(kind, fn)                                 \
    for (int i = 0; i < state.kind.count; i++) {       \
        if (state.kind.at[i]) fn(i, state.kind.at[i]); \
    }
    EACH(optimizers, record_optimizer)
    EACH(amps, record_amp)
    EACH(scalers, record_scaler)
    EACH(sets, record_set)
    EACH(modules, record_buffers)
    if (!state.at_end) return;
    EACH(ddps, record_buckets)
#undef EACH
}

/* ---- last steps ---- */

void record_no_last_steps(void) {
    state.no_last_steps = true;
}

static void clear_weights(cairn_param_set *set) {
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        float *master = cairn_param_master(set, i);
        if (cairn_param_set_get(set, i, &p) != CAIRN_OK) continue;
        if (master) {
            memset(master, 0, numel(&p) * sizeof(*master));
        } else {
            memset(p.data, 0, numel(&p) * cairn_dtype_nbytes(p.dtype));
        }
        record_status("cairn_param_changed", cairn_param_changed(set, i, master != NULL));
    }
}

/* Declares gradients for a last step: modules' are those of the step before, user-owned memory is zeroed. */
static void declare_again(cairn_param_set *set) {
    cairn_param p;
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        if (place_of(&state.own_sets, set) < 0 || cairn_param_set_get(set, i, &p) != CAIRN_OK || !p.grad) continue;
        memset(p.grad, 0, numel(&p) * cairn_dtype_nbytes(p.dtype));
    }
    if (cairn_grads_ready(set, 0, cairn_param_set_count(set)) != CAIRN_OK) return;
    for (int i = 0; i < state.ddps_of_sets.count; i++) {
        ddp_context *ddp = state.ddps_of_sets.at[i];
        if (ddp) record_status("ddp_wait", ddp_wait(ddp));
    }
}

cairn_status REAL(cairn_step)(cairn_optimizer *optimizer);

static void take_last_steps(void) {
    for (int i = 0; i < state.optimizers.count; i++) {
        cairn_optimizer *optimizer = state.optimizers.at[i];
        if (!optimizer || place_of(&state.stepped_last, optimizer) >= 0) continue;
        cairn_param_set *set = cairn_optimizer_params(optimizer);
        add(&state.stepped_last, optimizer);
        if (!state.at_end) {
            state.at_end = true;
            record_state("the end");
        }
        if (state.no_last_steps) continue;
        clear_weights(set);
        record_status("cairn_optimizer_set_lr", cairn_optimizer_set_lr(optimizer, 1));
        for (int s = 0; s < LAST_STEPS; s++) {
            declare_again(set);
            record_status("last cairn_step", REAL(cairn_step)(optimizer));
            record_state("a last step, from weights of 0");
        }
    }
}

/* ---- wrapped calls: environment and optimizers ---- */

#define RETURN_WITH(list, object, call)                     \
    const cairn_status status = record_status(#call, call); \
    if (status == CAIRN_OK) add(&state.list, object);       \
    return status

cairn_status REAL(cairn_env_create)(int *argc, char ***argv, const struct cairn_env_options *options, cairn_env **out);
cairn_status WRAP(cairn_env_create)(int *argc, char ***argv, const struct cairn_env_options *options, cairn_env **out) {
    cairn_set_log(write_log, NULL);
    return record_status("cairn_env_create", REAL(cairn_env_create)(argc, argv, options, out));
}

static cairn_status made(const char *call, cairn_status status, cairn_optimizer **out) {
    if (record_status(call, status) != CAIRN_OK) return status;
    add(&state.optimizers, *out);
    add(&state.sets, cairn_optimizer_params(*out));
    return status;
}

#define WRAP_CREATE(name, options_struct)                                                                         \
    cairn_status REAL(name)(cairn_param_set * set, const struct options_struct *options, cairn_optimizer **out);  \
    cairn_status WRAP(name)(cairn_param_set * set, const struct options_struct *options, cairn_optimizer **out) { \
        return made(#name, REAL(name)(set, options, out), out);                                                   \
    }
WRAP_CREATE(cairn_sgd_create, cairn_sgd_options)
WRAP_CREATE(cairn_adam_create, cairn_adam_options)
WRAP_CREATE(cairn_adamw_create, cairn_adam_options)

#define WRAP_CREATE_OVER(name, options_struct)                                             \
    cairn_status REAL(name)(cairn_param_set * set, const size_t *indices, size_t count,    \
                            const struct options_struct *options, cairn_optimizer **out);  \
    cairn_status WRAP(name)(cairn_param_set * set, const size_t *indices, size_t count,    \
                            const struct options_struct *options, cairn_optimizer **out) { \
        return made(#name, REAL(name)(set, indices, count, options, out), out);            \
    }
WRAP_CREATE_OVER(cairn_sgd_create_over, cairn_sgd_options)
WRAP_CREATE_OVER(cairn_adam_create_over, cairn_adam_options)
WRAP_CREATE_OVER(cairn_adamw_create_over, cairn_adam_options)

cairn_status WRAP(cairn_step)(cairn_optimizer *optimizer) {
    const cairn_status status = record_status("cairn_step", REAL(cairn_step)(optimizer));
    state.step++;
    record_state("after cairn_step");
    return status;
}

void REAL(cairn_optimizer_destroy)(cairn_optimizer **optimizer);
void WRAP(cairn_optimizer_destroy)(cairn_optimizer **optimizer) {
    take_last_steps();
    if (optimizer) drop(&state.optimizers, *optimizer);
    REAL(cairn_optimizer_destroy)(optimizer);
}

void REAL(cairn_param_set_destroy)(cairn_param_set **set);
void WRAP(cairn_param_set_destroy)(cairn_param_set **set) {
    if (set) drop(&state.sets, *set);
    if (set) drop(&state.own_sets, *set);
    REAL(cairn_param_set_destroy)(set);
}

void REAL(cairn_module_destroy)(cairn_module **module);
void WRAP(cairn_module_destroy)(cairn_module **module) {
    if (module && *module) drop(&state.modules, *module);
    if (module && *module) drop(&state.sets, cairn_module_params(*module));
    REAL(cairn_module_destroy)(module);
}

/* ---- wrapped calls: amp ---- */

cairn_status REAL(amp_initialize)(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                                  const struct amp_options *options, amp_context **out);
cairn_status WRAP(amp_initialize)(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                                  const struct amp_options *options, amp_context **out) {
    add(&state.modules, model);
    RETURN_WITH(amps, *out, REAL(amp_initialize)(env, model, optimizer, options, out));
}

cairn_status REAL(amp_initialize_all)(cairn_env *env, int num_models, cairn_module *const *models, int num_optimizers,
                                      cairn_optimizer *const *optimizers, const struct amp_options *options,
                                      amp_context **out);
cairn_status WRAP(amp_initialize_all)(cairn_env *env, int num_models, cairn_module *const *models, int num_optimizers,
                                      cairn_optimizer *const *optimizers, const struct amp_options *options,
                                      amp_context **out) {
    for (int i = 0; i < num_models; i++) {
        add(&state.modules, models[i]);
        add(&state.sets, cairn_module_params(models[i]));
    }
    RETURN_WITH(amps, *out,
                REAL(amp_initialize_all)(env, num_models, models, num_optimizers, optimizers, options, out));
}

cairn_status REAL(amp_initialize_params)(cairn_env *env, cairn_param_set *set, cairn_optimizer *optimizer,
                                         const struct amp_options *options, amp_context **out);
cairn_status WRAP(amp_initialize_params)(cairn_env *env, cairn_param_set *set, cairn_optimizer *optimizer,
                                         const struct amp_options *options, amp_context **out) {
    add(&state.sets, set);
    add(&state.own_sets, set);
    RETURN_WITH(amps, *out, REAL(amp_initialize_params)(env, set, optimizer, options, out));
}

void REAL(amp_destroy)(amp_context **amp);
void WRAP(amp_destroy)(amp_context **amp) {
    take_last_steps();
    if (amp) drop(&state.amps, *amp);
    REAL(amp_destroy)(amp);
}

static void record_loss(cairn_tensor *loss) {
    const float value = loss ? cairn_tensor_item(loss) : 0;
    if (loss) record_array("loss", cairn_dtype_name(cairn_tensor_dtype(loss)), CAIRN_F32, &value, 1);
}

cairn_status REAL(amp_backward)(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer);
cairn_status WRAP(amp_backward)(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer) {
    record_loss(loss);
    return record_status("amp_backward", REAL(amp_backward)(amp, loss, optimizer));
}

cairn_status REAL(amp_backward_with)(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options);
cairn_status WRAP(amp_backward_with)(amp_context *amp, cairn_tensor *loss, const struct amp_loss_options *options) {
    record_loss(loss);
    return record_status("amp_backward_with", REAL(amp_backward_with)(amp, loss, options));
}

cairn_status REAL(cairn_backward)(cairn_tensor *loss);
cairn_status WRAP(cairn_backward)(cairn_tensor *loss) {
    record_loss(loss);
    return record_status("cairn_backward", REAL(cairn_backward)(loss));
}

cairn_status REAL(amp_end_step)(amp_context *amp);
cairn_status WRAP(amp_end_step)(amp_context *amp) {
    const cairn_status status = record_status("amp_end_step", REAL(amp_end_step)(amp));
    state.step++;
    record_state("after amp_end_step");
    return status;
}

cairn_status REAL(amp_scaler_create)(cairn_env *env, const struct amp_scaler_options *options, amp_scaler **out);
cairn_status WRAP(amp_scaler_create)(cairn_env *env, const struct amp_scaler_options *options, amp_scaler **out) {
    RETURN_WITH(scalers, *out, REAL(amp_scaler_create)(env, options, out));
}

cairn_status REAL(amp_scaler_step)(amp_scaler *scaler, cairn_optimizer *optimizer, int *stepped);
cairn_status WRAP(amp_scaler_step)(amp_scaler *scaler, cairn_optimizer *optimizer, int *stepped) {
    const cairn_status status = record_status("amp_scaler_step", REAL(amp_scaler_step)(scaler, optimizer, stepped));
    state.step++;
    record_state("after amp_scaler_step");
    return status;
}

cairn_status REAL(amp_scaler_update)(amp_scaler *scaler);
cairn_status WRAP(amp_scaler_update)(amp_scaler *scaler) {
    const cairn_status status = record_status("amp_scaler_update", REAL(amp_scaler_update)(scaler));
    record_state("after amp_scaler_update");
    return status;
}

void REAL(amp_scaler_destroy)(amp_scaler **scaler);
void WRAP(amp_scaler_destroy)(amp_scaler **scaler) {
    take_last_steps();
    if (scaler) drop(&state.scalers, *scaler);
    REAL(amp_scaler_destroy)(scaler);
}

/* ---- wrapped calls: ddp ---- */

cairn_status REAL(ddp_create)(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                              ddp_context **out);
cairn_status WRAP(ddp_create)(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                              ddp_context **out) {
    RETURN_WITH(ddps, *out, REAL(ddp_create)(model, group, options, out));
}

cairn_status REAL(ddp_reducer_create)(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                      ddp_context **out);
cairn_status WRAP(ddp_reducer_create)(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                      ddp_context **out) {
    RETURN_WITH(ddps, *out, REAL(ddp_reducer_create)(model, group, options, out));
}

cairn_status REAL(ddp_create_params)(cairn_param_set *set, cairn_group *group, const struct ddp_options *options,
                                     ddp_context **out);
cairn_status WRAP(ddp_create_params)(cairn_param_set *set, cairn_group *group, const struct ddp_options *options,
                                     ddp_context **out) {
    const cairn_status made_it = record_status("ddp_create_params", REAL(ddp_create_params)(set, group, options, out));
    if (made_it != CAIRN_OK) return made_it;
    add(&state.ddps, *out);
    add(&state.ddps_of_sets, *out);
    return made_it;
}

void REAL(ddp_destroy)(ddp_context **ddp);
void WRAP(ddp_destroy)(ddp_context **ddp) {
    take_last_steps();
    if (ddp) drop(&state.ddps, *ddp);
    if (ddp) drop(&state.ddps_of_sets, *ddp);
    REAL(ddp_destroy)(ddp);
}

/* ---- ranks ---- */

struct job {
    const char *path;
    bool alone;
    int (*fn)(int rank, void *argument);
    void *argument;
};

static FILE *open_for(const struct job *job, int rank, const char *ending, FILE *instead_of) {
    char path[4096];
    snprintf(path, sizeof(path), "%s.rank%d.%s", job->path, rank, ending);
    FILE *f = instead_of ? freopen(path, "w", instead_of) : fopen(path, "w");
    if (!f) exit(1);
    return f;
}

static int run_rank(int rank, void *argument) {
    const struct job *job = argument;
    const char *full = getenv("SAME_BITS_FULL");
    open_for(job, rank, "output", stdout);
    dup2(fileno(stdout), fileno(stderr));
    state.file = open_for(job, rank, "record", NULL);
    state.full = full && strcmp(full, "1") == 0;
    const int result = job->fn(rank, job->argument);
    fclose(state.file);
    state.file = NULL;
    return result;
}

int record_ranks(const char *path, int ranks, int (*fn)(int rank, void *argument), void *argument) {
    struct job job = {.path = path, .fn = fn, .argument = argument};
    if (ranks == 0) return run_rank(0, &job);
    const cairn_status status = cairn_spawn(run_rank, &job, ranks, cairn_spawn_options(.shutdown_timeout = 2));
    if (status != CAIRN_OK) fprintf(stderr, "%s: %s\n", path, cairn_last_error());
    return status != CAIRN_OK;
}
