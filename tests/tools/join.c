/* A rank that only meets the others at the launcher's still empty store and exits. */
#include <stdio.h>
#include <stdlib.h>

#include "../check.h"
#include "cairn/store.h"

int main(void) {
    cairn_store *store = NULL;
    MUST_OK(cairn_tcp_store_create(getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")),
                                   cairn_tcp_store_options(.timeout = 10), &store));
    int64_t here = 0;
    MUST_OK(cairn_store_add(store, "here", 1, &here));
    if (here > atoi(getenv("WORLD_SIZE"))) {
        fprintf(stderr, "join: another rank was here before\n");
        return 1;
    }
    if (here == atoi(getenv("WORLD_SIZE"))) MUST_OK(cairn_store_set(store, "all", "", 0));
    MUST_OK(cairn_store_wait(store, &(const char *){"all"}, 1));
    cairn_store_destroy(&store);
    return 0;
}
