/* Conversations of PyTorch's TCPStore clients and servers, one line per turn: '>' to the server, '<' from it
 * (wire_script.h). */
#ifndef CAIRN_TESTS_TRANSCRIPTS_H
#define CAIRN_TESTS_TRANSCRIPTS_H

#include "wire_script.h"

static const char *const torch_2_2[] = {
    ">" HELLO "| 0d 78 56 34 12", /* VALIDATE and PING in one piece */
    "< 78 56 34 12",
    "> 04 | 05*8 'init/' | 01*8", /* ADD */
    "< 01*8",
    "> 01 | 02*8 '/k' | 01*8 'v'", /* SET */
    "> 06 | 01*8 | 02*8 '/k'",     /* WAIT */
    "< 00",
    "> 03 | 02*8 '/k'", /* GET */
    "< 01*8 'v'",
    "> 04 | 02*8 '/c' | 05*8", /* ADD */
    "< 05*8",
    "> 04 | 02*8 '/c' | f9 ff ff ff ff ff ff ff",
    "< fe ff ff ff ff ff ff ff",
    "> 03 | 02*8 '/c'",
    "< 02*8 '-2'",
    "> 02 | 02*8 '/k' | 01*8 'v' | 01*8 'w'", /* COMPARE_SET */
    "< 01*8 'w'",
    "> 02 | 02*8 '/k' | 01*8 'v' | 01*8 'x'",
    "< 01*8 'w'",
    "> 02 | 02*8 '/n' | 01*8 'v' | 01*8 'x'",
    "< 01*8 'v'",
    "> 05 | 02*8 | 02*8 '/k' | 02*8 '/c'", /* CHECK */
    "< 00",
    "> 05 | 02*8 | 02*8 '/k' | 02*8 '/n'",
    "< 01",
    "> 07", /* GETNUMKEYS: init/, /k, /c */
    "< 03*8",
    "> 09 | 02*8 '/k' | 02*8 'yz' | 09 | 02*8 '/a' | 01*8 'b'", /* APPEND */
    "> 0a | 03*8 | 02*8 '/k' | 02*8 '/n' | 02*8 '/a'",          /* MULTI_GET */
    "< 03*8 'wyz' | 00*8 | 01*8 'b'",
    "> 0b | 02*8 | 02*8 '/p' | 01*8 '1' | 02*8 '/q' | 00*8", /* MULTI_SET */
    "> 0a | 02*8 | 02*8 '/p' | 02*8 '/q'",
    "< 01*8 '1' | 00*8",
    "> 03 | 02*8 '/n'", /* GET of what is not there: empty, as the libuv server answers */
    "< 00*8",
    "> 08 | 02*8 '/k'", /* DELETE_KEY */
    "< 01*8",
    "> 08 | 02*8 '/k'",
    "< 00*8",
    "> 0c", /* CANCEL_WAIT without a WAIT */
    "< 01",
    "> 05 | 00*8 | 06 | 00*8 | 0a | 00*8 | 0b | 00*8 | 07", /* of no keys at all */
    "< 00 | 00 | 05*8",
    NULL,
};

/* LIST_KEYS and BARRIER came after 2.6. */
static const char *const torch_newest[] = {
    ">" HELLO,
    "> 11", /* LIST_KEYS */
    "< 00*8",
    "> 01 | 02*8 '/k' | 01*8 'v' | 11",
    "< 01*8 | 02*8 '/k'",
    "> 12 | 02*8 '/b' | 01*8", /* BARRIER of one */
    "< 00",
    "> 03 | 02*8 '/b'",
    "< 01*8 '1'",
    NULL,
};

/* As recorded between processes of 1.13.1. */
static const char *const torch_1_13[] = {
    "> 03 | 05 00 00 00 00 00 00 00 69 6e 69 74 2f | 01 00 00 00 00 00 00 00", /* ADD "init/" 1 */
    "< 01 00 00 00 00 00 00 00",
    "> 00 | 02 00 00 00 00 00 00 00 2f 6b | 01 00 00 00 00 00 00 00 76", /* SET */
    "> 05 | 01 00 00 00 00 00 00 00 | 02 00 00 00 00 00 00 00 2f 6b",    /* WAIT and GET: get */
    "< 00",
    "> 02 | 02 00 00 00 00 00 00 00 2f 6b",
    "< 01 00 00 00 00 00 00 00 76",
    "> 03 | 02 00 00 00 00 00 00 00 2f 63 | 05 00 00 00 00 00 00 00",
    "< 05 00 00 00 00 00 00 00",
    "> 03 | 02 00 00 00 00 00 00 00 2f 63 | f9 ff ff ff ff ff ff ff",
    "< fe ff ff ff ff ff ff ff",
    "> 01 | 02*8 2f 6b | 01*8 76 | 01*8 77", /* COMPARE_SET */
    "< 01 00 00 00 00 00 00 00 77",
    "> 00 | 02*8 2f 64 | 01*8 76",
    "> 06", /* GETNUMKEYS */
    "< 04 00 00 00 00 00 00 00",
    "> 08 | 02 00 00 00 00 00 00 00 2f 6b", /* DELETE_KEY */
    "< 01 00 00 00 00 00 00 00",
    "> 04 | 01*8 | 02*8 2f 6b", /* CHECK */
    "< 01",
    /* From here on it is 2.1, whose numbers differ from DELETE_KEY on. */
    "> 07 | 02*8 2f 6b", /* DELETE_KEY */
    "< 00*8",
    "> 08 | 02*8 '/a' | 01*8 'b' | 08 | 02*8 '/a' | 01*8 'c'",
    "> 09 | 02*8 | 02*8 '/a' | 02*8 '/d'",
    "< 02*8 'bc' | 01*8 'v'",
    "> 0a | 01*8 | 02*8 '/a' | 00*8 | 0b | 02 | 02*8 '/a'",
    "< 01 | 00*8",
    NULL,
};

#endif
