/* Counts the calls that have waited for the device, or may have. */
#ifndef TESTS_WAITS_H
#define TESTS_WAITS_H

#include <dlfcn.h>
#include <string.h>

/* Returns the count of tests/device/sync_shim.c, which wraps libcudart, or of the stand-in; 0 without either. */
static inline unsigned long long waits(void) {
    void *found = dlsym(RTLD_DEFAULT, "sync_waits");
    void *standin = found ? NULL : dlopen("libcairn_standin.so", RTLD_NOW | RTLD_NOLOAD);
    unsigned long long (*count)(void) = NULL;
    if (standin) found = dlsym(standin, "standin_waits");
    if (!found) return 0;
    memcpy(&count, &found, sizeof(found));
    return count();
}

#endif
