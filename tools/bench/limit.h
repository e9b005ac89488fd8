/* The limit of an all-reduce: the same reduction by ranks that agree on nothing. Each reads and writes its 1/p of all
 * ranks' arrays, which lie in one shared memory file, in one of three loops: the chosen kernel; and, since a kernel may
 * be no limit, a plain and (for two ranks) a non-temporal loop of 64-bit sums, whose results mean nothing and are not
 * looked at. */
#ifndef BENCH_LIMIT_H
#define BENCH_LIMIT_H

/* A rank of it, by RANK and WORLD_SIZE in the environment; memory: a descriptor that all ranks have. The exit code. */
int bench_limit_serve(const char *socket_path, int memory);

#endif
