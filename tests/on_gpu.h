/* For tests that run on the device of CAIRN_DEVICE: skips the ones that only apply to the CPU. Needs cmocka. */
#ifndef TESTS_ON_GPU_H
#define TESTS_ON_GPU_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Whether environments that name no device compute on a GPU or the stand-in. */
static inline bool is_on_gpu(void) {
    const char *device = getenv("CAIRN_DEVICE");
    return device && strncmp(device, "cuda", 4) == 0;
}

/* First line of a test that reads device memory from the host, or expects that a call has finished when it returns. */
#define NOT_ON_A_GPU(why)                             \
    do {                                              \
        if (is_on_gpu()) {                            \
            print_message("not on a GPU: " why "\n"); \
            skip();                                   \
        }                                             \
    } while (0)

#endif
