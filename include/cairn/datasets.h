/* Cairn's own datasets, for loaders (loader.h). They read files with pread, never map them, and validate what they
 * read: if a file is truncated while it is used, the batch that needs the missing part fails with an error that names
 * the file. */
#ifndef CAIRN_DATASETS_H
#define CAIRN_DATASETS_H

#include "core.h"
#include "loader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays in .npy files: example i has one field for each array, its row i (npy.h), in the file's type. So "x.npy" of
 * f32 [N, 3, 32, 32] and "y.npy" of i64 [N] give batches of f32 [n, 3, 32, 32] and i64 [n].
 * torch.utils.data.TensorDataset.
 *
 *   paths  [count], from 1 to CAIRN_MAX_FIELDS
 *
 * Arrays of u8, such as pictures, become i32 fields, since tensors have no u8.
 * Errors: those of cairn_npy_open; CAIRN_EINVAL arrays of different lengths, with both paths, or one without
 * dimensions. */
CAIRN_API cairn_status cairn_npy_dataset_create(const char *const *paths, int count, cairn_dataset **out);

/* ---- text: one record per line ---- */

/* "2, (const char *const[]){"sentence1", "sentence2"}" */
#define CAIRN_COLUMNS(...)                                                                            \
    (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)), (const char *const[]) { \
        __VA_ARGS__                                                                                   \
    }

enum cairn_text_format {
    CAIRN_TEXT_JSON_LINES = 1, /* one JSON object per line; columns are its keys */
    CAIRN_TEXT_TSV = 2,        /* cells separated by tabs, without quoting: '"' is an ordinary character, as in GLUE */
};

struct cairn_text_options {
    size_t struct_size;
    enum cairn_text_format format; /* 0 = TSV if the path ends with ".tsv", otherwise JSON lines */
    cairn_switch header;           /* of TSV: ON: the first line names the columns. OFF: columns are "0", "1", ... */
    const char *label;             /* the column of the label; NULL = no label */
    const char *const *labels;     /* [num_labels] its values, in the model's order: labels[i] becomes i */
    int num_labels;                /* 0 = the column has integers, which are used as labels */
    const char *dropped;           /* records with this value in the label's column are left out; NULL = none */
    const char *index;             /* the path of the index; NULL = the file's path with ".cairn-index" appended */
};
#define cairn_text_options(...) \
    (&(struct cairn_text_options){.struct_size = sizeof(struct cairn_text_options), __VA_ARGS__})

/* A text file with a record on each line. Example i has one field for each column: u8 [bytes], as in the file (JSON is
 * decoded to UTF-8), followed by a 0; then the label, i64, if there is one. Text cannot be a tensor: convert it to
 * tokens with cairn_map_dataset_create. MNLI's own files and GLUE's have the same columns:
 *
 *     static const char *const labels[] = {"entailment", "neutral", "contradiction"};      as in config.json
 *     CAIRN_CHECK(cairn_text_dataset_create("multinli_1.0_train.jsonl", CAIRN_COLUMNS("sentence1", "sentence2"),
 *         cairn_text_options(.label = "gold_label", .labels = labels, .num_labels = 3, .dropped = "-"), &texts));
 *
 * Lines    end with "\n" or "\r\n"; empty lines are not records. A UTF-8 byte order mark is skipped.
 * Index    the offsets of all records. The first call makes it and stores it in a file beside the data, or at index:
 *          whole or not at all. It is reused as long as the data's size, modification time and both ends match, and
 *          otherwise made again. If it cannot be written it is made on each call, with a warning. Ranks that open a
 *          file without an index at the same time each make it, and the last one written stays; if that takes long,
 *          open the file on one rank first.
 * Errors   CAIRN_EINVAL options; a column that the first line does not have; a line of over 64 MiB; CAIRN_ESYSTEM;
 *          CAIRN_ENOMEM; CAIRN_ENOTBUILT without jansson and xxhash (meson's option 'state'). A bad record (not JSON, a
 *          missing column, a label that is not among labels) is an error when it is read, with the path, the line from
 *          1 and the record from 0: "train.jsonl: line 1236, record 1234: not JSON: ...".
 * Memory   8 bytes a record.
 * Cost     at first one pass over the file and, with dropped, the search for each label; later the index is read and
 *          checked. */
CAIRN_API cairn_status cairn_text_dataset_create(const char *path, int count, const char *const *columns,
                                                 const struct cairn_text_options *options, cairn_dataset **out);

/* ---- tokens ---- */

struct cairn_token_options {
    size_t struct_size;
    int64_t stride; /* distance between the starts of consecutive examples; 0 = length: no token is read twice */
};
#define cairn_token_options(...) \
    (&(struct cairn_token_options){.struct_size = sizeof(struct cairn_token_options), __VA_ARGS__})

/* Token streams in llm.c's ".bin" files: example i has two fields, i32 [length]: the tokens from i * stride on, and the
 * same shifted by one, the targets of a language model. Files are concatenated, but no example crosses the end of one.
 *
 *   paths   [count], at least 1
 *   length  tokens of an example, at least 1
 *
 * Format  256 little-endian i32, of which the first three are 20240520, 1 and the number of tokens; then the tokens, 16
 *         bits each. Source: llm.c, dev/data/data_common.py.
 * Errors  CAIRN_EINVAL another format, or a file that is shorter than it says, with its path; CAIRN_ESYSTEM;
 *         CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_token_dataset_create(const char *const *paths, int count, int64_t length,
                                                  const struct cairn_token_options *options, cairn_dataset **out);

/* ---- from another dataset ---- */

/* Makes an example from an example of another dataset: adds fields to example, which is empty, from those of `from`.
 * Called by several threads concurrently; random continues where the dataset `from` left it. As
 * cairn_dataset_functions.read. */
typedef cairn_status (*cairn_map_fn)(void *ctx, const cairn_fields *from, struct cairn_random *random,
                                     cairn_fields *example);

/* A dataset whose example i is fn applied to example i of another one: tokens of a text, parts of a picture.
 *
 *   from  outlives this dataset, as ctx does
 *
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM. Cost: memory for one example of `from` per reading thread. */
CAIRN_API cairn_status cairn_map_dataset_create(const cairn_dataset *from, cairn_map_fn fn, void *ctx,
                                                cairn_dataset **out);

#ifdef __cplusplus
}
#endif

#endif
