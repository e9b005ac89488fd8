/* Weights in files of the safetensors format, which Hugging Face's libraries, PyTorch and many others read and write.
 *
 *     CAIRN_CHECK(cairn_module_save(net, "model.safetensors", NULL));
 *     CAIRN_CHECK(cairn_module_load(net, "model.safetensors", NULL, NULL));
 *
 * A file holds parameters and, of a module, its buffers (running statistics) under their paths; what else a training
 * needs to go on is a checkpoint's. Python reads such a file with safetensors.torch.load_file, and gives it to
 * load_state_dict of a module of the same structure.
 *
 * A saved file is whole or absent: it is written beside, brought onto the disk, and renamed. Files are read and never
 * mapped: one that is broken or cut is an error with its path.
 * Ranks: each call is one process's own. Save on rank 0; load on every rank, or before ddp_create, which sends rank 0's
 * weights to all.
 * Threads: as the module's. CAIRN_ENOTBUILT: the build has no jansson or no xxhash (meson's option 'state'). */
#ifndef CAIRN_WEIGHTS_H
#define CAIRN_WEIGHTS_H

#include "core.h"
#include "stateful.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rule of a table of names: what a tensor of the program is called in the file. The first rule whose `ours` matches
 * counts; a tensor without a rule has its own name.
 *
 * In `ours`, "*" is any text (dots too), as short as the rest allows; the first "*" of `file` is the text of the first
 * one of `ours`, and so on: {"encoder.*.fc1.*", "bert.encoder.layer.*.intermediate.dense.*"}.
 *
 * Several names with "|" between are parts: the tensor is cut along its first dimension into as many equal parts.
 * {"*.in_proj_weight", "*.query.weight|*.key.weight|*.value.weight"}
 *
 * file NULL: the tensor is neither saved nor loaded, and a load passes over what has its own name in the file.
 * ours NULL: a load passes over what is called `file` there. */
struct cairn_weights_name {
    const char *ours, *file;
};

struct cairn_weights_text {
    const char *key, *value;
};

/* The same options, and the same table, serve to save and to load. */
struct cairn_weights_options {
    size_t struct_size;

    /* Saving: the type of f32 and half tensors in the file, CAIRN_F32, CAIRN_F16 or CAIRN_BF16. 0 = parameters with f32
     * masters (O2) from these, in f32; others in the type they have. What is no f32, f16 or bf16 keeps its type. */
    cairn_dtype dtype;

    /* A part: tensors of the program whose own name matches, as fnmatch(3) has it ("encoder.*"); NULL = all. */
    const char *match;

    const struct cairn_weights_name *names;
    size_t num_names;
    const char *prefix; /* before every name in the file, behind the table: "bert."; NULL = none */

    /* Saving: files of at most so many bytes of tensors (but one tensor at least), where all are more: for PATH
     * "m/model.safetensors" these are "m/model-00001-of-00003.safetensors", ... with the index
     * "m/model.safetensors.index.json". PATH itself is then removed; and, whenever the files of an earlier save are
     * replaced, those of that index with names of PATH's own that were not written again. 0 = one file. */
    uint64_t max_file_nbytes;

    /* Saving: texts in the file besides ("format", "pt"), which Hugging Face's libraries want and a text here can
     * replace. */
    const struct cairn_weights_text *metadata;
    size_t num_metadata;

    /* Loading: ON = every tensor must fit, or nothing is loaded. OFF = what fits is loaded, and the rest stays as it
     * is. ON */
    cairn_switch strict;
};
#define cairn_weights_options(...) \
    (&(struct cairn_weights_options){.struct_size = sizeof(struct cairn_weights_options), __VA_ARGS__})

/* What a load found; written by the strict and the lenient one, also where it fails for it. */
struct cairn_weights_report {
    size_t struct_size;
    size_t loaded;      /* tensors (parts count each) that fit */
    size_t missing;     /* of the program, and not in the file */
    size_t unexpected;  /* of the file (below prefix), and not of the program */
    size_t other_shape; /* in both */
    size_t other_type;  /* in both, and the file's type does not convert */
    char text[4000];    /* lines to print, which name them: "missing in the file: fc.bias" */
};
#define CAIRN_WEIGHTS_REPORT_INIT \
    { .struct_size = sizeof(struct cairn_weights_report) }

/* Saves the weights of what the handle is of: cairn_module_stateful or cairn_param_set_stateful. At any time but while
 * a graph is recorded; gradients are not looked at.
 *
 * Parameters that stand in the same memory, or are the same tensor by the table and have equal bits, are saved once;
 * where their names differ, metadata has the other name as key and the saved one as value.
 * Errors: CAIRN_EINVAL no path, names that are twice, none, or not UTF-8, a tensor that cannot be cut into equal parts,
 * a dtype, a match that matches nothing; CAIRN_ESTATE a module that belongs to another, a recording; CAIRN_ESYSTEM,
 * with the path: what was there before stays, also of several files, all of which are on the disk before the first gets
 * its name; only where giving names fails, or the process is killed in it, there may be no index. CAIRN_ENOMEM.
 * Cost: one pass over the weights; memory for a MiB. safetensors.torch.save_file */
CAIRN_API cairn_status cairn_weights_save(cairn_stateful object, const char *path,
                                          const struct cairn_weights_options *options);

/* Loads weights. path: a safetensors file; an index of several; a folder with model.safetensors or
 * model.safetensors.index.json; or what cairn_weights_save was given when it wrote several.
 *
 * Floats of the file (F64, F32, F16, BF16) become those of the program, rounded to nearest even; other types must be
 * equal, and shapes too. A master (O2) takes the file's values, in f32 to the bit, and the half weights are rounded
 * from it. A tensor that metadata calls another's alias is read from that one.
 *
 * All is checked before anything changes. Then elements are read to where they stand, on the CPU without a copy. A read
 * that fails then (CAIRN_ESYSTEM; CAIRN_EINVAL the file has been cut) leaves some tensors with the file's values.
 * Optimizers keep their moments. Call it between steps: not within a backward, nor while a graph is recorded
 * (CAIRN_ESTATE).
 * report: NULL, or begun with CAIRN_WEIGHTS_REPORT_INIT.
 * Errors: CAIRN_EINVAL a file that is broken, or does not fit: how many tensors are missing, unexpected, of another
 * shape or type, and their names; what cairn_weights_save says of names; CAIRN_ESYSTEM; CAIRN_ENOMEM.
 * torch.nn.Module.load_state_dict */
CAIRN_API cairn_status cairn_weights_load(cairn_stateful object, const char *path,
                                          const struct cairn_weights_options *options,
                                          struct cairn_weights_report *report);

/* The same for a module, and for a parameter set, which has no buffers. Macros, since this header knows neither. */
#define cairn_module_save(module, path, options) cairn_weights_save(cairn_module_stateful(module), path, options)
#define cairn_module_load(module, path, options, report) \
    cairn_weights_load(cairn_module_stateful(module), path, options, report)
#define cairn_param_set_save(set, path, options) cairn_weights_save(cairn_param_set_stateful(set), path, options)
#define cairn_param_set_load(set, path, options, report) \
    cairn_weights_load(cairn_param_set_stateful(set), path, options, report)

#ifdef __cplusplus
}
#endif

#endif
