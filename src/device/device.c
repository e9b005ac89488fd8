/* The front: finds a backend by name, and checks what callers hand over so that backends need not. */
#include "device/device.h"

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "device/cpu/cpu.h"

/* Every name a user may type; one that this build lacks names the option that was off. */
static const struct {
    const char *name;
    const struct cairn__device_ops *ops;
    const char *option;
} backends[] = {
    {"cpu", &cairn__cpu_ops, NULL},
    {"cuda", NULL, "cuda"},
};
enum { NUM_BACKENDS = sizeof(backends) / sizeof(backends[0]) };

static bool is_complete(const struct cairn__device_ops *ops) {
    return ops->size == sizeof(*ops) && ops->name && ops->open && ops->close && ops->alloc && ops->free && ops->copy &&
           ops->kernels && ops->matmul && ops->describe;
}

static cairn_status find_backend(const char *name, const struct cairn__device_ops **out) {
    for (int i = 0; i < NUM_BACKENDS; i++) {
        if (strcmp(name, backends[i].name) != 0) continue;
        REQUIRE(backends[i].ops, CAIRN_ENOTBUILT,
                "device '%s' is not in this build of Cairn (meson option '%s'); use \"cpu\"", name, backends[i].option);
        REQUIRE(is_complete(backends[i].ops), CAIRN_EINTERNAL, "device '%s' leaves a required slot empty", name);
        *out = backends[i].ops;
        return CAIRN_OK;
    }
    return cairn__fail(CAIRN_EINVAL, "no device is called '%s'; there are cpu and cuda", name);
}

cairn_status cairn__device_open(const char *name, int ordinal, struct cairn_device **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = NULL;
    const struct cairn__device_ops *ops = NULL;
    TRY(find_backend(name, &ops));
    TRY(cairn__calloc(1, sizeof(*d), (void **)&d));
    d->ordinal = ordinal;
    TRY(ops->open(d, ordinal));
    d->ops = ops; /* from here on close has something to close */
    d->kernels = ops->kernels(d);
    *out = d;
    return CAIRN_OK;
out:
    cairn__device_close(&d);
    return st;
}

void cairn__device_close(struct cairn_device **device) {
    if (!device || !*device) return;
    if ((*device)->ops) (*device)->ops->close(*device);
    cairn__free(*device);
    *device = NULL;
}

cairn_status cairn__device_alloc(struct cairn_device *d, size_t nbytes, void **out) {
    return d->ops->alloc(d, nbytes, out);
}

void cairn__device_free(struct cairn_device *d, void *p) {
    if (p) d->ops->free(d, p);
}

cairn_status cairn__device_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes) {
    return nbytes == 0 || dst == src ? CAIRN_OK : d->ops->copy(d, dst, src, nbytes);
}

cairn_status cairn__device_matmul(struct cairn_device *d, const struct cairn__matmul *p) {
    REQUIRE(p->m >= 0 && p->n >= 0 && p->k >= 0, CAIRN_EINVAL, "product of sizes m %lld, n %lld, k %lld",
            (long long)p->m, (long long)p->n, (long long)p->k);
    REQUIRE(p->in_type == CAIRN_F32 || cairn__is_half(p->in_type), CAIRN_EINVAL,
            "product of %s; f32, f16 and bf16 are known", cairn_dtype_name(p->in_type));
    if (p->m == 0 || p->n == 0) return CAIRN_OK;
    return d->ops->matmul(d, p);
}

const char *cairn_device_name(const cairn_device *device) {
    return device ? device->ops->name : "none";
}

const char *cairn_device_describe(const cairn_device *device) {
    return device ? device->ops->describe(device) : "none";
}
