"""Open MPI's mpirun over two machines, whose ranks share a secret through PMIx; strangers are only admitted if the
ranks have no secret.

usage: mpirun_strangers.py CAIRN_RUN EXCHANGE QUICKSTART gloo|none pmix|none MPI_USER|none

Skipped where namespaces cannot be made, and without Open MPI, gloo or PMIx."""
import os
import sys
import tempfile
import time
import unittest

import strangers
import two_machines as net
from quickstart import PATIENCE, Quickstart, digits

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from mpi import find_open_mpi  # noqa: E402

CAIRN_RUN, QUICKSTART, GLOO, PMIX = sys.argv[1], *sys.argv[3:6]
USER = "none" if sys.argv[6] == "none" else os.path.abspath(sys.argv[6])  # mpirun starts it from another folder
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


class Started(strangers.Strange):
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


class UnderMpirun(Started):
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
                err = self.trains(self.start(*self.quickstart.command(), ranks=(2, 1), CAIRN_BACKEND=backend,
                                             CAIRN_LOG="info"), 3)
                self.assertNotIn(TRUSTS, err)
                self.assertIn("group: gloo" if backend == "gloo" or USER == "none" else "group: mpi", err)

    def test_ranks_of_one_machine_need_no_secret(self):
        err = self.trains(self.start(*self.quickstart.command(), ranks=(2, 0), CAIRN_LOG="debug"), 2)
        self.assertNotIn("PMIx", err)

    def test_a_rank_waits_for_rank_0(self):
        script = '[ $OMPI_COMM_WORLD_RANK != 0 ] || sleep 2; exec "$@"'
        for ranks in (1, 1), (2, 1):
            with self.subTest(ranks=ranks):
                job = self.start("sh", "-c", script, "sh", *self.quickstart.command(), ranks=ranks)
                self.assertNotIn(TRUSTS, self.trains(job, sum(ranks)))

    def test_a_second_environment_has_the_same_secret(self):
        if USER == "none":
            self.skipTest("this build has no mpi (meson option 'mpi')")
        (code, _, err), = self.ends([self.start(USER, "twice", ranks=(2, 1), CAIRN_BACKEND="mpi")])
        self.assertEqual((code, err), (0, ""))

    def test_programs_that_speak_mpi_themselves_go_on_to(self):
        if USER == "none":
            self.skipTest("this build has no mpi (meson option 'mpi')")
        (code, _, err), = self.ends([self.start(USER, "beside", ranks=(2, 1), CAIRN_BACKEND="mpi")])
        self.assertEqual((code, err), (0, ""))


class Fails(Started):
    """What rank 1 says, in a file: its launcher may not speak any more."""

    def rank_1_says(self, rank_0, rank_1, after=":", **more):
        said = self.agent + ".said"
        script = (f'if [ $OMPI_COMM_WORLD_RANK = 0 ]; then {rank_0}; exec "$@"; fi; {rank_1}; '
                  f'"$@" 2>{said}.new; mv {said}.new {said}; {after}; exit 3')
        begin = time.monotonic()
        job = self.start("sh", "-c", script, "sh", *self.quickstart.command(), CAIRN_MEETING_TIMEOUT="3", **more)
        while not os.path.exists(said):
            self.assertLess(time.monotonic(), begin + PATIENCE)
            time.sleep(0.05)
        (code, _, _), = self.ends([job])
        self.assertNotEqual(code, 0)
        with open(said, encoding="utf-8") as f:
            return f.read()

    def test_a_launcher_that_is_stopped_is_a_sentence_in_time(self):
        self.assertIn("the launcher's PMIx server did not answer within 3 s; is mpirun or slurmstepd stopped?",
                      self.rank_1_says(":", "kill -STOP $PPID", after="kill -KILL $PPID"))

    def test_a_launcher_that_is_not_reached_is_a_sentence(self):
        nowhere = "for v in $(env | grep -o '^PMIX_SERVER_URI[^=]*'); do export $v='x.0;tcp4://127.0.0.1:1'; done"
        self.assertIn("PMIx cannot be opened: ", self.rank_1_says(":", nowhere))

    def test_a_rank_0_that_shares_nothing_is_a_sentence(self):
        self.assertIn("rank 0 shared no secret through PMIx within 3 s; is it running, with libcairn_pmix.so beside "
                      "its Cairn?", self.rank_1_says("export CAIRN_INSECURE=1", ":"))

    def test_a_rank_without_the_secret_does_not_get_in(self):
        self.assertRegex(self.rank_1_says(":", "export CAIRN_INSECURE=1", CAIRN_TIMEOUT="3"), "store")


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
