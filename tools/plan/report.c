#include "report.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "../common/say.h"

/* ---- texts ---- */

/* 3 or 4 digits, whatever the size. */
static int decimals(double x) {
    return x < 10 ? 2 : x < 100 ? 1 : 0;
}

const char *time_text(double ns, char text[TEXT_NBYTES]) {
    static const char *const units[] = {"ns", "us", "ms", "s"};
    int u = 0;
    for (; ns >= 1000 && u < 3; u++) ns *= 1e-3;
    snprintf(text, TEXT_NBYTES, "%.*f %s", u ? decimals(ns) : 0, ns, units[u]);
    return text;
}

const char *bytes_text(double nbytes, char text[TEXT_NBYTES]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; nbytes >= 1024 && u < 4; u++) nbytes /= 1024;
    snprintf(text, TEXT_NBYTES, "%.*f %s", (double)(long long)nbytes == nbytes ? 0 : decimals(nbytes), nbytes,
             units[u]);
    return text;
}

char *network_text(const struct network *net) {
    char *text = NULL;
    const char *algorithm = algorithm_name(net->algorithm);
    const int n = net->node_ranks > 1 ? asprintf(&text, "%s over %s, %d ranks a node over %s", algorithm,
                                                 net->link.name, net->node_ranks, net->node.name)
                                      : asprintf(&text, "%s over %s", algorithm, net->link.name);
    return must(n < 0 ? NULL : text);
}

/* ---- for readers ---- */

static void print_head(const struct plan *plan) {
    const struct profile *p = plan->profile;
    char a[TEXT_NBYTES], b[TEXT_NBYTES], c[TEXT_NBYTES], d[TEXT_NBYTES];
    char *network = network_text(plan->net);
    printf("%s: %zu parameters, %s a rank to reduce\n", p->model, p->count, bytes_text(profile_nbytes(p), a));
    printf("one rank: forward %s, backward %s, optimizer %s, step %s\n", time_text(p->forward_ns, a),
           time_text(p->backward_ns, b), time_text(p->optimizer_ns, c),
           time_text(p->forward_ns + p->backward_ns + p->optimizer_ns, d));
    printf("%s\n\n", network);
    free(network);
}

static void print_steps(const struct plan *plan) {
    printf("%6s %10s %8s %14s %10s %10s %11s\n", "ranks", "cap", "buckets", "communication", "exposed", "step",
           "efficiency");
    for (size_t i = 0; i < plan->count; i++) {
        const struct step *s = &plan->steps[i];
        char cap[TEXT_NBYTES], comm[TEXT_NBYTES], exposed[TEXT_NBYTES], end[TEXT_NBYTES];
        printf("%6d %10s %8zu %14s %10s %10s %9.1f %%%s\n", s->ranks, bytes_text((double)s->cap, cap), s->count,
               time_text(s->communication, comm), time_text(s->exposed, exposed), time_text(s->end, end),
               100 * step_efficiency(s, plan->profile), i == plan->best ? "  <- best" : "");
    }
}

static void print_buckets(const struct step *s) {
    printf("\n%6s %10s %10s %10s %10s %10s %10s\n", "bucket", "bytes", "gradients", "ready", "sent", "there",
           "exposed");
    for (size_t b = 0; b < s->count; b++) {
        const struct span *span = &s->buckets[b];
        char nbytes[TEXT_NBYTES], ready[TEXT_NBYTES], begin[TEXT_NBYTES], end[TEXT_NBYTES], exposed[TEXT_NBYTES];
        printf("%6zu %10s %10zu %10s %10s %10s %10s\n", b, bytes_text(span->nbytes, nbytes), span->items,
               time_text(span->ready, ready), time_text(span->begin, begin), time_text(span->end, end),
               time_text(span->exposed, exposed));
    }
}

void report_text(const struct plan *plan) {
    print_head(plan);
    print_steps(plan);
    if (plan->count == 1) print_buckets(&plan->steps[0]);
    if (plan->best < plan->count)
        printf("\nsuggested: ddp_options(.bucket_nbytes = %zu)\n", plan->steps[plan->best].cap);
}

/* ---- for programs ---- */

static json_t *bucket_json(const struct span *span) {
    return must(json_pack("{s:f, s:I, s:f, s:f, s:f, s:f}", "bytes", span->nbytes, "gradients", (json_int_t)span->items,
                          "ready_ns", span->ready, "begin_ns", span->begin, "end_ns", span->end, "exposed_ns",
                          span->exposed));
}

static json_t *step_json(const struct step *s, const struct profile *profile) {
    json_t *buckets = must(json_array());
    for (size_t b = 0; b < s->count; b++) {
        if (json_array_append_new(buckets, bucket_json(&s->buckets[b])) != 0) must(NULL);
    }
    return must(json_pack("{s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "ranks", s->ranks, "cap",
                          (json_int_t)s->cap, "first_cap", (json_int_t)s->first_cap, "forward_end_ns", s->forward_end,
                          "backward_end_ns", s->backward_end, "settled_ns", s->settled, "step_ns", s->end,
                          "communication_ns", s->communication, "exposed_ns", s->exposed, "efficiency",
                          step_efficiency(s, profile), "buckets", buckets));
}

void report_json(const struct plan *plan) {
    json_t *steps = must(json_array());
    char *network = network_text(plan->net);
    for (size_t i = 0; i < plan->count; i++) {
        if (json_array_append_new(steps, step_json(&plan->steps[i], plan->profile)) != 0) must(NULL);
    }
    json_t *best = plan->best < plan->count ? json_integer((json_int_t)plan->best) : json_null();
    json_t *all = must(json_pack("{s:s, s:s, s:o, s:o}", "model", plan->profile->model, "network", network, "steps",
                                 steps, "best", best));
    json_dumpf(all, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(all);
    free(network);
}
