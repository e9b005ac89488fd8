/* A module of another user, whose code leaves a file with the rights of the program that opens it. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void run(void) {
    const char *loot = getenv("LOOT");
    FILE *file = loot ? fopen(loot, "we") : NULL;
    if (file) fclose(file);
}
