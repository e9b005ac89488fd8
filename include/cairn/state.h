/* Checkpoints: the complete state of a training in a folder, from which it resumes with the same bits.
 *
 *     CHECK(cairn_state_create(env, &state));
 *     CHECK(cairn_state_add(state, "model", cairn_module_stateful(model)));
 *     CHECK(cairn_state_add(state, "optimizer", cairn_optimizer_stateful(adamw)));
 *     CHECK(cairn_state_add(state, "amp", amp_stateful(amp)));
 *     CHECK(cairn_state_add(state, "data", cairn_sampler_stateful(sampler)));
 *     CHECK(cairn_state_load_latest(state, "runs/a", NULL, &step));  CAIRN_OK and step 0 if there is no checkpoint
 *     for (; step < total; step++) {
 *         ...
 *         CHECK(cairn_step(adamw));
 *         CHECK(cairn_state_due(state, step + 1, 1000, &due));
 *         if (due & CAIRN_STATE_SAVE) CHECK(cairn_state_save(state, "runs/a", step + 1, NULL));
 *     }
 *     CHECK(cairn_state_wait(state));
 *
 * Objects    list their own state (stateful.h); their headers describe it. The environment's random number state is
 *            always included. The program can add numbers and memory of its own.
 * Format     DIR/step-00000100/ holds shared.safetensors, the state that all ranks share; rank-00000.safetensors and so
 *            on, the state of each rank; and checkpoint.json: format and version, step, number of ranks, and the size
 *            and XXH3 checksum of each file. Tensors have names such as "model/encoder.0.weight". Any safetensors
 *            reader can read the files.
 * Atomic     A checkpoint is written into a hidden folder in DIR, synced and renamed: DIR/step-... is complete or does
 *            not exist. What a killed save leaves behind (".step-...") is removed by the next save into DIR.
 * When       Between a step and the next backward. Objects refuse while a gradient is pending: one that no step has
 *            used yet, or one kept by ddp_no_sync. Gradients that a step has used are not saved. Only one training at a
 *            time may save into a DIR: two would remove each other's checkpoints.
 * Ranks      All calls except create, add and destroy are collective over the environment's group: they succeed on all
 *            ranks, or fail on all with a message that names a rank. All ranks must see DIR, on one machine or a shared
 *            file system. Rank 0 writes the shared state: parameters and moments that ddp averages. The state of single
 *            ranks loads only on the same number of ranks; everything else on any number, also parts of a model that is
 *            divided over ranks (cairn_state_add_part).
 * Threads    as the environment. A save runs a thread, "cairn-save", while it writes, except a foreground save with one
 *            rank; a load on several ranks runs a reading thread, "cairn-files". A disk may take longer than the
 *            environment's timeout: ranks that wait for a rank that reads or writes know that it is alive.
 * Source     compare torch.distributed.checkpoint (PyTorch 2.x) and its async_save; safetensors 0.4 for the files. */
#ifndef CAIRN_STATE_H
#define CAIRN_STATE_H

#include "core.h"
#include "env.h"
#include "stateful.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_state cairn_state;

/* Makes an empty state. Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ENOTBUILT Cairn was built without checkpoint files
 * (-Dstate). */
CAIRN_API cairn_status cairn_state_create(cairn_env *env, cairn_state **out);

/* Destroys the state after a background save has been written; errors of that save are logged. Not collective: with
 * several ranks, call cairn_state_wait after the last background save first. NULL does nothing. */
CAIRN_API void cairn_state_destroy(cairn_state **state);

/* Adds an object, which must outlive all use of the state. The name is copied; it identifies the object in checkpoints.
 * Errors, which add nothing: CAIRN_EINVAL a name that is empty, already added, "env" or "__metadata__", longer than 255
 * bytes, not UTF-8, or contains a '/' or a control character; an object that is NULL or of another environment;
 * CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_state_add(cairn_state *state, const char *name, cairn_stateful object);

/* Adds an object that is this rank's part of a whole that ranks share, such as a stage of a model, its optimizer or its
 * amp context. Entries are identified by name, whatever rank has them. Entries of the same name on several ranks must
 * be equal (replicas; for buffers the lowest rank's is taken); they are saved once and load on every rank that has an
 * entry of that name. So a checkpoint of 2 replicas of 2 stages resumes as 1 x 3, 4 x 1 or 1 x 1, provided that
 * parameters are named by their place in the whole model (cairn_sequential_named) and optimizers have the same number
 * of groups. Every rank, also if there is only one, adds its parts (several, for interleaved stages) under the same
 * name.
 * Errors: as cairn_state_add; from saving, CAIRN_EINVAL two ranks have different parts of one name, and CAIRN_ESTATE
 * ranks whose weights differ (ddp_no_sync); from loading, CAIRN_EINVAL a part that is not in the checkpoint, or one
 * that no rank takes. Cost: every rank hashes its parts when saving, and reads the files of all ranks when loading. */
CAIRN_API cairn_status cairn_state_add_part(cairn_state *state, const char *name, cairn_stateful object);

/* Adds a number, or memory, of the program's own; a save reads it in place and a load overwrites it. Shared: rank 0's
 * value is saved, and is loaded on all ranks. Memory is host memory, and a load requires the same size. Errors: as
 * cairn_state_add. */
CAIRN_API cairn_status cairn_state_add_i64(cairn_state *state, const char *name, int64_t *value);
CAIRN_API cairn_status cairn_state_add_f64(cairn_state *state, const char *name, double *value);
CAIRN_API cairn_status cairn_state_add_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes);
/* The same, but each rank saves its own; it loads only on the same number of ranks. */
CAIRN_API cairn_status cairn_state_add_rank_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes);

struct cairn_state_save_options {
    size_t struct_size;
    int64_t keep_last;  /* once this checkpoint is complete, older ones are removed except the last keep_last, this one
                           included; 0 = keep all */
    int64_t keep_every; /* checkpoints whose step is a multiple of this are always kept; 0 = none is */
    cairn_switch background; /* ON: returns once the state is copied, and a thread writes the copy. OFF */
};
#define cairn_state_save_options(...) \
    (&(struct cairn_state_save_options){.struct_size = sizeof(struct cairn_state_save_options), __VA_ARGS__})

/* Saves DIR/step-<step>, replacing an existing one. Creates DIR and its parents if missing. First waits for a
 * background save that is still running.
 *
 *   step     chosen by the program, from 0 to below 10^18
 *   options  NULL = all defaults
 *
 * Cost       foreground: one pass over the state, which is written from where it is. Background: a copy, in memory that
 *            the state keeps for the next save. On a GPU both copy through the host.
 * Errors     Training can continue: its state has not changed, and existing checkpoints in DIR are intact.
 *            CAIRN_EINVAL; CAIRN_ESTATE an object cannot be saved now, with what to do first, or a graph is being
 *            recorded; CAIRN_ESYSTEM with the path: no folder, no space, no permission, a limit; CAIRN_EPEER another
 *            rank's error, with its message, or ranks that save different things; CAIRN_ETIMEOUT another rank's file
 *            has not grown for the environment's timeout; CAIRN_ENOMEM. If the background save before this one failed,
 *            its error is returned here, and this save does not begin. */
CAIRN_API cairn_status cairn_state_save(cairn_state *state, const char *dir, int64_t step,
                                        const struct cairn_state_save_options *options);

/* Waits until the last background save is complete, and returns its errors. Without one it returns CAIRN_OK at once. */
CAIRN_API cairn_status cairn_state_wait(cairn_state *state);

struct cairn_state_load_options {
    size_t struct_size;
    /* ON: the program's objects and the checkpoint's must be the same. OFF: an object or number that is not in the
     * checkpoint keeps its state, with a notice, and objects in the checkpoint that the program did not add are
     * ignored: for a program that has changed, or that needs only a part. What both have must match. Default ON */
    cairn_switch strict;
};
#define cairn_state_load_options(...) \
    (&(struct cairn_state_load_options){.struct_size = sizeof(struct cairn_state_load_options), __VA_ARGS__})

/* Loads the checkpoint in folder `path`, such as "runs/a/step-00000100".
 *
 *   options  NULL = all defaults
 *   step     out: the step it was saved with; NULL = not wanted, here and below
 *
 * Before anything changes, the names, types and shapes of all objects are compared, and numbers are read and checked.
 * Then arrays are read once, directly into place, while checksums are verified. A background save that is still running
 * is waited for first.
 * Cost     every rank reads the shared file and its own; on a number of ranks other than the checkpoint's, all files
 * Errors   Nothing has changed: CAIRN_EINVAL not a complete checkpoint; an object, entry, type, shape or number that
 *          does not match the program's; state of single ranks, on another number of ranks; CAIRN_ENOTSUP a later
 *          version of the format; CAIRN_ESTATE an object cannot take a state now (a gradient is pending, a captured
 *          graph holds other hyperparameters); CAIRN_ESYSTEM; CAIRN_EPEER; errors of an earlier background save.
 *          The state is undefined until a load succeeds, and the message says so: CAIRN_EINVAL a wrong checksum, a file
 *          truncated while it is read, or an invalid count of missed steps of an optimizer; CAIRN_ESYSTEM reading
 *          failed; CAIRN_ESTATE the checkpoint has other frozen parameters than the model, and a captured graph is
 *          alive. */
CAIRN_API cairn_status cairn_state_load(cairn_state *state, const char *path,
                                        const struct cairn_state_load_options *options, int64_t *step);

/* Loads the complete checkpoint of DIR with the highest step. Incomplete ones (a file is missing or truncated, a
 * checksum is wrong) are skipped with a warning that says why. If DIR has no checkpoint or does not exist, *step is 0
 * and nothing is loaded.
 * Errors: as cairn_state_load, of the newest complete one; CAIRN_EINVAL there are checkpoints but none is complete;
 * CAIRN_EPEER some ranks see checkpoints in DIR and others see none. A file that the system cannot open or read
 * (CAIRN_ESYSTEM: no permission, a broken disk) ends the search: move that checkpoint away to resume from an older
 * one. */
CAIRN_API cairn_status cairn_state_load_latest(cairn_state *state, const char *dir,
                                               const struct cairn_state_load_options *options, int64_t *step);

/* ---- when to save ---- */

/* Installs signal handlers: SIGUSR1 then requests a checkpoint at the next cairn_state_due (Slurm's warning before the
 * end of a job: --signal=USR1@120), and SIGTERM a checkpoint and the end of the training. A second SIGTERM within a
 * second counts as the same one (launchers signal a process and its group); a later one ends the process at once.
 *
 * Handlers stay until the process ends. They run on an alternate stack (SA_ONSTACK; sigaltstack of this thread, if it
 * has none). The program's own handlers, and those of profilers, need one too: inside oneDNN's products the stack
 * pointer points into the heap.
 * Collective. Errors, after which no rank has a handler: CAIRN_ESTATE the program itself handles or ignores one of the
 * two signals; CAIRN_EPEER another rank's program does. */
CAIRN_API cairn_status cairn_state_watch_signals(cairn_state *state);

enum {
    CAIRN_STATE_SAVE = 1, /* save now */
    CAIRN_STATE_STOP = 2, /* then end the training: a rank received SIGTERM */
};

/* Returns in *due what to do after `step` steps, as bits: CAIRN_STATE_SAVE if step is a multiple of `every` (0 = never)
 * or any rank received a signal; CAIRN_STATE_STOP; 0 = nothing. With cairn_state_watch_signals it is collective, and
 * all ranks get the same result at the same step, even if the launcher signals only one process. Launchers also send
 * SIGTERM when another rank has died; then this call fails, and nothing is saved that not all ranks agree on. A signal
 * requests SAVE only once, even if that save fails: the save returns its error, and the program decides about another.
 * STOP stays set.
 *
 * step, every   equal on all ranks
 * Cost          with cairn_state_watch_signals 24 bytes from every rank to every other; otherwise none
 * Errors        CAIRN_EINVAL; CAIRN_EPEER ranks that pass different steps, a rank that has died; CAIRN_ETIMEOUT a rank
 *               did not call within the environment's timeout */
CAIRN_API cairn_status cairn_state_due(cairn_state *state, int64_t step, int64_t every, int *due);

#ifdef __cplusplus
}
#endif

#endif
