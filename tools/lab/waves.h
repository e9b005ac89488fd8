/* Generated pictures for short trainings: noisy waves of ten frequencies, which are the classes. */
#ifndef LAB_WAVES_H
#define LAB_WAVES_H

#include <stdint.h>

enum { LAB_SIDE = 8, LAB_PIXELS = LAB_SIDE * LAB_SIDE, LAB_CLASSES = 10 };

/* Generates picture `number` of a seed, with values around [-1, 1], and its class; the same on every machine. */
void lab_wave(uint64_t seed, uint64_t number, float pixels[LAB_PIXELS], int64_t *class);

#endif
