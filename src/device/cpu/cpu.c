/* The CPU as a device: memory is the process's, every call is synchronous, and kernels are chosen for this
 * processor. */
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/status.h"
#include "device/cpu/engine.h"
#include "device/cpu/state.h"
#include "kernels/kernels.h"

/* ---- opening ---- */

static void cpu_close(struct cairn_device *d) {
    struct cairn__cpu *cpu = d->state;
    if (!cpu) return;
    cairn__engine_close(&cpu->engine);
    for (int i = 0; i < CAIRN__LANES; i++) cairn__engine_close(&cpu->lanes[i]);
    cairn__free(cpu->a.data);
    cairn__free(cpu->b.data);
    cairn__free(cpu->c.data);
    cairn__free(cpu->row.data);
    for (int i = 0; i < CAIRN__MAP_INPUTS; i++) cairn__free(cpu->dense[i].data);
    cairn__free(cpu->attention.data);
    cairn__free(cpu);
    d->state = NULL;
}

static cairn_status cpu_open(struct cairn_device *d, int ordinal) {
    (void)ordinal; /* every rank of a host shares the one CPU */
    cairn_status st = CAIRN_OK;
    unsigned features = cairn__cpu_features();
    struct cairn__cpu *cpu = NULL;
    TRY(cairn__calloc(1, sizeof(*cpu), (void **)&cpu));
    d->state = cpu;
    d->passes = &cairn__cpu_passes;
    d->math = &cairn__cpu_math;
    cpu->kernels = cairn__kernels_cpu(features);
    TRY(cairn__engine_open(features, &cpu->engine));
    return CAIRN_OK;
out:
    cpu_close(d);
    return st;
}

/* Written at each call, because the number of threads may have changed. */
static const char *cpu_describe(const struct cairn_device *d) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    snprintf(cpu->text, sizeof(cpu->text), "%s, %s", cairn__cpu_level_name(cairn__cpu_features()),
             cairn__engine_describe(cpu->engine));
    return cpu->text;
}

/* ---- memory ---- */

static cairn_status cpu_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    (void)d, (void)holder;
    return cairn__alloc(nbytes, out);
}

static cairn_status cpu_alloc_pinned(struct cairn_device *d, size_t nbytes, void **out) {
    (void)d;
    return cairn__calloc(1, nbytes, out);
}

static void cpu_free(struct cairn_device *d, void *p) {
    (void)d;
    cairn__free(p);
}

static cairn_status cpu_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes) {
    (void)d;
    memcpy(dst, src, nbytes);
    return CAIRN_OK;
}

static cairn_status cpu_check(struct cairn_device *d) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const cairn_status failed = cpu->failed;
    cpu->failed = CAIRN_OK;
    return failed == CAIRN_OK ? CAIRN_OK : cairn__fail(failed, "%s", cpu->failure);
}

/* The result of a failed pass cannot be read. */
static cairn_status cpu_download(struct cairn_device *d, void *host, const void *src, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(cpu_check(d));
    TRY(cpu_copy(d, host, src, nbytes));
out:
    return st;
}

const struct cairn__device_ops cairn__cpu_ops = {
    .size = sizeof(struct cairn__device_ops),
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_pinned = cpu_alloc_pinned,
    .free_pinned = cpu_free,
    .copy = cpu_copy,
    .upload = cpu_copy,
    .download = cpu_download,
    .synchronize = cpu_check,
    .check = cpu_check,
    .matmul = cairn__cpu_matmul,
    .describe = cpu_describe,
};
