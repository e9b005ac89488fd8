/* Reading reports: a ring of CAIRN__REPORTS structs that the device writes in turn and the host reads without waiting.
 *
 * Report n stands in slot n % CAIRN__REPORTS and begins with its number, from 1, a uint64_t that is written last. A
 * host that lags behind by more than the ring holds misses reports. nbytes: of one, a multiple of 8. */
#ifndef CAIRN__DEVICE_REPORTS_H
#define CAIRN__DEVICE_REPORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number of the last report that has come; 0 = none. */
uint64_t cairn__reports_newest(const void *ring, size_t nbytes);

/* Asked after reading what belongs to report `number`: false = the device may have been writing over it meanwhile. */
bool cairn__reports_is_whole(const void *ring, size_t nbytes, uint64_t number);

/* The last report, zeros where none has come. */
void cairn__reports_last(const void *ring, size_t nbytes, void *out);

/* The next report after *told that can still be had; *told becomes its number. false: nothing new has come. */
bool cairn__reports_next(const void *ring, size_t nbytes, uint64_t *told, void *out);

#endif
