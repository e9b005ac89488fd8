/* The record of a process's failure, for the launcher's report: in the file that TORCHELASTIC_ERROR_FILE names, in the
 * format of torch's agent, or, in a process of cairn_spawn, in memory shared with its parent. It is written when exit()
 * is called or main returns with a status other than 0 (the exiting thread's last error), and at a signal that means a
 * bug, unless the program has its own handler. Only the process that installed the record writes it, not its children.
 */
#ifndef CAIRN__ENV_ERROR_FILE_H
#define CAIRN__ENV_ERROR_FILE_H

#include <stdbool.h>

#include "cairn/core.h"

/* cairn_env_create's first call. DEFAULT and ON: installs the record if the launcher named a file and none is installed
 * in this process; OFF: does nothing. A signal records the last error of the calling thread. Any thread. */
void cairn__error_file_install(cairn_switch record);

/* The record of a process of cairn_spawn, in shared memory; zeroed. */
struct cairn__error_note {
    double at;           /* seconds of the monotonic clock */
    bool is_consequence; /* it failed because another rank ended */
    char text[1280]; /* "exit code 1: CAIRN_EPEER: ..." or "SIGSEGV: ..."; "" = it has not failed, or died otherwise */
};

/* For a process of cairn_spawn, right after the fork: as above, but into note, which must stay valid. */
void cairn__error_file_install_note(struct cairn__error_note *note);

/* Writes what exit(status) would, for a process that ends by _exit(status). */
void cairn__error_file_write(int status);

#endif
