"""Searches the tree for text and code that the project's rules forbid.

usage: tree.py source-root"""
import fnmatch
import os
import re
import sys
import tempfile

import sources

LIBRARY = ("src/*.[ch]", "amp/*.[ch]", "src/*.cc", "src/*.cu", "src/*.cuh")
BUILD = ("meson.build", "*/meson.build", "meson_options.txt", "tools/*", ".ci/*")
CODE = ("*.c", "*.h", "*.cc", "*.cu", "*.cuh", "*.py", "*.sh", "meson.build", "*/meson.build", "tools/*", ".ci/*")
EVERY = ("*",)

# What, where it is looked for, the pattern, the files that may, a line it must find and one it must not.
RULES = [
    ("unsafe floating point", BUILD, r"-ffast-math|-Ofast|-ffinite-math-only|-funsafe-math",
     ("tests/amp/meson.build",), # a user's program
     "c_args: '-ffast-" + "math'", "c_args: '-O3'"),
    ("a library does not end its user's process", LIBRARY, r"(?<!->)\b(_exit|_Exit|exit|quick_exit|abort)\s*\(",
     ("src/env/spawn.c",),  # a process of its own making
     "if (bad) exit(1);", "pthread_exit(NULL); /* not exit() */"),
    ("a library does not print", LIBRARY, r"\b(printf|vprintf|puts|putchar|perror)\s*\(|\bstdout\b",
     ("src/nn/format.c",),
     'printf("x");', "__attribute__((format(printf, 1, 2))) // printf(x)"),
    ("only the log writes to stderr", LIBRARY, r"\bstderr\b", ("src/core/log.c",),
     'fprintf(stderr, "x");', 'cairn__log("x");'),
    ("only the table of variables reads the environment", LIBRARY, r"\b(secure_)?getenv\s*\(|\benviron\b",
     ("src/core/vars.c",), 'secure_getenv("RANK")', 'cairn__var("RANK")'),
    ("a program with more rights reads no environment: secure_getenv", LIBRARY, r"\bgetenv\s*\(", (),
     'getenv("RANK")', "getenv_s; /* not getenv() */"),
    ("no memory of unknown size on the stack", LIBRARY, r"\balloca\s*\(", (), "p = alloca(n);",
     "TRY(cairn__alloc(n, &p));"),
    ("a promise of work names its issue", CODE, r"\b(TO[D]O|FIX[M]E)\b(?!\s*\(?#\d)", (),
     "/* TO" + "DO later */", "/* TO" + "DO #12: later */"),
    ("a path of one machine", EVERY, r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/\w", (),
     "open('/ro" + "ot/x')", "cd /tmp/x; open(root/x)"),
]
BIGGEST = 1 << 20  # bytes of one file
COLUMNS = 120
WRITTEN = (".c", ".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md")
ADDRESS = re.compile(r"https?://\S+|\]\([^ )]+\)$")  # which cannot be broken; the second is a link of Markdown
CXX = (".cc", ".cpp", ".cxx", ".hh", ".hpp")
SHIM = "src/comm/gloo/gloo.cc"  # of the one dependency that speaks only C++


def matches(path, patterns):
    return any(fnmatch.fnmatchcase(path, p) for p in patterns)


def grep(root, path, rule):
    what, places, pattern, exempt = rule[:4]
    if not matches(path, places) or path in exempt:
        return []
    text = sources.read(root, path)
    if places is LIBRARY:
        text = sources.without_comments(text)
    lines = enumerate(text.splitlines(), 1)
    return [f"{path}:{n}: {what}: {line.strip()[:100]}" for n, line in lines if re.search(pattern, line)]


def free_lines(path, lines):
    """Whether each line may be as long as it likes: Markdown's tables, and what stands to the letter."""
    fenced = False
    for line in lines:
        fence = path.endswith(".md") and line.startswith("```")
        fenced = fenced != fence
        yield path.endswith(".md") and (fenced or line.startswith(("|", "    ")))


def wide(root, path, script):
    if not script and not path.endswith(WRITTEN):
        return
    lines = sources.read(root, path).splitlines()
    for n, (line, free) in enumerate(zip(lines, free_lines(path, lines)), 1):
        if not free and len(ADDRESS.sub("", line)) > COLUMNS:
            yield f"{path}:{n}: {len(line)} columns, more than {COLUMNS}"


def about_the_file(root, path):
    full = os.path.join(root, path)
    if os.path.getsize(full) > BIGGEST:
        yield f"{path}: larger than 1 MB"
    if path.endswith(CXX) and path != SHIM and not path.startswith("tests/"):
        yield f"{path}: C++ has one file, {SHIM}"
    with open(full, "rb") as f:
        script = f.read(2) == b"#!"
    if script and not os.access(full, os.X_OK):
        yield f"{path}: a script that is not executable"
    yield from wide(root, path, script)


def violations(root):
    found = []
    for path in sources.tracked(root):
        for rule in RULES:
            found += grep(root, path, rule)
        found += about_the_file(root, path)
    return found


def sample(path, text):
    with tempfile.TemporaryDirectory() as root:
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)
        return violations(root)


def check_the_check():
    for what, places, _, exempt, bad, good in RULES:
        path = places[0].replace("*.[ch]", "nn/x.c").replace("*.c", "src/x.c").replace("*", "docs/x.md")
        path = os.path.join(".", path) if "/" not in path else path
        assert [v for v in sample(path, bad + "\n") if what in v], (what, bad)
        assert not sample(path, good + "\n"), (what, good)
        for mine in exempt:
            assert not sample(mine, bad + "\n"), (what, mine)
    assert sample("docs/big", "x" * (BIGGEST + 1))
    assert sample("src/comm/gloo/more.cc", "") and not sample(SHIM, "")
    assert sample("tools/x", "#!/bin/sh\n")
    assert not sample("tools/x", "text\n")
    for path, begin, is_wide in (("src/nn/x.c", "/* ", True), ("src/nn/x.cu", "", True), ("docs/x.md", "", True),
                                 ("docs/x.md", "| ", False), ("docs/x.md", "```\n", False), ("docs/x.txt", "", False),
                                 ("docs/x.md", "```\n```\n", True), ("tests/x.py", "# ", True)):
        assert bool(sample(path, begin + "x " * COLUMNS)) == is_wide, (path, begin)
    assert not sample("src/nn/x.c", "x" * COLUMNS) and not sample("src/nn/x.c", "https://" + "x" * COLUMNS)


if __name__ == "__main__":
    check_the_check()
    sources.finish(violations(sys.argv[1]), "tree")
