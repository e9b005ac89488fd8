#include "values.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "text.h"

bool read_whole(const char *text, int least, int most, int *value) {
    char *end;
    if (!isdigit((unsigned char)text[text[0] == '-'])) return false;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || *end || n < least || n > most) return false;
    *value = (int)n;
    return true;
}

/* cairn-run sets no locale, so strtod's decimal point is a point; strtod's other forms (0x1p3, inf) are refused. */
bool read_seconds(const char *text, double *value) {
    char *end;
    if (!*text || text[strspn(text, "0123456789.eE+-")]) return false;
    double seconds = strtod(text, &end);
    if (*end || !(seconds >= 0 && seconds <= 1e6)) return false;
    *value = seconds;
    return true;
}

bool read_range(const char *text, int most, int *min, int *max) {
    const char *colon = strchr(text, ':');
    char *first = must(strndup(text, colon ? (size_t)(colon - text) : strlen(text)));
    int a = 0, b = 0;
    bool fine = read_whole(first, 1, most, &a) && (colon ? read_whole(colon + 1, a, most, &b) : true);
    free(first);
    if (!fine) return false;
    *min = a;
    *max = colon ? b : a;
    return true;
}

static bool is_host(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)text[i]) && !strchr("._-:%", text[i])) return false;
    }
    return n > 0 && n < 256;
}

bool read_endpoint(const char *text, char **host, int *port) {
    bool bracket = text[0] == '[';
    const char *name = text + bracket;
    size_t n = strcspn(name, bracket ? "]" : ":");
    const char *rest = name + n;
    int number = *port;
    if (bracket && *rest++ != ']') return false;
    if (!is_host(name, n)) return false;
    if (*rest == ':' ? !read_whole(rest + 1, 0, 65535, &number) : *rest != '\0') return false;
    *host = must(strndup(name, n));
    *port = number;
    return true;
}

/* Calls take with each word between commas, without the blanks around it. */
static bool for_each_word(const char *text, bool (*take)(char *word, void *to), void *to) {
    char *copy = must(strdup(text)), *rest = copy;
    bool fine = true;
    for (char *word; fine && (word = strsep(&rest, ","));) {
        while (isspace((unsigned char)*word)) word++;
        for (size_t n = strlen(word); n > 0 && isspace((unsigned char)word[n - 1]); n--) word[n - 1] = '\0';
        fine = take(word, to);
    }
    free(copy);
    return fine;
}

enum { LAST_RANK = 999999 }; /* largest number that is read as a rank */

/* Where the ranks of a list are stored. */
struct rank_list {
    unsigned char *streams;
    bool *listed;
    int ranks, *beyond;
};

static bool take_streams(char *word, void *to) {
    struct rank_list *list = to;
    char *colon = strchr(word, ':');
    int rank, streams;
    if (!colon) return false;
    *colon = '\0';
    if (!read_whole(word, 0, LAST_RANK, &rank) || !read_whole(colon + 1, 0, STREAM_OUT | STREAM_ERR, &streams))
        return false;
    if (rank < list->ranks) {
        list->streams[rank] = (unsigned char)streams;
    } else {
        *list->beyond = rank;
    }
    return true;
}

bool read_streams(const char *text, unsigned char *streams, int ranks, int *beyond) {
    struct rank_list list = {.streams = streams, .ranks = ranks, .beyond = beyond};
    int all = 0;
    bool one = read_whole(text, 0, STREAM_OUT | STREAM_ERR, &all);
    memset(streams, all, (size_t)ranks);
    return one || for_each_word(text, take_streams, &list);
}

static bool take_rank(char *word, void *to) {
    struct rank_list *list = to;
    int rank;
    if (!read_whole(word, 0, LAST_RANK, &rank)) return false;
    if (rank < list->ranks) {
        list->listed[rank] = true;
    } else {
        *list->beyond = rank;
    }
    return true;
}

bool read_rank_list(const char *text, bool *listed, int ranks, int *beyond) {
    struct rank_list list = {.listed = listed, .ranks = ranks, .beyond = beyond};
    return !*text || for_each_word(text, take_rank, &list);
}

/* Signals that no process can handle, and SIGCHLD, by which cairn-run waits for its ranks. */
static bool take_signal(char *word, void *to) {
    if (strncasecmp(word, "SIG", 3) == 0) word += 3;
    for (int s = 1; s < NSIG; s++) {
        const char *name = sigabbrev_np(s);
        if (!name || strcasecmp(name, word) != 0) continue;
        if (s == SIGKILL || s == SIGSTOP || s == SIGCHLD) return false;
        sigaddset(to, s);
        return true;
    }
    return false;
}

bool read_signals(const char *text, sigset_t *set) {
    sigemptyset(set);
    return for_each_word(text, take_signal, set);
}

int count_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* ---- GPUs ---- */

/* Files in folder whose names are prefix and a text that begins with a digit. */
static int count_files(const char *root, const char *folder, const char *prefix) {
    char *path = format_text("%s%s", root, folder);
    DIR *dir = opendir(path);
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        size_t length = strlen(prefix);
        if (strncmp(e->d_name, prefix, length) == 0 && isdigit((unsigned char)e->d_name[length])) n++;
    }
    if (dir) closedir(dir);
    free(path);
    return n;
}

struct visible {
    int present, n;
};

/* CUDA reads indices and names ("GPU-...", "MIG-...") up to the first invalid one. */
static bool take_visible(char *word, void *to) {
    struct visible *v = to;
    int index;
    bool named = strncmp(word, "GPU-", 4) == 0 || strncmp(word, "MIG-", 4) == 0;
    if (!named && !read_whole(word, 0, v->present - 1, &index)) return false;
    v->n++;
    return true;
}

/* A container has the nodes of its own GPUs in /dev and every GPU of the machine in /proc. */
int count_gpus(const char *root, const char *visible) {
    struct visible v = {.present = count_files(root, "/dev", "nvidia")};
    if (v.present == 0) v.present = count_files(root, "/proc/driver/nvidia/gpus", "");
    if (!visible || v.present == 0) return v.present;
    for_each_word(visible, take_visible, &v);
    return v.n;
}
