"""The quick start under Slurm: srun, srun with PMI2 and PMIx, two nodes on one host, and what is no rank of srun's.

usage: launchers_slurm.py CAIRN_RUN PROGRAM [docs/checkpoints.md]

With the last, what is tested is the batch script of that page, which puts itself back into the queue.

As root, where Debian's Slurm and munge are, the test starts them itself, in a temporary folder and in namespaces of its
own. Elsewhere, and there too, it trains in the environment that srun of Slurm 22.05.8 was seen to give its tasks."""
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import apart  # noqa: E402
from quickstart import PATIENCE, Quickstart, as_one, clean_env, digits, run, run_together  # noqa: E402
from restarts import checksums, steps_of  # noqa: E402

QUICKSTART = Quickstart(*sys.argv[1:3])
DOCS = sys.argv[3] if len(sys.argv) > 3 else None
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
SYSTEM_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

NODES = ("first", "second")  # one host, which knows both names: ranks on several nodes meet at the first
ADDRESS = "10.0.0.1"  # not of 127.0.0.0/8, with which alone Slurm looks nothing up
HOSTS = f"127.0.0.1 localhost\n{ADDRESS} host first second\n"
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=host
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=first NodeHostname=host Port=7818 CPUs=8
NodeName=second NodeHostname=host Port=7819 CPUs=8
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 State=UP
"""


def program(name):
    return shutil.which(name, path=SYSTEM_PATH)


class Cluster:
    """Slurm of two nodes. PATIENCE is for a machine that is busy; it is there in a second."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="cairn-slurm-")
        os.chmod(self.folder, 0o755)  # munge wants to be reached by everybody
        self.env = clean_env(SLURM_CONF=self.path("slurm.conf"), PATH=SYSTEM_PATH, SLURM_PMIX_TMPDIR=self.path("pmix"))
        self.children = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content, mode=0o644):
        with open(self.path(name), "wb") as f:
            f.write(content)
        os.chmod(self.path(name), mode)
        return self.path(name)

    @staticmethod
    def read(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def start(self, *command, before=()):
        with open(self.path("daemons.log"), "ab") as log:
            self.children.append(subprocess.Popen([*before, program(command[0]), *command[1:]], env=self.env,
                                                  stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def wait(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end or any(child.poll() is not None for child in self.children):
                raise RuntimeError(f"{what} in vain: {self.read(self.path('daemons.log'))[-2000:]}")
            time.sleep(0.05)

    def begin(self):
        socket.sethostname("host")
        hosts = self.write("hosts", HOSTS.encode())
        subprocess.run(["ip", "address", "add", ADDRESS, "dev", "lo"], check=True)
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
        self.write("slurm.conf", CONFIGURATION.format(folder=self.folder).encode())
        # No cgroup is used, and so none need be mounted here: v1 believes that, whatever version this machine has.
        self.write("cgroup.conf", f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.folder}\n".encode())
        key = self.write("munge.key", random.randbytes(1024), 0o400)
        os.mkdir(self.path("state"))
        os.mkdir(self.path("pmix"))
        socket_path = self.path("munge.socket")
        self.start("munged", "--foreground", "--force", "--socket=" + socket_path, "--key-file=" + key,
                   "--pid-file=" + self.path("munge.pid"), "--log-file=" + self.path("munge.log"),
                   "--seed-file=" + self.path("munge.seed"))
        self.wait(lambda: os.path.exists(socket_path), "waited for munged")
        self.start("slurmctld", "-D")
        for node in NODES:
            self.start("slurmd", "-D", "-N", node, before=[
                "unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs {self.path("pmix")} && exec "$@"', "sh"])
        self.wait(self.is_idle, "waited for idle nodes")

    def is_idle(self):
        try:
            states = run([program("sinfo"), "-h", "-N", "-o", "%t"], self.env, timeout=5).stdout.split()
        except subprocess.TimeoutExpired:
            return False
        return states == ["idle"] * len(NODES)

    def end(self):
        for child in self.children:
            child.kill()
            child.wait()
        subprocess.run(["umount", "/etc/hosts"], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command, **more):
        return run([program(command[0]), *command[1:]], dict(self.env, **more))


CLUSTER = None
PORT = 29522
# Lists the keys of a store, in the dialect of torch 2.2 and without a proof; and where it does so: as another machine.
ASK = f"""
import socket, struct
s = socket.create_connection(("{ADDRESS}", {PORT}), 10)
s.settimeout(10)
try:
    s.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\x11")
    print("got in" if s.recv(64) else "closed")
except ConnectionError:
    print("closed")
"""
SAYS_SO = ("this process is in no step of srun (a batch script, or a shell of salloc); start the program with srun to "
           "run its ranks")


def one_node(*options):
    return ("srun", "--nodes=1", "--nodelist=" + NODES[0], *options)


class UnderSlurm(unittest.TestCase):
    def setUp(self):
        if not CLUSTER:
            self.skipTest("no Slurm was started")

    def test_srun_trains_as_cairn_run_does(self):
        for ranks in 2, 3:
            QUICKSTART.trains(self, ranks, CLUSTER.run(*one_node("-n", str(ranks)), *QUICKSTART.command()))

    def test_srun_of_one_task_is_one_rank(self):
        QUICKSTART.trains(self, 1, CLUSTER.run("srun", "-n", "1", *QUICKSTART.command()))

    def test_the_plugins_of_srun_for_mpi_change_nothing(self):
        known = CLUSTER.run("srun", "--mpi=list")
        for plugin in "pmi2", "pmix":
            with self.subTest(plugin):
                got = CLUSTER.run(*one_node("-n", "2", "--mpi=" + plugin), *QUICKSTART.command())
                listed = plugin in (known.stdout + known.stderr).split()
                if not listed or "Couldn't load specified plugin" in got.stderr:
                    self.skipTest(f"this Slurm has no {plugin}")
                QUICKSTART.trains(self, 2, got)

    def over_mpi(self, plugin):
        if plugin not in CLUSTER.run("srun", "--mpi=list").stdout.split():
            self.skipTest(f"this Slurm has no {plugin}")
        got = CLUSTER.run(*one_node("-n", "2", "--mpi=" + plugin), *QUICKSTART.command(), CAIRN_BACKEND="mpi")
        if "meson option 'mpi'" in got.stderr:
            self.skipTest("this build has no mpi")
        return got

    def test_groups_are_of_mpi_where_srun_speaks_pmix(self):
        QUICKSTART.trains(self, 2, self.over_mpi("pmix"))

    def test_groups_are_of_no_mpi_where_srun_speaks_what_open_mpi_does_not(self):
        got = self.over_mpi("none")
        self.assertNotEqual(got.returncode, 0)
        self.assertIn("no MPI launcher started this process; start it with mpirun, or srun --mpi=pmix", got.stderr)

    def test_two_nodes_with_two_tasks_and_one(self):
        got = CLUSTER.run("srun", "-N", "2", "-n", "3", *QUICKSTART.command(), CAIRN_LOG="info")
        QUICKSTART.trains(self, 3, got)
        self.assertIn("SLURM_STEP_NODELIST", got.stderr)

    def test_tasks_on_two_nodes_share_a_secret_where_srun_speaks_pmix(self):
        if "pmix" not in CLUSTER.run("srun", "--mpi=list").stdout.split():
            self.skipTest("this Slurm has no pmix")
        for plugin, is_trusted in ("none", True), ("pmix", False):
            with self.subTest(plugin):
                got = CLUSTER.run("srun", "-N", "2", "-n", "3", "--mpi=" + plugin, *QUICKSTART.command(),
                                  CAIRN_LOG="info")
                if "meson option 'pmix'" in got.stderr:
                    self.skipTest("this build has no PMIx")
                QUICKSTART.trains(self, 3, got)
                self.assertEqual("ranks of other machines are trusted without proof" in got.stderr, is_trusted,
                                 got.stderr)
                self.assertEqual("rank 0 shared the job's secret through PMIx" in got.stderr, not is_trusted)

    def test_a_stranger_gets_into_the_store_of_two_nodes_where_they_share_no_secret_alone(self):
        if "pmix" not in CLUSTER.run("srun", "--mpi=list").stdout.split():
            self.skipTest("this Slurm has no pmix")
        elsewhere = self.another_machine()
        for plugin, gets in ("none", "got in"), ("pmix", "closed"):
            with self.subTest(plugin):
                env = dict(CLUSTER.env, CAIRN_BACKEND="gloo", CAIRN_LOG="info", CAIRN_TIMEOUT="60", MASTER_ADDR=ADDRESS,
                           MASTER_PORT=str(PORT))
                job = subprocess.Popen([program("srun"), "-N", "2", "-n", "2", "--mpi=" + plugin,
                                        *QUICKSTART.command(steps=10**9)], env=env, text=True, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                said = ""
                while "group: gloo" not in said:
                    line = job.stderr.readline()
                    if not line and ("meson option 'gloo'" in said or "meson option 'pmix'" in said):
                        self.skipTest("this build has no gloo or no PMIx")
                    self.assertTrue(line, said)
                    said += line
                got = run(["nsenter", "-t", str(elsewhere), "--net", sys.executable, "-c", ASK])
                job.terminate()
                job.communicate(timeout=PATIENCE)
                if plugin == "pmix" and "meson option 'pmix'" in said:
                    self.skipTest("this build has no PMIx")
                self.assertEqual(got.stdout.strip(), gets, got.stderr + said)

    def another_machine(self):
        """The process that keeps its network, which reaches this one."""
        keeper = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE)
        self.addCleanup(keeper.communicate)
        self.addCleanup(keeper.kill)
        keeper.stdout.readline()
        inside = ["nsenter", "-t", str(keeper.pid), "--net"]
        for where, words in (([], f"link add inner type veth peer name outer netns {keeper.pid}"),
                             ([], "address add 10.2.0.1/24 dev inner"), ([], "link set inner up"),
                             (inside, "address add 10.2.0.2/24 dev outer"), (inside, "link set outer up"),
                             (inside, f"route add {ADDRESS} via 10.2.0.1")):
            subprocess.run([*where, "ip", *words.split()], check=True)
        return keeper.pid

    def test_tasks_wait_for_the_secret_of_the_first(self):
        if "pmix" not in CLUSTER.run("srun", "--mpi=list").stdout.split():
            self.skipTest("this Slurm has no pmix")
        script = '[ $SLURM_PROCID != 0 ] || sleep 2; exec "$@"'
        got = CLUSTER.run("srun", "-N", "2", "-n", "3", "--mpi=pmix", "sh", "-c", script, "sh", *QUICKSTART.command())
        QUICKSTART.trains(self, 3, got)

    def test_cyclic_tasks_over_two_nodes(self):
        QUICKSTART.trains(self, 4, CLUSTER.run("srun", "-N", "2", "-n", "4", "-m", "cyclic", *QUICKSTART.command()))

    def test_two_steps_side_by_side_do_not_meet(self):
        commands = [[program("srun"), "--overlap", *one_node("-n", "2")[1:], *QUICKSTART.command(seed)]
                    for seed in range(3)]
        for seed, got in enumerate(run_together(commands, [CLUSTER.env] * 3)):
            QUICKSTART.trains(self, 2, got, seed)

    def batch(self, command, **more):
        """Runs it in a batch script. sbatch --wait looks every few seconds only."""
        out, err, code = CLUSTER.path("job.out"), CLUSTER.path("job.err"), CLUSTER.path("job.code")
        script = CLUSTER.write("job.sh", f"#!/bin/sh\n{command}\necho $? >{code}.new\nmv {code}.new {code}\n".encode())
        submitted = CLUSTER.run("sbatch", "-n", "2", "-o", out, "-e", err, "-D", CLUSTER.folder, script, **more)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        CLUSTER.wait(lambda: os.path.exists(code), "waited for a batch job")
        texts = [CLUSTER.read(path) for path in (code, out, err)]
        os.unlink(code)
        return subprocess.CompletedProcess(command, int(texts[0]), *texts[1:])

    def test_a_batch_script_outside_srun_is_alone_and_says_so(self):
        got = self.batch(" ".join(QUICKSTART.command()))
        QUICKSTART.trains(self, 1, got)
        self.assertIn(SAYS_SO, got.stderr)

    def test_srun_in_a_batch_script_trains(self):
        QUICKSTART.trains(self, 2, self.batch("srun " + " ".join(QUICKSTART.command())))

    def test_cairn_run_in_srun_says_who_its_ranks_are(self):
        got = CLUSTER.run("srun", "-n", "1", QUICKSTART.cairn_run, "--nproc-per-node", "2", *QUICKSTART.command())
        QUICKSTART.trains(self, 2, got)

    def test_one_cairn_run_on_each_node_of_a_step(self):
        script = ('exec "$0" --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --nproc-per-node 2 '
                  '--master-addr 127.0.0.1 --master-port 29501 "$@"')
        got = CLUSTER.run("srun", "-N", "2", "--ntasks-per-node", "1", "sh", "-c", script, QUICKSTART.cairn_run,
                          *QUICKSTART.command())
        QUICKSTART.trains(self, 4, got)

    def test_a_place_that_the_user_names_is_where_they_meet(self):
        got = CLUSTER.run(*one_node("-n", "2"), *QUICKSTART.command(), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500",
                          CAIRN_LOG="info")
        QUICKSTART.trains(self, 2, got)
        self.assertIn("at 127.0.0.1 port 29500 (MASTER_ADDR, MASTER_PORT), served by rank 0", got.stderr)

    def test_a_rank_that_fails_ends_the_step(self):
        script = '[ $SLURM_PROCID != 1 ] || exit 7; exec "$@"'
        got = CLUSTER.run(*one_node("-n", "2", "--kill-on-bad-exit=1"), "sh", "-c", script, "sh",
                          *QUICKSTART.command(steps=100000000))
        self.assertNotEqual(got.returncode, 0)
        self.assertIn("task 1: Exited with exit code 7", got.stderr)


# Trains until the job is warned, not from its first second on, and 500 steps after it was put back.
TRAIN = """\
#!/bin/sh
steps=100000000
last=$(ls "$SCRATCH/runs/a" 2>/dev/null | sed -n 's/^step-0*//p' | sort -n | tail -n 1)
if [ -n "$last" ]; then steps=$((last + 500)); else sleep 20; fi
exec {program} --opt-level O2 --steps $steps --save-every $steps "$@"
"""


def script_of_the_docs():
    """The one that calls scontrol, with one rank a node, and warned as soon as Slurm looks, twice a minute."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", Cluster.read(DOCS), re.M | re.S)
    script, = [block for block in blocks if "scontrol requeue" in block]
    for was, becomes in (("--ntasks-per-node=4", "--ntasks-per-node=1"), ("--time=04:00:00", "--time=2"),
                         ("B:USR1@120", "B:USR1@115"), ("srun ./train ", "srun ./train.sh ")):
        assert was in script, f"{was} is not in the script of {DOCS}"
        script = script.replace(was, becomes)
    return script


@unittest.skipUnless(DOCS, "for the page of docs that the script is taken from")
class RequeuesItself(unittest.TestCase):
    def state_of(self, job):
        told = CLUSTER.run("scontrol", "show", "job", job).stdout
        return re.search(r"JobState=(\S+)", told).group(1), int(re.search(r"Restarts=(\d+)", told).group(1)), told

    def ends(self, job):
        def has_ended():
            return self.state_of(job)[0] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        CLUSTER.wait(has_ended, "waited for the end of a job that puts itself back")
        return self.state_of(job)

    def test_a_training_that_fails_is_a_job_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("srun", "#!/bin/sh\nsleep 0.2\nexit 7\n"), ("script", script_of_the_docs())):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    f.write(text)
                os.chmod(f.name, 0o755)
            got = run(["bash", f.name], clean_env(PATH=folder + ":" + SYSTEM_PATH, SCRATCH=folder))
        self.assertEqual(got.returncode, 7, got.stderr)

    def test_a_job_that_is_warned_goes_on_from_its_checkpoint_to_the_same_loss(self):
        if not CLUSTER:
            self.skipTest("no Slurm was started")
        folder, out = CLUSTER.path("scratch"), CLUSTER.path("requeued.out")
        os.mkdir(folder)
        CLUSTER.write("train.sh", TRAIN.format(program=QUICKSTART.program).encode(), 0o755)
        script = CLUSTER.write("requeues.sh", script_of_the_docs().encode())
        submitted = CLUSTER.run("sbatch", "--parsable", "-o", out, "-D", CLUSTER.folder, script, SCRATCH=folder)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        state, restarts, told = self.ends(submitted.stdout.strip())
        said = CLUSTER.read(out)
        self.assertEqual(state, "COMPLETED", told + said)
        self.assertGreaterEqual(restarts, 1, told + said)
        steps = steps_of(folder + "/runs/a")
        alone = run([QUICKSTART.cairn_run, "--nproc-per-node", "2", QUICKSTART.program, "--opt-level", "O2", "--steps",
                     str(steps), "--save-every", str(steps), "--checkpoint", folder + "/runs/alone"])
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertEqual(digits(said), digits(alone.stdout), said[-2000:])
        self.assertEqual(checksums(folder + "/runs/a", steps), checksums(folder + "/runs/alone", steps))


# What srun of Slurm 22.05.8 told the tasks of a step; {braces} are what differs between tasks, jobs and steps.
STEP = """\
SLURMD_NODENAME={node}
SLURM_CLUSTER_NAME=test
SLURM_CPUS_ON_NODE={local_size}
SLURM_GTIDS={tasks_here}
SLURM_JOBID={job}
SLURM_JOB_CPUS_PER_NODE={sizes}
SLURM_JOB_GID=0
SLURM_JOB_ID={job}
SLURM_JOB_NAME=train
SLURM_JOB_NODELIST={nodes}
SLURM_JOB_NUM_NODES={num_nodes}
SLURM_JOB_PARTITION=all
SLURM_JOB_UID=0
SLURM_JOB_USER=root
SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
SLURM_LOCALID={local}
SLURM_NNODES={num_nodes}
SLURM_NODEID={node_id}
SLURM_NODELIST={nodes}
SLURM_NPROCS={size}
SLURM_NTASKS={size}
SLURM_PRIO_PROCESS=0
SLURM_PROCID={rank}
SLURM_SRUN_COMM_HOST=127.0.0.1
SLURM_SRUN_COMM_PORT=35187
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_LAUNCHER_PORT=35187
SLURM_STEP_NODELIST={nodes}
SLURM_STEP_NUM_NODES={num_nodes}
SLURM_STEP_NUM_TASKS={size}
SLURM_STEP_TASKS_PER_NODE={sizes}
SLURM_TASKS_PER_NODE={sizes}
SLURM_TASK_PID={pid}
SLURM_TOPOLOGY_ADDR={node}
SLURM_TOPOLOGY_ADDR_PATTERN=node
SLURM_UMASK=0022
SLURM_WORKING_CLUSTER=test:127.0.0.1:7817:9728:109"""

# The same of a batch script of three tasks, and of the shell of salloc where a site has made that an interactive step.
BATCH = """\
SLURMD_NODENAME=na
SLURM_CPUS_ON_NODE=3
SLURM_GTIDS=0
SLURM_JOBID=6
SLURM_JOB_ID=6
SLURM_JOB_NODELIST=na
SLURM_JOB_NUM_NODES=1
SLURM_LOCALID=0
SLURM_NNODES=1
SLURM_NODEID=0
SLURM_NODELIST=na
SLURM_NPROCS=3
SLURM_NTASKS=3
SLURM_PROCID=0
SLURM_TASKS_PER_NODE=3"""
INTERACTIVE = BATCH + """
SLURM_STEPID=4294967290
SLURM_STEP_ID=4294967290
SLURM_STEP_LAUNCHER_PORT=40675
SLURM_STEP_NODELIST=na
SLURM_STEP_NUM_NODES=1
SLURM_STEP_NUM_TASKS=1
SLURM_STEP_TASKS_PER_NODE=1"""


def variables(text):
    return dict(line.split("=", 1) for line in text.splitlines())


def tasks_of(sizes, nodes):
    """The environments of a step's tasks, in blocks over the nodes."""
    job, size, rank = random.randrange(10**6, 10**9), sum(sizes), 0
    for node_id, (node, here) in enumerate(zip(nodes, sizes)):
        for local in range(here):
            yield variables(STEP.format(
                node=node, node_id=node_id, nodes=",".join(nodes[:len(sizes)]), num_nodes=len(sizes), local_size=here,
                local=local, rank=rank, size=size, sizes=",".join(map(str, sizes)), job=job, pid=4000 + rank,
                tasks_here=",".join(str(rank - local + i) for i in range(here))))
            rank += 1


class AsSlurmWouldTell(unittest.TestCase):
    """Without Slurm: the environment that was recorded."""

    def train(self, sizes, nodes, **more):
        environments = [clean_env(**told, **more) for told in tasks_of(sizes, nodes)]
        return as_one(run_together([QUICKSTART.command()] * len(environments), environments))

    def test_tasks_on_one_node_meet_on_this_machine(self):
        for size in 2, 3:
            QUICKSTART.trains(self, size, self.train([size], ["no-such-node"]))

    def test_tasks_on_two_nodes_meet_at_the_first(self):
        QUICKSTART.trains(self, 3, self.train([2, 1], ["localhost", "other"]))

    def test_tasks_whose_first_node_cannot_be_found_are_told_what_to_set(self):
        got = self.train([1, 1], ["no-such-node.invalid", "other"], CAIRN_TIMEOUT="3")
        self.assertNotEqual(got.returncode, 0)
        self.assertIn("no-such-node.invalid", got.stderr)

    def test_what_is_no_task_of_srun_is_alone_and_says_so(self):
        got = run(QUICKSTART.command(), clean_env(**variables(BATCH)))
        QUICKSTART.trains(self, 1, got)
        self.assertIn(SAYS_SO, got.stderr)

    def test_the_shell_of_an_allocation_is_one_rank(self):
        QUICKSTART.trains(self, 1, run(QUICKSTART.command(), clean_env(**variables(INTERACTIVE))))


def start_cluster():
    """None and a sentence where there is no Slurm to be had."""
    missing = [name for name in PROGRAMS if not program(name)]
    if missing:
        return None, f"there is no {missing[0]} (Debian's slurmctld, slurmd, slurm-client and munge)"
    refused = apart.move()
    if refused:
        return None, refused
    cluster = Cluster()
    try:
        cluster.begin()
    except (RuntimeError, OSError) as error:
        cluster.end()
        return None, str(error)
    return cluster, ""


def main():
    global CLUSTER
    CLUSTER, why = start_cluster()
    if not CLUSTER:
        print(f"Slurm is not started: {why}. Its recorded environment is what is tested.", file=sys.stderr)
    try:
        unittest.main(argv=sys.argv[:1] + (["RequeuesItself"] if DOCS else sys.argv[3:]), verbosity=2)
    finally:
        if CLUSTER:
            CLUSTER.end()


if __name__ == "__main__":
    main()
