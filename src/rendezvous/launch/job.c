/* Distinguishes a job from others that run at the same time: by its number in the launcher's variables, or else by the
 * process that started its ranks. Ports and keys that are not given are derived from this, so every rank must find the
 * same. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/hash.h"
#include "core/vars.h"
#include "rendezvous/launch/parts.h"

/* Candidates lie in [FIRST_PORT, FIRST_PORT + NUM_PORTS); Linux hands out ports from 32768 on. NUM_PORTS is prime,
 * so that steps of any width reach every port once. */
enum { FIRST_PORT = 16000, NUM_PORTS = 16381, MAX_ANCESTORS = 64 };

/* The hash, followed by splitmix64's last steps, which spread it over all bits. */
static uint64_t hash_of(const char *text) {
    uint64_t h = cairn__hash_text(CAIRN__HASH_START, text);
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9;
    h = (h ^ h >> 27) * 0x94d049bb133111eb;
    return h ^ h >> 31;
}

/* ---- the process that started the ranks ---- */

/* Returns the process's parent, 0 if unknown, and its start time, which distinguishes it from an earlier process with
 * the same number. */
static int look_up_process(int pid, unsigned long long *start) {
    char path[64], text[1024] = "";
    int parent = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t got = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (got <= 0) return 0;
    const char *after_name = strrchr(text, ')');
    if (!after_name || sscanf(after_name, ") %*c %d", &parent) != 1) return 0;
    const char *at = after_name + 1; /* the space before field 3 */
    for (int field = 3; field < 22 && at; field++) at = strchr(at + 1, ' ');
    *start = at ? strtoull(at, NULL, 10) : 0;
    return parent;
}

/* ---- the job ---- */

/* The job as the launcher's variables give it: appends "-value" of every one that is set. */
static const char *find_variables(const struct cairn__launcher *by, const struct cairn__launch *launch, char *identity,
                                  size_t nbytes) {
    const char *first = NULL;
    (void)launch;
    for (int i = 0; i < CAIRN__MAX_NAMES && by->job[i]; i++) {
        const char *value = cairn__var(by->job[i]);
        const size_t used = strlen(identity);
        if (value) snprintf(identity + used, nbytes - used, "-%s", value);
        if (value && !first) first = by->job[i];
    }
    return first;
}

/* Finds the process that started the ranks, which is the same for all ranks if they are on one machine: the nearest
 * ancestor without a rank in its environment. Wrappers between that process and this one have this process's rank. */
static const char *find_process(const struct cairn__launcher *by, const struct cairn__launch *launch, char *identity,
                                size_t nbytes) {
    identity[0] = '-';
    if (!by->job_is_process || launch->local_size != launch->size) return NULL;
    int pid = getppid();
    for (int i = 0; i < MAX_ANCESTORS && pid > 0; i++) {
        unsigned long long start = 0;
        const int parent = look_up_process(pid, &start);
        if (!cairn__var_in_process(pid, cairn__first_set(by->rank))) {
            snprintf(identity + 1, nbytes - 1, "%d.%llu", pid, start);
            return "the process that started the ranks";
        }
        pid = parent;
    }
    return NULL;
}

bool cairn__job_find(const struct cairn__launch *launch, struct cairn__job *job) {
    static const char *(*const ways[])(const struct cairn__launcher *, const struct cairn__launch *, char *,
                                       size_t) = {find_variables, find_process};
    for (int i = 0; i < 2; i++) {
        for (const struct cairn__launcher *by = cairn__launchers; by->name; by++) {
            char identity[1100] = "";
            const bool agrees = cairn__launcher_agrees(by, launch->rank, launch->size);
            const char *from = agrees ? ways[i](by, launch, identity, sizeof(identity)) : NULL;
            if (!from) continue;
            char text[1200];
            snprintf(text, sizeof(text), "%s%s", by->name, identity);
            job->number = hash_of(text);
            for (char *c = text; *c; c++) {
                if (*c <= ' ' || *c == '/' || *c > '~') *c = '_';
            }
            snprintf(job->name, sizeof(job->name), "%.48s-%016" PRIx64, text, job->number);
            snprintf(job->from, sizeof(job->from), "%s", from);
            return true;
        }
    }
    return false;
}

void cairn__job_ports(const struct cairn__job *job, int ports[CAIRN__MAX_PORTS]) {
    const uint64_t first = job->number % NUM_PORTS, step = 1 + (job->number >> 32) % (NUM_PORTS - 1);
    for (uint64_t i = 0; i < CAIRN__MAX_PORTS; i++) ports[i] = FIRST_PORT + (int)((first + i * step) % NUM_PORTS);
}
