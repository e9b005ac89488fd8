"""tools/bundle-deps against a mirror that is a stand-in for apt-get: no network, no real package.

usage: test_bundle_deps.py SOURCE_ROOT"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = sys.argv[1] if len(sys.argv) > 1 else "."
SKIP = 77

# Serves the packages below $MIRROR and writes what it fetched to $MIRROR/fetched.
APT_GET = """#!/bin/sh
uris=no verb= package=
while [ $# -gt 0 ]; do
    case $1 in
    -o) shift ;;
    --print-uris) uris=yes ;;
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$1; else package=$1; fi ;;
    esac
    shift
done
[ "$verb" = download ] || exit 0
file=${package}_1_all.deb
[ -f "$MIRROR/$file" ] || { echo "E: Unable to locate package $package" >&2; exit 100; }
if [ $uris = yes ]; then
    echo "'http://mirror/$file' $file 1 SHA256:$(sha256sum "$MIRROR/$file" | cut -d ' ' -f 1)"
else
    [ "$package" != "$BROKEN" ] || exit 100
    cp "$MIRROR/$file" . && echo "$package" >>"$MIRROR/fetched"
fi
"""


def packages():
    with open(os.path.join(ROOT, "tools/bundle-deps"), encoding="utf-8") as f:
        return re.search(r"^PACKAGES=\(([^)]*)\)$", f.read(), re.M)[1].split()


class Bundle(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)
        self.mirror, self.folder = os.path.join(self.top, "mirror"), os.path.join(self.top, "out")
        os.makedirs(os.path.join(self.top, "bin"))
        os.makedirs(self.mirror)
        apt = os.path.join(self.top, "bin", "apt-get")
        with open(apt, "w", encoding="ascii") as f:
            f.write(APT_GET)
        os.chmod(apt, 0o755)
        for name in packages():
            self.publish(name, {f"usr/lib/{name}.so": "code", f"usr/share/doc/{name}/changelog": "words",
                                f"usr/lib/{name}.a": "archive"})

    def publish(self, name, files, size=0):
        with tempfile.TemporaryDirectory() as tree:
            os.chmod(tree, 0o755)
            files = {**files, "DEBIAN/control": f"Package: {name}\nVersion: 1\nArchitecture: all\n"
                                                "Maintainer: a test <test@example.org>\nDescription: nothing\n"}
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(tree, path)), exist_ok=True)
                with open(os.path.join(tree, path), "w", encoding="ascii") as f:
                    f.write(text)
                    if size and path.startswith("usr/lib"):
                        f.truncate(size)
            subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", tree,
                            os.path.join(self.mirror, f"{name}_1_all.deb")], check=True, capture_output=True)

    def run_it(self, broken="", folder=None, cwd=None):
        env = {**os.environ, "PATH": f"{self.top}/bin:{os.environ['PATH']}", "MIRROR": self.mirror, "BROKEN": broken}
        run = subprocess.run([os.path.abspath(os.path.join(ROOT, "tools/bundle-deps")), folder or self.folder], env=env,
                             cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
        return run.returncode, run.stdout + run.stderr

    def fetched(self):
        path = os.path.join(self.mirror, "fetched")
        if not os.path.exists(path):
            return []
        with open(path, encoding="ascii") as f:
            names = f.read().split()
        os.remove(path)
        return names

    def below(self, *path):
        return os.path.join(self.folder, *path)

    def test_unpacks_every_package_without_unneeded_files(self):
        code, said = self.run_it()
        self.assertEqual(code, 0, said)
        for name in packages():
            self.assertTrue(os.path.exists(self.below("usr/lib", name + ".so")), name)
            self.assertFalse(os.path.exists(self.below("usr/lib", name + ".a")), name)
        self.assertFalse(os.path.exists(self.below("usr/share/doc")))
        self.assertTrue(os.access(self.below("meson"), os.X_OK))
        self.assertEqual(sorted(os.listdir(self.folder)), [".bundle-deps", "meson", "packages.txt", "usr"])

    def test_takes_an_empty_folder(self):
        os.mkdir(self.folder)
        code, said = self.run_it()
        self.assertEqual(code, 0, said)

    def test_a_relative_folder_is_relative_to_the_caller(self):
        code, said = self.run_it(folder="out", cwd=self.top)
        self.assertEqual(code, 0, said)
        self.assertTrue(os.path.exists(self.below("packages.txt")))

    def assert_refused(self, folder, why="has not put there"):
        code, said = self.run_it(folder=folder)
        self.assertEqual((code, self.fetched()), (1, []), said)
        self.assertIn(why, said)

    def keep(self, path, text="mine\n"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as f:
            f.write(text)

    def test_refuses_and_leaves_a_folder_with_other_files(self):
        names = ["meson", "packages.txt", "etc/passwd", "usr/lib/x", ".debs/x", ".new/x", ".profile"]
        for name in names:
            folder = os.path.join(self.top, name.replace("/", "-"))
            self.keep(os.path.join(folder, name))
            self.assert_refused(folder)
            with open(os.path.join(folder, name), encoding="ascii") as f:
                self.assertEqual(f.read(), "mine\n")
            self.assertEqual(os.listdir(folder), [name.split("/")[0]])

    def test_refuses_a_folder_whose_mark_is_not_its_own(self):
        for text in "", "mine\n", "\ntools/bundle-deps made this folder and replaces what is in it.\n":
            self.keep(self.below(".bundle-deps"), text)
            self.assert_refused(self.folder)

    def test_refuses_the_folders_of_the_machine(self):
        for name in packages(): # without them nothing can be lost, should it not refuse
            os.remove(os.path.join(self.mirror, f"{name}_1_all.deb"))
        for folder in "/", "//", "/usr", "/usr/", self.top, os.path.join(self.top, "bin", ".."):
            before = os.listdir(folder)
            self.assert_refused(folder)
            self.assertEqual(os.listdir(folder), before)

    def test_refuses_a_file_in_place_of_a_folder(self):
        self.keep(self.folder)
        self.assert_refused(self.folder, "cannot be made")

    def test_fetches_nothing_the_second_time(self):
        self.run_it()
        self.assertEqual(sorted(self.fetched()), sorted(packages()))
        code, said = self.run_it()
        self.assertEqual((code, self.fetched()), (0, []), said)
        self.assertIn("up to date", said)

    def test_goes_on_after_a_failure_with_what_it_has(self):
        last = packages()[-1]
        code, said = self.run_it(broken=last)
        self.assertEqual(code, 1)
        self.assertIn(f"{last} could not be fetched", said)
        self.assertEqual(sorted(self.fetched()), sorted(packages()[:-1]))
        code, said = self.run_it()
        self.assertEqual((code, self.fetched()), (0, [last]), said)

    def test_fetches_damaged_packages_again(self):
        last = packages()[-1]
        self.run_it(broken=last)
        self.fetched()
        first = packages()[0]
        with open(self.below(".debs", f"{first}_1_all.deb"), "ab") as f:
            f.write(b"x")
        code, said = self.run_it()
        self.assertEqual((code, self.fetched()), (0, [first, last]), said)

    def test_takes_a_newer_package_and_drops_the_older_files(self):
        self.run_it()
        name = packages()[0]
        self.publish(name, {f"usr/lib/{name}.so.2": "newer"})
        code, said = self.run_it()
        self.assertEqual(code, 0, said)
        self.assertTrue(os.path.exists(self.below("usr/lib", name + ".so.2")))
        self.assertFalse(os.path.exists(self.below("usr/lib", name + ".so")))
        with open(os.path.join(self.mirror, f"{name}_1_all.deb"), "rb") as deb, \
                open(self.below("packages.txt"), encoding="ascii") as listed:
            self.assertIn(hashlib.sha256(deb.read()).hexdigest(), listed.read())

    def test_refuses_packages_above_the_limit(self):
        self.publish(packages()[0], {"usr/lib/huge.so": ""}, size=65 << 20)
        code, said = self.run_it()
        self.assertEqual(code, 1)
        self.assertIn("more than 64.0 MiB", said)
        self.assertFalse(os.path.exists(self.below("packages.txt")))

    def test_names_what_the_index_lacks(self):
        os.remove(os.path.join(self.mirror, f"{packages()[2]}_1_all.deb"))
        code, said = self.run_it()
        self.assertEqual(code, 1)
        self.assertIn("the index has not all of", said)


if __name__ == "__main__":
    if not shutil.which("dpkg-deb"):
        print("there is no dpkg-deb")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1])
