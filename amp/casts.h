/* The cast policy of an environment (cairn/autocast.h): the class of every operation, and the stack of autocast scopes
 * with O1 at its bottom. Created on first use, installed as nn's op hook, freed with the environment. */
#ifndef CAIRN__AMP_CASTS_H
#define CAIRN__AMP_CASTS_H

#include <stdbool.h>

#include "cairn/autocast.h"

/* Begins an O1 context, the bottom of the stack. verbose: every cast is logged. Errors: CAIRN_ESTATE there is an O1
 * context already; CAIRN_ENOMEM. */
cairn_status cairn__casts_begin_o1(cairn_env *env, cairn_dtype half_type, bool verbose);
/* From now on the O1 context's products on the fp8 list are cast through fp8, until the context ends. */
struct cairn__fp8_casts;
void cairn__casts_use_fp8(cairn_env *env, struct cairn__fp8_casts *fp8);

void cairn__casts_end_o1(cairn_env *env);

#endif
