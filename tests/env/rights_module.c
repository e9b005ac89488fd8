/* A module planted by another user: its code creates a file with the privileges of the program that loads it. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void run(void) {
    const char *loot = getenv("LOOT");
    FILE *file = loot ? fopen(loot, "we") : NULL;
    if (file) fclose(file);
}
