/* cairn-plan: how long will a data-parallel training step take, or that of a pipeline, and where does its time go?
 *
 *   options   the command line            simulate  a step over time, with the reducer's own buckets
 *   profile   measurements of a model     report    tables and JSON
 *   link      what an all-reduce takes    svg       the picture
 *
 * of pipelines:
 *
 *   stages    measurements of its stages  flow      a step over time, in the pipeline's own order
 *   trace     a measured step             timeline  the picture */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "pipeline.h"
#include "report.h"
#include "../common/say.h"
#include "svg.h"

const char program_name[] = "cairn-plan";

enum { EXIT_USAGE = 2 };

static bool read_network(const struct options *o, struct network *net) {
    *net = (struct network){.algorithm = o->algorithm, .node_ranks = o->node_ranks};
    if (!link_read(o->link, &net->link) || !link_read(o->node_link, &net->node)) return false;
    if (o->share >= 0) net->link.share = net->node.share = o->share;
    return true;
}

static bool read_profile(const struct options *o, struct profile *profile) {
    if (!profile_read(o->profile, profile)) return false;
    for (size_t i = 0; o->wire && i < profile->count; i++) profile->params[i].wire = o->wire;
    return true;
}

static bool check_caps(const struct options *o, const struct profile *profile) {
    for (size_t c = 0; c < o->num_caps && !o->suggest; c++) {
        char nbytes[TEXT_NBYTES], cap[TEXT_NBYTES];
        if (pieces_of(profile, o->caps[c]) > MAX_PIECES)
            return refuse("a cap of %s cuts %s into more than %d buckets, which are not planned; give a larger --cap",
                          bytes_text((double)o->caps[c], cap), bytes_text(profile_nbytes(profile), nbytes), MAX_PIECES);
    }
    return true;
}

static void make_steps(const struct options *o, struct plan *plan) {
    if (o->suggest) {
        plan->count = search_caps(plan->profile, plan->net, o->ranks[0], o->first_cap, &plan->steps);
        plan->best = best_step(plan->steps, plan->count);
        return;
    }
    plan->steps = must(calloc(o->num_ranks * o->num_caps, sizeof(*plan->steps)));
    for (size_t r = 0; r < o->num_ranks; r++) {
        for (size_t c = 0; c < o->num_caps; c++) {
            simulate(plan->profile, plan->net, o->ranks[r], o->caps[c], o->first_cap, &plan->steps[plan->count++]);
        }
    }
    plan->best = plan->count;
}

/* Whether all output was written: a pipe may be closed or a disk full. */
static bool told(void) {
    return fflush(stdout) == 0 || refuse("the result cannot be written to standard output");
}

static bool run(const struct options *o, const struct profile *profile, const struct network *net) {
    struct plan plan = {.profile = profile, .net = net};
    make_steps(o, &plan);
    bool good = true;
    if (o->svg) good = svg_write(o->svg, &plan, &plan.steps[plan.best < plan.count ? plan.best : 0]);
    if (good) {
        (o->json ? report_json : report_text)(&plan);
        good = told();
    }
    for (size_t i = 0; i < plan.count; i++) step_free(&plan.steps[i]);
    free(plan.steps);
    return good;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "pipeline") == 0) return pipeline_main(argc - 1, argv + 1);
    struct options o;
    struct profile profile = {0};
    struct network net = {0};
    if (!options_parse(&o, argc, argv)) return EXIT_USAGE;
    const bool good =
        read_profile(&o, &profile) && check_caps(&o, &profile) && read_network(&o, &net) && run(&o, &profile, &net);
    profile_free(&profile);
    link_free(&net.link);
    link_free(&net.node);
    return good ? 0 : 1;
}
