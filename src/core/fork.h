/* Detects fork. A child has its parent's connections, shared memory and locks but is not a rank: peers would take what
 * it sends for its parent's. */
#ifndef CAIRN__CORE_FORK_H
#define CAIRN__CORE_FORK_H

/* A number that fork changes in the child and nothing else changes: an object made under another number is a parent's.
 * The first call must precede the fork. Costs a load. Any thread. */
unsigned cairn__forks(void);

#endif
