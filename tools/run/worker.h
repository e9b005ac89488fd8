/* One rank's arguments and environment. */
#ifndef RUN_WORKER_H
#define RUN_WORKER_H

#include "options.h"

/* A rank's place in the world of one attempt. */
struct place {
    int local_rank, local_size;
    int rank, size;
    int group_rank, group_size; /* node, nodes */
    int role_rank, role_size;
    int restart;             /* TORCHELASTIC_RESTART_COUNT */
    const char *master_addr; /* where the agents' store is */
    int master_port;
    const char *run_id;
    const char *error_file;
};

/* NULL-ended arrays made with malloc; free them with free_texts. ${local_rank} is replaced as string.Template does. */
char **worker_arguments(const struct options *o, int local_rank);
char **worker_environment(const struct options *o, const struct place *place);

#endif
