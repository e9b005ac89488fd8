/* Log lines of ranks in a grid name replica and stage, for ranks as processes and as threads. */
#include "../ranks.h"

#include <unistd.h>

#include "core/log.h"

enum { RANKS = 6, STAGES = 3 };

static int speak(int rank, void *argument) {
    cairn_env *env = NULL;
    cairn_grid *grid = NULL;
    (void)argument;
    MUST_OK(cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env));
    cairn__log(CAIRN_LOG_ERROR, "before %d", rank);
    MUST_OK(cairn_grid_create(env, 0, STAGES, &grid));
    cairn__log(CAIRN_LOG_ERROR, "within %d", rank);
    cairn__log(CAIRN_LOG_WARNING, "warned %d", rank);
    cairn_grid_destroy(&grid);
    cairn__log(CAIRN_LOG_ERROR, "after %d", rank);
    cairn_env_destroy(&env);
    return 0;
}

static void expect_line(const char *text, const char *who, const char *what, const char *says, int rank, bool is) {
    char line[128];
    snprintf(line, sizeof(line), "cairn: %s%s%s %d\n", who, what, says, rank);
    if ((strstr(text, line) != NULL) != is) fail_msg("'%s' is %s '%s'", line, is ? "not in" : "in", text);
}

static void expect_lines(const char *text) {
    for (int r = 0; r < RANKS; r++) {
        char plain[32] = "", placed[64];
        if (r > 0) snprintf(plain, sizeof(plain), "[rank %d] ", r);
        snprintf(placed, sizeof(placed), "[rank %d, replica %d, stage %d] ", r, r / STAGES, r % STAGES);
        expect_line(text, plain, "error: ", "before", r, true);
        expect_line(text, placed, "error: ", "within", r, true);
        expect_line(text, placed, "warning: ", "warned", r, r == 0);
        expect_line(text, plain, "error: ", "after", r, true);
    }
}

static void expect_places(cairn_status (*spawn)(void)) {
    static char text[16384];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    const cairn_status st = spawn();
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    if (st != CAIRN_OK) fail_msg("%s: %s", cairn_last_error(), text);
    expect_lines(text);
}

static cairn_status spawn_processes(void) {
    return cairn_spawn(speak, NULL, RANKS, NULL);
}

static cairn_status spawn_threads(void) {
    return cairn_spawn_threads(speak, NULL, RANKS, NULL);
}

static void ranks_in_a_grid_say_their_places(void **state) {
    (void)state;
    expect_places(spawn_processes); /* first: what has threads does not fork */
    expect_places(spawn_threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_a_grid_say_their_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
