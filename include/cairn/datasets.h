/* Datasets that come with Cairn, for loaders (loader.h). They read files by pread, never map them, and never trust
 * them: a file that is cut while it is read is an error with its name, at the batch that needs what is gone. */
#ifndef CAIRN_DATASETS_H
#define CAIRN_DATASETS_H

#include "core.h"
#include "loader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Example i has one field for each array: its row i (npy.h), in the file's type. So "x.npy" of f32 [N, 3, 32, 32] and
 * "y.npy" of i64 [N] give batches of f32 [n, 3, 32, 32] and i64 [n]. torch.utils.data.TensorDataset.
 *
 *   paths  [count], from 1 to CAIRN_MAX_FIELDS
 *
 * Arrays of u8, as of pictures, become i32 fields: tensors have no u8.
 * Errors: those of cairn_npy_open; CAIRN_EINVAL arrays of different lengths, with both paths, or one without
 * dimensions. */
CAIRN_API cairn_status cairn_npy_dataset_create(const char *const *paths, int count, cairn_dataset **out);

/* ---- text: a record a line ---- */

/* "2, (const char *const[]){"sentence1", "sentence2"}" */
#define CAIRN_COLUMNS(...)                                                                            \
    (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)), (const char *const[]) { \
        __VA_ARGS__                                                                                   \
    }

enum cairn_text_format {
    CAIRN_TEXT_JSON_LINES = 1, /* a JSON object a line; columns are its keys */
    CAIRN_TEXT_TSV = 2,        /* cells between tabs, without quotes: a quotation mark is a character, as in GLUE */
};

struct cairn_text_options {
    size_t struct_size;
    enum cairn_text_format format; /* 0 = TSV where the path ends with ".tsv", else JSON lines */
    cairn_switch header;           /* of TSV: ON: the first line names the columns. OFF: columns are "0", "1", ... */
    const char *label;             /* the column of the label; NULL = there is none */
    const char *const *labels;     /* [num_labels] its values, in the model's order: the label of labels[i] is i */
    int num_labels;                /* 0 = the column holds whole numbers, which are the labels */
    const char *dropped;           /* records with this in the label's column are left out; NULL = none */
    const char *index;             /* the path of the index; NULL = the file's, with ".cairn-index" behind it */
};
#define cairn_text_options(...) \
    (&(struct cairn_text_options){.struct_size = sizeof(struct cairn_text_options), __VA_ARGS__})

/* A file of text, each line of which is a record. Example i has one field for each column, u8 [bytes], as it stands in
 * the file (of JSON: decoded to UTF-8), with a 0 behind it; then the label, i64, where there is one. A text is no
 * tensor: cairn_map_dataset_create makes tokens of it. MNLI's own files and GLUE's have the same columns:
 *
 *     static const char *const labels[] = {"entailment", "neutral", "contradiction"};      as in config.json
 *     CAIRN_CHECK(cairn_text_dataset_create("multinli_1.0_train.jsonl", CAIRN_COLUMNS("sentence1", "sentence2"),
 *         cairn_text_options(.label = "gold_label", .labels = labels, .num_labels = 3, .dropped = "-"), &texts));
 *
 * Lines    end with "\n" or "\r\n"; empty ones are no records. A byte order mark of UTF-8 is passed over.
 * Index    of where records begin, made by the first call and kept in a file beside the data, or where index says:
 *          whole or not at all. It is used as long as size, time of change and both ends of the data are those it was
 *          made of, and made anew otherwise. Where it cannot be written it is made each time, with a warning. Ranks
 *          that open a file without one at the same time each make it, and the last one stays; open it on one rank
 *          first where that takes long.
 * Errors   CAIRN_EINVAL options; a column that the first line does not have; a line of over 64 MiB; CAIRN_ESYSTEM;
 *          CAIRN_ENOMEM; CAIRN_ENOTBUILT without jansson and xxhash (meson's option 'state'). A record that cannot be
 *          read is an error when it is: no JSON, no such column, a label that is none of labels; with the path, the
 *          line from 1 and the record from 0: "train.jsonl: line 1236, record 1234: not JSON: ...".
 * Memory   8 bytes a record.
 * Cost     the first time one pass over the file, and with dropped the time to find each label; later the index is read
 *          and checked. */
CAIRN_API cairn_status cairn_text_dataset_create(const char *path, int count, const char *const *columns,
                                                 const struct cairn_text_options *options, cairn_dataset **out);

/* ---- tokens ---- */

struct cairn_token_options {
    size_t struct_size;
    int64_t stride; /* from where an example begins to where the next does; 0 = length, so that none is read twice */
};
#define cairn_token_options(...) \
    (&(struct cairn_token_options){.struct_size = sizeof(struct cairn_token_options), __VA_ARGS__})

/* Streams of tokens in llm.c's ".bin" files: example i has two fields, i32 [length]: the tokens from i * stride on, and
 * those one place further, which a language model is to predict. Files are read one behind the other; no example goes
 * over the end of one.
 *
 *   paths   [count], from 1
 *   length  tokens of an example, from 1
 *
 * Format  256 little-endian i32, of which the first three are 20240520, 1 and the number of tokens; then the tokens, 16
 *         bits each. Source: llm.c, dev/data/data_common.py.
 * Errors  CAIRN_EINVAL another format, or a file that is shorter than it says, with its path; CAIRN_ESYSTEM;
 *         CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_token_dataset_create(const char *const *paths, int count, int64_t length,
                                                  const struct cairn_token_options *options, cairn_dataset **out);

/* ---- from another dataset ---- */

/* Makes an example of another: adds fields to example, which is empty, from those of `from`. Called by several threads
 * at a time; random goes on where `from` has left it. As cairn_dataset_functions.read. */
typedef cairn_status (*cairn_map_fn)(void *ctx, const cairn_fields *from, struct cairn_random *random,
                                     cairn_fields *example);

/* Example i is what fn makes of example i of another dataset: tokens of text, parts of pictures.
 *
 *   from  outlives this one, as ctx does
 *
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM. Cost: memory for one example of `from` for each thread that reads. */
CAIRN_API cairn_status cairn_map_dataset_create(const cairn_dataset *from, cairn_map_fn fn, void *ctx,
                                                cairn_dataset **out);

#ifdef __cplusplus
}
#endif

#endif
