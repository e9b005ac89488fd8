/* Prints cairn-run's parsed options, one field per line, then the ranks' arguments; for test_options_torch.py. */
#include <stdio.h>

#include "tools/run/options.h"
#include "tools/run/text.h"
#include "tools/run/worker.h"

static void print_streams(const char *name, const struct options *o, const unsigned char *streams) {
    printf("%s", name);
    for (int r = 0; r < o->ranks; r++) printf(" %d", streams[r]);
    printf("\n");
}

static void print_options(const struct options *o) {
    printf("nodes %d %d\n", o->min_nodes, o->max_nodes);
    printf("ranks %d\n", o->ranks);
    printf("backend %s\n", o->backend == RENDEZVOUS_C10D ? "c10d" : "static");
    printf("endpoint %s %d\n", o->endpoint_host, o->endpoint_port);
    printf("id %s\n", o->standalone ? "random" : o->run_id);
    printf("node_rank %d\n", o->node_rank);
    printf("max_restarts %d\n", o->max_restarts);
    printf("monitor_interval %g\n", o->monitor_interval);
    printf("role %s\n", o->role);
    printf("log_dir %s\n", o->log_dir ? o->log_dir : "");
    print_streams("redirects", o, o->redirects);
    print_streams("tee", o, o->tee);
}

static void print_words(const struct options *o) {
    char **words = worker_arguments(o, 3);
    size_t before = o->kind == PROGRAM_RUN_PATH ? 4 : 0; /* what torch does in Python itself */
    for (char **word = words + before; *word; word++) printf("word %s\n", *word);
    free_texts(words);
}

int main(int argc, char **argv) {
    struct options o;
    (void)argc;
    bool fine = options_parse(&o, argv);
    if (fine) print_options(&o);
    if (fine) print_words(&o);
    options_free(&o);
    return fine ? 0 : 2;
}
