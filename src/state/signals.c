/* Checkpoints that a signal asks for. Signals come to a process, and so to all of its states: handlers raise flags of
 * the process, which each state compares with what it has seen. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "state/state_internal.h"

static atomic_uint asked;   /* how often SIGUSR1 has come */
static atomic_bool stopped; /* SIGTERM has */

static void ask(int signal) {
    (void)signal;
    atomic_fetch_add(&asked, 1);
}

/* With SA_RESETHAND: the second SIGTERM ends the process. */
static void stop(int signal) {
    (void)signal;
    atomic_store(&stopped, true);
}

static cairn_status install(int signal, const char *name, void (*handler)(int), int flags) {
    struct sigaction now, then = {.sa_handler = handler, .sa_flags = SA_RESTART | flags};
    sigemptyset(&then.sa_mask);
    if (sigaction(signal, NULL, &now) != 0) return cairn__fail_errno(errno, "cairn_state_watch_signals");
    if (now.sa_handler == handler) return CAIRN_OK;
    REQUIRE(
        now.sa_handler == SIG_DFL, CAIRN_ESTATE,
        "cairn_state_watch_signals: the program has a handler of %s, or ignores it; call cairn_state_save from its own "
        "loop instead",
        name);
    if (sigaction(signal, &then, NULL) != 0) return cairn__fail_errno(errno, "cairn_state_watch_signals");
    return CAIRN_OK;
}

cairn_status cairn_state_watch_signals(cairn_state *state) {
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_watch_signals: state is NULL");
    cairn_status st = install(SIGTERM, "SIGTERM", stop, SA_RESETHAND);
    if (st == CAIRN_OK) st = install(SIGUSR1, "SIGUSR1", ask, 0);
    st = cairn__group_agree_on_status(cairn_env_group(state->env), "cairn_state_watch_signals", st);
    if (st != CAIRN_OK) return st;
    if (!state->watches) state->seen = atomic_load(&asked);
    state->watches = true;
    return CAIRN_OK;
}

/* What each rank says of itself. */
struct word {
    int32_t asks, stops, refuses; /* refuses: its arguments */
};

/* Collective. */
static cairn_status exchange(cairn_state *state, struct word mine, int *due) {
    struct word all[CAIRN__MAX_RANKS] = {mine};
    cairn_status st = CAIRN_OK;
    if (state->env->size > 1) st = cairn__group_exchange(cairn_env_group(state->env), all, &mine, sizeof(mine));
    for (int r = 0; st == CAIRN_OK && r < state->env->size; r++) {
        REQUIRE(!all[r].refuses, CAIRN_EINVAL,
                "cairn_state_due: every is negative on rank %d; 0 means only when a signal asks", r);
        if (all[r].asks || all[r].stops) *due |= CAIRN_STATE_SAVE;
        if (all[r].stops) *due |= CAIRN_STATE_STOP;
    }
    return st;
}

cairn_status cairn_state_due(cairn_state *state, int64_t step, int64_t every, int *due) {
    REQUIRE(state && due, CAIRN_EINVAL, "cairn_state_due: state and due must be set");
    REQUIRE(every >= 0 || state->watches, CAIRN_EINVAL,
            "cairn_state_due: every is %" PRId64 "; 0 means only when a signal asks", every);
    int found = every > 0 && step > 0 && step % every == 0 ? CAIRN_STATE_SAVE : 0;
    if (state->watches) {
        const unsigned now = atomic_load(&asked);
        const struct word mine = {now != state->seen, atomic_load(&stopped), every < 0};
        const cairn_status st = exchange(state, mine, &found);
        if (st != CAIRN_OK) return st;
        state->seen = now;
    }
    *due = found;
    return CAIRN_OK;
}
