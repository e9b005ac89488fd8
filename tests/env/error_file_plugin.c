/* usage: error_file_plugin path/to/libcairn.so exit|signal
 *
 * A program that loads libcairn with dlopen, creates an environment, unloads libcairn, and then fails. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/env.h"

typedef cairn_status (*create_fn)(int *, char ***, const struct cairn_env_options *, cairn_env **);
typedef void (*destroy_fn)(cairn_env **);

int main(int argc, char **argv) {
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc == 3 ? dlerror() : "usage: error_file_plugin libcairn.so exit|signal");
        return 100;
    }
    create_fn create;
    destroy_fn destroy;
    *(void **)&create = dlsym(library, "cairn_env_create");
    *(void **)&destroy = dlsym(library, "cairn_env_destroy");
    (void)signal(SIGABRT, SIG_DFL);
    cairn_env *env = NULL;
    if (!create || !destroy || create(NULL, NULL, NULL, &env) != CAIRN_OK) return 100;
    destroy(&env);
    dlclose(library);
    if (strcmp(argv[2], "signal") == 0) abort();
    exit(3);
}
