/* Records the results of a program that uses Cairn; tools/same-bits compares the records of two builds.
 *
 * A program is compiled against Cairn's public headers, with its main renamed to program_main, and linked with record.c
 * and run.c. The linker's --wrap redirects the calls that create objects, take steps and destroy objects to record.c,
 * so that the program itself needs no recording code. Each rank writes its record to its own file. */
#ifndef TOOLS_BITS_RECORD_H
#define TOOLS_BITS_RECORD_H

#include <cairn/cairn.h>

/* The program's main; it runs in a separate process for each rank. */
int program_main(int argc, char **argv);

/* Runs fn in `ranks` processes, or in this process if ranks is 0. Output and record of each rank go to files whose
 * names begin with path. Returns the exit code: 0, or 1 if a rank failed. */
int record_ranks(const char *path, int ranks, int (*fn)(int rank, void *argument), void *argument);

/* Adds a line to the record. */
__attribute__((format(printf, 1, 2))) void record(const char *format, ...);

/* Records a status other than CAIRN_OK with its message; returns the status. */
cairn_status record_status(const char *call, cairn_status status);

/* Records the current weights, masters, counters, scalers and buffers. */
void record_state(const char *when);

/* Records values and f32 gradients as returned by cairn_optimizer_masters. */
void record_params(const cairn_param *params, size_t count);

/* Call after an error that leaves ranks in different states: objects are then destroyed without the last steps
 * (record.c). */
void record_no_last_steps(void);

#endif
