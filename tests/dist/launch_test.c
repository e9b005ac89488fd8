/* Launch facts: what torchrun and torch.distributed.launch set, every error, and what stays in argv. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dist/launch.h"

static const char *const all_vars[] = {"RANK",
                                       "WORLD_SIZE",
                                       "LOCAL_RANK",
                                       "LOCAL_WORLD_SIZE",
                                       "MASTER_ADDR",
                                       "MASTER_PORT",
                                       "TORCHELASTIC_USE_AGENT_STORE",
                                       "TORCHELASTIC_RESTART_COUNT",
                                       "TORCHELASTIC_RUN_ID"};

static int clear_vars(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(all_vars) / sizeof(all_vars[0]); i++) unsetenv(all_vars[i]);
    return 0;
}

/* "NAME=value" entries up to NULL. */
static void set_vars(const char *const *vars) {
    clear_vars(NULL);
    for (; *vars; vars++) {
        char name[64] = "";
        size_t length = strcspn(*vars, "=");
        memcpy(name, *vars, length);
        setenv(name, *vars + length + 1, 1);
    }
}

static void process_without_variables_is_alone(void **state) {
    (void)state;
    struct cairn__launch l;
    assert_int_equal(cairn__launch_read(NULL, NULL, &l), CAIRN_OK);
    assert_int_equal(l.rank, 0);
    assert_int_equal(l.size, 1);
    assert_int_equal(l.local_rank, 0);
    assert_int_equal(l.local_size, 0);
    assert_string_equal(l.master_addr, "");
    assert_false(l.agent_store);
    assert_string_equal(l.key_prefix, "cairn/none/0");
    assert_string_equal(l.source, "alone");
}

static void torchrun_worker_gets_all_its_facts(void **state) {
    (void)state;
    set_vars((const char *const[]){"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=host-a",
                                   "MASTER_PORT=29733", "TORCHELASTIC_USE_AGENT_STORE=True",
                                   "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_RUN_ID=run7", NULL});
    struct cairn__launch l;
    assert_int_equal(cairn__launch_read(NULL, NULL, &l), CAIRN_OK);
    assert_int_equal(l.rank, 3);
    assert_int_equal(l.size, 4);
    assert_int_equal(l.local_rank, 1);
    assert_int_equal(l.local_size, 2);
    assert_string_equal(l.master_addr, "host-a");
    assert_int_equal(l.master_port, 29733);
    assert_true(l.agent_store);
    assert_string_equal(l.key_prefix, "cairn/run7/2");
    assert_string_equal(l.source, "torch");
}

static void four_variables_are_enough(void **state) {
    (void)state;
    set_vars((const char *const[]){"RANK=5", "WORLD_SIZE=8", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500",
                                   "TORCHELASTIC_USE_AGENT_STORE=False", NULL});
    struct cairn__launch l;
    assert_int_equal(cairn__launch_read(NULL, NULL, &l), CAIRN_OK);
    assert_int_equal(l.local_rank, 5);
    assert_false(l.agent_store);
    set_vars((const char *const[]){"RANK=5", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1",
                                   "MASTER_PORT=29500", NULL});
    assert_int_equal(cairn__launch_read(NULL, NULL, &l), CAIRN_OK);
    assert_int_equal(l.local_rank, 1);
}

static void every_error_says_what_to_set(void **state) {
    (void)state;
    static const struct {
        const char *vars[6];
        const char *sentence;
    } cases[] = {
        {{"RANK=1"}, "RANK is 1 but WORLD_SIZE is not set; set WORLD_SIZE"},
        {{"WORLD_SIZE=2"}, "WORLD_SIZE is 2 but RANK is not set; give each process its RANK in [0, 1]"},
        {{"RANK=2", "WORLD_SIZE=2"}, "RANK is 2 but WORLD_SIZE is 2; set RANK to a number in [0, 1]"},
        {{"RANK=two", "WORLD_SIZE=2"}, "RANK='two'"},
        {{"RANK=-1", "WORLD_SIZE=2"}, "RANK='-1'"},
        {{"RANK=0", "WORLD_SIZE=0"}, "WORLD_SIZE='0'"},
        {{"RANK=0", "WORLD_SIZE=2"}, "MASTER_ADDR is not set; set it to the address of rank 0"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h"}, "MASTER_PORT is not set; set it to a free port"},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=70000"}, "MASTER_PORT='70000'"},
        {{"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}, "LOCAL_RANK is 2 but LOCAL_WORLD_SIZE is 2"},
        {{"LOCAL_RANK=x"}, "LOCAL_RANK='x'"},
        {{"TORCHELASTIC_RESTART_COUNT=x"}, "TORCHELASTIC_RESTART_COUNT='x'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn__launch l;
        set_vars(cases[i].vars);
        assert_int_equal(cairn__launch_read(NULL, NULL, &l), CAIRN_EINVAL);
        if (!strstr(cairn_last_error(), cases[i].sentence))
            fail_msg("'%s' lacks '%s'", cairn_last_error(), cases[i].sentence);
    }
}

static void lengths_beyond_the_room_are_refused(void **state) {
    (void)state;
    struct cairn__launch l;
    char text[400];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    clear_vars(NULL);
    setenv("TORCHELASTIC_RUN_ID", text, 1);
    assert_int_equal(cairn__launch_read(NULL, NULL, &l), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "TORCHELASTIC_RUN_ID has 399 characters"));
    clear_vars(NULL);
    setenv("MASTER_ADDR", text, 1);
    assert_int_equal(cairn__launch_read(NULL, NULL, &l), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "MASTER_ADDR has 399 characters"));
}

enum { MOST_ARGS = 10 };

/* What is left of `before` must be `after`. */
static void expect_argv(const char *const *before, const char *const *after, int local_rank) {
    char *args[MOST_ARGS] = {NULL};
    char **argv = args;
    int argc = 0, kept = 0;
    struct cairn__launch l;
    for (; before[argc]; argc++) args[argc] = strdup(before[argc]);
    char *owned[MOST_ARGS];
    memcpy(owned, args, sizeof(owned));
    assert_int_equal(cairn__launch_read(&argc, &argv, &l), CAIRN_OK);
    for (; after[kept]; kept++) assert_string_equal(argv[kept], after[kept]);
    assert_int_equal(argc, kept);
    assert_null(argv[kept]);
    assert_int_equal(l.local_rank, local_rank);
    for (int i = 0; i < MOST_ARGS; i++) free(owned[i]);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void local_rank_leaves_argv_in_every_spelling(void **state) {
    (void)state;
    clear_vars(NULL);
    expect_argv(ARGS("p"), ARGS("p"), 0);
    expect_argv(ARGS("p", "--local_rank=3", "--x", "1"), ARGS("p", "--x", "1"), 3);
    expect_argv(ARGS("p", "--local-rank=3", "--x", "1"), ARGS("p", "--x", "1"), 3);
    expect_argv(ARGS("p", "a", "--local_rank", "2", "b"), ARGS("p", "a", "b"), 2);
    expect_argv(ARGS("p", "--local-rank", "2"), ARGS("p"), 2);
    expect_argv(ARGS("p", "--local_ranks=2", "x"), ARGS("p", "--local_ranks=2", "x"), 0);
    expect_argv(ARGS("p", "--", "--local_rank=2"), ARGS("p", "--", "--local_rank=2"), 0);
    expect_argv(ARGS("p", "--local_rank=1", "--", "--local_rank", "2"), ARGS("p", "--", "--local_rank", "2"), 1);
    set_vars((const char *const[]){"LOCAL_RANK=1", NULL});
    expect_argv(ARGS("p", "--local_rank=1"), ARGS("p"), 1);
}

static void bad_arguments_are_named_and_stay(void **state) {
    (void)state;
    static const struct {
        const char *args[4];
        const char *sentence;
    } cases[] = {
        {{"p", "--local_rank"}, "--local_rank has no number after it"},
        {{"p", "--local_rank=one"}, "--local_rank=one is not a whole number"},
        {{"p", "--local-rank", "-1"}, "--local_rank=-1 is not a whole number"},
        {{"p", "--local_rank="}, "--local_rank= is not a whole number"},
        {{"p", "--local_rank=0"}, "LOCAL_RANK is 1 in the environment but the argument says --local_rank=0"},
    };
    set_vars((const char *const[]){"LOCAL_RANK=1", NULL});
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *args[4] = {NULL};
        char **argv = args;
        int argc = 0;
        struct cairn__launch l;
        for (; argc < 4 && cases[i].args[argc]; argc++) args[argc] = (char *)(uintptr_t)cases[i].args[argc];
        int before = argc;
        assert_int_equal(cairn__launch_read(&argc, &argv, &l), CAIRN_EINVAL);
        if (!strstr(cairn_last_error(), cases[i].sentence))
            fail_msg("'%s' lacks '%s'", cairn_last_error(), cases[i].sentence);
        assert_int_equal(argc, before);
        assert_ptr_equal(argv[1], cases[i].args[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(process_without_variables_is_alone, clear_vars),
        cmocka_unit_test(torchrun_worker_gets_all_its_facts),
        cmocka_unit_test(four_variables_are_enough),
        cmocka_unit_test(every_error_says_what_to_set),
        cmocka_unit_test(lengths_beyond_the_room_are_refused),
        cmocka_unit_test(local_rank_leaves_argv_in_every_spelling),
        cmocka_unit_test(bad_arguments_are_named_and_stay),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
