/* The cast policy of an environment (cairn/autocast.h): the class of every operation, and the stack of scopes with O1
 * at its bottom. Made on first use, installed as nn's op hook, ended with the environment. */
#ifndef CAIRN__AMP_CASTS_H
#define CAIRN__AMP_CASTS_H

#include <stdbool.h>

#include "cairn/autocast.h"

/* An O1 context begins: the bottom of the stack. verbose: every cast is logged. Errors: CAIRN_ESTATE there is one
 * already; CAIRN_ENOMEM. */
cairn_status cairn__casts_begin_o1(cairn_env *env, cairn_dtype half_type, bool verbose);
/* Its products of the fp8 list go through fp8 from now on, until it ends. */
struct cairn__fp8_casts;
void cairn__casts_use_fp8(cairn_env *env, struct cairn__fp8_casts *fp8);

void cairn__casts_end_o1(cairn_env *env);

#endif
