/* Lines of JSON. */
#ifndef CAIRN__OBSERVE_JSON_H
#define CAIRN__OBSERVE_JSON_H

#include <stddef.h>

/* A JSON string's inside, cut at nbytes. */
void cairn__json_escape(const char *text, char *out, size_t nbytes);

/* A number that is read as it was; JSON has neither infinities nor NaN, which are the strings "inf", "-inf", "nan". */
enum { CAIRN__JSON_NUMBER = 40 };
const char *cairn__json_number(double value, char out[CAIRN__JSON_NUMBER]);

#endif
