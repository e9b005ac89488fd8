/* Where a step's time goes, as a picture. */
#ifndef PLAN_SVG_H
#define PLAN_SVG_H

#include "report.h"

/* Draws one step of the plan. False where the file cannot be written: a sentence has been said. */
bool svg_write(const char *file, const struct plan *plan, const struct step *step);

#endif
