/* A child of fork has its parent's connections, shared memory and locks, but is no rank: what it sends would be taken
 * for its parent's. */
#ifndef CAIRN__CORE_FORK_H
#define CAIRN__CORE_FORK_H

/* A number that only fork changes, in the child: what was made under another number is a parent's. The first call has
 * to come before the fork. Costs a load. Any thread. */
unsigned cairn__forks(void);

#endif
