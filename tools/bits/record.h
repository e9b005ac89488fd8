/* Records what a program computes with Cairn: for tools/same-bits, which compares the records of two builds.
 *
 * A program is compiled against Cairn's public headers, with its main renamed to program_main, and linked with record.c
 * and run.c. The linker's --wrap puts functions of record.c in front of the calls that make objects, take steps and end
 * objects, so that the program itself says nothing of recording. Each rank writes its record to a file of its own. */
#ifndef TOOLS_BITS_RECORD_H
#define TOOLS_BITS_RECORD_H

#include <cairn/cairn.h>

/* The program's own main; in a process of its own for each rank. */
int program_main(int argc, char **argv);

/* Runs fn as ranks processes, and in this one where ranks is 0. Output and record of each go to files whose names begin
 * with path. The exit code: 0, or 1 where a rank failed. */
int record_ranks(const char *path, int ranks, int (*fn)(int rank, void *argument), void *argument);

/* A line of the record, for programs that have something to add. */
__attribute__((format(printf, 1, 2))) void record(const char *format, ...);

/* Records a status other than CAIRN_OK, with its sentence; returns it. */
cairn_status record_status(const char *call, cairn_status status);

/* Weights, masters, counters, scalers and buffers as they are now. */
void record_state(const char *when);

/* Values and f32 gradients, as cairn_optimizer_masters shows them. */
void record_params(const cairn_param *params, size_t count);

/* After an error that leaves ranks at different places: objects are ended without the last steps (record.c). */
void record_no_last_steps(void);

#endif
