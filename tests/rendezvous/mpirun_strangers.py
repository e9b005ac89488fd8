"""Open MPI's mpirun over two machines, whose ranks share a secret through its channel, PMIx; and strangers, who get in
where they do not.

usage: mpirun_strangers.py CAIRN_RUN EXCHANGE QUICKSTART gloo|none pmix|none MPI_USER|none

Skipped where namespaces cannot be made, and without Open MPI, gloo or PMIx."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import strangers
import two_machines as net
from quickstart import PATIENCE, Quickstart, digits

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from mpi import find_open_mpi  # noqa: E402

CAIRN_RUN, QUICKSTART, GLOO, PMIX, USER = sys.argv[1], *sys.argv[3:7]
MPIRUN = find_open_mpi()
STEPS, FOREVER = 20, 10**9
TRUSTS = "ranks of other machines are trusted without proof"
PORT = 29521

# Takes the place of ssh: the machine's name, then a command.
AGENT = """\
#!/bin/sh
case $1 in
{cases}
esac
shift
exec nsenter -t $keeper --net --uts sh -c "$*"
"""


class UnderMpirun(strangers.Strange):
    quickstart = Quickstart(CAIRN_RUN, QUICKSTART)

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.agent = os.path.join(folder.name, "agent")
        with open(self.agent, "w", encoding="ascii") as f:
            f.write(AGENT.format(cases="\n".join(f"{m.name}) keeper={m.keeper.pid} ;;" for m in net.MACHINES)))
        os.chmod(self.agent, 0o755)

    def start(self, *program, ranks=(1, 1), mca=(), **more):
        """mpirun on the first machine; what is in `more` reaches all ranks."""
        hosts = ",".join(f"{m.name}:{n}" for m, n in zip(net.MACHINES, ranks))
        options = ["--host", hosts, "--mca", "plm_rsh_agent", self.agent, "--mca", "btl", "tcp,vader,self", *mca]
        for name in more:
            options += ["-x", name]
        return net.MACHINES[0].start(*MPIRUN, sum(ranks), *options, *program, **more)

    def trains(self, job, ranks):
        (code, out, err), = self.ends([job])
        self.assertEqual(code, 0, err)
        self.assertEqual(digits(out), self.quickstart.expected(ranks), err)
        return err

    def strangers_at_a_training(self, **more):
        """What the first attack gets of a store that gloo keeps as long as there are ranks, and what mpirun said."""
        job = self.start(*self.quickstart.command(steps=FOREVER), CAIRN_BACKEND="gloo", CAIRN_LOG="info",
                         CAIRN_TIMEOUT="60", MASTER_ADDR=net.MACHINES[0].address, MASTER_PORT=str(PORT), **more)
        said = ""
        while "group: gloo" not in said:
            line = job.stderr.readline()
            self.assertTrue(line, said)
            said += line
        got = [self.asks(machine, net.MACHINES[0].address, PORT, *attack)
               for machine in net.MACHINES[1:] for attack in self.ATTACKS[:2]]
        job.terminate()
        _, err = job.communicate(timeout=PATIENCE)
        return got, said + err

    def test_strangers_are_sent_away_since_ranks_share_a_secret(self):
        got, err = self.strangers_at_a_training()
        self.assertEqual(got, ["closed"] * 2)
        self.assertIn("did not prove that it knows the job's secret", err)

    def test_strangers_get_in_where_the_network_is_trusted(self):
        got, _ = self.strangers_at_a_training(CAIRN_INSECURE="1")
        for answer in got:
            self.assertIn("got ", answer)

    def test_strangers_get_in_without_the_module_and_a_warning_says_so(self):
        build = os.path.dirname(os.path.dirname(os.path.abspath(CAIRN_RUN)))
        got, err = self.strangers_at_a_training(CAIRN_MODULE_PATH=os.path.join(build, "src/comm/gloo"))
        for answer in got:
            self.assertIn("got ", answer)
        self.assertIn(TRUSTS, err)

    def test_a_training_has_the_losses_of_one_machine_and_nobody_is_trusted(self):
        for backend in "gloo", "auto":  # auto: mpi, where this build has it
            with self.subTest(backend):
                err = self.trains(self.start(*self.quickstart.command(), ranks=(2, 1), CAIRN_BACKEND=backend), 3)
                self.assertNotIn(TRUSTS, err)

    def test_ranks_of_one_machine_need_no_secret(self):
        err = self.trains(self.start(*self.quickstart.command(), ranks=(2, 0), CAIRN_LOG="debug"), 2)
        self.assertNotIn("PMIx", err)

    def test_a_rank_waits_for_rank_0(self):
        script = '[ $OMPI_COMM_WORLD_RANK != 0 ] || sleep 2; exec "$@"'
        for ranks in (1, 1), (2, 1):
            with self.subTest(ranks=ranks):
                job = self.start("sh", "-c", script, "sh", *self.quickstart.command(), ranks=ranks)
                self.assertNotIn(TRUSTS, self.trains(job, sum(ranks)))


if __name__ == "__main__":
    lacking = [what for what, is_there in (
        ("Open MPI is not installed", MPIRUN), ("this build has no gloo (meson option 'gloo')", GLOO == "gloo"),
        ("this build has no PMIx (meson option 'pmix')", PMIX == "pmix")) if not is_there]
    refused = lacking[0] if lacking else net.apart.move()
    if refused:
        print("skipped: " + refused)
        sys.exit(net.SKIP)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMPDIR"] = scratch
        net.MACHINES = [net.Machine(0), net.Machine(1)]
        net.connect(net.MACHINES)
        unittest.main(argv=sys.argv[:1] + sys.argv[7:], verbosity=2)
