/* The arguments and environment that cairn-run passes to a rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/run/text.h"
#include "tools/run/values.h"
#include "tools/run/worker.h"

extern char **environ;

static const struct place place = {.local_rank = 1,
                                   .local_size = 2,
                                   .rank = 5,
                                   .size = 6,
                                   .group_rank = 2,
                                   .group_size = 3,
                                   .role_rank = 4,
                                   .role_size = 7,
                                   .restart = 8,
                                   .master_addr = "fe80::1",
                                   .master_port = 29511,
                                   .run_id = "job",
                                   .error_file = "/e/error.json"};

static struct options plain_options(char **program) {
    return (struct options){.ranks = 2,
                            .max_restarts = 9,
                            .role = "trainer",
                            .signal_names = "SIGTERM,SIGUSR1",
                            .kind = PROGRAM_EXEC,
                            .program = program};
}

static char *words[] = {"p-${local_rank}", "a$local_rank", "$$b", "", NULL};

static void assert_arguments(const struct options *o, const char *const *expected) {
    char **got = worker_arguments(o, 12);
    int n = 0;
    for (; expected[n]; n++) {
        assert_non_null(got[n]);
        assert_string_equal(got[n], expected[n]);
    }
    assert_null(got[n]);
    free_texts(got);
}

static void program_is_run_directly(void **state) {
    (void)state;
    struct options o = plain_options(words);
    assert_arguments(&o, (const char *const[]){"p-${local_rank}", "a12", "$b", "", NULL});
}

static void python_comes_before_a_script_a_module_and_a_path(void **state) {
    (void)state;
    struct options o = plain_options(words);
    unsetenv("PYTHON_EXEC");
    o.kind = PROGRAM_PYTHON;
    assert_arguments(&o, (const char *const[]){"python3", "-u", "p-12", "a12", "$b", "", NULL});
    o.kind = PROGRAM_MODULE;
    assert_arguments(&o, (const char *const[]){"python3", "-u", "-m", "p-12", "a12", "$b", "", NULL});
    setenv("PYTHON_EXEC", "/opt/$$/python", 1);
    o.kind = PROGRAM_PYTHON;
    assert_arguments(&o, (const char *const[]){"/opt/$$/python", "-u", "p-12", "a12", "$b", "", NULL});
    o.kind = PROGRAM_RUN_PATH;
    char **got = worker_arguments(&o, 12);
    assert_string_equal(got[2], "-c");
    assert_non_null(strstr(got[3], "runpy.run_path"));
    assert_string_equal(got[4], "p-12");
    free_texts(got);
    unsetenv("PYTHON_EXEC");
}

static void cairn_launch_passes_the_local_rank_before_the_users_arguments(void **state) {
    (void)state;
    struct options o = plain_options(words);
    o.pass_local_rank = true;
    assert_arguments(&o, (const char *const[]){"p-${local_rank}", "--local_rank=12", "a12", "$b", "", NULL});
    o.kind = PROGRAM_PYTHON;
    assert_arguments(&o, (const char *const[]){"python3", "-u", "p-12", "--local_rank=12", "a12", "$b", "", NULL});
}

/* The values of name in environment: how many there are, the last in *value. */
static int look_up(char **environment, const char *name, const char **value) {
    int n = 0;
    for (char **e = environment; *e; e++) {
        size_t length = strlen(name);
        if (strncmp(*e, name, length) != 0 || (*e)[length] != '=') continue;
        *value = *e + length + 1;
        n++;
    }
    return n;
}

static void assert_told(char **environment, const char *name, const char *value) {
    const char *got = NULL;
    if (look_up(environment, name, &got) != 1 || strcmp(got, value) != 0) {
        fail_msg("%s is '%s', not '%s'", name, got ? got : "", value);
    }
}

static const struct {
    const char *name, *value;
} facts[] = {
    {"LOCAL_RANK", "1"},
    {"RANK", "5"},
    {"GROUP_RANK", "2"},
    {"ROLE_RANK", "4"},
    {"ROLE_NAME", "trainer"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"WORLD_SIZE", "6"},
    {"GROUP_WORLD_SIZE", "3"},
    {"ROLE_WORLD_SIZE", "7"},
    {"MASTER_ADDR", "fe80::1"},
    {"MASTER_PORT", "29511"},
    {"TORCHELASTIC_RESTART_COUNT", "8"},
    {"TORCHELASTIC_MAX_RESTARTS", "9"},
    {"TORCHELASTIC_RUN_ID", "job"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCHELASTIC_ERROR_FILE", "/e/error.json"},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGUSR1"},
    {"NCCL_ASYNC_ERROR_HANDLING", "1"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
    {"OMP_NUM_THREADS", "1"},
};

/* As if nothing of a launcher's were there, or an outer launcher had said the same things otherwise. */
static void set_facts(const char *value) {
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        if (value) setenv(facts[i].name, value, 1);
        if (!value) unsetenv(facts[i].name);
    }
}

static size_t count(char **texts) {
    size_t n = 0;
    while (texts[n]) n++;
    return n;
}

static void rank_gets_each_variable_once(void **state) {
    (void)state;
    struct options o = plain_options(words);
    set_facts(NULL);
    setenv("OTHER", "kept", 1);
    char **got = worker_environment(&o, &place);
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) assert_told(got, facts[i].name, facts[i].value);
    assert_told(got, "OTHER", "kept");
    assert_int_equal(count(got), count(environ) + sizeof(facts) / sizeof(facts[0]));
    free_texts(got);
}

static void facts_replace_an_outer_launchers_and_users_settings_stay(void **state) {
    (void)state;
    struct options o = plain_options(words);
    set_facts("outer");
    char **got = worker_environment(&o, &place);
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        bool users = strstr(facts[i].name, "NCCL_") || strcmp(facts[i].name, "OMP_NUM_THREADS") == 0;
        assert_told(got, facts[i].name, users ? "outer" : facts[i].value);
    }
    assert_int_equal(count(got), count(environ));
    free_texts(got);
    set_facts(NULL);
}

static void assert_omp_threads(int ranks, int threads, const char *variable, const char *expected) {
    struct options o = plain_options(words);
    const char *got = "unset";
    o.ranks = ranks;
    o.omp_threads = threads;
    set_facts(NULL);
    if (variable) setenv("OMP_NUM_THREADS", variable, 1);
    char **environment = worker_environment(&o, &place);
    look_up(environment, "OMP_NUM_THREADS", &got);
    assert_string_equal(got, expected);
    free_texts(environment);
}

static void omp_threads_follow_the_option_then_the_variable_then_the_ranks(void **state) {
    (void)state;
    char all[16];
    snprintf(all, sizeof(all), "%d", count_processors());
    assert_omp_threads(1, OMP_DEFAULT, NULL, "unset");
    assert_omp_threads(2, OMP_DEFAULT, NULL, "1");
    assert_omp_threads(2, OMP_DEFAULT, "6", "6");
    assert_omp_threads(1, OMP_DEFAULT, "6", "6");
    assert_omp_threads(1, 3, "6", "3");
    assert_omp_threads(1, OMP_CORES_PER_RANK, "6", all);
    assert_omp_threads(4096, OMP_CORES_PER_RANK, NULL, "1");
}

static void rank_with_a_virtual_local_rank_sees_its_own_gpu(void **state) {
    (void)state;
    struct options o = plain_options(words);
    o.virtual_local_rank = true;
    static const char *const lists[][2] = {{"4, 7 ,9", "7"}, {"GPU-a,GPU-b", "GPU-b"}, {NULL, "1"}};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        unsetenv("CUDA_VISIBLE_DEVICES");
        if (lists[i][0]) setenv("CUDA_VISIBLE_DEVICES", lists[i][0], 1);
        char **got = worker_environment(&o, &place);
        assert_told(got, "LOCAL_RANK", "0");
        assert_told(got, "CUDA_VISIBLE_DEVICES", lists[i][1]);
        free_texts(got);
    }
}

static void large_environment_costs_little_time(void **state) {
    (void)state;
    enum { VARIABLES = 20000 };
    struct options o = plain_options(words);
    char **usual = environ, **big = calloc(VARIABLES + 1, sizeof(*big));
    assert_non_null(big);
    for (int i = 0; i < VARIABLES; i++) big[i] = format_text("VARIABLE_%d=%d", i, i);
    environ = big;
    char **got = worker_environment(&o, &place);
    environ = usual;
    assert_int_equal(count(got), VARIABLES + sizeof(facts) / sizeof(facts[0]));
    free_texts(got);
    free_texts(big);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(program_is_run_directly),
        cmocka_unit_test(python_comes_before_a_script_a_module_and_a_path),
        cmocka_unit_test(cairn_launch_passes_the_local_rank_before_the_users_arguments),
        cmocka_unit_test(rank_gets_each_variable_once),
        cmocka_unit_test(facts_replace_an_outer_launchers_and_users_settings_stay),
        cmocka_unit_test(omp_threads_follow_the_option_then_the_variable_then_the_ranks),
        cmocka_unit_test(rank_with_a_virtual_local_rank_sees_its_own_gpu),
        cmocka_unit_test(large_environment_costs_little_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
