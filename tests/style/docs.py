"""Whatever the docs and the README name is there: calls, constants and structs in the sources, files in the tree.

usage: docs.py source-root"""
import fnmatch
import os
import re
import sys
import tempfile

import sources

NAME = re.compile(r"\b(?:cairn|amp|ddp|CAIRN|AMP)_[A-Za-z0-9_]*[A-Za-z0-9]\b")
BUILT = re.compile(r"\bbuild[\w-]*/\S+")  # whose names a build file may put together
PATH = re.compile(r"`((?:[\w.+-]+/)+[\w.+*-]+)`")
ROOMS = ("include/", "src/", "amp/", "examples/", "tools/", "tests/", "docs/")


def complaints(root):
    files = sources.tracked(root)
    words = set()
    for path in files:
        if re.match(r"(include|src|amp|examples|tools|tests)/.*\.(c|h|cu|cuh|py|sh)$|.*meson.build$", path):
            words.update(re.findall(r"\w+", sources.read(root, path)))
    found = []
    for doc in files:
        if doc != "README.md" and not re.match(r"docs/.*\.md$", doc):
            continue
        text = sources.read(root, doc)
        found += [f"{doc}: nothing is called {name}" for name in sorted(set(NAME.findall(BUILT.sub("", text))) - words)]
        for path in sorted(set(PATH.findall(text))):
            wanted = [f + path for f in ("", "include/", "include/cairn/", "src/")]
            if path.startswith(ROOMS) and not any(fnmatch.filter(files, w) or is_folder(files, w) for w in wanted):
                found.append(f"{doc}: there is no {path}")
    return found


def is_folder(files, path):
    return any(f.startswith(path + "/") for f in files)


def check_itself():
    """Finds a call and a file that are not there."""
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(os.path.join(root, "docs"))
        os.makedirs(os.path.join(root, "src"))
        for name, text in (("README.md", "`cairn_here` `src/here.c` `build/amp_built`"),
                           ("docs/a.md", "cairn_gone, `src/gone.c`"), ("src/here.c", "int cairn_here;")):
            with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                f.write(text)
        if complaints(root) != ["docs/a.md: nothing is called cairn_gone", "docs/a.md: there is no src/gone.c"]:
            sys.exit(f"docs.py does not find what it should: {complaints(root)}")


def main():
    check_itself()
    sources.finish(complaints(sys.argv[1]), "names in the docs")


if __name__ == "__main__":
    main()
