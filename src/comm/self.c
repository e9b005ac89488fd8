/* The group of a single rank, on any device: a sum or an average over one rank is a copy. */
#include <string.h>

#include "comm/group_backend.h"
#include "core/alloc.h"
#include "core/status.h"

struct self {
    void **blocks; /* group memory handed out */
    size_t count, capacity;
};

static cairn_status create(cairn_group *group, const struct cairn__group_create_options *options,
                           struct cairn__peers *peers) {
    (void)peers;
    REQUIRE(options->device, CAIRN_EINVAL, "a group of one rank needs a device");
    return cairn__calloc(1, sizeof(struct self), &group->impl);
}

static cairn_status derive(cairn_group *group, cairn_group *parent) {
    (void)parent;
    return cairn__calloc(1, sizeof(struct self), &group->impl);
}

static void destroy(cairn_group *group) {
    struct self *self = group->impl;
    if (!self) return;
    for (size_t i = 0; i < self->count; i++) cairn__device_free(group->device, self->blocks[i]);
    cairn__free(self->blocks);
    cairn__free(self);
}

static cairn_status alloc(cairn_group *group, size_t nbytes, void **out) {
    cairn_status st = CAIRN_OK;
    struct self *self = group->impl;
    const size_t words = nbytes / sizeof(float) + 1;
    void *p = NULL;
    TRY(cairn__grow((void **)&self->blocks, &self->capacity, self->count + 1, sizeof(self->blocks[0])));
    TRY(cairn__device_alloc(group->device, CAIRN__HOLDS_GRADS, words * sizeof(float), &p));
    group->device->passes->fill(group->device, CAIRN_F32, p, words, 0.0f);
    self->blocks[self->count++] = p;
    *out = p;
out:
    return st;
}

static cairn_status release(cairn_group *group, void *memory) {
    struct self *self = group->impl;
    for (size_t i = 0; i < self->count; i++) {
        if (self->blocks[i] != memory) continue;
        cairn__device_free(group->device, memory);
        self->blocks[i] = self->blocks[--self->count];
        return CAIRN_OK;
    }
    return cairn__fail(CAIRN_EINVAL, "cairn_group_free: %p is not memory of this group", memory);
}

/* With one rank the result of every collective is its source. */
static cairn_status post(cairn_group *group, cairn_work *work) {
    const struct cairn__request *r = &work->request;
    const size_t nbytes = r->call.n * cairn_dtype_nbytes((cairn_dtype)r->call.dtype);
    const bool copies = r->dst && r->src && r->dst != r->src && nbytes > 0;
    cairn_status st = copies ? cairn__device_copy(group->device, r->dst, r->src, nbytes) : CAIRN_OK;
    if (st == CAIRN_OK) cairn__work_complete(work, r->found);
    return st;
}

static cairn_status exchange(cairn_group *group, void *all, const void *mine, size_t nbytes) {
    (void)group;
    if (nbytes > 0) memcpy(all, mine, nbytes);
    return CAIRN_OK;
}

static cairn_status progress(cairn_group *group) {
    (void)group;
    return CAIRN_OK;
}

static cairn_status wait(cairn_group *group, cairn_work *work) {
    (void)group, (void)work;
    return CAIRN_OK;
}

static void give_up(cairn_group *group, const char *cause) {
    (void)group, (void)cause;
}

const struct cairn__group_backend cairn__group_self = {
    .name = "self",
    .create = create,
    .derive = derive,
    .destroy = destroy,
    .alloc = alloc,
    .free = release,
    .post = post,
    .progress = progress,
    .wait = wait,
    .give_up = give_up,
    .exchange = exchange,
};
