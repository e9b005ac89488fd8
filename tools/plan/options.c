#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/version.h"
#include "profile.h"
#include "../common/say.h"
#include "../common/values.h"

static const char usage[] =
    "usage: cairn-plan [options] PROFILE\n"
    "       cairn-plan pipeline [options] STAGES      of stages and micro-batches; see cairn-plan pipeline --help\n"
    "\n"
    "Predicts how long a data-parallel training step takes, from what was measured of a model on one rank. PROFILE is "
    "what\n"
    "a training wrote with CAIRN_DDP_LOG=FILE, or another program of that form; docs/planning.md describes it.\n"
    "\n"
    "  --ranks N[,N...]      1 to 16384; 2\n"
    "  --cap BYTES[,...]     ddp_options.bucket_nbytes, such as 64K or 1G; 4M over shm, else\n"
    "                        25M\n"
    "  --first-cap BYTES     ddp_options.first_bucket_nbytes; 1M, or the cap where that is less\n"
    "  --wire TYPE           f32, f16 or bf16 travels; the profile's\n"
    "  --link NAME|FILE      what carries the gradients; shm. A preset, a file of points, or what\n"
    "                        tools/cairn-bench allreduce --json wrote (in Cairn's sources; it is not installed)\n"
    "  --algorithm NAME      ring, tree, halving-doubling, all-to-all; ring\n"
    "  --node-ranks N        so many ranks share a machine, and its --link\n"
    "  --node-link NAME|FILE  what joins the ranks of a machine; shm\n"
    "  --share X             part of a reduction's time that it takes of the rank's own processor, 0 to 1; the link's\n"
    "  --suggest             tries all caps that make a difference, and prints the best\n"
    "  --svg FILE            draws where the step's time goes; with --suggest the best one's\n"
    "  --json                the same figures for programs\n"
    "  --help, --version\n"
    "\n"
    "Exit code: 0; 1 where nothing can be predicted, with the reason; 2 for a wrong option.\n"
    "\n"
    "presets: latency of a message, rate each way\n";

enum { VERSION = 256, HELP };

static const struct option names[] = {{"ranks", required_argument, NULL, 'r'},
                                      {"cap", required_argument, NULL, 'c'},
                                      {"first-cap", required_argument, NULL, 'f'},
                                      {"wire", required_argument, NULL, 'w'},
                                      {"link", required_argument, NULL, 'l'},
                                      {"algorithm", required_argument, NULL, 'a'},
                                      {"node-ranks", required_argument, NULL, 'n'},
                                      {"node-link", required_argument, NULL, 'N'},
                                      {"share", required_argument, NULL, 's'},
                                      {"suggest", no_argument, NULL, 'S'},
                                      {"svg", required_argument, NULL, 'v'},
                                      {"json", no_argument, NULL, 'j'},
                                      {"version", no_argument, NULL, VERSION},
                                      {"help", no_argument, NULL, HELP},
                                      {NULL, 0, NULL, 0}};

/* ---- values ---- */

static bool read_rank_count(const char **text, size_t *value) {
    return read_whole(text, MAX_RANKS, value) && *value > 0;
}

static bool read_share(const char *text, double *value) {
    char *end = NULL;
    *value = strtod(text, &end);
    return text[strspn(text, "0123456789.e-")] == '\0' && end != text && *end == '\0' && *value >= 0 && *value <= 1;
}

static bool takes(const char *name, const char *what, const char *text) {
    return refuse("--%s takes %s, not '%s'", name, what, text);
}

/* ---- options ---- */

static bool set_ranks(struct options *o, const char *text) {
    size_t values[MAX_VALUES];
    if (!read_list(text, read_rank_count, values, &o->num_ranks))
        return takes("ranks", "numbers from 1 to 16384 with commas between them, 64 at most", text);
    for (size_t i = 0; i < o->num_ranks; i++) o->ranks[i] = (int)values[i];
    return true;
}

static bool set_caps(struct options *o, const char *text) {
    if (read_list(text, read_bytes, o->caps, &o->num_caps)) return true;
    return takes("cap", "bytes such as 64K, 25M or 1G with commas between them, 64 at most", text);
}

static bool set_first_cap(struct options *o, const char *text) {
    return read_one(text, read_bytes, &o->first_cap) || takes("first-cap", "bytes such as 64K or 1M", text);
}

static bool set_node_ranks(struct options *o, const char *text) {
    size_t value;
    if (!read_one(text, read_rank_count, &value)) return takes("node-ranks", "a number from 1 to 16384", text);
    o->node_ranks = (int)value;
    return true;
}

static bool set_wire(struct options *o, const char *text) {
    o->wire = dtype_named(text);
    return (o->wire && o->wire != CAIRN_F64) || takes("wire", "f32, f16 or bf16", text);
}

static bool set_algorithm(struct options *o, const char *text) {
    o->algorithm = algorithm_named(text);
    return o->algorithm || takes("algorithm", "ring, tree, halving-doubling or all-to-all", text);
}

static bool set(struct options *o, int id, const char *text) {
    switch (id) {
    case 'r':
        return set_ranks(o, text);
    case 'c':
        return set_caps(o, text);
    case 'f':
        return set_first_cap(o, text);
    case 'w':
        return set_wire(o, text);
    case 'a':
        return set_algorithm(o, text);
    case 'n':
        return set_node_ranks(o, text);
    case 's':
        return read_share(text, &o->share) || takes("share", "a number from 0 to 1", text);
    case 'l':
        o->link = text;
        return true;
    case 'N':
        o->node_link = text;
        return true;
    case 'v':
        o->svg = text;
        return true;
    case 'S':
        o->suggest = true;
        return true;
    default:
        o->json = true;
        return true;
    }
}

static void print_and_exit(int id) {
    if (id == VERSION) {
        printf("cairn-plan %d.%d.%d\n", CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
    } else {
        fputs(usage, stdout);
        link_print_presets(stdout);
    }
    exit(0);
}

static bool refuse_word(int id, char **argv) {
    const char *word = argv[optind - 1];
    if (id == ':') return refuse("%s needs a value; --help lists the options", word);
    return refuse("%s is not an option, is ambiguous, or has a value and takes none; --help lists the options", word);
}

/* Checks options against each other. */
static bool check(const struct options *o, int left) {
    if (left < 1) return refuse("a profile is missing: cairn-plan [options] PROFILE; see --help");
    if (left > 1) return refuse("there are %d profiles; one is expected", left);
    if (o->node_link && o->node_ranks < 2) return refuse("--node-link goes with --node-ranks from 2 on");
    if (o->suggest && o->num_caps > 0) return refuse("--suggest chooses the caps; leave out --cap");
    if (o->suggest && o->num_ranks > 1) return refuse("--suggest takes one number of --ranks");
    if (o->svg && !o->suggest && (o->num_ranks > 1 || o->num_caps > 1))
        return refuse("--svg draws one step; give one number of --ranks and one --cap, or --suggest");
    return true;
}

bool options_parse(struct options *o, int argc, char **argv) {
    *o = (struct options){.link = "shm", .algorithm = RING, .node_ranks = 1, .share = -1};
    opterr = 0;
    for (int id; (id = getopt_long(argc, argv, ":", names, NULL)) != -1;) {
        if (id == VERSION || id == HELP) print_and_exit(id);
        if (id == '?' || id == ':') return refuse_word(id, argv);
        if (!set(o, id, optarg)) return false;
    }
    if (!check(o, argc - optind)) return false;
    o->profile = argv[optind];
    if (!o->node_link) o->node_link = "shm";
    if (o->num_ranks == 0) o->ranks[o->num_ranks++] = 2;
    if (o->num_caps == 0)
        o->caps[o->num_caps++] = (size_t)(strcmp(o->link, "shm") == 0 ? 4 : 25) << 20; /* as ddp_create */
    return true;
}
