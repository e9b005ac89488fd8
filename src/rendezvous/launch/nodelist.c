/* Slurm's two short forms: node lists, "n[01-03,07]-ib,login", and tasks on each node, "2(x3),1".
 *
 * An entry of a node list is text with bracketed sets of numbers in it; every number has the width of the first in its
 * range. The names of an entry come in the order of its numbers, the last set changing fastest. Source: Slurm's
 * src/common/hostlist.c. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "rendezvous/launch/parts.h"

enum { MAX_SETS = 8, MAX_DIGITS = 9 };
static const int64_t MAX_NODES = INT32_MAX;

/* One to nine digits. */
static bool read_number(const char **at, int64_t *value, int *width) {
    const char *p = *at;
    *value = 0;
    for (; *p >= '0' && *p <= '9' && p - *at < MAX_DIGITS; p++) *value = *value * 10 + (*p - '0');
    *width = (int)(p - *at);
    *at = p;
    return *width > 0;
}

struct range {
    int64_t first, count;
    int width;
};

/* Reads "3" or "01-03" in a set; moves *at past it. */
static bool read_range(const char **at, struct range *r) {
    int width = 0;
    if (!read_number(at, &r->first, &r->width)) return false;
    int64_t last = r->first;
    if (**at == '-') {
        ++*at;
        if (!read_number(at, &last, &width)) return false;
    }
    r->count = last - r->first + 1;
    return r->count > 0 && (**at == ',' || **at == ']');
}

/* The count of numbers in the set at *at, which is after its "["; moves *at past the "]". 0 if malformed. */
static int64_t count_set(const char **at) {
    int64_t count = 0;
    for (struct range r;; ++*at) {
        if (!read_range(at, &r)) return 0;
        count += r.count;
        if (**at == ']') break;
    }
    ++*at;
    return count;
}

/* The index-th number of the set at `at`, which is after its "[". */
static struct range find_in_set(const char *at, int64_t index) {
    struct range r;
    for (; read_range(&at, &r) && index >= r.count; at++) index -= r.count;
    r.first += index;
    return r;
}

struct entry {
    const char *begin, *end;
    int64_t counts[MAX_SETS];
    int num_sets;
    int64_t count; /* of names */
};

/* False if malformed. */
static bool read_entry(const char *at, struct entry *e) {
    *e = (struct entry){.begin = at, .count = 1};
    while (*at && *at != ',') {
        if (*at == ']' || *at == ' ') return false;
        if (*at++ != '[') continue;
        if (e->num_sets == MAX_SETS) return false;
        const int64_t count = count_set(&at);
        if (count == 0) return false;
        e->counts[e->num_sets++] = count;
        e->count = e->count <= MAX_NODES / count ? e->count * count : MAX_NODES;
    }
    e->end = at;
    return at > e->begin;
}

/* False if the name is too long. */
static bool write_name(const struct entry *e, int64_t index, char *name, size_t nbytes) {
    int64_t places[MAX_SETS];
    for (int i = e->num_sets - 1; i >= 0; i--) {
        places[i] = index % e->counts[i];
        index /= e->counts[i];
    }
    size_t used = 0;
    int set = 0;
    for (const char *at = e->begin; at < e->end; at++) {
        char piece[24] = {*at};
        if (*at == '[') {
            const struct range r = find_in_set(at + 1, places[set++]);
            snprintf(piece, sizeof(piece), "%0*lld", r.width, (long long)r.first);
            at = strchr(at, ']');
        }
        const size_t length = strlen(piece);
        if (used + length >= nbytes) return false;
        memcpy(name + used, piece, length + 1);
        used += length;
    }
    return true;
}

cairn_status cairn__nodelist_get(const char *list, int index, char *name, size_t nbytes) {
    int64_t left = index;
    for (const char *at = list;; at++) {
        struct entry e;
        REQUIRE(index >= 0 && read_entry(at, &e), CAIRN_EINVAL,
                "'%.200s' is not a node list of Slurm's such as n[01-03,07]; set MASTER_ADDR to the address of rank "
                "0's machine",
                list);
        if (left < e.count) {
            REQUIRE(write_name(&e, left, name, nbytes), CAIRN_EINVAL,
                    "the node list '%.200s' has a name of more than %zu characters", list, nbytes - 1);
            return CAIRN_OK;
        }
        left -= e.count;
        at = e.end;
        REQUIRE(*at == ',', CAIRN_EINVAL, "the node list '%.200s' has no node %d", list, index);
    }
}

int cairn__tasks_on_node(const char *list, int index) {
    int64_t left = index;
    for (const char *at = list;; at++) {
        int64_t tasks = 0, times = 1;
        int width = 0;
        if (!read_number(&at, &tasks, &width)) return 0;
        if (strncmp(at, "(x", 2) == 0) {
            at += 2;
            if (!read_number(&at, &times, &width) || *at++ != ')') return 0;
        }
        if (left < times) return (int)tasks;
        left -= times;
        if (*at != ',') return 0;
    }
}
