/* A rank of one side of the comparison (Cairn, the limit, Open MPI), as tools/cairn-bench drives it.
 *
 * Every rank of every side connects to cairn-bench's socket and sleeps in read() while others have their turn, so that
 * only one side at a time uses the processors. Lines:
 *   rank   hello <side> <rank> <what it is>
 *   bench  run <collective> <type> <n> <in|out> <group|ordinary> <calls> <variant> <first round> <rounds>
 *   rank   ok <wrong elements> <us of each round>, or: no <why it cannot>, or: failed <why>, and the rank ends
 *   bench  end
 * A round: the rank writes its data, two barriers, so many calls of the collective in a row, which are timed and count
 * as one of their mean time, a barrier, and a look at every element of the result. */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include <stdio.h>

#include "calls.h"

struct bench_side {
    const char *name;
    int rank, size;
    const char *what; /* library and version */
    /* NULL, or why it cannot. */
    const char *(*lacks)(const struct bench_call *call);
    /* NULL where there is none. group: memory that is best for the side. */
    void *(*alloc)(size_t nbytes, bool group);
    void (*free)(void *memory, bool group);
    /* false: error tells why. */
    bool (*run)(const struct bench_call *call, const char *variant, const void *source, void *destination);
    /* Optional, after the clock has stopped: until results may be looked at; whether they may. NULL = they may at
     * once. */
    bool (*settle)(const char *variant);
    bool (*barrier)(void);
    const char *(*error)(void);
};

/* Connects to cairn-bench's socket, says hello, and answers lines, which end with their newline, until cairn-bench is
 * done or gone, or answer returns false; the process's exit code. program and side: for what is said. */
int bench_talk(const char *program, const char *side, int rank, const char *what, const char *socket_path,
               bool (*answer)(void *ctx, const char *line, FILE *bench), void *ctx);

/* Serves until cairn-bench is done or gone; the process's exit code. */
int bench_serve(const struct bench_side *side, const char *socket_path);

#endif
