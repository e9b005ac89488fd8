#include "core/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static atomic_uint forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool watches;

static void count_fork(void) {
    atomic_fetch_add(&forks, 1);
}

/* If there is no memory for the handler, children are not detected, as in a program that calls clone itself. */
static void watch(void) {
    (void)pthread_atfork(NULL, NULL, count_fork);
    atomic_store(&watches, true);
}

unsigned cairn__forks(void) {
    if (!atomic_load_explicit(&watches, memory_order_acquire)) pthread_once(&once, watch);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}
