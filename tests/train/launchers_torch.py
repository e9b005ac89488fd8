#!/usr/bin/env python3
"""The quick start under PyTorch's launchers: the program that cairn-run starts trains there unchanged, with the same
digits. And PyTorch's programs under cairn-run. With every PyTorch that is found (tests/rendezvous/torches.py).

usage: launchers_torch.py SOURCE_ROOT CAIRN_RUN PROGRAM [TEST...]"""
import os
import sys
import tempfile
import unittest

SOURCE_ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(SOURCE_ROOT, "tests/rendezvous"))
import torches  # noqa: E402
from quickstart import Quickstart, clean_env, free_port, run  # noqa: E402

QUICKSTART = Quickstart(*sys.argv[2:4])
PATIENCE = 400  # seconds for what takes three: torchrun imports torch, and all tests may do so at once

# As people write them: the program reads the argument that launch gives those without --use_env, and passes it on.
WRAPPER = """\
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, required=True)
told, others = parser.parse_known_args()
assert os.environ["RANK"] == str(told.local_rank)
os.execv(others[0], [others[0], sys.argv[1], *others[1:]])
"""

MEET = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
x = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 3, x
group = dist.new_group([0, 1])
dist.barrier(group=group)
dist.destroy_process_group()
sys.stdout.write(f"met {sys.argv[1:]}\\n")  # in one piece
"""


class Torch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def run_module(self, torch, name, *arguments, **more):
        env = clean_env(TMPDIR=self.folder, TORCH_CPP_LOG_LEVEL="ERROR", **more)
        at_once = "--monitor_interval=0.1"  # seconds until an end is seen; 5 in old releases
        return run([*torch.module(name), at_once, *arguments], env, PATIENCE)

    def torchrun(self, torch, *arguments, **more):
        return self.run_module(torch, "torch.distributed.run", "--no_python", "--nproc_per_node=2", *arguments, **more)

    def launch(self, torch, *arguments):
        return self.run_module(torch, "torch.distributed.launch", "--nproc_per_node=2", "--master_port", free_port(),
                               *arguments)

    def test_torchrun_standalone(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                QUICKSTART.trains(self, 2, self.torchrun(torch, "--standalone", *QUICKSTART.command()))

    def test_torchrun_with_a_master_port(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                got = self.torchrun(torch, "--master_port", free_port(), *QUICKSTART.command())
                QUICKSTART.trains(self, 2, got)

    def test_torchrun_where_rank_0_hosts_the_store(self):
        """As 1.13 to 2.3 do with c10d."""
        for torch in TORCHES:
            with self.subTest(str(torch)):
                got = self.torchrun(torch, "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:" + free_port(),
                                    *QUICKSTART.command(), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
                QUICKSTART.trains(self, 2, got)

    def test_launch_use_env_no_python(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                got = self.launch(torch, "--use_env", "--no_python", *QUICKSTART.command())
                QUICKSTART.trains(self, 2, got)

    def test_launch_of_a_wrapper_that_gets_the_local_rank(self):
        wrapper = self.write("wrapper.py", WRAPPER)
        for torch in TORCHES:
            with self.subTest(str(torch)):
                QUICKSTART.trains(self, 2, self.launch(torch, wrapper, *QUICKSTART.command()))

    def test_a_rank_that_fails_once_trains_at_the_second_attempt(self):
        script = '[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 3; exec "$@"'
        for torch in TORCHES:
            with self.subTest(str(torch)):
                got = self.torchrun(torch, "--max_restarts=1", "--master_port", free_port(), "sh", "-c", script, "sh",
                                    *QUICKSTART.command())
                QUICKSTART.trains(self, 2, got)

    def test_torchruns_report_shows_our_error(self):
        for torch in TORCHES:
            with self.subTest(str(torch)):
                got = self.torchrun(torch, "--master_port", free_port(), QUICKSTART.program, "--opt-level", "O9")
                self.assertEqual(got.returncode, 1, got.stderr)
                report = got.stderr[got.stderr.index("Root Cause"):]
                self.assertIn("exitcode  : 1", report)
                self.assertRegex(report, r"error_file: /\S*/error.json")
                self.assertRegex(report, r"traceback : [^\n]*\n?[^\n]*O9")

    def test_cairn_run_starts_torchs_ranks(self):
        script = self.write("meet.py", MEET)
        for torch in TORCHES:
            with self.subTest(str(torch)):
                got = run([QUICKSTART.cairn_run, "--nproc_per_node=2", torch.python, script, "a"], timeout=PATIENCE)
                self.assertEqual((got.returncode, got.stdout), (0, "met ['a']\n" * 2), got.stderr)

    def test_cairn_launch_starts_torchs_ranks_with_their_local_rank(self):
        script = self.write("meet.py", MEET)
        launch = os.path.join(os.path.dirname(QUICKSTART.cairn_run), "cairn-launch")
        for torch in TORCHES:
            with self.subTest(str(torch)):
                got = run([launch, "--nproc_per_node=2", "--master_port", free_port(), script, "a"],
                          clean_env(PYTHON_EXEC=torch.python), PATIENCE)
                self.assertEqual((got.returncode, sorted(got.stdout.splitlines())),
                                 (0, [f"met ['--local_rank={rank}', 'a']" for rank in (0, 1)]), got.stderr)


if __name__ == "__main__":
    TORCHES = torches.find_or_skip(SOURCE_ROOT)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
