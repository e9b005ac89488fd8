"""Gives Doxygen a public header whose comments are its own kind, on standard output.

usage: comments.py HEADER

A comment above declarations is theirs, of each up to an empty line or the next comment; one behind a declaration is of
that; the first of a file is the file's; a comment before an empty line stays as it is. Text becomes paragraphs; blocks
with columns stay as they are laid out, and indented blocks are code. Names of Cairn's become links, of which Doxygen
says when they lead nowhere."""
import functools
import os
import re
import sys

COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
NAME = re.compile(r"\b(?:cairn|amp|ddp|CAIRN|AMP|DDP)_\w*[A-Za-z0-9]\b(?!_)")
TITLE = re.compile(r"\s*-{4} .* -{4}\s*")
ESCAPED = {"\\": "\\\\", "@": "\\@", "&": "&amp;", "<": "&lt;", ">": "&gt;", "#": "\\#", "%": "\\%", "$": "\\$",
           "~": "\\~", "::": "\\::", "---": "\\---", "--": "\\--"}
SPECIAL = re.compile("|".join(map(re.escape, sorted(ESCAPED, key=len, reverse=True))))


@functools.lru_cache
def declared(folder):
    """Names that the headers of a folder declare."""
    names = set()
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="ascii") as file:
            names.update(NAME.findall(re.sub(r"^#include.*", "", COMMENT.sub("", file.read()), flags=re.M)))
    return {name for name in names if not name.endswith("_H") and "__" not in name}


def marked_up(text, known):
    """Text to the letter, with links."""
    parts, at = [], 0
    for match in NAME.finditer(text):
        if match[0] in known:
            parts += [SPECIAL.sub(lambda m: ESCAPED[m[0]], text[at:match.start()]), f'@ref {match[0]} "{match[0]}"']
            at = match.end()
    return "".join(parts) + SPECIAL.sub(lambda m: ESCAPED[m[0]], text[at:])


def is_code(lines):
    return all(line.startswith("    ") for line in lines) and any(";" in line for line in lines)


def has_columns(lines):
    return any(re.search(r"^ |\S {2,}\S", line.replace(".  ", ". ")) for line in lines)


def block(lines, known):
    if is_code(lines):
        return ["@code{.c}", *[line[4:].replace("*/", "* /") for line in lines], "@endcode"]
    text = [re.sub(r"^( *)- ", r"\1&ndash; ", marked_up(line, known)) for line in lines]
    return ["<pre>" + text[0], *text[1:], "</pre>"] if has_columns(lines) else text


def documentation(body, known, mark="/**", head=""):
    """A comment for Doxygen, of the text between /* and */."""
    margin = r"\s*" if mark == "/**<" else r"\s*\* ?"
    lines = [re.sub("^" + margin, "", line).rstrip() for line in body.strip().split("\n")]
    out, part = [], []
    for line in [*lines, ""]:
        if line:
            part.append(line)
        elif part:
            out += [*block(part, known), ""]
            part = []
    return mark + " " + head + "\n".join(out).strip() + " */"


def declarations(text):
    """Where each declaration begins in the lines that follow a comment, up to an empty line or another comment. Those
    with a comment of their own behind them are not among them."""
    begins, open_brackets, fresh, is_macro, at = [], 0, True, False, 0
    for line in text.split("\n"):
        code = line.split("/*")[0].strip()
        if not code or code.startswith(("}", "#endif", "#if", "#undef")):
            break
        if fresh and "/*" not in line:
            begins.append(at)
        at += len(line) + 1
        if code.endswith("{"):
            break
        open_brackets += len(re.findall(r"[({]", code)) - len(re.findall(r"[)}]", code))
        is_macro = code.startswith("#define") or is_macro and not fresh
        fresh = open_brackets == 0 and not code.endswith("\\") and (is_macro or code.endswith((";", ",")))
    return begins


def edits(text, known):
    """(begin, end, what stands there instead)"""
    for match in COMMENT.finditer(text):
        before, after = text[:match.start()].rpartition("\n")[2], text[match.end():]
        places = declarations(after[1:]) if after.startswith("\n") else []
        if match.start() == 0:
            yield 0, match.end(), documentation(match[1], known, head="@file\n")
        elif TITLE.fullmatch(match[1]) or before.lstrip().startswith("#") and "define" not in before:
            continue
        elif before.strip():
            if re.search(r"[;,\w)}\]]\s*$", before):
                yield match.start(), match.end(), documentation(match[1], known, "/**<")
        elif places:
            made, at = before + documentation(match[1], known) + "\n", match.end() + 1
            yield match.start() - len(before), at, ""
            for place in places:
                yield at + place, at + place, made


def filtered(text, known):
    out, at = [], 0
    for begin, end, made in sorted(edits(text, known), key=lambda edit: edit[:2]):
        out += [text[at:begin], made]
        at = end
    return "".join(out) + text[at:]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="ascii") as header:
        made = filtered(header.read(), declared(os.path.dirname(os.path.abspath(sys.argv[1]))))
    print(re.sub(r"^#include.*", "", made, flags=re.M), end="")  # with amp.h's Doxygen 1.9.4 loses its macros
