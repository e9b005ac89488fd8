/* Tensors from inside. A tensor is one of three: a leaf (owned by the environment, ended by the user), the handle of a
 * parameter (owned by a module), or a result (owned by the tape, dead when its generation is over). */
#ifndef CAIRN__NN_TENSOR_H
#define CAIRN__NN_TENSOR_H

#include "nn/tape.h"

enum cairn__tensor_kind { CAIRN__LEAF = 1, CAIRN__PARAM, CAIRN__RESULT };

/* A parameter in another type, kept until its weights change. */
struct cairn__param_cast {
    void *data;
    size_t nbytes;
    cairn_dtype dtype;
    uint64_t version;
    cairn_tensor *result; /* of the generation below; a later one than data where weights changed within a step */
    uint64_t result_version;
    uint64_t generation;
};

struct cairn_tensor {
    cairn_env *env;
    enum cairn__tensor_kind kind;
    struct cairn__tape *tape; /* a result's, and the generation it lives in */
    uint64_t generation;
    cairn_dtype dtype; /* a parameter's changes: read it by cairn__tensor_dtype */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    size_t n;
    void *data; /* likewise: cairn__tensor_data */
    bool wants_grad;
    const struct cairn__loss_scale *loss_scale; /* of a result: what a loss in it was multiplied by; NULL = none was */

    struct cairn__node *node; /* that made it; NULL for leaves, and for results that want no gradient */

    float *grad;         /* a leaf's, in device memory */
    bool has_grad;       /* it holds something */
    cairn_tensor **link; /* what points to this leaf in the list */
    cairn_tensor *next;  /* leaf */

    struct cairn__param *param;
    struct cairn__param_cast cast;

    /* One backward's state; see backward.c. */
    uint64_t reached;
    int uses, arrived;
    void *sum;
};

static inline cairn_dtype cairn__tensor_dtype(const cairn_tensor *t) {
    return t->param ? t->param->dtype : t->dtype;
}

static inline void *cairn__tensor_data(const cairn_tensor *t) {
    return t->param ? t->param->data : t->data;
}

/* A result that is on another tape than the one of the step now running is not. */
static inline bool cairn__is_at_hand(const cairn_tensor *t) {
    return t->kind != CAIRN__RESULT || t->tape == t->env->tape;
}

/* A handle for p, owned by the caller, ended by cairn__tensor_of_param_destroy. */
cairn_status cairn__tensor_of_param(struct cairn__param *p, cairn_tensor **out);
void cairn__tensor_of_param_destroy(cairn_tensor **t);

/* CAIRN_ESTATE, naming what, for a result whose step is over. */
cairn_status cairn__tensor_check(const cairn_tensor *t, const char *what);

/* "[64, 1024]" into text, which is returned. */
enum { CAIRN__SHAPE_TEXT = CAIRN_MAX_DIMS * 22 + 3 };
const char *cairn__shape_text(const cairn_tensor *t, char text[CAIRN__SHAPE_TEXT]);

bool cairn__same_shape(const cairn_tensor *a, const cairn_tensor *b);

#endif
