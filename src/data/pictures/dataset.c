/* The pictures of a folder as a dataset. */
#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "data/pictures/picture.h"

struct pictures {
    const cairn_picture_folder *folder;
    struct cairn_picture_transform transform;
    size_t nbytes;
    int64_t shape[3];
};

static cairn_status read_example(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    const struct pictures *p = self;
    cairn_picture *picture = NULL;
    void *values;
    cairn_status st = CAIRN_OK;
    TRY(cairn_picture_folder_read(p->folder, index, &picture));
    TRY(cairn_fields_add(example, p->transform.dtype, 3, p->shape, &values));
    TRY(cairn_picture_apply(picture, &p->transform, random, values, p->nbytes));
    TRY(cairn_fields_add_i64(example, cairn_picture_folder_class(p->folder, index)));
out:
    cairn_picture_destroy(&picture);
    return st;
}

static void destroy(void *self) {
    cairn__free(self);
}

cairn_status cairn_picture_dataset_create(const cairn_picture_folder *folder,
                                          const struct cairn_picture_transform *transform, cairn_dataset **out) {
    cairn_status st = CAIRN_OK;
    struct pictures *p = NULL;
    REQUIRE(folder && out, CAIRN_EINVAL, "cairn_picture_dataset_create: folder and out must be set");
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    TRY(cairn__picture_read_transform(transform, &p->transform));
    TRY(p->transform.dtype == CAIRN_F32
            ? CAIRN_OK
            : cairn__fail(CAIRN_EINVAL, "cairn_picture_dataset_create: dtype is u8, of which there are no tensors; "
                                        "use f32"));
    p->folder = folder;
    p->nbytes = cairn_picture_transform_nbytes(&p->transform);
    p->shape[0] = 3, p->shape[1] = p->shape[2] = p->transform.size;
    TRY(cairn_dataset_create(p, cairn_picture_folder_count(folder),
                             cairn_dataset_functions(.read = read_example, .destroy = destroy), out));
    return CAIRN_OK;
out:
    cairn__free(p);
    return st;
}
