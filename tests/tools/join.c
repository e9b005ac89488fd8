/* A rank that does nothing but meet the others at the launcher's store, under TORCHELASTIC_RUN_ID, and leave. */
#include <stdio.h>
#include <stdlib.h>

#include "dist/store.h"

#define CHECK(call)                                            \
    do {                                                       \
        if ((call) != CAIRN_OK) {                              \
            fprintf(stderr, "join: %s\n", cairn_last_error()); \
            exit(1);                                           \
        }                                                      \
    } while (0)

int main(void) {
    struct cairn__store *store = NULL;
    CHECK(cairn__store_connect(getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), 10, &store));
    int64_t here = 0;
    CHECK(cairn__store_add(store, "here", 1, &here));
    if (here == atoi(getenv("WORLD_SIZE"))) CHECK(cairn__store_set(store, "all", "", 0));
    CHECK(cairn__store_wait(store, "all"));
    cairn__store_close(&store);
    return 0;
}
