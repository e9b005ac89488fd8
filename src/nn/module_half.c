/* Conversion of a module's buffers to a half type. */
#include "core/dtype.h"
#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

static bool becomes_half(const cairn_tensor *t) {
    return t->dtype == CAIRN_F32 && !t->keeps_type;
}

static cairn_status make(cairn_module *m, cairn_dtype half) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < m->num_buffers; i++) {
        struct cairn__module_buffer *b = &m->buffers[i];
        if (!becomes_half(b->tensor)) continue;
        TRY(cairn__device_alloc(m->env->device, CAIRN__HOLDS_TENSORS, b->tensor->n * cairn_dtype_nbytes(half),
                                &b->half));
    }
    for (size_t i = 0; i < m->num_children; i++) TRY(make(m->children[i], half));
out:
    return st;
}

cairn_status cairn__module_make_half_buffers(cairn_module *m, cairn_dtype half) {
    cairn_status st = make(m, half);
    if (st != CAIRN_OK) cairn__module_drop_half_buffers(m);
    return st;
}

void cairn__module_drop_half_buffers(cairn_module *m) {
    for (size_t i = 0; i < m->num_buffers; i++) {
        cairn__device_free(m->env->device, m->buffers[i].half);
        m->buffers[i].half = NULL;
    }
    for (size_t i = 0; i < m->num_children; i++) cairn__module_drop_half_buffers(m->children[i]);
}

static void use(cairn_module *m, cairn_dtype half) {
    struct cairn_device *d = m->env->device;
    for (size_t i = 0; i < m->num_buffers; i++) {
        struct cairn__module_buffer *b = &m->buffers[i];
        cairn_tensor *t = b->tensor;
        if (!becomes_half(t)) continue;
        cairn__pass_cast(d->passes, d, b->half, half, t->data, t->dtype, t->n);
        cairn__device_free(d, t->data);
        t->data = b->half;
        t->dtype = half;
        b->half = NULL;
    }
    for (size_t i = 0; i < m->num_children; i++) use(m->children[i], half);
}

void cairn__module_use_half_buffers(cairn_module *m, cairn_dtype half) {
    use(m, half);
    m->env->begin_step(m->env);
}

cairn_status cairn_buffer_keep_type(cairn_tensor *buffer) {
    if (!buffer && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    REQUIRE(buffer && buffer->is_buffer, CAIRN_EINVAL, "buffer_keep_type: the tensor is %s",
            buffer ? "not a module's buffer" : "NULL");
    REQUIRE(buffer->dtype == buffer->added_as, CAIRN_ESTATE,
            "buffer_keep_type: amp_initialize has made the buffer %s already; call it before",
            cairn_dtype_name(buffer->dtype));
    buffer->keeps_type = true;
    return CAIRN_OK;
}
