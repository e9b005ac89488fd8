/* Checkpoints: the complete state of a training in a folder, from which it goes on to the bit.
 *
 *     CHECK(cairn_state_create(env, &state));
 *     CHECK(cairn_state_add(state, "model", cairn_module_stateful(model)));
 *     CHECK(cairn_state_add(state, "optimizer", cairn_optimizer_stateful(adamw)));
 *     CHECK(cairn_state_add(state, "amp", amp_stateful(amp)));
 *     CHECK(cairn_state_add(state, "data", cairn_sampler_stateful(sampler)));
 *     CHECK(cairn_state_load_latest(state, "runs/a", NULL, &step));  CAIRN_OK with step 0 where there is none
 *     for (; step < total; step++) {
 *         ...
 *         CHECK(cairn_step(adamw));
 *         CHECK(cairn_state_due(state, step + 1, 1000, &due));
 *         if (due & CAIRN_STATE_SAVE) CHECK(cairn_state_save(state, "runs/a", step + 1, NULL));
 *     }
 *     CHECK(cairn_state_wait(state));
 *
 * Objects    say what belongs to them (stateful.h); their headers say what that is. The environment's random numbers
 *            belong to every state by themselves. The program adds numbers and memory of its own.
 * Format     DIR/step-00000100/ holds shared.safetensors, what all ranks have in common; rank-00000.safetensors and so
 *            on, what a rank has for itself; and checkpoint.json: format and version, step, number of ranks, and of
 *            each file its size and its XXH3 checksum. Tensors have the names "model/encoder.0.weight". Any reader of
 *            safetensors reads them.
 * Whole      A checkpoint is written into a hidden folder beside, synced and renamed: DIR/step-... exists whole or not
 *            at all. What a killed save leaves behind (".step-...") the next save into DIR removes.
 * When       Between a step and the next backward. Objects refuse while a gradient is pending: that of a loss that no
 *            step has used yet, or one that ddp_no_sync has kept. Gradients that a step has used are not saved.
 *            One training at a time saves into a DIR: two would remove each other's.
 * Ranks      All calls but create, add and destroy are collective over the environment's group: all ranks succeed, or
 *            all fail and the message names a rank. DIR is a folder that all ranks see, as on one machine or on a
 *            shared file system. Rank 0 writes what is shared: parameters and moments that ddp averages. What is a
 *            rank's own loads on the same number of ranks only; everything else on any number, also parts of a model
 *            over ranks (cairn_state_add_part).
 * Threads    as the environment. A save runs a thread, "cairn-save", for as long as it writes, but for a foreground
 *            save of one rank; a load on several ranks one that reads, "cairn-files". A disk may take longer than
 *            the environment's timeout: ranks that wait for one that reads or writes know that it is alive.
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

/* An empty state. Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ENOTBUILT this Cairn was built without its files
 * (-Dstate). */
CAIRN_API cairn_status cairn_state_create(cairn_env *env, cairn_state **out);

/* Ends it, after a background save has been written; what went wrong there is then logged. Not collective: the last
 * background save of a training that runs on several ranks wants cairn_state_wait first. NULL does nothing. */
CAIRN_API void cairn_state_destroy(cairn_state **state);

/* Adds an object, which must outlive the state's use. The name is copied; checkpoints find the object by it.
 * Errors, which add nothing: CAIRN_EINVAL a name that is empty, added already, "env" or "__metadata__", longer than 255
 * bytes, not UTF-8, or has a '/' or a control character; an object that is NULL or of another environment;
 * CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_state_add(cairn_state *state, const char *name, cairn_stateful object);

/* Adds an object that is this rank's part of what ranks have together: a stage of a model, say, its optimizer, its amp
 * context. Entries are known by name, whatever rank has them: those of several ranks under one name must be equal
 * (replicas; buffers are the lowest rank's), are saved once, and load wherever a rank has one of that name. So a
 * checkpoint of 2 replicas of 2 stages goes on as 1 x 3, 4 x 1 or 1 x 1, where parameters are called by their place in
 * the whole model (cairn_sequential_named), and optimizers have as many groups. Every rank adds its parts, one or
 * several (of interleaved stages), under one name, also a rank alone.
 * Errors: as cairn_state_add; of saving, CAIRN_EINVAL two ranks have different parts of one name, and CAIRN_ESTATE
 * ranks whose weights differ (ddp_no_sync); of loading, CAIRN_EINVAL a part that is not in the checkpoint, or one that
 * no rank takes. Cost: every rank hashes its parts to save them, and reads the files of all to load them. */
CAIRN_API cairn_status cairn_state_add_part(cairn_state *state, const char *name, cairn_stateful object);

/* Adds a number, or memory, of the program's own, which a save reads where it stands and a load overwrites. Shared:
 * rank 0's value is saved, and loaded on all ranks. Memory is the host's, and its size must be equal when it is
 * loaded. Errors: as cairn_state_add. */
CAIRN_API cairn_status cairn_state_add_i64(cairn_state *state, const char *name, int64_t *value);
CAIRN_API cairn_status cairn_state_add_f64(cairn_state *state, const char *name, double *value);
CAIRN_API cairn_status cairn_state_add_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes);
/* The same, of which each rank saves its own; it loads on the same number of ranks. */
CAIRN_API cairn_status cairn_state_add_rank_bytes(cairn_state *state, const char *name, void *memory, size_t nbytes);

struct cairn_state_save_options {
    size_t struct_size;
    int64_t keep_last;  /* once this checkpoint is whole, removes older ones but for the last so many, this one among
                           them; 0 = all stay */
    int64_t keep_every; /* checkpoints of steps that are a multiple of this stay, too; 0 = none does for its step */
    cairn_switch background; /* ON: return once the state is copied, and write the copy in a thread. OFF */
};
#define cairn_state_save_options(...) \
    (&(struct cairn_state_save_options){.struct_size = sizeof(struct cairn_state_save_options), __VA_ARGS__})

/* Saves DIR/step-<step>, in place of one that is there. Makes DIR, and the folders it is in, where they are missing.
 * A background save that still runs is waited for before.
 *
 *   step     from 0 on, below 10^18; of the program
 *   options  NULL = all defaults
 *
 * Cost       foreground: one pass over the state, which is written where it stands. Background: a copy of it, into
 *            memory that the state keeps for the next save; on a GPU both go through the host.
 * Errors     Training can go on: nothing of it has changed, and what was in DIR is whole. CAIRN_EINVAL; CAIRN_ESTATE an
 *            object cannot be saved now, with what to do first, or a graph is being recorded; CAIRN_ESYSTEM with the
 *            path: no folder, no room, no permission, a limit; CAIRN_EPEER another rank's error, with its message, or
 *            ranks that save different things; CAIRN_ETIMEOUT another rank's file has not grown for the environment's
 *            timeout; CAIRN_ENOMEM. What went wrong in the background save before this one is returned here, and this
 *            one is not begun. */
CAIRN_API cairn_status cairn_state_save(cairn_state *state, const char *dir, int64_t step,
                                        const struct cairn_state_save_options *options);

/* Waits until the last background save is whole, and returns its errors. Without one: CAIRN_OK at once. */
CAIRN_API cairn_status cairn_state_wait(cairn_state *state);

struct cairn_state_load_options {
    size_t struct_size;
    /* ON: what the program added and what the checkpoint has must be the same. OFF: an object or number that the
     * checkpoint does not have stays as it is, with a notice, and objects that the program did not add are passed over:
     * for a program that has changed, or one that wants a part. What both have must fit. ON */
    cairn_switch strict;
};
#define cairn_state_load_options(...) \
    (&(struct cairn_state_load_options){.struct_size = sizeof(struct cairn_state_load_options), __VA_ARGS__})

/* Loads the checkpoint in the folder `path`: "runs/a/step-00000100".
 *
 *   options  NULL = all defaults
 *   step     out: the step it was saved as; NULL = not wanted, here and below
 *
 * Names, types and shapes of all objects are compared, and numbers are read and checked, before anything changes.
 * Arrays are read once, straight to where they belong, and the files' checksums compared meanwhile. A background save
 * that still runs is waited for before.
 * Cost     every rank reads what all share, and its own file; on another number of ranks than it was saved on, the
 *          files of all
 * Errors   Nothing has changed: CAIRN_EINVAL not a whole checkpoint; an object, an entry, a type, a shape or a number
 *          that does not fit the program's; what belongs to one rank, on another number of ranks; CAIRN_ENOTSUP a later
 *          version of the format; CAIRN_ESTATE an object cannot take a state now (a gradient is pending, a captured
 *          graph holds other hyperparameters); CAIRN_ESYSTEM; CAIRN_EPEER; errors of the background save before it.
 *          The state is undefined until a load succeeds, and the message says so: CAIRN_EINVAL a checksum is wrong, a
 *          file is cut while it is read, or an optimizer's count of missed steps makes no sense; CAIRN_ESYSTEM reading
 *          failed; CAIRN_ESTATE other parameters were frozen than are, and a captured graph is alive. */
CAIRN_API cairn_status cairn_state_load(cairn_state *state, const char *path,
                                        const struct cairn_state_load_options *options, int64_t *step);

/* Loads the checkpoint of DIR with the highest step that is whole. One that is not (a file is missing or cut, a
 * checksum is wrong) is passed over with a warning that says why. *step is 0, and nothing is loaded, where DIR has no
 * checkpoint or does not exist.
 * Errors: as cairn_state_load, of the newest that is whole; CAIRN_EINVAL there are checkpoints and none is whole;
 * CAIRN_EPEER some ranks see checkpoints in DIR and others see none. A file that the system cannot open or read
 * (CAIRN_ESYSTEM: no permission, a broken disk) ends the search: move that checkpoint away to go on from an older one.
 */
CAIRN_API cairn_status cairn_state_load_latest(cairn_state *state, const char *dir,
                                               const struct cairn_state_load_options *options, int64_t *step);

/* ---- when to save ---- */

/* From here on SIGUSR1 asks for a checkpoint at the next cairn_state_due (Slurm's warning before the end of a job:
 * --signal=USR1@120), and SIGTERM for one and for the end of the training. Another SIGTERM within a second is taken for
 * the same (launchers send one to a process and to its group); a later one ends the process at once.
 *
 * Handlers stay until the process ends, and run on a stack of their own (sigaltstack of this thread, where it has none;
 * SA_ONSTACK). A program's own handlers, and those of profilers, need that too: within oneDNN's products the stack
 * pointer points into the heap.
 * Collective. Errors, after which no rank has a handler: CAIRN_ESTATE the program handles or ignores one of the two
 * itself; CAIRN_EPEER another rank's does. */
CAIRN_API cairn_status cairn_state_watch_signals(cairn_state *state);

enum {
    CAIRN_STATE_SAVE = 1, /* save now */
    CAIRN_STATE_STOP = 2, /* and then end the training: a rank got SIGTERM */
};

/* What is due after `step` steps: CAIRN_STATE_SAVE where step is a multiple of `every` (0 = never) or a signal has come
 * to any rank, and CAIRN_STATE_STOP, as bits; 0 = nothing. Where signals are watched it is collective and all ranks get
 * the same, at the same step: a launcher that warns one process of many warns them all. A launcher sends SIGTERM, too,
 * when another rank has died; then this call fails, and nothing is saved that not all ranks agree on. A signal asks for
 * one SAVE, also where the save that follows fails: that returns its error, and the next is the program's choice. STOP
 * stays.
 *
 * step, every   equal on all ranks
 * Cost          with cairn_state_watch_signals 24 bytes from every rank to every other; without, nothing
 * Errors        CAIRN_EINVAL; CAIRN_EPEER ranks that give other steps, a rank that has died; CAIRN_ETIMEOUT a rank did
 *               not come within the environment's timeout */
CAIRN_API cairn_status cairn_state_due(cairn_state *state, int64_t step, int64_t every, int *due);

#ifdef __cplusplus
}
#endif

#endif
