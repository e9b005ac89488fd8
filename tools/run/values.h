/* What the texts of options mean. Each returns false where the text is not one of its kind, and says nothing: whoever
 * knows the option's name does. Numbers are read the same in every locale. */
#ifndef RUN_VALUES_H
#define RUN_VALUES_H

#include <signal.h>
#include <stdbool.h>

bool read_whole(const char *text, int least, int most, int *value);

/* 0 to 1e6, such as 30, .5 or 1e-3. */
bool read_seconds(const char *text, double *value);

/* "N" or "MIN:MAX", 1 <= MIN <= MAX <= most. */
bool read_range(const char *text, int most, int *min, int *max);

/* host, host:port, [v6] or [v6]:port. *host is made with malloc, without brackets; *port stays where none is given. */
bool read_endpoint(const char *text, char **host, int *port);

/* "3" or "0:3,12:1": bits of STREAM_ for every rank, or for those it names, into streams [ranks]. What it says of a
 * rank beyond those counts for nothing; *beyond is the last of them, if any. */
bool read_streams(const char *text, unsigned char *streams, int ranks, int *beyond);

/* "0,2,12" into listed [ranks]; "" is none. *beyond as above. */
bool read_rank_list(const char *text, bool *listed, int ranks, int *beyond);

/* "SIGTERM,usr1": names of signals that a process can be sent and take. */
bool read_signals(const char *text, sigset_t *set);

/* Processors that this process may use. */
int count_processors(void);

/* GPUs of NVIDIA that a program would find: what visible, which is CUDA_VISIBLE_DEVICES or NULL, leaves of those that
 * root/dev or root/proc show. */
int count_gpus(const char *root, const char *visible);

#endif
