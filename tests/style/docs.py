"""Checks names in the docs, the README and the comments of public headers: calls, constants and structs exist in the
sources, files in the tree, linked pages and headings in the docs; and error messages that the docs quote are those of
the sources.

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
FOREIGN = {"amp_C", "amp_autocast", "ddp_comm_hooks", "CAIRN_X_OPTIONS_INIT"}  # apex's, a scope, torch's, for any X
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
LITERALS = re.compile(r'"(?:\\.|[^"\\])*"(?:\s*(?:PRI[a-z]\d+\s*)?"(?:\\.|[^"\\])*")*')
CONVERSION = re.compile(r"%[-+ 0#]*[\d.*]*[a-z]+")
TELLING = 18  # characters of a format that is found in a sentence by no chance
FAULTS = {"docs/launching.md": "## Errors and what to do", "docs/failures.md": "## What you see"}
ROOMS = ("include/", "src/", "amp/", "examples/", "tools/", "tests/", "docs/")


def complaints(root):
    files = sources.tracked(root)
    words = set()
    for path in files:
        if re.match(r"(include|src|amp|examples|tools|tests)/.*\.(c|h|cu|cuh|py|sh|cmake\.in)$|.*meson.build$", path):
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


def misnamed(root, files):
    """Names in comments of public headers that no code has."""
    code = re.compile(r"(include|src|amp|tools|examples)/.*\.(c|h|cu|cuh)$")
    words = set()
    for path in filter(code.match, files):
        words.update(re.findall(r"\w+", sources.without_comments(sources.read(root, path))))
    for path in files:
        if path.startswith("include/"):
            text = "".join(re.findall(r"/\*.*?\*/", sources.read(root, path), re.S))
            yield from (f"{path}: nothing is called {n}" for n in sorted(set(NAME.findall(text)) - words - FOREIGN))


def anchors(text):
    """Of the headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def lost_links(root, files):
    for doc in files:
        if not re.match(r"(docs/)?[\w.-]+\.md$", doc):
            continue
        for link in sorted(set(LINK.findall(sources.read(root, doc)))):
            path, _, place = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(doc), path)) if path else doc
            if target not in files:
                yield f"{doc}: a link leads to {target}, which is not there"
            elif place and place not in anchors(sources.read(root, target)):
                yield f"{doc}: {target} has no heading for #{place}"


def formats(root, files):
    """What may be said, as patterns: the texts of the sources, with anything in place of conversions."""
    found = []
    for path in files:
        if not re.match(r"(src|amp|tools)/.*\.(c|cc|h)$", path):
            continue
        for match in LITERALS.findall(sources.read(root, path)):
            whole = re.sub(r'"\s*"', "", re.sub(r'"\s*PRI\w+\s*"', "d", match))
            fixed = CONVERSION.split(whole[1:-1].replace('\\"', '"'))
            if sum(map(len, fixed)) >= TELLING and " " in "".join(fixed):
                found.append(re.compile(".*".join(map(re.escape, fixed))))
    return found


def sentences(text, heading):
    """The first column of the faults that are Cairn's own, as far as they are written out."""
    part = text.partition(heading)[2].partition("From others:")[0]
    return [row.replace("...", "") for row in re.findall(r"^\| `(.+?)` \|", part, re.M)]


def unsaid(root, files):
    known = formats(root, files)
    return [f"{doc}: nobody says '{s}'" for doc, heading in FAULTS.items() if doc in files
            for s in sentences(sources.read(root, doc), heading) if not any(k.search(s) for k in known)]


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
        os.makedirs(os.path.join(root, "include"))
        with open(os.path.join(root, "include/a.h"), "w", encoding="utf-8") as f:
            f.write("/* As cairn_here and cairn_none, amp_C. */ int cairn_b; /* cairn_b */\n")
        found = list(misnamed(root, ["include/a.h", "src/here.c"]))
        if found != ["include/a.h: nothing is called cairn_none"]:
            sys.exit(f"docs.py does not find what a comment names: {found}")
        with open(os.path.join(root, "README.md"), "w", encoding="utf-8") as f:
            f.write("# A *b*, c\n[1](#a-b-c) [2](docs/a.md) [3](https://x) [4](docs/b.md) [5](docs/a.md#a)\n")
        found = list(lost_links(root, ["README.md", "docs/a.md"]))
        if found != ["README.md: docs/a.md has no heading for #a",
                     "README.md: a link leads to docs/b.md, which is not there"]:
            sys.exit(f"docs.py does not find lost links: {found}")
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(os.path.join(root, "docs"))
        os.makedirs(os.path.join(root, "src"))
        for name, text in (("src/a.c", 'say("rank %d is "\n    "nowhere to be %s", 1, "found");'),
                           ("docs/failures.md", "## What you see\n| `rank 1 is nowhere to be seen` | x |\n"
                                         "| `rank 1 is nowhere at all` | x |\n")):
            with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                f.write(text)
        found = unsaid(root, ["src/a.c", "docs/failures.md"])
        if found != ["docs/failures.md: nobody says 'rank 1 is nowhere at all'"]:
            sys.exit(f"docs.py does not find what nobody says: {found}")


def main():
    check_itself()
    root = sys.argv[1]
    files = sources.tracked(root)
    found = [*complaints(root), *misnamed(root, files), *lost_links(root, files), *unsaid(root, files)]
    sources.finish(found, "names in the docs")


if __name__ == "__main__":
    main()
