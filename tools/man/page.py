"""Writes a manual page from a tool's --help and an additional text file in this folder.

usage: page.py TEXT VARS_C VERSION PAGE HELP [COMMAND=HELP...]

HELP is a file with the output of --help, and COMMAND=HELP that of `tool COMMAND --help`. Its usage becomes the
synopsis, its paragraphs before the first option the description, and a paragraph that begins with "Exit code:" the exit
status. TEXT begins with the line "NAME - sentence". Then a line in capitals is a section, with paragraphs or with terms
and indented texts; a term without a text is a variable of Cairn's, whose text is that of src/core/vars.c."""
import re
import sys

ROW = re.compile(r" {1,8}-")  # of a list of options
EXIT = re.compile("exit code: ", re.I)


def escape(text):
    """Text as troff shows it to the letter: dashes that can be copied, no requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^(?=\.)", r"\\&", text.replace("^", "\\(ha").replace("~", "\\(ti"))


def bold(text):
    return f"\\fB{escape(text)}\\fP"


def paragraph(text):
    return [".PP", escape(" ".join(text.split()))]


def to_the_letter(lines):
    return [".PP", ".nf", *[escape(line) for line in lines], ".fi"]


def tagged(term, text):
    return [".TP", bold(term), escape(" ".join(text.split())) or "\\&"]


def heading(text):
    return f".SS \"{escape(text.rstrip(':'))}\""


def columns(line):
    """The two parts of a row: "  --link NAME   what carries" or, of usage, "cairn-ckpt list DIR    checkpoints"."""
    left, _, right = line.strip().partition("  ")
    return left, right.strip()


def synopsis(lines):
    rows = [columns(re.sub(r"^(usage:)? *", "", line)) for line in lines]
    if any(right for _, right in rows):
        return [line for row in rows for line in tagged(*row)]
    return to_the_letter([left for left, _ in rows])


def indent(line):
    return len(line) - len(line.lstrip())


def take(lines, belongs):
    """As many lines as belong, which are removed."""
    taken = []
    while lines and belongs(lines[0]):
        taken.append(lines.pop(0))
    return taken


def row(lines):
    first = lines.pop(0)
    left, right = columns(first)
    more = take(lines, lambda line: line.strip() and indent(line) > indent(first) and not ROW.match(line))
    return tagged(left, " ".join([right, *more]))


class Help:
    """What --help printed, as parts of a page."""

    def __init__(self, text):
        lines = text.rstrip("\n").split("\n")
        if not lines[0].startswith("usage: "):
            sys.exit(f"page.py: --help begins with '{lines[0]}', not with 'usage: '")
        self.usage = synopsis(take(lines, str.strip))
        self.before, self.options, self.exit = [], [], []
        while lines:
            self.take_part(lines)

    def take_part(self, lines):
        if not lines[0].strip():
            lines.pop(0)
        elif ROW.match(lines[0]):
            self.options += row(lines)
        elif EXIT.match(lines[0]):
            self.exit = paragraph(EXIT.sub("", " ".join(take(lines, str.strip)), count=1))
        elif lines[1:] and ROW.match(lines[1]):
            self.options.append(heading(lines.pop(0)))
        else:
            part = self.options or self.before
            part += self.text(lines)

    @staticmethod
    def text(lines):
        if indent(lines[0]):
            return to_the_letter(take(lines, lambda line: line.strip() and indent(line)))
        plain = [lines.pop(0)]
        plain += take(lines, lambda line: line.strip() and not indent(line) and not EXIT.match(line))
        return paragraph(" ".join(plain))


def variables(path):
    """name: text, of the table in vars.c"""
    with open(path, encoding="ascii") as file:
        rows = re.findall(r'^    \{"(\w+)",\s*((?:"(?:\\.|[^"\\])*"\s*)+)\}', file.read(), re.M)
    return {name: re.sub(r'"\s*"', "", text.strip())[1:-1].replace('\\"', '"') for name, text in rows}


def sections(lines, known):
    """The sections of TEXT as {title: lines of troff}."""
    found, title = {}, None
    while lines:
        line = lines.pop(0)
        if not line.strip():
            continue
        if re.fullmatch(r"[A-Z ]{4,}", line):
            title = line
            found[title] = []
            continue
        text = " ".join(take(lines, lambda more: more.startswith(" ")))
        if text or line in known:
            found[title] += tagged(line, text or known[line])
        elif re.fullmatch(r"[A-Z_]+", line):
            sys.exit(f"page.py: {line} has no text, and src/core/vars.c does not have it")
        else:
            found[title] += paragraph(" ".join([line, *take(lines, str.strip)]))
    return found


def page(text, known, version, helps):
    lines = text.split("\n")
    names, _, sentence = lines.pop(0).partition(" - ")
    tool = names.split(",")[0]
    added = sections(lines, known)
    (_, first), *others = helps
    parts = {"NAME": [f"{escape(names)} \\- {escape(sentence)}"], "SYNOPSIS": first.usage,
             "DESCRIPTION": first.before, "OPTIONS": first.options}
    for command, its in others:
        parts[f"{tool} {command}".upper()] = [*its.usage, *its.before, *its.options, *its.exit]
    parts["EXIT STATUS"] = first.exit
    out = [f'.TH "{escape(tool.upper())}" 1 "" "Cairn {version}" "Cairn"']
    for title, body in {**parts, **added}.items():
        if body:
            out += [f'.SH "{escape(title)}"', *(body[1:] if body[0] == ".PP" else body)]
    return "\n".join(out) + "\n"


def read_help(argument):
    command, equals, path = argument.rpartition("=")
    with open(path, encoding="utf-8") as file:
        return command if equals else None, Help(file.read())


def main():
    text, vars_c, version, out, *helps = sys.argv[1:]
    with open(text, encoding="ascii") as file:
        made = page(file.read(), variables(vars_c), version, [read_help(argument) for argument in helps])
    with open(out, "w", encoding="utf-8") as file:
        file.write(made)


if __name__ == "__main__":
    main()
