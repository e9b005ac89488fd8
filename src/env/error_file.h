/* What a process leaves behind when it fails, for the launcher's report: in the file that TORCHELASTIC_ERROR_FILE
 * names, as torch's agent reads it, or, in a process of cairn_spawn, in memory of its parent's. It is written when
 * exit() is called or main returns with a status other than 0 (the exiting thread's last error), and at a signal
 * that means a bug, where the program has no handler of its own. Only the process that asked for it writes, not what
 * it forks. */
#ifndef CAIRN__ENV_ERROR_FILE_H
#define CAIRN__ENV_ERROR_FILE_H

#include <stdbool.h>

#include "cairn/core.h"

/* What cairn_env_create does first. DEFAULT and ON: where the launcher named a file, and nothing was installed in
 * this process yet; OFF: nothing. Takes note of the calling thread as the one whose last error a signal tells. Any
 * thread. */
void cairn__error_file_install(cairn_switch record);

/* In shared memory, zeroed. */
struct cairn__error_note {
    double at;           /* seconds of the monotonic clock */
    bool is_consequence; /* it failed because another rank ended */
    char text[1280]; /* "exit code 1: CAIRN_EPEER: ..." or "SIGSEGV: ..."; "" = it has not failed, or died otherwise */
};

/* For a process of cairn_spawn, right after the fork: as above, but into note, which stays. */
void cairn__error_file_install_note(struct cairn__error_note *note);

/* What exit(status) would write, for a process that ends by _exit(status). */
void cairn__error_file_write(int status);

#endif
