/* Trainings in which one rank is killed, stopped, returns early or runs out of memory at a random moment: every other
 * rank returns an error in time that names that rank.
 *
 * usage: training_faults_test shared | powersgd | local MOMENTS [SEED [FIRST]] */
#include "../comm/moments.h"

#include "../failing_alloc.h"
#include "core/philox.h"
#include "faults.h"

enum { TIMEOUT = 3, LONGEST_WAIT_US = 60000 };

/* s of slack beside the timeout: other tests run at the same time. */
static const double SLACK = 20;

static const struct way {
    const char *name;
    cairn_status (*begin_net)(struct training *t);
    cairn_status (*before_step)(struct training *t, int step);
    cairn_status (*after_step)(struct training *t, int step);
    int waits; /* for a stopped rank, one after the other, each with the timeout */
} * way;

static int moments, first;
static unsigned seed = 1;

/* ---- ways to train ---- */

static cairn_status share(struct training *t) {
    return ddp_create(t->model, cairn_env_group(t->env),
                      ddp_options(.shard_optimizer = CAIRN_ON, .bucket_nbytes = 4000), &t->net);
}

static cairn_status clip_at_times(struct training *t, int step) {
    return step % 3 == 1 ? cairn_clip_grad_norm(t->optimizer, 1, NULL) : CAIRN_OK;
}

static cairn_status compress(struct training *t) {
    cairn_status st = CAIRN_OK;
    TRY(ddp_create(t->model, cairn_env_group(t->env), ddp_options(.bucket_nbytes = 4000), &t->net));
    TRY(ddp_powersgd_register(t->net, ddp_powersgd_options(.start_powerSGD_iter = 1, .matrix_approximation_rank = 2)));
out:
    return st;
}

/* Each second moment within pairs of ranks. */
static cairn_status go_alone(struct training *t) {
    const int rank = cairn_env_rank(t->env);
    cairn_status st = CAIRN_OK;
    if (board->moment.number % 2 && !t->subgroup)
        TRY(cairn_group_split(cairn_env_group(t->env), rank / 2, rank, NULL, &t->subgroup));
    TRY(ddp_create(t->model, cairn_env_group(t->env), ddp_options(.bucket_nbytes = 4000), &t->net));
    TRY(ddp_post_local_sgd_register(t->net,
                                    ddp_post_local_sgd_options(.start_localSGD_iter = 1, .subgroup = t->subgroup)));
out:
    return st;
}

static cairn_status average_at_times(struct training *t, int step) {
    return ddp_weights_average(t->net, step, ddp_weights_average_options(.period = 2));
}

/* ddp_destroy gathers what ranks share, and cannot say that it failed; then ddp_create waits. */
static const struct way ways[] = {{"shared", share, clip_at_times, NULL, 2},
                                  {"powersgd", compress, NULL, NULL, 1},
                                  {"local", go_alone, NULL, average_at_times, 1}};

/* The context is made anew in each fifth step, by collectives of its own. */
static cairn_status take_step(struct training *t, int step) {
    cairn_status st = CAIRN_OK;
    TRY(backward(t));
    if (way->before_step) TRY(way->before_step(t, step));
    TRY(cairn_step(t->optimizer));
    if (way->after_step) TRY(way->after_step(t, step));
    if (step % 5 != 4) return CAIRN_OK;
    ddp_destroy(&t->net);
    if (t->net) return cairn__last_status(); /* kept, since what ranks share could not be gathered */
    TRY(way->begin_net(t));
out:
    return st;
}

/* ---- a rank ---- */

/* Until something fails; a rank that returns early does so between two steps. */
static cairn_status train(struct training *t, bool is_it) {
    const struct moment *m = &board->moment;
    cairn_status st = CAIRN_OK;
    uint64_t at = 0;
    for (int step = 0; st == CAIRN_OK; step++) {
        const bool now = is_it && at && cairn__now_ns() >= at;
        if (now && m->fault == RETURN) break;
        if (now && m->fault == NO_MEMORY && fail_in == 0) fail_in = 1 + m->number / 4 % 20;
        st = take_step(t, step);
        if (step > 0) continue;
        note_ready();
        at = cairn__now_ns() + (uint64_t)m->wait_us * 1000;
    }
    if (is_it) note_strike();
    fail_in = 0;
    return st;
}

static int run_rank(int rank, int size, int port) {
    const struct cairn__launch launch = launch_at(rank, size, port);
    struct training t = {.env = NULL};
    MUST_OK(cairn__env_create_at(&launch, cairn_env_options(.seed = 7, .timeout = TIMEOUT), &t.env));
    MUST_OK(begin_training(&t, t.env));
    MUST_OK(way->begin_net(&t));
    tell(rank, train(&t, rank == board->moment.victim));
    end_training(&t);
    cairn_env_destroy(&t.env);
    return t.net || t.env ? 1 : 0;
}

/* ---- the parent ---- */

static struct moment make_moment(int number) {
    static const enum fault faults[] = {KILL, STOP, RETURN, NO_MEMORY};
    const struct cairn__philox_block random = cairn__philox(seed, (uint64_t)number, 0);
    struct moment m = {.seed = seed, .number = number, .fault = faults[number % 4]};
    m.size = 2 + (int)(random.word[0] % 3);
    m.victim = (int)(random.word[1] % (unsigned)m.size);
    m.wait_us = (long)(random.word[2] % LONGEST_WAIT_US);
    return m;
}

/* What went wrong in ddp_destroy ddp_create says, which does not know of which rank it was. */
static bool is_of_destroy(const struct moment *m, const struct told *told) {
    return m->fault == NO_MEMORY && told->status == CAIRN_ESTATE &&
           strstr(told->text, "ended with a dead group or without memory for the whole");
}

static const char *judge(const struct moment *m, const struct told *told, double seconds) {
    const bool waits = m->fault == STOP;
    const cairn_status other = waits ? CAIRN_ETIMEOUT : m->fault == NO_MEMORY ? CAIRN_ENOMEM : CAIRN_EPEER;
    if (is_of_destroy(m, told)) return NULL;
    if (told->status != CAIRN_EPEER && told->status != other) return "that is not its status";
    if (seconds > (waits ? way->waits * TIMEOUT : 0) + SLACK) return "it came too late";
    return names_victim(m, told->text) ? NULL : "the victim is not named";
}

static void others_name_a_rank_that_fails_at_any_moment(void **state) {
    (void)state;
    for (int number = first; number < first + moments; number++) {
        const struct moment m = make_moment(number);
        run_moment(&m, run_rank, judge, way->name);
    }
    assert_int_equal(count_files_in_dev_shm(), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(others_name_a_rank_that_fails_at_any_moment)};
    for (size_t i = 0; argc > 2 && i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (strcmp(argv[1], ways[i].name) == 0) way = &ways[i];
    }
    if (!way || !make_board()) return 1;
    moments = atoi(argv[2]);
    if (argc > 3) seed = (unsigned)atoi(argv[3]);
    if (argc > 4) first = atoi(argv[4]);
    cairn_set_log(log_nothing, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
