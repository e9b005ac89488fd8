"""Draws times of several variants as SVG: a bar for each with its deviation, and its name above it.

Narrow, with large letters, so that it can be read where it is small."""
from xml.sax.saxutils import escape

from chart import MEASURED, WIDTH, tick_distance, write_svg

LEFT, RIGHT, TOP, BAR, ROW = 14, 24, 100, 20, 52
LIMIT = "#bdbdbd"


def bars(file, title, lines, axis, rows, keys):
    """Writes the picture.

    rows  of (name, value, deviation, what is said of it at the right, whether it is a limit, no way of its own)
    keys  what a bar is that was measured, and what a limit is"""
    out, bottom = [], TOP + ROW * len(rows)
    highest = 1.04 * max(value + deviation for _, value, deviation, _, _ in rows)

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * value / highest

    def text(left, y, words, anchor="start", more=""):
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        out.append(f'<text x="{left:.1f}" y="{y:.1f}"{place}{more}>{escape(words)}</text>')

    def bar(left, y, width, height, is_limit):
        out.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" '
                   f'fill="{LIMIT if is_limit else MEASURED}"/>')

    text(LEFT, 26, title, more=' font-size="16" font-weight="bold"')
    for i, line in enumerate(lines):
        text(LEFT, 46 + 20 * i, line)
    distance = tick_distance(highest)
    for i in range(int(highest / distance) + 1):
        out.append(f'<line x1="{x(i * distance):.1f}" y1="{TOP - 8}" x2="{x(i * distance):.1f}" y2="{bottom}" '
                   'stroke="#dddddd"/>')
        text(x(i * distance), bottom + 18, f"{i * distance:g}", "middle")
    text((LEFT + WIDTH - RIGHT) / 2, bottom + 40, axis, "middle")
    for i, (name, value, deviation, remark, is_limit) in enumerate(rows):
        y = TOP + ROW * i
        text(LEFT, y + 12, name)
        text(WIDTH - RIGHT, y + 12, remark, "end")
        bar(LEFT, y + 18, x(value) - LEFT, BAR, is_limit)
        low, high, middle = x(max(value - deviation, 0)), x(value + deviation), y + 18 + BAR / 2
        for x1, y1, x2, y2 in ((low, middle, high, middle), (low, middle - 6, low, middle + 6),
                               (high, middle - 6, high, middle + 6)):
            out.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d94801" '
                       'stroke-width="2"/>')
    for i, words in enumerate(keys):
        bar(LEFT, bottom + 57 + 22 * i, 13, 13, i > 0)
        text(LEFT + 20, bottom + 68 + 22 * i, words)
    write_svg(file, bottom + 68 + 22 * (len(keys) - 1) + 14, out)
