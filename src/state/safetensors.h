/* Files of tensors in the safetensors format, which the Python library of that name and others read and write.
 *
 *     8 bytes       n, little-endian
 *     n bytes       JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *                   "__metadata__": {"key": "text"}}, padded with spaces, which Cairn writes up to
 *                   a multiple of 64 bytes of the file
 *     the rest      the tensors' elements, row by row and little-endian, at those offsets, without holes
 *
 * Files are untrusted: opening one checks its whole header before anything is read according to it, and every error is
 * CAIRN_EINVAL with the path and the tensor. Source: https://huggingface.co/docs/safetensors, "Format", and the limits
 * of its own library (0.4 and later). */
#ifndef CAIRN__STATE_SAFETENSORS_H
#define CAIRN__STATE_SAFETENSORS_H

#include "state/file.h"

/* Every type of the format: its name, bits of an element, and what Cairn calls it (0: Cairn has no such type). */
#define CAIRN__SAFETENSORS_TYPES(X) \
    X(F64, 64, CAIRN_F64)           \
    X(F32, 32, CAIRN_F32)           \
    X(F16, 16, CAIRN_F16)           \
    X(BF16, 16, CAIRN_BF16)         \
    X(F8_E4M3, 8, 0)                \
    X(F8_E5M2, 8, 0)                \
    X(F8_E4M3FNUZ, 8, 0)            \
    X(F8_E5M2FNUZ, 8, 0)            \
    X(F8_E8M0, 8, 0)                \
    X(F6_E2M3, 6, 0)                \
    X(F6_E3M2, 6, 0)                \
    X(F4, 4, 0)                     \
    X(C64, 64, 0)                   \
    X(I64, 64, CAIRN_I64)           \
    X(I32, 32, CAIRN_I32)           \
    X(I16, 16, 0)                   \
    X(I8, 8, 0)                     \
    X(U64, 64, 0)                   \
    X(U32, 32, 0)                   \
    X(U16, 16, 0)                   \
    X(U8, 8, CAIRN_U8)              \
    X(BOOL, 8, CAIRN_BOOL)

enum cairn__safetensors_type {
    CAIRN__SAFETENSORS_NONE,
#define CAIRN__X(name, bits, dtype) CAIRN__SAFETENSORS_##name,
    CAIRN__SAFETENSORS_TYPES(CAIRN__X)
#undef CAIRN__X
};

/* "F32"; "?" for none. */
const char *cairn__safetensors_type_name(enum cairn__safetensors_type type);

/* Convert to Cairn's type (0 = Cairn has no such type), and back. */
cairn_dtype cairn__safetensors_dtype(enum cairn__safetensors_type type);
enum cairn__safetensors_type cairn__safetensors_type(cairn_dtype dtype);

struct cairn__safetensors_tensor {
    const char *name;
    enum cairn__safetensors_type type;
    int ndim;
    const int64_t *shape;
    uint64_t nbytes; /* of its elements; set by this file's functions */
    uint64_t begin;  /* of its elements in the file; set likewise */
};

struct cairn__safetensors_text {
    const char *key, *value;
};

/* ---- writing ---- */

struct cairn__safetensors_writer;

/* Creates the file (flags: of cairn__writer_create) and writes its header. `tensors` is copied; texts and shapes are
 * used only during the call. Errors: CAIRN_EINVAL a name or text that is not UTF-8, is empty, or occurs twice, the name
 * "__metadata__", a header or a tensor that is too large; as of cairn__writer_create. */
cairn_status cairn__safetensors_create(const char *path, unsigned flags,
                                       const struct cairn__safetensors_tensor *tensors, size_t n,
                                       const struct cairn__safetensors_text *metadata, size_t num_metadata,
                                       struct cairn__safetensors_writer **out);

/* The index of the tensor whose elements must be written k-th. Tensors with larger elements come first, so that all are
 * aligned, which PyTorch's reader needs; otherwise the order is the given one. */
size_t cairn__safetensors_nth(const struct cairn__safetensors_writer *w, size_t k);

/* Appends elements, in pieces of any size. Errors: as of cairn__writer_write. */
cairn_status cairn__safetensors_write(struct cairn__safetensors_writer *w, const void *data, size_t nbytes);

/* As cairn__writer_finish, _commit and _discard. Errors: CAIRN_EINTERNAL fewer bytes were written than the header says;
 * as of cairn__writer_finish and cairn__writer_commit. */
cairn_status cairn__safetensors_finish(struct cairn__safetensors_writer *w);
cairn_status cairn__safetensors_commit(struct cairn__safetensors_writer **w, struct cairn__file_facts *facts);
void cairn__safetensors_discard(struct cairn__safetensors_writer **w);

/* The least size of a file with this tensor, for dividing tensors into several files. 0 = it cannot be written. */
uint64_t cairn__safetensors_nbytes(const struct cairn__safetensors_tensor *tensor);

/* ---- reading ---- */

struct cairn__safetensors;

/* flags: of cairn__reader_open. Errors: CAIRN_EINVAL it is not a safetensors file, is broken, or has a type that is not
 * listed above; as of cairn__reader_open and cairn__reader_read. */
cairn_status cairn__safetensors_open(const char *path, unsigned flags, struct cairn__safetensors **out);
void cairn__safetensors_close(struct cairn__safetensors **file);

const char *cairn__safetensors_path(const struct cairn__safetensors *file);

/* Tensors in the order of their elements in the file. They are valid until the file is closed. */
size_t cairn__safetensors_count(const struct cairn__safetensors *file);
const struct cairn__safetensors_tensor *cairn__safetensors_at(const struct cairn__safetensors *file, size_t i);

/* NULL = none. Cost: a binary search. */
const struct cairn__safetensors_tensor *cairn__safetensors_find(const struct cairn__safetensors *file,
                                                                const char *name);

/* Bytes [offset, offset + nbytes) of a tensor's elements. Errors: as of cairn__reader_read. */
cairn_status cairn__safetensors_read(struct cairn__safetensors *file, const struct cairn__safetensors_tensor *tensor,
                                     uint64_t offset, void *to, size_t nbytes);

/* The text of a key, NULL = none; and all texts, by number. */
const char *cairn__safetensors_metadata(const struct cairn__safetensors *file, const char *key);
size_t cairn__safetensors_metadata_count(const struct cairn__safetensors *file);
struct cairn__safetensors_text cairn__safetensors_metadata_at(const struct cairn__safetensors *file, size_t i);

/* Size and hash of the whole file, as of cairn__reader_hash. */
cairn_status cairn__safetensors_facts(struct cairn__safetensors *file, struct cairn__file_facts *facts);

#endif
