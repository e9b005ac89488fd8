/* Lines of JSON. */
#ifndef CAIRN__OBSERVE_JSON_H
#define CAIRN__OBSERVE_JSON_H

#include <stddef.h>

/* Writes text escaped for a JSON string, without quotes, cut at nbytes. */
void cairn__json_escape(const char *text, char *out, size_t nbytes);

/* A number with enough digits to read back exactly. JSON has no infinities and NaN: they become the strings "inf",
 * "-inf", "nan". */
enum { CAIRN__JSON_NUMBER = 40 };
const char *cairn__json_number(double value, char out[CAIRN__JSON_NUMBER]);

#endif
