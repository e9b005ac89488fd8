#include "link.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/fields.h"
#include "../common/say.h"

/* ---- algorithms ---- */

static const char *const algorithms[] = {
    [RING] = "ring", [TREE] = "tree", [HALVING_DOUBLING] = "halving-doubling", [ALL_TO_ALL] = "all-to-all"};

enum algorithm algorithm_named(const char *name) {
    for (enum algorithm a = RING; a <= ALL_TO_ALL; a++) {
        if (strcmp(name, algorithms[a]) == 0) return a;
    }
    return 0;
}

const char *algorithm_name(enum algorithm a) {
    return algorithms[a];
}

/* ceil(log2 p) */
static int levels(int p) {
    int m = 0;
    while (1 << m < p) m++;
    return m;
}

/* The number of message latencies. */
static double latencies(enum algorithm a, int p, double overlap_cost) {
    if (a == TREE || a == HALVING_DOUBLING) return 2.0 * levels(p);
    return 2 * (1 + (p - 2) * (a == ALL_TO_ALL ? overlap_cost : 1));
}

/* How many times each byte passes a rank's link. */
static double passes(enum algorithm a, int p) {
    const double q = a == HALVING_DOUBLING ? 1 << levels(p) : p;
    return a == TREE ? 2.0 * levels(p) : 2 * (q - 1) / q;
}

/* ---- times ---- */

/* The table's time for its number of ranks. */
static double table_ns(const struct link *l, double nbytes) {
    const struct point *first = l->points, *last = l->points + l->count - 1;
    if (nbytes <= first->nbytes) return first->ns;
    if (nbytes >= last->nbytes) return last->ns + (nbytes - last->nbytes) * (last->ns - first->ns) / last->nbytes;
    const struct point *b = first + 1;
    while (b->nbytes < nbytes) b++;
    if (b->nbytes == nbytes) return b->ns;
    const struct point *a = b - 1;
    const double along = log(nbytes / a->nbytes) / log(b->nbytes / a->nbytes);
    return fmin(b->ns, a->ns * exp(along * log(b->ns / a->ns)));
}

double link_allreduce_ns(const struct link *l, enum algorithm a, double nbytes, int p) {
    if (p < 2) return 0;
    const double steps = latencies(a, p, l->overlap_cost), share = passes(a, p);
    if (l->count == 0) return steps * l->alpha_ns + share * nbytes * l->beta_ns;
    if (p == l->ranks) return table_ns(l, nbytes);
    const double latency = l->points[0].ns;
    return steps / latencies(a, l->ranks, l->overlap_cost) * latency +
           share / passes(a, l->ranks) * (table_ns(l, nbytes) - latency);
}

static double within_ns(const struct network *net, double nbytes, int p) {
    return net->node_ranks > 1
               ? link_allreduce_ns(&net->node, net->algorithm, nbytes, p < net->node_ranks ? p : net->node_ranks)
               : 0;
}

static double between_ns(const struct network *net, double nbytes, size_t width, int p) {
    const bool sends_sums = net->algorithm == ALL_TO_ALL && net->node_ranks > 1 && width < sizeof(float);
    const double bytes = sends_sums ? nbytes * (1 + sizeof(float) / (double)width) / 2 : nbytes;
    return link_allreduce_ns(&net->link, net->algorithm, bytes, (p + net->node_ranks - 1) / net->node_ranks);
}

double network_allreduce_ns(const struct network *net, double nbytes, size_t width, int p) {
    return within_ns(net, nbytes, p) + between_ns(net, nbytes, width, p);
}

double network_share(const struct network *net, double nbytes, size_t width, int p) {
    const double within = within_ns(net, nbytes, p), between = between_ns(net, nbytes, width, p);
    return within > 0 ? (within * net->node.share + between * net->link.share) / (within + between) : net->link.share;
}

/* ---- presets ---- */

/* Rates are 80 % of what a link's lanes carry each way, where nothing else is said; alpha is the order of magnitude of
 * a short message between two processes, a launched kernel where GPUs reduce. These are initial assumptions; measure on
 * the actual machine if possible (cairn-bench allreduce --json, nccl-tests).
 *
 *   shm          two ranks of one machine, docs/benchmarks.md ("Collectives"): 64 MiB of f32 in 3.6 ms
 *   pcie4, 5     16 lanes of 16 and 32 GT/s, 128b/130b: 31.5 and 63 GB/s (PCI-SIG)
 *   nvlink3, 4   A100 has 12, H100 18 links of 25 GB/s each way (NVIDIA's data sheets)
 *   ib-hdr, -ndr 4 lanes of 50 and 100 Gb/s: 25 and 50 GB/s, 90 % of it (IBTA; short messages 1 to 2 us)
 *   ethernet-*   TCP with an MTU of 1500 carries 1448 of 1538 bytes, 94 % (RFC 894, IEEE 802.3); 30 us there through
 *                two kernels, 5 us of which a message costs its sender */
static const struct {
    const char *name;
    double alpha_us, gbytes_per_s, overhead_us, share;
    const char *what;
} presets[] = {
    {"free", 0, INFINITY, 0, 0, "no communication: as fast as it can get"},
    {"shm", 0.5, 19, 0.5, 1, "shared memory of one machine; the ranks' own processors add up"},
    {"pcie4", 8, 25, 2, 0, "PCIe 4.0 x16"},
    {"pcie5", 8, 50, 2, 0, "PCIe 5.0 x16"},
    {"nvlink3", 6, 240, 1, 0, "NVLink of A100, through NVSwitch"},
    {"nvlink4", 6, 360, 1, 0, "NVLink of H100, through NVSwitch"},
    {"ib-hdr", 2, 22.5, 0.3, 0, "InfiniBand HDR, 200 Gb/s"},
    {"ib-ndr", 2, 45, 0.3, 0, "InfiniBand NDR, 400 Gb/s"},
    {"ethernet-10", 30, 1.18, 5, 0, "10 GbE, TCP"},
    {"ethernet-25", 30, 2.94, 5, 0, "25 GbE, TCP"},
    {"ethernet-100", 30, 11.8, 5, 0, "100 GbE, TCP"},
};
enum { PRESETS = sizeof(presets) / sizeof(presets[0]) };

void link_print_presets(FILE *out) {
    for (int i = 0; i < PRESETS; i++) {
        fprintf(out, "  %-13s %5.1f us %6.1f GB/s   %s\n", presets[i].name, presets[i].alpha_us,
                presets[i].gbytes_per_s, presets[i].what);
    }
}

/* The ratio of a message's cost to its sender and its latency. */
static double ratio(double overhead, double alpha) {
    return alpha > 0 ? overhead / alpha : 1;
}

static bool read_preset(const char *name, struct link *out) {
    for (int i = 0; i < PRESETS; i++) {
        if (strcmp(name, presets[i].name) != 0) continue;
        *out = (struct link){.name = must(strdup(name)),
                             .alpha_ns = 1e3 * presets[i].alpha_us,
                             .beta_ns = 1 / presets[i].gbytes_per_s,
                             .overlap_cost = ratio(presets[i].overhead_us, presets[i].alpha_us),
                             .share = presets[i].share};
        return true;
    }
    return false;
}

/* ---- tables ---- */

static int by_bytes(const void *a, const void *b) {
    const struct point *x = a, *y = b;
    return (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes);
}

/* Averages falling points: a block of `width` neighbours shares its mean. */
static void make_rising(struct point *points, size_t count) {
    size_t *width = must(calloc(count, sizeof(*width))), blocks = 0;
    double *mean = must(calloc(count, sizeof(*mean)));
    for (size_t i = 0; i < count; i++) {
        mean[blocks] = points[i].ns;
        width[blocks++] = 1;
        for (; blocks > 1 && mean[blocks - 2] > mean[blocks - 1]; blocks--) {
            const double a = (double)width[blocks - 2], b = (double)width[blocks - 1];
            mean[blocks - 2] = (a * mean[blocks - 2] + b * mean[blocks - 1]) / (a + b);
            width[blocks - 2] += width[blocks - 1];
        }
    }
    for (size_t b = 0, i = 0; b < blocks; b++) {
        for (size_t end = i + width[b]; i < end; i++) points[i].ns = mean[b];
    }
    free(width);
    free(mean);
}

static bool finish_table(const char *file, struct link *l) {
    qsort(l->points, l->count, sizeof(*l->points), by_bytes);
    for (size_t i = 1; i < l->count; i++) {
        if (l->points[i].nbytes == l->points[i - 1].nbytes)
            return refuse("%s: has two times for %.0f bytes; one is expected", file, l->points[i].nbytes);
    }
    if (l->count < 2)
        return refuse("%s: has a time for one size only, from which no rate follows; give two sizes or more", file);
    make_rising(l->points, l->count);
    return true;
}

static void add_point(struct link *l, double nbytes, double us) {
    l->points = must(realloc(l->points, (l->count + 1) * sizeof(*l->points)));
    l->points[l->count++] = (struct point){nbytes, 1e3 * us};
}

static bool read_points(struct node top, json_t *list, struct link *l) {
    char path[48];
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(path, sizeof(path), "points[%zu]", i);
        const struct node at = {top.file, path, json_array_get(list, i)};
        double nbytes = 0, us = 0;
        if (!json_is_object(at.value)) return refuse("%s: %s must be an object of bytes and us", at.file, path);
        if (!fields_whole(at, "bytes", 1, REQUIRED, &nbytes)) return false;
        if (!fields_number(at, "us", 1e-6, REQUIRED, &us)) return false;
        add_point(l, nbytes, us);
    }
    return finish_table(top.file, l);
}

static bool read_ranks(struct node top, struct link *l) {
    double ranks = 0;
    if (!fields_whole(top, "ranks", 2, REQUIRED, &ranks)) return false;
    if (ranks > MAX_RANKS) return fields_refuse(top, "ranks", "at most 16384");
    l->ranks = (int)ranks;
    return true;
}

static bool read_overhead(struct node top, struct link *l) {
    double alpha_us = l->alpha_ns * 1e-3, overhead_us = alpha_us;
    if (!fields_number(top, "overhead_us", 0, OPTIONAL, &overhead_us)) return false;
    if (overhead_us > alpha_us) return fields_refuse(top, "overhead_us", "at most alpha_us");
    l->overlap_cost = ratio(overhead_us, alpha_us);
    return true;
}

/* The project's own format: alpha and rate, or points. */
static bool read_own(struct node top, struct link *l) {
    double alpha_us = 0, rate = 0;
    json_t *list = NULL;
    if (!fields_number(top, "share", 0, OPTIONAL, &l->share)) return false;
    if (l->share > 1) return fields_refuse(top, "share", "at most 1");
    if (!fields_array(top, "points", OPTIONAL, &list)) return false;
    if (!fields_number(top, "alpha_us", 0, !list, &alpha_us)) return false;
    l->alpha_ns = 1e3 * alpha_us;
    if (!read_overhead(top, l)) return false;
    if (list) return read_ranks(top, l) && read_points(top, list, l);
    if (!fields_number(top, "gbytes_per_s", 1e-6, REQUIRED, &rate)) return false;
    l->beta_ns = 1 / rate;
    return true;
}

/* One row of cairn-bench's file: Cairn's own, in place and in group memory, as buckets are. */
static bool read_bench_row(const char *file, size_t i, json_t *row, struct link *l) {
    char path[48];
    snprintf(path, sizeof(path), "rows[%zu]", i);
    const struct node at = {file, path, row};
    const char *side = NULL, *memory = NULL;
    double nbytes = 0, us = 0;
    if (!json_is_object(row)) return refuse("%s: %s must be an object", file, path);
    if (!fields_text(at, "side", REQUIRED, &side) || !fields_text(at, "memory", REQUIRED, &memory)) return false;
    if (strcmp(side, "cairn") != 0 || strcmp(memory, "group") != 0) return true;
    if (!fields_whole(at, "size", 1, REQUIRED, &nbytes)) return false;
    snprintf(path, sizeof(path), "rows[%zu].in_place", i);
    const struct node place = {file, path, json_object_get(row, "in_place")};
    if (!fields_number(place, "time_us", 1e-6, REQUIRED, &us)) return false;
    add_point(l, nbytes, us);
    return true;
}

/* Cairn's backends shm and mpi have no thread of their own: the thread that runs backward moves and adds bytes. */
static bool read_bench(struct node top, struct link *l) {
    const char *collective = NULL, *backend = NULL;
    json_t *rows = NULL;
    if (!fields_text(top, "collective", REQUIRED, &collective)) return false;
    if (strcmp(collective, "allreduce") != 0) return fields_refuse(top, "collective", "\"allreduce\"");
    if (!fields_text(top, "backend", REQUIRED, &backend) || !read_ranks(top, l)) return false;
    if (!fields_array(top, "rows", REQUIRED, &rows)) return false;
    l->share = strcmp(backend, "gloo") == 0 ? 0 : 1;
    l->overlap_cost = 1;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        if (!read_bench_row(top.file, i, json_array_get(rows, i), l)) return false;
    }
    if (l->count == 0) return refuse("%s: rows has no entry of Cairn's in group memory", top.file);
    return finish_table(top.file, l);
}

static bool read_file(struct node top, struct link *l) {
    const char *format = NULL, *name = top.file;
    if (!json_object_get(top.value, "format") && json_object_get(top.value, "rows")) {
        l->name = clean_text(name);
        return read_bench(top, l);
    }
    if (!fields_text(top, "format", REQUIRED, &format)) return false;
    if (strcmp(format, "cairn-link") != 0) return fields_refuse(top, "format", "\"cairn-link\"");
    if (!fields_text(top, "name", OPTIONAL, &name)) return false;
    l->name = clean_text(name);
    return read_own(top, l);
}

bool link_read(const char *name, struct link *out) {
    json_t *root = NULL;
    if (read_preset(name, out)) return true;
    *out = (struct link){0};
    if (!strpbrk(name, "./") && access(name, F_OK) != 0)
        return refuse("--link and --node-link take a file, or a preset that --help lists, not '%s'", name);
    if (!fields_open(name, &root)) return false;
    const bool good = read_file((struct node){name, "", root}, out);
    json_decref(root);
    if (!good) link_free(out);
    return good;
}

void link_free(struct link *l) {
    free(l->name);
    free(l->points);
    *l = (struct link){0};
}
