/* A program that test_rights.py makes set-user-ID: it opens a module, or exits with an error.
 *
 * usage: rights_user module NAME | rights_user fail */
#include <stdio.h>
#include <string.h>

#include "cairn/env.h"
#include "device/module.h"

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "module") == 0 && argc > 2) {
        const struct cairn__module_use use = {"device", "another", 8};
        const void *table;
        if (cairn__module_open(&use, argv[2], &table) != CAIRN_OK) puts(cairn_last_error());
        return 0;
    }
    cairn_env *env = NULL;
    if (cairn_env_create(NULL, NULL, NULL, &env) != CAIRN_OK) puts(cairn_last_error());
    cairn_env_destroy(&env);
    return strcmp(what, "fail") == 0 ? 3 : 100;
}
