/* Weights in safetensors files, the format that Hugging Face's libraries, PyTorch and many others read and write.
 *
 *     CAIRN_CHECK(cairn_module_save(net, "model.safetensors", NULL));
 *     CAIRN_CHECK(cairn_module_load(net, "model.safetensors", NULL, NULL));
 *
 * A file holds parameters and, for a module, its buffers (running statistics) under their paths; the rest of a
 * training's state belongs in a checkpoint (state.h). Python reads the file with safetensors.torch.load_file and loads
 * it with load_state_dict into a module of the same structure.
 *
 * A saved file is complete or absent: it is written to a temporary file beside it, synced to disk, and renamed. Files
 * are read and never mapped: a broken or truncated file is an error with its path.
 * Ranks: the calls are not collective. Save on rank 0; load on every rank, or before ddp_create, which broadcasts rank
 * 0's weights.
 * Threads: as the module. CAIRN_ENOTBUILT: the build has no jansson or no xxhash (meson's option 'state'). */
#ifndef CAIRN_WEIGHTS_H
#define CAIRN_WEIGHTS_H

#include "core.h"
#include "stateful.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rule that maps names of the program's tensors to names in the file. The first rule whose `ours` matches applies; a
 * tensor without a rule keeps its own name.
 *
 * In `ours`, "*" matches any text (dots too), as short as possible; the first "*" of `file` is replaced by the text of
 * the first one of `ours`, and so on: {"encoder.*.fc1.*", "bert.encoder.layer.*.intermediate.dense.*"}.
 *
 * Several names separated by "|" are parts: the tensor is split along its first dimension into as many equal parts.
 * {"*.in_proj_weight", "*.query.weight|*.key.weight|*.value.weight"}
 *
 * file NULL: the tensor is neither saved nor loaded, and a load ignores a tensor with its own name in the file.
 * ours NULL: a load ignores tensors called `file` in the file. */
struct cairn_weights_name {
    const char *ours, *file;
};

struct cairn_weights_text {
    const char *key, *value;
};

/* The same options, with the same table, work for saving and loading. */
struct cairn_weights_options {
    size_t struct_size;

    /* Saving: the type in the file of f32 and half tensors: CAIRN_F32, CAIRN_F16 or CAIRN_BF16. 0 = the f32 masters of
     * parameters that have them (O2); others in their own type. Tensors of other types keep their type. */
    cairn_dtype dtype;

    /* Only tensors of the program whose own name matches, as by fnmatch(3) ("encoder.*"); NULL = all. */
    const char *match;

    const struct cairn_weights_name *names;
    size_t num_names;
    const char *prefix; /* prepended to every name in the file, after the table is applied: "bert."; NULL = none */

    /* Saving: the most bytes of tensors per file (a file has at least one tensor). If all tensors are more, PATH
     * "m/model.safetensors" becomes "m/model-00001-of-00003.safetensors", ... with the index
     * "m/model.safetensors.index.json". PATH itself is then removed. Whenever the files of an earlier save are
     * replaced, files of the old index with names derived from PATH that were not written again are removed too. 0 =
     * one file. */
    uint64_t max_file_nbytes;

    /* Saving: additional texts in the file's metadata. ("format", "pt"), which Hugging Face's libraries require, is
     * always written; a text here can replace it. */
    const struct cairn_weights_text *metadata;
    size_t num_metadata;

    /* Loading: ON = every tensor must match, or nothing is loaded. OFF = tensors that match are loaded, and the others
     * keep their values. Default ON */
    cairn_switch strict;
};
#define cairn_weights_options(...) \
    (&(struct cairn_weights_options){.struct_size = sizeof(struct cairn_weights_options), __VA_ARGS__})

/* The result of a load; written with strict ON or OFF, also if the load fails because of it. */
struct cairn_weights_report {
    size_t struct_size;
    size_t loaded;      /* tensors that matched; each part counts */
    size_t missing;     /* in the program but not in the file */
    size_t unexpected;  /* in the file (below prefix) but not in the program */
    size_t other_shape; /* in both, with different shapes */
    size_t other_type;  /* in both, with a type in the file that does not convert */
    char text[4000];    /* lines to print, with the names: "missing in the file: fc.bias" */
};
#define CAIRN_WEIGHTS_REPORT_INIT \
    { .struct_size = sizeof(struct cairn_weights_report) }

/* Saves the weights of an object, given by cairn_module_stateful or cairn_param_set_stateful. It may be called at any
 * time, except while a graph is being recorded; gradients are ignored.
 *
 * Parameters that share memory, and parameters that the table maps to the same tensor and that have equal bits, are
 * saved once; if their names differ, the metadata maps the other name (key) to the saved one (value).
 * Errors: CAIRN_EINVAL no path, a name that is used twice, empty or not UTF-8, a tensor that cannot be split into equal
 * parts, a dtype, a match that matches nothing; CAIRN_ESTATE a module that is part of another, a recording;
 * CAIRN_ESYSTEM, with the path: existing files are unchanged, also if there are several, since all new ones are on disk
 * before the first is renamed; only if a rename fails, or the process is killed between renames, the index may be
 * missing. CAIRN_ENOMEM.
 * Cost: one pass over the weights; one MiB of memory. safetensors.torch.save_file */
CAIRN_API cairn_status cairn_weights_save(cairn_stateful object, const char *path,
                                          const struct cairn_weights_options *options);

/* Loads weights. path: a safetensors file; an index of several files; a folder with model.safetensors or
 * model.safetensors.index.json; or the path that cairn_weights_save was given when it wrote several files.
 *
 * Floats in the file (F64, F32, F16, BF16) are converted to the program's types, rounded to nearest even; other types
 * must be equal, and so must shapes. A master (O2) gets the file's values, in f32 to the bit, and the half weights are
 * rounded from it. A tensor that the metadata calls an alias of another is read from that one.
 *
 * Everything is checked before anything changes. Then elements are read into place, on the CPU without a copy. If
 * reading fails at that point (CAIRN_ESYSTEM; CAIRN_EINVAL the file has been truncated), some tensors already have the
 * file's values. Optimizers keep their moments. Call it between steps: within a backward or while a graph is recorded
 * it returns CAIRN_ESTATE.
 * report: NULL, or initialised with CAIRN_WEIGHTS_REPORT_INIT.
 * Errors: CAIRN_EINVAL a file that is broken or does not match: how many tensors are missing, unexpected, of another
 * shape or type, and their names; the errors of cairn_weights_save about names; CAIRN_ESYSTEM; CAIRN_ENOMEM.
 * torch.nn.Module.load_state_dict */
CAIRN_API cairn_status cairn_weights_load(cairn_stateful object, const char *path,
                                          const struct cairn_weights_options *options,
                                          struct cairn_weights_report *report);

/* Shorthands for a module, and for a parameter set, which has no buffers. Macros, since this header includes
 * neither. */
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
