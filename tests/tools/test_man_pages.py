"""Manual pages: every installed tool has one, which has every word of its --help, and troff has nothing against it.

usage: test_man_pages.py source-root build-root"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
SECTIONS = ["NAME", "SYNOPSIS", "EXIT STATUS", "SEE ALSO"]


def introspect(name):
    with open(os.path.join(BUILD, "meson-info", name), encoding="utf-8") as file:
        return json.load(file)


def without_page(installed):
    """Of {built: installed path}, programs in bin without a page in man1."""
    pages = {os.path.basename(path) for path in installed.values() if "/man/man1/" in path}
    return sorted(name for name in (os.path.basename(p) for p in installed.values() if "/bin/" in p)
                  if name + ".1" not in pages)


def text_of(page):
    """What a page shows, without its layout."""
    lines = [re.sub(r"^\.[A-Z][A-Za-z]*", "", line) for line in page.splitlines()]
    text = re.sub(r"\\f[BPRI]|\\&", "", " ".join(lines))
    for escape, character in [("\\-", "-"), ("\\(aq", "'"), ("\\(ga", "`"), ("\\(ha", "^"), ("\\(ti", "~"),
                              ("\\e", "\\")]:
        text = text.replace(escape, character)
    return text


def lost_words(told, page):
    """Words of --help that the page does not have."""
    def words(text):
        return set(re.sub('[":]', " ", text).split())

    return sorted(words(re.sub("usage:|exit code:", "", told, flags=re.I)) - words(text_of(page)))


def faults(page):
    """What the checkers of this machine say about the file; None: there is none."""
    said = None
    if shutil.which("mandoc"):
        lint = ["mandoc", "-T", "lint", "-W", "warning", page]
        got = subprocess.run(lint, capture_output=True, text=True, check=False)
        said = "".join(line for line in got.stdout.splitlines(True) if "missing date" not in line)
    if shutil.which("groff"):
        format_it = ["groff", "-man", "-ww", "-Tutf8", "-z", page]
        got = subprocess.run(format_it, capture_output=True, text=True, check=False)
        said = (said or "") + got.stderr
    return said


class ManPages(unittest.TestCase):
    """Of every page that the build made: (tool, its words of --help, text of the page)."""

    @classmethod
    def setUpClass(cls):
        cls.folder = os.path.join(BUILD, "tools/man")
        cls.tools = sorted(name[:-2] for name in os.listdir(cls.folder) if name.endswith(".1"))

    def page(self, tool):
        with open(os.path.join(self.folder, tool + ".1"), encoding="utf-8") as file:
            return file.read()

    @classmethod
    @functools.cache
    def help(cls, tool):
        """The text of --help, and that of its commands."""
        script = os.path.join(SOURCE, "tools", tool)
        program = [sys.executable, script] if os.path.isfile(script) else [os.path.join(BUILD, "tools", tool)]
        commands = [name[len(tool) + 1:-5] for name in os.listdir(cls.folder)
                    if name.startswith(tool) and name.endswith(".help")]
        return "".join(subprocess.run([*program, *[command][:len(command)], "--help"], check=True, capture_output=True,
                                      text=True, env={**os.environ, "COLUMNS": "120"}).stdout for command in commands)

    def test_every_installed_tool_has_a_page(self):
        installed = introspect("intro-installed.json")
        self.assertTrue([path for path in installed.values() if path.endswith("/bin/cairn-run")])
        self.assertEqual(without_page(installed), [])

    def test_a_tool_without_a_page_is_found(self):
        self.assertEqual(without_page({"a": "/usr/bin/a", "a.1": "/usr/share/man/man1/a.1", "b": "/usr/bin/b"}), ["b"])

    def test_pages_have_every_word_of_help(self):
        for tool in self.tools:
            self.assertEqual(lost_words(self.help(tool), self.page(tool)), [], tool)

    def test_a_lost_option_is_found(self):
        page = self.page("cairn-run")
        self.assertIn("--nnodes", lost_words(self.help("cairn-run"), page.replace(r"\-\-nnodes", "")))

    def test_pages_have_their_sections(self):
        for tool in self.tools:
            heads = re.findall(r'^\.SH "(.*)"$', self.page(tool), re.M)
            self.assertEqual([head for head in SECTIONS if head not in heads], [], tool)
            name = self.page(tool).partition('.SH "NAME"\n')[2].partition("\n")[0]
            self.assertRegex(name.replace(r"\-", "-"), rf"^{tool}.* - \w")

    def test_variables_that_a_tool_reads_are_in_its_page(self):
        for tool in self.tools:
            if tool == "cairn-bench":  # what is in its folder are programs that it starts
                continue
            folder, names = os.path.join(SOURCE, "tools", tool.removeprefix("cairn-")), set()
            for name in os.listdir(folder):
                if name.endswith(".c"):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        names.update(re.findall(r'getenv\("(\w+)"\)', file.read()))
            self.assertEqual(sorted(names - set(re.findall(r"\w+", text_of(self.page(tool))))), [], tool)

    def test_options_in_examples_are_of_the_tool(self):
        for tool in self.tools:
            examples = self.page(tool).partition('.SH "EXAMPLES"')[2].partition(".SH")[0]
            known = self.help(tool).replace("_", "-")
            for option in re.findall(r"--[\w-]+", text_of(examples)):
                self.assertIn(option.replace("_", "-"), known, tool)

    def test_troff_has_nothing_against_a_page(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = os.path.join(folder, "bad.1")
            with open(bad, "w", encoding="ascii") as file:
                file.write('.TH BAD 1 "" "" ""\n.SH NAME\nbad \\- bad\n.nosuch request\n')
            if faults(bad) is None:
                self.skipTest("there is neither mandoc nor groff")
            self.assertNotEqual(faults(bad), "")
        for tool in self.tools:
            self.assertEqual(faults(os.path.join(self.folder, tool + ".1")), "", tool)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
