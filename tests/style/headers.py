"""Compiles every public header alone, and user.c with all, as C99 and as C++17, with warnings as errors; and looks
whether each is installed.

usage: headers.py source-root c-compiler [c++-compiler]"""
import os
import re
import shlex
import subprocess
import sys
import tempfile

import sources

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def compile_text(compiler, language, include, text):
    """What the compiler says about it; "" where it is content."""
    command = [*compiler, "-x", *language, *WARNINGS, "-I", include, "-"]
    got = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return got.stderr if got.returncode or got.stderr else ""


def complaints(include, languages):
    found = []
    for name in sorted(os.listdir(os.path.join(include, "cairn"))):
        for compiler, *language in languages:
            alone = f'#include "cairn/{name}"\ntypedef int not_empty;\n'
            said = compile_text(compiler, language, include, alone)
            if said:
                found.append(f"cairn/{name} as {language[1][5:]}:\n{said}")
    return found


def complaints_of_user(include, languages):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "user.c"), encoding="ascii") as f:
        text = f.read()
    said = ((language[1][5:], compile_text(compiler, language, include, text)) for compiler, *language in languages)
    return [f"user.c as {name}:\n{what}" for name, what in said if what]


def not_installed(root):
    with open(os.path.join(root, "meson.build"), encoding="ascii") as f:
        listed = f.read()
    return [f"cairn/{name} is not among the headers that meson.build installs"
            for name in sorted(os.listdir(os.path.join(root, "include/cairn")))
            if f"'include/cairn/{name}'" not in listed]


def lost_references(include):
    """Headers that a public header tells to read, but for <...>, are public too."""
    public = sorted(os.listdir(os.path.join(include, "cairn")))
    found = []
    for name in public:
        with open(os.path.join(include, "cairn", name), encoding="ascii") as f:
            told = set(re.findall(r"(?<![\w/<])[\w/]+\.h\b", f.read()))
        found += [f"cairn/{name} refers to {other}, which is not installed" for other in sorted(told)
                  if other not in public and other.removeprefix("cairn/") not in public]
    return found


def check_the_check(languages):
    """A header that needs another first, one with a C++ word and one that leaves C99."""
    for text, bad in (("size_t f(void);", ["c99", "c++17"]), ("int class(void);", ["c++17"]),
                      ("int f(int a[static 2]);", ["c++17"]), ("typedef int t; typedef int t;", ["c99"]),
                      ("int f(void);", [])):
        with tempfile.TemporaryDirectory() as include:
            os.mkdir(include + "/cairn")
            with open(include + "/cairn/x.h", "w", encoding="ascii") as f:
                f.write(text + "\n")
            got = [c.split(":")[0].rpartition(" ")[2] for c in complaints(include, languages)]
            assert got == [b for b in bad if any(b in language[2] for language in languages)], (text, got)


if __name__ == "__main__":
    root, *compilers = sys.argv[1:]
    kinds = [("c", "-std=c99"), ("c++", "-std=c++17")]
    chosen = [(shlex.split(compiler), *kind) for compiler, kind in zip(compilers, kinds)]
    check_the_check(chosen)
    include = os.path.join(root, "include")
    problems = complaints(include, chosen) + complaints_of_user(include, chosen)
    problems += lost_references(include) + not_installed(root)
    if not problems and len(chosen) == 1:
        print("C99 is fine; C++17 was not tried: there is no C++ compiler")
        sys.exit(sources.SKIP)
    sources.finish(problems, "headers")
