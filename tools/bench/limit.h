/* Upper bound for the speed of an all-reduce: the same reduction without synchronisation. Each rank reads and writes
 * its 1/p of all ranks' arrays, which are in one shared memory file, by one of three loops: Cairn's kernel; and, in
 * case that is not the fastest, a plain and (for two ranks) a non-temporal loop of 64-bit sums, whose results are
 * meaningless and not checked. */
#ifndef BENCH_LIMIT_H
#define BENCH_LIMIT_H

/* Runs one rank, as given by RANK and WORLD_SIZE in the environment. memory: a file descriptor that all ranks share.
 * Returns the exit code. */
int bench_limit_serve(const char *socket_path, int memory);

#endif
