/* Prints the result of substitute() for each NUL-terminated text on stdin, also NUL-terminated; for
 * test_template.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run/text.h"

int main(void) {
    const struct substitution names[] = {{"local_rank", "13"}, {"rank", "$local_rank"}, {"_x1", ""}, {0}};
    char *text = NULL;
    size_t room = 0;
    while (getdelim(&text, &room, '\0', stdin) >= 0) {
        char *out = substitute(text, names);
        fwrite(out, 1, strlen(out) + 1, stdout);
        free(out);
    }
    free(text);
    return fflush(stdout) != 0;
}
