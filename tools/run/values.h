/* Parsers of option texts. Each returns false for a text of another form. The caller knows the option's name and prints
 * the message. Numbers are read the same in every locale. */
#ifndef RUN_VALUES_H
#define RUN_VALUES_H

#include <signal.h>
#include <stdbool.h>

bool read_whole(const char *text, int least, int most, int *value);

/* 0 to 1e6, such as 30, .5 or 1e-3. */
bool read_seconds(const char *text, double *value);

/* "N" or "MIN:MAX", 1 <= MIN <= MAX <= most. */
bool read_range(const char *text, int most, int *min, int *max);

/* host, host:port, [v6] or [v6]:port. *host is made with malloc, without brackets; *port is unchanged if none is
 * given. */
bool read_endpoint(const char *text, char **host, int *port);

/* "3" or "0:3,12:1": bits of STREAM_ for every rank, or for those it names, into streams [ranks]. Ranks beyond those
 * are ignored; *beyond is the last of them, if any. */
bool read_streams(const char *text, unsigned char *streams, int ranks, int *beyond);

/* "0,2,12" into listed [ranks]; "" is none. *beyond as above. */
bool read_rank_list(const char *text, bool *listed, int ranks, int *beyond);

/* "SIGTERM,usr1": names of signals that a process can be sent and handle. */
bool read_signals(const char *text, sigset_t *set);

/* Processors that this process may use. */
int count_processors(void);

/* NVIDIA GPUs that a program would find: those that root/dev or root/proc list, restricted by visible, which is
 * CUDA_VISIBLE_DEVICES or NULL. */
int count_gpus(const char *root, const char *visible);

#endif
