/* The version as text, for modules and programs to compare with the library's. */
#ifndef CAIRN__CORE_VERSION_H
#define CAIRN__CORE_VERSION_H

#include "cairn/version.h"

#define CAIRN__TEXT_OF(x)      #x
#define CAIRN__DOTTED(a, b, c) CAIRN__TEXT_OF(a) "." CAIRN__TEXT_OF(b) "." CAIRN__TEXT_OF(c)
#define CAIRN__VERSION_TEXT    CAIRN__DOTTED(CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH)

#endif
