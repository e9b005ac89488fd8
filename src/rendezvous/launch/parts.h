/* Shared by the files of this folder: the launchers as data, and functions of one file that others call. Other rooms
 * use launch.h. */
#ifndef CAIRN__RENDEZVOUS_LAUNCH_PARTS_H
#define CAIRN__RENDEZVOUS_LAUNCH_PARTS_H

#include <stdint.h>

#include "rendezvous/launch/launch.h"

enum { CAIRN__MAX_NAMES = 4, CAIRN__MAX_RANK = 65535, CAIRN__NOT_TOLD = -1 };

/* Names of variables. The first one that is set counts; the list ends with NULL or is full. */
typedef const char *cairn__names[CAIRN__MAX_NAMES];

struct cairn__launcher {
    const char *name;
    cairn__names rank, size, local_rank, local_size;
    cairn__names job;           /* variables that identify a job: all that are set, together */
    bool (*counts)(void);       /* (optional: always) whether the variables describe this process */
    int (*local_size_of)(void); /* (optional) called if no variable of local_size is set; 0 = unknown */
    bool is_mpi;                /* Open MPI's processes find each other through this launcher */
    bool job_is_process; /* if no variable names the job, it is identified by the process that started the ranks */
};

/* In order of precedence; the last has no name. torch's is the first; users also set its variables by hand. */
extern const struct cairn__launcher cairn__launchers[];

/* The name of the first variable that is set, NULL = none. */
const char *cairn__first_set(const cairn__names names);

/* Whether the launcher's variables have exactly this rank and size. */
bool cairn__launcher_agrees(const struct cairn__launcher *by, int rank, int size);

/* Whether the program has called MPI_Init without a launcher: Open MPI then sets PMIX_RANK itself. */
bool cairn__mpi_is_singleton(void);

/* Adds a line to launch->notes if it fits. */
void cairn__launch_note(struct cairn__launch *launch, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Finds the number of --local_rank, CAIRN__NOT_TOLD if absent; cairn__argument_remove removes the argument. */
cairn_status cairn__argument_find(int argc, char **argv, int *local_rank);
void cairn__argument_remove(int *argc, char **argv);

/* The number for the index-th node in "2(x3),1"; 0 if the list is malformed or shorter. */
int cairn__tasks_on_node(const char *list, int index);

/* Identifies a job: equal on all its ranks, different from every other job's. */
struct cairn__job {
    char name[72];   /* "mpirun-408682497-3f0c6ae1b2d45978": readable and unique */
    char from[64];   /* the variable that identifies the job */
    uint64_t number; /* a hash */
};

/* False if nothing identifies the job. */
bool cairn__job_find(const struct cairn__launch *launch, struct cairn__job *job);

/* Fills ports with distinct ports below the range of temporary ports, the same on every machine. */
void cairn__job_ports(const struct cairn__job *job, int ports[CAIRN__MAX_PORTS]);

/* Fills launch->meeting; call it after rank and sizes are known. job is NULL if unknown. */
cairn_status cairn__meeting_find(const struct cairn__launch_told *told, const struct cairn__job *job,
                                 struct cairn__launch *launch);

#endif
