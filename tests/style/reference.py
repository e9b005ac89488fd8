"""Doxygen reads the public headers without a warning, has something to say about every function, and no link of what it
wrote leads nowhere.

usage: reference.py doxyfile source-root"""
import html.parser
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

import sources


class Page(html.parser.HTMLParser):
    """Links of a page and the places in it that links can lead to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            if name in ("id", "name"):
                self.places.add(value)


def broken_links(folder):
    pages = {}
    for name in os.listdir(folder):
        if name.endswith(".html"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                pages[name] = Page(file.read())
    for name, page in sorted(pages.items()):
        for link in sorted(page.links):
            address = urllib.parse.urlparse(link)
            if address.scheme:
                continue
            target = urllib.parse.unquote(address.path) or name
            if not os.path.exists(os.path.join(folder, target)):
                yield f"{name}: there is no {target}"
            elif address.fragment and target in pages and address.fragment not in pages[target].places:
                yield f"{name}: {target} has no place {address.fragment}"


def undescribed(folder, root):
    """Functions that the headers declare and no page has; headers that the first page leaves out."""
    headers = os.path.join(root, "include/cairn")
    code = "".join(sources.without_comments(sources.read(headers, name)) for name in os.listdir(headers))
    names = set(re.findall(r"^CAIRN_API[^;{]*?\b((?:cairn|amp|ddp)_\w+)\(", code, re.M))
    text = "".join(sources.read(folder, name) for name in os.listdir(folder) if name.endswith("_8h.html"))
    lost = [f"no page has {name}" for name in sorted(names) if not re.search(rf">{name}\b", text)]
    links = Page(sources.read(folder, "index.html")).links
    return lost + [f"tools/reference/main.dox leaves out {name}" for name in sorted(os.listdir(headers))
                   if name.replace("_", "__").replace(".h", "_8h.html") not in links]


HEADER = """/* Head. */
#ifndef CAIRN_X_H
/* Of both: cairn_f,
 *
 *     cairn_f(1);
 */
CAIRN_API int cairn_f(int x); /* behind */
CAIRN_API int cairn_g(void);
CAIRN_API int cairn_h(int y,
                      int z);
#define cairn_i(a) \\
    (a)
#define CAIRN_J 1

/* ---- a title ---- */

/* of none */

struct s {
    int a; /* a & b,
              more */
};
"""
FILTERED = """/** @file
Head. */
#ifndef CAIRN_X_H
CAIRN_API int cairn_f(int x); /**< behind */
/** Of both: @ref cairn_f "cairn_f",

@code{.c}
cairn_f(1);
@endcode */
CAIRN_API int cairn_g(void);
/** Of both: @ref cairn_f "cairn_f",

@code{.c}
cairn_f(1);
@endcode */
CAIRN_API int cairn_h(int y,
                      int z);
/** Of both: @ref cairn_f "cairn_f",

@code{.c}
cairn_f(1);
@endcode */
#define cairn_i(a) \\
    (a)
/** Of both: @ref cairn_f "cairn_f",

@code{.c}
cairn_f(1);
@endcode */
#define CAIRN_J 1

/* ---- a title ---- */

/* of none */

struct s {
    int a; /**< a &amp; b,
more */
};
"""


def check_comments(root):
    """tools/reference/comments.py does what it says."""
    sys.path.insert(0, os.path.join(root, "tools/reference"))
    comments = importlib.import_module("comments")
    got = comments.filtered(HEADER, {"cairn_f"})
    assert got == FILTERED, got


def check_itself():
    with tempfile.TemporaryDirectory() as folder:
        for name, text in ("a.html", '<a href="b.html#here">x</a><a href="b.html#gone">x</a><a href="c.html">x</a>'
                           '<a href="https://nowhere">x</a>'), ("b.html", '<p id="here"></p><a href="#here">x</a>'):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        found = list(broken_links(folder))
        assert found == ["a.html: b.html has no place gone", "a.html: there is no c.html"], found


def main():
    doxyfile, root = sys.argv[1:]
    check_itself()
    check_comments(root)
    if not shutil.which("doxygen"):
        print("skipped: there is no doxygen (Debian: doxygen)")
        sys.exit(sources.SKIP)
    with tempfile.TemporaryDirectory() as folder, open(doxyfile, encoding="utf-8") as file:
        settings = file.read() + f"\nOUTPUT_DIRECTORY = {folder}\n"
        made = subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True, check=False)
        pages = os.path.join(folder, "reference")
        problems = [line for line in made.stderr.splitlines() if "warning" in line or "error" in line]
        if made.returncode and not problems:
            problems = [f"doxygen ended with {made.returncode}"]
        if os.path.isdir(pages):
            problems += [*broken_links(pages), *undescribed(pages, root)]
    sources.finish(problems, "the reference")


if __name__ == "__main__":
    main()
