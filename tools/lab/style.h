/* The report's style sheet: colours in light and dark, widths from a phone to a desktop. */
#ifndef LAB_STYLE_H
#define LAB_STYLE_H

extern const char style_sheet[];

#endif
