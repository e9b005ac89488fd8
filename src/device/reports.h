/* Reading reports: a ring of CAIRN__REPORTS structs that the device writes in turn and the host reads without waiting.
 *
 * Report n is in slot n % CAIRN__REPORTS and begins with its number, counted from 1, a uint64_t that the device writes
 * last. A host that lags by more than the ring's size misses reports. nbytes: the size of a report, a multiple of 8. */
#ifndef CAIRN__DEVICE_REPORTS_H
#define CAIRN__DEVICE_REPORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number of the newest report; 0 = none. */
uint64_t cairn__reports_newest(const void *ring, size_t nbytes);

/* Must be called after reading data of report `number`. false: the device may have overwritten it meanwhile. */
bool cairn__reports_is_whole(const void *ring, size_t nbytes, uint64_t number);

/* The newest report, or zeros before the first. */
void cairn__reports_last(const void *ring, size_t nbytes, void *out);

/* The oldest report after *seen that is still in the ring; *seen becomes its number. false: there is none. */
bool cairn__reports_next(const void *ring, size_t nbytes, uint64_t *seen, void *out);

#endif
