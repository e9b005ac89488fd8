"""meson setup where something is missing: what it leaves out, and that it says so.

usage: test_build_options.py path/to/source"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv[1])
PATIENCE = 120
# A compiler that does not see one header.
COMPILER = """#!/bin/sh
for word; do
    case $word in *.c) if grep -q '{header}' "$word"; then exit 1; fi ;; esac
done
exec cc "$@"
"""
BENCHMARKS = {"kcheck", "nn-step-bench", "amp-step-bench", "cuda-bench", "gpu-bench", "join", "bench-ops",
              "bench-collectives", "bench-ddp", "bench-plan"}


class Setup(unittest.TestCase):
    def set_up(self, *options, hidden=None):
        """Exit code, what meson says, and the names of all programs."""
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ)
            if hidden:
                with open(folder + "/cc", "w", encoding="ascii") as file:
                    file.write(COMPILER.format(header=hidden))
                os.chmod(folder + "/cc", 0o755)
                env.update(CC=folder + "/cc", PKG_CONFIG_LIBDIR=folder)
            done = subprocess.run(["meson", "setup", "-Dcuda=disabled", "-Dmpi=disabled", "-Dgloo=disabled", *options,
                                   folder + "/build", SOURCE], env=env, capture_output=True, text=True,
                                  timeout=PATIENCE, check=False)
            if done.returncode:
                return done.returncode, done.stdout + done.stderr, set()
            targets = subprocess.run(["meson", "introspect", "--targets", folder + "/build"], check=True,
                                     capture_output=True, text=True).stdout
        programs = {target["name"] for target in json.loads(targets) if target["type"] == "executable"}
        return 0, done.stdout + done.stderr, programs

    def test_without_cmocka_the_tests_are_left_out_with_a_line(self):
        code, said, programs = self.set_up(hidden="cmocka.h")
        self.assertEqual(code, 0, said)
        self.assertIn("the tests are left out: there is no cmocka (Debian: libcmocka-dev)", said)
        self.assertRegex(said, r"tests *: no: there is no cmocka")
        self.assertEqual([name for name in programs if name.endswith("_test")], [])
        self.assertLessEqual(BENCHMARKS, programs)

    def test_tests_that_are_asked_for_need_cmocka(self):
        code, said, _ = self.set_up("-Dtests=enabled", hidden="cmocka.h")
        self.assertNotEqual(code, 0)
        self.assertRegex(said, r"ERROR: .*cmocka.* not found")

    def test_benchmarks_need_no_tests_and_tests_no_benchmarks(self):
        _, said, programs = self.set_up("-Dtests=disabled")
        self.assertLessEqual(BENCHMARKS, programs, said)
        self.assertEqual([name for name in programs if name.endswith("_test")], [])
        _, said, programs = self.set_up("-Dbenchmarks=disabled")
        self.assertEqual({"nn-step-bench", "bench-ddp"} & programs, set(), said)
        self.assertIn("nn_ops_test", programs)
        _, said, programs = self.set_up("-Dtests=disabled", "-Dbenchmarks=disabled")
        self.assertEqual(BENCHMARKS & programs, set(), said)

    def test_without_jansson_a_warning_says_what_is_missing(self):
        code, said, programs = self.set_up("-Dtests=disabled", hidden="jansson.h")
        self.assertEqual(code, 0, said)
        self.assertIn("WARNING: cairn-run and cairn-plan are left out: there is no jansson (Debian: libjansson-dev)",
                      said)
        self.assertRegex(said, r"cairn-run, cairn-plan *: no: there is no jansson")
        self.assertNotIn("cairn-run", programs)

    def test_without_xxhash_a_warning_says_what_is_missing(self):
        code, said, programs = self.set_up("-Dbenchmarks=disabled", hidden="xxhash.h")
        self.assertEqual(code, 0, said)
        self.assertIn("WARNING: weights files and checkpoints are left out: there is no xxhash (libxxhash-dev)", said)
        self.assertRegex(said, r"weights files, checkpoints *: no: there is no xxhash")
        self.assertNotIn("safetensors_test", programs)

    def test_without_libsodium_there_are_no_job_secrets(self):
        code, said, programs = self.set_up("-Dbenchmarks=disabled", hidden="sodium.h")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"job secrets *: no: there is no libsodium \(libsodium-dev\)")
        self.assertNotIn("proof_test", programs)

    def test_without_libjpeg_or_libpng_there_are_no_pictures(self):
        for header, missing in (("jpeglib.h", r"libjpeg \(libjpeg62-turbo-dev\)"), ("png.h", r"libpng \(libpng-dev\)")):
            code, said, programs = self.set_up("-Dbenchmarks=disabled", hidden=header)
            self.assertEqual(code, 0, said)
            self.assertRegex(said, r"JPEG and PNG *: no: there is no " + missing)
            self.assertFalse({"pictures_test", "resnet_train", "make_pictures"} & programs)
        code, said, _ = self.set_up("-Dpictures=enabled", hidden="png.h")
        self.assertNotEqual(code, 0)
        self.assertRegex(said, r"ERROR: .*png.* not found")

    def test_without_utf8proc_there_is_no_tokenizer(self):
        code, said, programs = self.set_up("-Dbenchmarks=disabled", hidden="utf8proc.h")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"tokenizer of examples/bert *: no: there is no utf8proc \(libutf8proc-dev\)")
        self.assertNotIn("bert_tokenizer_test", programs)


if __name__ == "__main__":
    if not shutil.which("meson"):
        print("skipped: there is no meson on the PATH")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
