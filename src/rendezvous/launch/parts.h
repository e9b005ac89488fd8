/* What the parts of this folder share: the launchers as data, and who reads what. launch.h is for everybody else. */
#ifndef CAIRN__RENDEZVOUS_LAUNCH_PARTS_H
#define CAIRN__RENDEZVOUS_LAUNCH_PARTS_H

#include <stdint.h>

#include "rendezvous/launch/launch.h"

enum { CAIRN__MOST_NAMES = 4, CAIRN__MAX_RANK = 65535, CAIRN__NOT_TOLD = -1 };

/* Names of variables, of which the first that is set counts; fewer end with NULL. */
typedef const char *cairn__names[CAIRN__MOST_NAMES];

struct cairn__launcher {
    const char *name;
    cairn__names rank, size, local_rank, local_size;
    cairn__names job;           /* what tells one of its jobs from another: all that are set, together */
    bool (*counts)(void);       /* (optional: always) whether the variables speak of this process at all */
    int (*local_size_of)(void); /* (optional) asked where no variable of local_size is set; 0 = it does not tell */
    bool is_mpi;                /* Open MPI's processes know each other through it */
    bool job_is_process;        /* where no variable names the job, the process that started the ranks does */
};

/* In the order in which they count; the last has no name. The first is torch's, whose variables people set by hand
 * too. */
extern const struct cairn__launcher cairn__launchers[];

/* The name of the first variable that is set, NULL = none. */
const char *cairn__first_set(const cairn__names names);

/* Whether the launcher says just this rank and size. */
bool cairn__launcher_agrees(const struct cairn__launcher *by, int rank, int size);

/* A line for launch->notes; what does not fit is left out. */
void cairn__launch_note(struct cairn__launch *launch, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --local_rank: its number, CAIRN__NOT_TOLD where it is not there; taking it out. */
cairn_status cairn__argument_find(int argc, char **argv, int *local_rank);
void cairn__argument_remove(int *argc, char **argv);

/* Of "2(x3),1" the number for the index-th node; 0 where the list is malformed or shorter. */
int cairn__tasks_on_node(const char *list, int index);

/* What all ranks of one job know and no other job does. */
struct cairn__job {
    char name[72];   /* "mpirun-408682497-3f0c6ae1b2d45978": readable, and no two alike */
    char from[64];   /* the variable that told it */
    uint64_t number; /* a hash */
};

/* False where nothing tells. */
bool cairn__job_find(const struct cairn__launch *launch, struct cairn__job *job);

/* Distinct ports below the range that systems hand out by themselves, the same on every machine. */
void cairn__job_ports(const struct cairn__job *job, int ports[CAIRN__MAX_PORTS]);

/* Fills launch->meeting, for whose rank and sizes are known. job is NULL where nothing tells it. */
cairn_status cairn__meeting_find(const struct cairn__launch_told *told, const struct cairn__job *job,
                                 struct cairn__launch *launch);

#endif
