/* Which machine a name means. */
#ifndef RUN_PLACE_H
#define RUN_PLACE_H

#include <stdbool.h>

/* "" and loopback names, this machine's own name, or a name of one of its addresses. */
bool place_is_here(const char *host);

/* This machine's name; static. */
const char *place_name(void);

#endif
