/* Draws the timeline of a step. */
#ifndef PLAN_SVG_H
#define PLAN_SVG_H

#include "report.h"

/* Draws one step of the plan. False after a message, if the file cannot be written. */
bool svg_write(const char *file, const struct plan *plan, const struct step *step);

#endif
