"""Renders a page in headless Chromium and returns its widths and error messages. Needs only Debian's chromium."""
import html
import json
import os
import re
import shutil
import subprocess
import tempfile

PATIENCE = 90
NAME = shutil.which("chromium") or shutil.which("chromium-browser")

# Measures the page in frames of given widths, since Chromium's own window is never narrower than 500 pixels; the answer
# is the title that --dump-dom prints. Labels are measured as they are drawn.
FRAMES = """<!DOCTYPE html><html><head><meta charset="utf-8"><title></title></head><body style="margin:0">
%s<script>
const measure = frame => {
  const page = frame.contentDocument, overlaps = [], outside = [];
  let pictures = 0, letters = 1e9;
  for (const svg of page.querySelectorAll("figure svg:not(.swatch)")) {
    const place = svg.getBoundingClientRect();
    if (place.width === 0) continue;
    pictures++;
    const boxes = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (const [text, a] of boxes) {
      letters = Math.min(letters, a.height);
      if (a.left < place.left - 1 || a.right > place.right + 1 || a.top < place.top - 1 || a.bottom > place.bottom + 1)
        outside.push(text);
    }
    for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
      const a = boxes[i][1], b = boxes[j][1];
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top + 2 < b.bottom - 2 && b.top + 2 < a.bottom - 2)
        overlaps.push(boxes[j][0] + " / " + boxes[i][0]);
    }
  }
  return {width: page.documentElement.scrollWidth, pictures, letters, overlaps, outside,
          paper: getComputedStyle(page.body).backgroundColor};
};
window.onload = () => document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(measure));
</script></body></html>
"""
FRAME = '<iframe width="%d" height="2000" style="border:0" src="%s"></iframe>'


def run(folder, *args):
    """Chromium's standard output and error."""
    done = subprocess.run([NAME, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           "--no-first-run", "--disable-background-networking", "--allow-file-access-from-files",
                           "--enable-logging=stderr", "--virtual-time-budget=10000",
                           f"--user-data-dir={folder}/profile", *args],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stdout, done.stderr


def measure(page, widths, dark=False):
    """(what FRAMES finds for each width in pixels, lines of the console) of a page."""
    with tempfile.TemporaryDirectory() as folder:
        frame = os.path.join(folder, "frame.html")
        with open(frame, "w", encoding="utf-8") as out:
            out.write(FRAMES % "".join(FRAME % (width, "file://" + os.path.abspath(page)) for width in widths))
        more = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
        shown, said = run(folder, *more, "--window-size=1500,2000", "--dump-dom", "file://" + frame)
        title = re.search(r"<title>(\[.*?\])</title>", shown)
        assert title, f"{NAME} has not shown {page}: {said[-2000:]}"
        console = [line for line in said.splitlines() if ":CONSOLE" in line]
        return json.loads(html.unescape(title.group(1))), console


def picture(page, width, height, file, dark=False):
    """A screenshot, for people to look at."""
    with tempfile.TemporaryDirectory() as folder:
        frame = os.path.join(folder, "frame.html")
        with open(frame, "w", encoding="utf-8") as out:
            out.write(f'<body style="margin:0"><iframe width="{width}" height="{height}" style="border:0" '
                      f'src="file://{os.path.abspath(page)}"></iframe>')
        run(folder, f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--hide-scrollbars",
            f"--window-size={max(width, 500)},{height}", f"--screenshot={file}", "file://" + frame)
