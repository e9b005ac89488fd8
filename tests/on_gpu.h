/* Tests of rooms that follow CAIRN_DEVICE: what of them is the CPU's alone. Needs cmocka. */
#ifndef TESTS_ON_GPU_H
#define TESTS_ON_GPU_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Whether environments without a device of their own compute on a GPU, or its stand-in. */
static inline bool is_on_gpu(void) {
    const char *device = getenv("CAIRN_DEVICE");
    return device && strncmp(device, "cuda", 4) == 0;
}

/* At the begin of a test: of the host's memory as the device's, or of calls that have happened when they return. */
#define NOT_ON_A_GPU(why)                             \
    do {                                              \
        if (is_on_gpu()) {                            \
            print_message("not on a GPU: " why "\n"); \
            skip();                                   \
        }                                             \
    } while (0)

#endif
