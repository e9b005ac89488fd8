/* A rank of one side of the comparison (Cairn, the limit, Open MPI), as tools/cairn-bench drives it.
 *
 * Every rank of every side connects to cairn-bench's socket and sleeps in read() while other sides run, so that only
 * one side uses the processors at a time. Protocol, in lines:
 *   rank   hello <side> <rank> <what it is>
 *   bench  run <collective> <type> <n> <in|out> <group|ordinary> <calls> <variant> <first round> <rounds>
 *   rank   ok <wrong elements> <us of each round>, or: no <why it cannot>, or: failed <why>, and the rank ends
 *   bench  end
 * A round: the rank writes its data; two barriers; <calls> consecutive calls of the collective, which are timed and
 * count as one call of their mean time; a barrier; and a check of every element of the result. */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include <stdio.h>

#include "calls.h"

struct bench_side {
    const char *name;
    int rank, size;
    const char *what; /* library and version */
    /* Returns NULL, or why the side cannot run the call. */
    const char *(*lacks)(const struct bench_call *call);
    /* Returns NULL if out of memory. group: the kind of memory that is fastest for the side. */
    void *(*alloc)(size_t nbytes, bool group);
    void (*free)(void *memory, bool group);
    /* Returns false on error; error() returns the reason. */
    bool (*run)(const struct bench_call *call, const char *variant, const void *source, void *destination);
    /* (optional) Called after the clock has stopped: waits until results may be read, and returns whether they are
     * valid. NULL = they may be read at once. */
    bool (*settle)(const char *variant);
    bool (*barrier)(void);
    const char *(*error)(void);
};

/* Connects to cairn-bench's socket, says hello, and answers lines (with their newline) until cairn-bench is done or
 * gone, or answer returns false. Returns the process's exit code. program and side: for messages. */
int bench_talk(const char *program, const char *side, int rank, const char *what, const char *socket_path,
               bool (*answer)(void *ctx, const char *line, FILE *bench), void *ctx);

/* Serves until cairn-bench is done or gone. Returns the process's exit code. */
int bench_serve(const struct bench_side *side, const char *socket_path);

#endif
