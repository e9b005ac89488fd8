/* Checkpoints requested by signals. A signal goes to a process, and so to all of its states: handlers set flags of the
 * process, which each state compares with those it has seen.
 *
 * Handlers run on their own stack. oneDNN's products point the stack pointer into heap memory, which a signal frame
 * below it would overwrite. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "state/state_internal.h"

/* The handlers' stack for a thread that watches; never freed, since a signal may arrive at any time. */
struct stack {
    struct stack *next;
    char memory[64 << 10];
};

static _Atomic(struct stack *) stacks;
static atomic_uint asked;    /* number of SIGUSR1 received */
static atomic_llong stopped; /* time of the first SIGTERM, in ns; 0 = none */

static void ask(int signal) {
    (void)signal;
    atomic_fetch_add(&asked, 1);
}

/* Launchers send one request to a process, its group and its session at once, so a signal within a second is the same
 * request. A later one ends the process. */
static void stop(int signal) {
    const struct sigaction usual = {.sa_handler = SIG_DFL};
    const int errnum = errno;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const long long now = (long long)t.tv_sec * 1000000000 + t.tv_nsec;
    long long first = 0;
    if (!atomic_compare_exchange_strong(&stopped, &first, now) && now - first > 1000000000) {
        (void)sigaction(signal, &usual, NULL);
        (void)raise(signal);
    }
    errno = errnum;
}

static const struct watched {
    int signal;
    const char *name;
    void (*handler)(int);
} watched[] = {{SIGTERM, "SIGTERM", stop}, {SIGUSR1, "SIGUSR1", ask}};
enum { NUM_WATCHED = sizeof(watched) / sizeof(watched[0]) };

static cairn_status check_handler(const struct watched *w) {
    struct sigaction now;
    if (sigaction(w->signal, NULL, &now) != 0) return cairn__fail_errno(errno, "cairn_state_watch_signals");
    REQUIRE(now.sa_handler == SIG_DFL || now.sa_handler == w->handler, CAIRN_ESTATE,
            "cairn_state_watch_signals: the program has a handler of %s, or ignores it; call cairn_state_save from its "
            "own loop instead (a handler needs SA_ONSTACK: see cairn/state.h)",
            w->name);
    return CAIRN_OK;
}

/* Gives this thread a signal stack if it has none. */
static cairn_status give_stack(void) {
    stack_t now;
    struct stack *own;
    if (sigaltstack(NULL, &now) != 0 || !(now.ss_flags & SS_DISABLE)) return CAIRN_OK;
    own = malloc(sizeof(*own));
    REQUIRE(own, CAIRN_ENOMEM, "cairn_state_watch_signals: no memory for a stack");
    own->next = atomic_load(&stacks);
    while (!atomic_compare_exchange_weak(&stacks, &own->next, own)) continue;
    now = (stack_t){.ss_sp = own->memory, .ss_size = sizeof(own->memory)};
    return sigaltstack(&now, NULL) == 0 ? CAIRN_OK : cairn__fail_errno(errno, "cairn_state_watch_signals");
}

static cairn_status install(void) {
    for (int i = 0; i < NUM_WATCHED; i++) {
        struct sigaction ours = {.sa_handler = watched[i].handler, .sa_flags = SA_RESTART | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        if (sigaction(watched[i].signal, &ours, NULL) != 0)
            return cairn__fail_errno(errno, "cairn_state_watch_signals");
    }
    return CAIRN_OK;
}

/* Installs handlers only if all ranks can: a process that watches alone would swallow its SIGTERM. */
cairn_status cairn_state_watch_signals(cairn_state *state) {
    static const char call[] = "cairn_state_watch_signals";
    REQUIRE(state, CAIRN_EINVAL, "cairn_state_watch_signals: state is NULL");
    cairn_status st = CAIRN_OK;
    for (int i = 0; st == CAIRN_OK && i < NUM_WATCHED; i++) st = check_handler(&watched[i]);
    if (st == CAIRN_OK) st = give_stack();
    TRY(cairn__group_agree_on_status(cairn_env_group(state->env), call, st));
    TRY(cairn__group_agree_on_status(cairn_env_group(state->env), call, install()));
    if (!state->watches) state->seen = atomic_load(&asked);
    state->watches = true;
out:
    return st;
}

/* What each rank contributes. */
struct word {
    int64_t step, every;
    int32_t asks, stops;
};

/* Collective: combines the ranks' words. */
static cairn_status exchange(cairn_state *state, struct word mine, int *due) {
    struct word all[CAIRN__MAX_RANKS] = {mine};
    cairn_status st = CAIRN_OK;
    if (state->env->size > 1) st = cairn__group_exchange(cairn_env_group(state->env), all, &mine, sizeof(mine));
    for (int r = 0; st == CAIRN_OK && r < state->env->size; r++) {
        REQUIRE(all[r].every >= 0, CAIRN_EINVAL,
                "cairn_state_due: every is negative on rank %d; 0 means only when a signal asks", r);
        REQUIRE(all[r].step == all[0].step && all[r].every == all[0].every, CAIRN_EPEER,
                "cairn_state_due: step %" PRId64 " and every %" PRId64 " on rank %d, %" PRId64 " and %" PRId64
                " on rank 0; they must be equal",
                all[r].step, all[r].every, r, all[0].step, all[0].every);
        if (all[r].asks) *due |= CAIRN_STATE_SAVE;
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
        const bool stops = atomic_load(&stopped) != 0;
        const struct word mine = {step, every, now != state->seen || (stops && !state->seen_stop), stops};
        const cairn_status st = exchange(state, mine, &found);
        if (st != CAIRN_OK) return st;
        state->seen = now;
        state->seen_stop |= stops;
    }
    *due = found;
    return CAIRN_OK;
}
