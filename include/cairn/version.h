/* Cairn's version: the one place that says it; meson reads these three lines.
 *
 * 0.1.0  the quick start: linear regression at O0-O3 on the CPU, several ranks on one machine
 */
#ifndef CAIRN_VERSION_H
#define CAIRN_VERSION_H

#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0

#endif
