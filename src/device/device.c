/* The front: finds a backend by name, and validates arguments so that backends need not. */
#include "device/device.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "device/cpu/cpu.h"
#include "device/module.h"

static const struct backend {
    const char *name;
    const struct cairn__device_ops *ops; /* NULL = in a module of that name */
    bool numbered;                       /* "name:1" is its second device; "name" has the local rank's number */
} backends[] = {
    {"cpu", &cairn__cpu_ops, false},
    {"cuda", NULL, true},
};
enum { NUM_BACKENDS = sizeof(backends) / sizeof(backends[0]) };

/* ---- opening ---- */

/* Reads both tables as arrays of function pointers, which covers slots added later. */
typedef void (*slot)(void);

static bool is_filled(const void *first_slot, size_t nbytes) {
    for (size_t i = 0; i < nbytes / sizeof(slot); i++) {
        slot s;
        memcpy(&s, (const char *)first_slot + i * sizeof(s), sizeof(s));
        if (!s) return false;
    }
    return true;
}

static cairn_status check_ops(const struct cairn__device_ops *ops) {
    const size_t first = offsetof(struct cairn__device_ops, open);
    REQUIRE(ops->size == sizeof(*ops), CAIRN_EINTERNAL, "device '%s' has a table of %zu bytes, want %zu", ops->name,
            ops->size, sizeof(*ops));
    REQUIRE(ops->name &&
                is_filled((const char *)ops + first, offsetof(struct cairn__device_ops, capture_begin) - first),
            CAIRN_EINTERNAL, "device '%s' leaves a required slot empty", ops->name);
    const int graph = !!ops->capture_begin + !!ops->capture_end + !!ops->graph_launch + !!ops->graph_free;
    REQUIRE(graph == 0 || graph == 4, CAIRN_EINTERNAL, "device '%s' fills %d of the 4 slots for graphs", ops->name,
            graph);
    REQUIRE(!ops->stream == !ops->set_stream, CAIRN_EINTERNAL, "device '%s' fills one of the 2 slots for streams",
            ops->name);
    const int several = !!ops->count + !!ops->connect + !!ops->wait_for;
    REQUIRE(several == 0 || several == 3, CAIRN_EINTERNAL, "device '%s' fills %d of the 3 slots for several devices",
            ops->name, several);
    return CAIRN_OK;
}

static cairn_status find_backend(const char *name, int local_rank, const struct backend **out, int *ordinal) {
    const size_t length = strcspn(name, ":");
    for (int i = 0; i < NUM_BACKENDS; i++) {
        const struct backend *b = &backends[i];
        if (strlen(b->name) != length || strncmp(name, b->name, length) != 0) continue;
        *out = b;
        *ordinal = local_rank;
        if (!name[length]) return CAIRN_OK;
        REQUIRE(b->numbered, CAIRN_EINVAL, "device '%s': there is one %s, which takes no number", name, b->name);
        const char *digits = name + length + 1;
        errno = 0;
        const long number = strtol(digits, NULL, 10);
        REQUIRE(digits[0] && digits[strspn(digits, "0123456789")] == '\0' && errno == 0 && number <= INT_MAX,
                CAIRN_EINVAL, "device '%s': a number from 0 on must follow the colon", name);
        *ordinal = (int)number;
        return CAIRN_OK;
    }
    return cairn__fail(CAIRN_EINVAL, "no device is called '%s'; there are cpu, cuda, cuda:N and auto", name);
}

static cairn_status open_on(const struct cairn__device_ops *ops, int ordinal, struct cairn_device **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = NULL;
    TRY(check_ops(ops));
    TRY(cairn__calloc(1, sizeof(*d), (void **)&d));
    d->ordinal = ordinal;
    TRY(ops->open(d, ordinal));
    d->ops = ops; /* from here on cairn__device_close calls its close */
    if (!d->passes || !is_filled(d->passes, sizeof(*d->passes))) {
        TRY(cairn__fail(CAIRN_EINTERNAL, "device '%s' leaves a pass out", ops->name));
    }
    *out = d;
    return CAIRN_OK;
out:
    cairn__device_close(&d);
    return st;
}

static atomic_bool gpu_was_open;

bool cairn__device_gpu_was_open(void) {
    return atomic_load(&gpu_was_open);
}

static const struct cairn__module_use module_use = {"device", "\"cpu\"", sizeof(struct cairn__device_ops)};

static cairn_status open_named(const char *name, int local_rank, struct cairn_device **out) {
    cairn_status st = CAIRN_OK;
    const struct backend *backend = NULL;
    const void *ops = NULL;
    int ordinal = 0;
    TRY(find_backend(name, local_rank, &backend, &ordinal));
    ops = backend->ops;
    if (!ops) TRY(cairn__module_open(&module_use, backend->name, &ops));
    TRY(open_on(ops, ordinal, out));
    if (backend->numbered) atomic_store(&gpu_was_open, true);
out:
    return st;
}

cairn_status cairn__device_open(const char *name, int local_rank, struct cairn_device **out) {
    if (strcmp(name, "auto") != 0) return open_named(name, local_rank, out);
    if (open_named("cuda", local_rank, out) == CAIRN_OK) return CAIRN_OK;
    cairn__log(CAIRN_LOG_NOTICE, "computing on the CPU: %s", cairn_last_error());
    return open_named("cpu", local_rank, out);
}

void cairn__device_close(struct cairn_device **device) {
    if (!device || !*device) return;
    if ((*device)->ops) (*device)->ops->close(*device);
    cairn__free(*device);
    *device = NULL;
}

/* ---- the checked calls ---- */

cairn_status cairn__device_refuse_recording(struct cairn_device *d, const char *advice) {
    if (!d->capturing) return CAIRN_OK;
    const cairn_status st = cairn__fail(CAIRN_ESTATE, "a graph is being recorded on %s: %s", d->ops->name, advice);
    if (!d->refusal[0]) snprintf(d->refusal, sizeof(d->refusal), "%s", cairn_last_error());
    return st;
}

cairn_status cairn__device_note_recorded(struct cairn_device *d, struct cairn__recorded *recorded) {
    struct cairn__recorded_list *list = d->recorded;
    cairn_status st = CAIRN_OK;
    if (!list) return CAIRN_OK;
    for (size_t i = 0; i < list->count; i++) {
        if (list->all[i] == recorded) return CAIRN_OK;
    }
    TRY(cairn__grow((void **)&list->all, &list->capacity, list->count + 1, sizeof(*list->all)));
    list->all[list->count++] = recorded;
    recorded->graphs++;
    return CAIRN_OK;
out:
    if (!d->refusal[0]) snprintf(d->refusal, sizeof(d->refusal), "%s", cairn_last_error());
    return st;
}

static const char *const NO_ALLOC =
    "the step allocates memory, which a recorded one may not; make tensors, modules and "
    "optimizers before it, and begin it with cairn_zero_grad";
static const char *const NO_UPLOAD = "replays would not repeat this write of the host; write between replays";
static const char *const NO_DOWNLOAD = "there is no result to read yet; read it between replays";
static const char *const NO_WAIT = "there is no queued work to wait for; synchronize between replays";

cairn_status cairn__device_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(d, NO_ALLOC));
    TRY(d->ops->alloc(d, holder, nbytes, out));
out:
    return st;
}

void cairn__device_free(struct cairn_device *d, void *p) {
    if (p) d->ops->free(d, p);
}

cairn_status cairn__device_alloc_pinned(struct cairn_device *d, size_t nbytes, void **out) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(d, NO_ALLOC));
    TRY(d->ops->alloc_pinned(d, nbytes, out));
out:
    return st;
}

void cairn__device_free_pinned(struct cairn_device *d, void *p) {
    if (p && d->capturing) {
        cairn__log(CAIRN_LOG_ERROR, "pinned memory was freed while a graph is recorded on %s, so it is kept",
                   d->ops->name);
    } else if (p) {
        d->ops->free_pinned(d, p);
    }
}

cairn_status cairn__device_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes) {
    return nbytes == 0 || dst == src ? CAIRN_OK : d->ops->copy(d, dst, src, nbytes);
}

cairn_status cairn__device_upload(struct cairn_device *d, void *dst, const void *host, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(d, NO_UPLOAD));
    if (nbytes > 0) TRY(d->ops->upload(d, dst, host, nbytes));
out:
    return st;
}

cairn_status cairn__device_upload_pinned(struct cairn_device *d, void *dst, const void *host, size_t nbytes,
                                         uint64_t *ticket) {
    cairn_status st = CAIRN_OK;
    *ticket = 0;
    if (!d->ops->upload_pinned) return cairn__device_upload(d, dst, host, nbytes);
    TRY(cairn__device_refuse_recording(d, NO_UPLOAD));
    if (nbytes > 0) TRY(d->ops->upload_pinned(d, dst, host, nbytes, ticket));
out:
    return st;
}

cairn_status cairn__device_wait_upload(struct cairn_device *d, uint64_t ticket) {
    cairn_status st = CAIRN_OK;
    if (ticket == 0) return CAIRN_OK;
    TRY(cairn__device_refuse_recording(d, NO_WAIT));
    TRY(d->ops->wait_upload(d, ticket));
out:
    return st;
}

cairn_status cairn__device_download(struct cairn_device *d, void *host, const void *src, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(d, NO_DOWNLOAD));
    if (nbytes > 0) TRY(d->ops->download(d, host, src, nbytes));
out:
    return st;
}

cairn_status cairn__device_synchronize(struct cairn_device *d) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(d, NO_WAIT));
    TRY(d->ops->synchronize(d));
out:
    return st;
}

int cairn__device_count(struct cairn_device *d) {
    return d->ops->count ? d->ops->count(d) : 1;
}

void cairn__device_connect(struct cairn_device *d, const struct cairn_device *other) {
    if (d->ops->connect) d->ops->connect(d, other);
}

cairn_status cairn__device_wait_for(struct cairn_device *d, struct cairn_device *other) {
    return d->ops->wait_for ? d->ops->wait_for(d, other) : CAIRN_OK;
}

cairn_status cairn__device_check(struct cairn_device *d) {
    return d->ops->check(d);
}

bool cairn__device_reaches(struct cairn_device *d, const void *p) {
    return !d->ops->reaches || d->ops->reaches(d, p);
}

cairn_status cairn__device_matmul(struct cairn_device *d, const struct cairn__matmul *p) {
    REQUIRE(p->m >= 0 && p->n >= 0 && p->k >= 0, CAIRN_EINVAL, "product of sizes m %lld, n %lld, k %lld",
            (long long)p->m, (long long)p->n, (long long)p->k);
    REQUIRE(p->in_type == CAIRN_F32 || cairn__is_half(p->in_type), CAIRN_EINVAL,
            "product of %s; f32, f16 and bf16 are known", cairn_dtype_name(p->in_type));
    REQUIRE(p->out_type == CAIRN_F32 || p->out_type == p->in_type, CAIRN_EINVAL,
            "product of %s into %s; f32 and the operands' type are known", cairn_dtype_name(p->in_type),
            cairn_dtype_name(p->out_type));
    if (p->m == 0 || p->n == 0) return CAIRN_OK;
    return d->ops->matmul(d, p);
}

/* ---- the public getters ---- */

const char *cairn_device_name(const cairn_device *device) {
    return device ? device->ops->name : "none";
}

const char *cairn_device_describe(const cairn_device *device) {
    return device ? device->ops->describe(device) : "none";
}
