"""Compiles every public header alone, and user.c with all, as C99, C11 and C++17, with warnings as errors, by every
compiler of the machine; and looks whether each is installed.

usage: headers.py source-root c-compiler..."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import sources

STANDARDS = {"c": ["-std=c99", "-std=c11"], "c++": ["-std=c++17"]}
BESIDE = {"c": ["gcc", "clang"], "c++": ["g++", "clang++", "c++"]}
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def compile_text(compiler, language, include, text):
    """What the compiler says about it; "" where it is content."""
    command = [*compiler, "-x", *language, *WARNINGS, "-I", include, "-"]
    got = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return got.stderr if got.returncode or got.stderr else ""


def title(compiler, language):
    return f"{language[1][5:]} by {' '.join(compiler)}"


def complaints(include, languages):
    found = []
    for name in sorted(os.listdir(os.path.join(include, "cairn"))):
        for compiler, *language in languages:
            alone = f'#include "cairn/{name}"\ntypedef int not_empty;\n'
            said = compile_text(compiler, language, include, alone)
            if said:
                found.append(f"cairn/{name} as {title(compiler, language)}:\n{said}")
    return found


def complaints_of_user(include, languages):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "user.c"), encoding="ascii") as f:
        text = f.read()
    said = ((title(c, language), compile_text(c, language, include, text)) for c, *language in languages)
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
    """A header that needs another first, one with a C++ word and some that leave a standard."""
    for text, bad in (("size_t f(void);", ["c99", "c11", "c++17"]), ("int class(void);", ["c++17"]),
                      ("int f(void *restrict p);", ["c++17"]),
                      ("int f(int a[static 2]);", ["c++17"]), ("typedef int t; typedef int t;", ["c99"]),
                      ("int f(void);", [])):
        with tempfile.TemporaryDirectory() as include:
            os.mkdir(include + "/cairn")
            with open(include + "/cairn/x.h", "w", encoding="ascii") as f:
                f.write(text + "\n")
            got = [c.split(":")[0].partition(" as ")[2] for c in complaints(include, languages)]
            want = [title(c, language) for c, *language in languages if language[1][5:] in bad]
            assert got == want, (text, got)


def chosen(given):
    """[compiler, language, standard] of every compiler: those given, of C, and those that are here."""
    found = {language: [] for language in STANDARDS}
    for language, names in BESIDE.items():
        every = (given if language == "c" else []) + [name for name in names if shutil.which(name)]
        for command in map(shlex.split, every):
            path = os.path.realpath(shutil.which(command[-1]) or command[-1])
            if path not in [p for p, _ in found[language]]:
                found[language].append((path, command))
    return [(command, language, standard) for language, commands in found.items() for _, command in commands
            for standard in STANDARDS[language]]


if __name__ == "__main__":
    root, *compilers = sys.argv[1:]
    languages = chosen(compilers)
    check_the_check(languages)
    include = os.path.join(root, "include")
    problems = complaints(include, languages) + complaints_of_user(include, languages)
    problems += lost_references(include) + not_installed(root)
    print("tried:", ", ".join(title(compiler, language) for compiler, *language in languages))
    if not problems and not any(language == "c++" for _, language, _ in languages):
        print("C is fine; C++17 was not tried: there is no C++ compiler")
        sys.exit(sources.SKIP)
    sources.finish(problems, "headers")
