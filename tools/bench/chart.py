"""Draws times over sizes as SVG: measured points with their deviation, a model's line, and levels.

Narrow, with large letters, so that it can be read where it is small."""
import math
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, PLOT = 640, 74, 18, 96, 290
LETTER = 0.57  # of a letter's width, by the text's height
MEASURED, MODEL, LEVELS = "#08519c", "#d94801", ("#555555", "#238b45")


def tick_distance(end, ticks=6):
    """1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(end / ticks))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= end / ticks)


def write_svg(file, height, elements):
    with open(file, "w", encoding="utf-8") as out:
        out.write(f'<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" '
                  f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
                  'font-size="14">\n<rect width="100%" height="100%" fill="#ffffff"/>\n')
        out.write("\n".join(elements) + "\n</svg>\n")


class Chart:
    """x: sizes, in logarithms; y: from 0 to the highest."""

    def __init__(self, title, lines, x_name, y_name, sizes, highest):
        self.low, self.high = min(sizes), max(max(sizes), min(sizes) + 1)
        self.highest, self.out = 1.06 * highest, []
        self.text(10, 26, title, size=16, more=' font-weight="bold"')
        for i, line in enumerate(lines):
            self.text(10, 46 + 20 * i, line)
        self.axes(x_name, y_name, sizes)

    def x(self, size):
        span = math.log(self.high / self.low)
        return LEFT + 14 + (WIDTH - LEFT - RIGHT - 28) * math.log(size / self.low) / span

    def y(self, value):
        return TOP + PLOT * (1 - value / self.highest)

    def text(self, x, y, text, size=14, anchor="start", more=""):
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{place}{more}>{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, color, more=""):
        self.out.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>')

    def axes(self, x_name, y_name, sizes):
        distance, end = tick_distance(self.highest), -math.inf
        for i in range(int(self.highest / distance) + 1):
            self.line(LEFT, self.y(i * distance), WIDTH - RIGHT, self.y(i * distance), "#dddddd")
            self.text(LEFT - 6, self.y(i * distance) + 5, f"{i * distance:g}", anchor="end")
        for size in sorted(sizes):
            half = LETTER * 14 * len(str(size)) / 2
            self.line(self.x(size), TOP + PLOT, self.x(size), TOP + PLOT + 5, "#555555")
            if self.x(size) - half > end + 7:  # a name that would reach into the one before is left out
                self.text(self.x(size), TOP + PLOT + 20, str(size), anchor="middle")
                end = self.x(size) + half
        self.line(LEFT, TOP + PLOT, WIDTH - RIGHT, TOP + PLOT, "#555555")
        self.text((LEFT + WIDTH - RIGHT) / 2, TOP + PLOT + 42, x_name, anchor="middle")
        middle = TOP + PLOT / 2
        self.text(18, middle, y_name, anchor="middle", more=f' transform="rotate(-90 18 {middle:.1f})"')
        self.key_y, self.key_x = TOP + PLOT + 68, 10

    def key(self, mark, what):
        """The next entry below the plot, in two columns."""
        self.out.append(mark(self.key_x + 16, self.key_y - 5))
        self.text(self.key_x + 40, self.key_y, what)
        self.key_x, self.key_y = (300, self.key_y) if self.key_x == 10 else (10, self.key_y + 22)

    def level(self, value, what, index):
        color, dashes = LEVELS[index], ("8 4", "3 3")[index]

        def mark(x, y):
            return (f'<line x1="{x - 14:.1f}" y1="{y:.1f}" x2="{x + 14:.1f}" y2="{y:.1f}" stroke="{color}" '
                    f'stroke-width="2" stroke-dasharray="{dashes}"/>')
        self.line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value), color,
                  f' stroke-width="2" stroke-dasharray="{dashes}"')
        self.key(mark, what)

    def model(self, points, what):
        """Open squares and a thin line."""
        def mark(x, y):
            return (f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="#ffffff" stroke="{MODEL}" '
                    'stroke-width="2"/>')
        path = " ".join(f"{self.x(size):.1f},{self.y(value):.1f}" for size, value in sorted(points.items()))
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{MODEL}" stroke-width="1.5"/>')
        self.out += [mark(self.x(size), self.y(value)) for size, value in points.items()]
        self.key(mark, what)

    def measured(self, points, what):
        """{size: (value, deviation)}: discs with bars."""
        def mark(x, y):
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{MEASURED}"/>'
        for size, (value, deviation) in points.items():
            low, high = self.y(max(value - deviation, 0)), self.y(min(value + deviation, self.highest))
            self.line(self.x(size), low, self.x(size), high, MEASURED, ' stroke-width="2"')
            for end in (low, high):
                self.line(self.x(size) - 5, end, self.x(size) + 5, end, MEASURED, ' stroke-width="2"')
            self.out.append(mark(self.x(size), self.y(value)))
        self.key(mark, what)

    def write(self, file):
        write_svg(file, self.key_y + (0 if self.key_x > 10 else -22) + 14, self.out)
