/* Options for an engine in a test: a store in this process, the loopback interface. */
#ifndef CAIRN__TESTS_ENGINE_OPTIONS_H
#define CAIRN__TESTS_ENGINE_OPTIONS_H

#include "comm/exchange/links.h"

static inline struct cairn__engine_options engine_options(int rank, int size, cairn_store *store, double timeout) {
    return (struct cairn__engine_options){.rank = rank,
                                          .size = size,
                                          .timeout = timeout,
                                          .store = store,
                                          .prefix = "test",
                                          .address = "127.0.0.1",
                                          .store_set = cairn_store_set,
                                          .store_get = cairn_store_get,
                                          .store_check = cairn_store_check,
                                          .store_free = cairn_store_free,
                                          .make_links = cairn__links_make};
}

#endif
