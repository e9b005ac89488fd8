#include "worker.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ROUNDS = 10000 };

struct order {
    struct bench_call call;
    bool group; /* use group memory */
    char variant[16];
    unsigned first, rounds;
};

/* The memory of the last order; the next order often needs the same. */
struct memory {
    void *first, *second;
    size_t nbytes[2];
    bool group;
};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- memory ---- */

static void release(const struct bench_side *side, struct memory *m) {
    if (m->second) side->free(m->second, m->group);
    if (m->first) side->free(m->first, m->group);
    *m = (struct memory){0};
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Every rank gets the same orders, so all ranks allocate alike, as group memory requires. */
static bool provide(const struct bench_side *side, const struct order *o, struct memory *m) {
    const size_t width = cairn_dtype_nbytes(o->call.dtype);
    size_t first = bench_source_elements(&o->call) * width, second = bench_destination_elements(&o->call) * width;
    if (o->call.in_place) {
        first = larger(first, second);
        second = 0;
    }
    if (m->first && m->nbytes[0] == first && m->nbytes[1] == second && m->group == o->group) return true;
    release(side, m);
    *m = (struct memory){.nbytes = {first, second}, .group = o->group};
    m->first = side->alloc(first, o->group);
    if (second) m->second = side->alloc(second, o->group);
    return m->first && (second == 0 || m->second);
}

/* ---- orders ---- */

static cairn_dtype find_type(const char *name) {
    for (int t = CAIRN_F32; t <= CAIRN_BF16; t++) {
        if (strcmp(cairn_dtype_name((cairn_dtype)t), name) == 0) return (cairn_dtype)t;
    }
    return (cairn_dtype)0;
}

static bool read_order(const struct bench_side *side, const char *line, struct order *o) {
    char collective[32], type[8], place[8], memory[16];
    *o = (struct order){.call = {.rank = side->rank, .size = side->size}};
    if (sscanf(line, "run %31s %7s %zu %7s %15s %u %15s %u %u", collective, type, &o->call.n, place, memory,
               &o->call.calls, o->variant, &o->first, &o->rounds) != 9)
        return false;
    o->call.collective = bench_find(collective);
    o->call.dtype = find_type(type);
    o->call.in_place = strcmp(place, "in") == 0;
    o->group = strcmp(memory, "group") == 0;
    return o->call.collective < BENCH_COLLECTIVES && o->call.dtype && o->call.calls > 0 && o->rounds > 0 &&
           o->rounds <= MAX_ROUNDS;
}

/* The first barrier wakes sleeping ranks, which may take long; the second releases all at the same moment. */
static bool start_together(const struct bench_side *side) {
    return side->barrier() && side->barrier();
}

/* Times one round; returns false if the side failed. */
static bool time_calls(const struct bench_side *side, const struct order *o, unsigned round, const struct memory *m,
                       double *us, size_t *wrong) {
    void *source, *destination;
    bool went = true;
    bench_place(&o->call, m->first, m->second, &source, &destination);
    bench_prepare(&o->call, round, source, destination);
    if (!start_together(side)) return false;
    const double begin = now_us();
    for (unsigned k = 0; k < o->call.calls && went; k++) went = side->run(&o->call, o->variant, source, destination);
    *us = (now_us() - begin) / o->call.calls;
    if (went) went = side->barrier(); /* no rank checks results while another rank still runs the calls */
    if (went && (!side->settle || side->settle(o->variant)))
        *wrong += bench_count_wrong(&o->call, round, source, destination);
    return went;
}

/* Times n consecutive barriers; *us is the time of one. */
static bool time_barriers(const struct bench_side *side, const struct order *o, double *us) {
    bool went = start_together(side);
    const double begin = now_us();
    for (size_t i = 0; i < o->call.n && went; i++) went = side->barrier();
    *us = (now_us() - begin) / (double)o->call.n;
    return went;
}

static bool obey(const struct bench_side *side, const struct order *o, struct memory *m, FILE *bench) {
    static double us[MAX_ROUNDS];
    size_t wrong = 0;
    bool went = true;
    if (o->call.collective != BENCH_BARRIER && !provide(side, o, m)) {
        fprintf(bench, "failed no memory for %zu elements: %s\n", o->call.n, side->error());
        return false;
    }
    for (unsigned r = 0; r < o->rounds && went; r++) {
        went = o->call.collective == BENCH_BARRIER ? time_barriers(side, o, &us[r])
                                                   : time_calls(side, o, o->first + r, m, &us[r], &wrong);
    }
    if (!went) {
        fprintf(bench, "failed %s\n", side->error());
        return false;
    }
    fprintf(bench, "ok %zu", wrong);
    for (unsigned r = 0; r < o->rounds; r++) fprintf(bench, " %.3f", us[r]);
    fprintf(bench, "\n");
    return true;
}

/* ---- the socket ---- */

static FILE *dial(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path)) return NULL;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return NULL;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) return fdopen(fd, "r+");
    close(fd);
    return NULL;
}

int bench_talk(const char *program, const char *side, int rank, const char *what, const char *socket_path,
               bool (*answer)(void *ctx, const char *line, FILE *bench), void *ctx) {
    char line[4096];
    bool going_on = true;
    FILE *bench = dial(socket_path);
    if (!bench) {
        fprintf(stderr, "%s: nothing listens at %s; tools/cairn-bench starts this program\n", program, socket_path);
        return 1;
    }
    fprintf(bench, "hello %s %d %s\n", side, rank, what);
    fflush(bench);
    while (going_on && fgets(line, sizeof(line), bench) && strcmp(line, "end\n") != 0) {
        going_on = answer(ctx, line, bench);
        fflush(bench);
    }
    fclose(bench);
    return going_on ? 0 : 1;
}

/* ---- a side ---- */

struct served {
    const struct bench_side *side;
    struct memory memory;
};

static bool answer(void *ctx, const char *line, FILE *bench) {
    struct served *s = ctx;
    struct order o;
    if (!read_order(s->side, line, &o)) {
        fprintf(bench, "failed unknown order: %s", line);
        return false;
    }
    const char *why = s->side->lacks ? s->side->lacks(&o.call) : NULL;
    if (!why && o.call.collective != BENCH_BARRIER && !bench_has_place(o.call.collective, o.call.in_place))
        why = o.call.in_place ? "there is no such call in place" : "there is no such call out of place";
    if (!why) return obey(s->side, &o, &s->memory, bench);
    fprintf(bench, "no %s\n", why);
    return true;
}

int bench_serve(const struct bench_side *side, const char *socket_path) {
    struct served s = {.side = side};
    const int code = bench_talk(side->name, side->name, side->rank, side->what, socket_path, answer, &s);
    if (code == 0) release(side, &s.memory);
    return code;
}
