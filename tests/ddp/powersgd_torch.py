"""PowerSGD against torch's own hook: two ranks of DistributedDataParallel on gloo, with gradients that powersgd_peer
writes and also trains with, starting from torch's first Q. Averages of 50 steps differ by at most 1e-5 of the largest.

    powersgd_torch.py build/tests/ddp/powersgd_peer

Skipped (77) where no Python here has PyTorch with gloo."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from with_modules import go_on_with  # pylint: disable=wrong-import-position

STEPS = 50
SHAPES = {"wide": (12, 30), "tall": (24, 20), "cube": (16, 3, 6), "bias": (30,), "small": (2, 3)}


def train(folder, rank, approximation):
    """One rank of torch's; rank 0 writes its first Q and all averages."""
    import numpy
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)

    class Given(torch.nn.Module):
        """Gradients are the inputs."""

        def __init__(self):
            super().__init__()
            for name, shape in SHAPES.items():
                setattr(self, name, torch.nn.Parameter(torch.zeros(shape)))

        def forward(self, inputs):
            """The sum of all products."""
            return sum((x * getattr(self, name)).sum() for name, x in inputs.items())

    columns = {numpy.prod(shape[1:]): name for name, shape in SHAPES.items() if name in ("wide", "tall", "cube")}
    first = {}
    orthogonalize = powersgd._orthogonalize  # pylint: disable=protected-access

    def see(matrices, epsilon=0):
        """The first Q of every matrix, as it is drawn."""
        name = columns.get(matrices.shape[1])
        if name and name not in first:
            first[name] = matrices[0].clone()
        orthogonalize(matrices, epsilon)

    powersgd._orthogonalize = see  # pylint: disable=protected-access
    model = Given()
    net = torch.nn.parallel.DistributedDataParallel(model)
    net.register_comm_hook(powersgd.PowerSGDState(None, matrix_approximation_rank=approximation, start_powerSGD_iter=2,
                                                  min_compression_rate=1.25), powersgd.powerSGD_hook)
    sizes = [int(numpy.prod(shape)) for shape in SHAPES.values()]
    inputs = numpy.fromfile(f"{folder}/inputs", dtype=numpy.float32).reshape(2, STEPS, sum(sizes))
    outs = []
    for step in range(STEPS):
        parts = torch.from_numpy(inputs[rank, step]).split(sizes)
        given = {name: x.reshape(shape) for (name, shape), x in zip(SHAPES.items(), parts)}
        net.zero_grad()
        net(given).backward()
        outs += [getattr(model, name).grad.reshape(-1).clone() for name in SHAPES]
    if rank == 0:
        torch.cat(outs).numpy().tofile(f"{folder}/outs")
        for name, q in first.items():
            q.contiguous().numpy().tofile(f"{folder}/q.{name}")
    dist.destroy_process_group()


def compare(peer, approximation):
    """Whether both give the same averages."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [folder, str(approximation), str(STEPS)]
        subprocess.run([peer, "write", *arguments], check=True)
        ranks = [subprocess.Popen([sys.executable, __file__, "rank", folder, str(rank), str(approximation)])
                 for rank in range(2)]
        if any(rank.wait(timeout=120) for rank in ranks):
            sys.exit("torch's training failed")
        return subprocess.run([peer, "compare", *arguments, "1e-5"], check=False).returncode == 0


def main():
    """Ranks 1 to 4."""
    go_on_with("torch", "numpy")
    if sys.argv[1] == "rank":
        return train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    import torch.distributed as dist
    if not dist.is_gloo_available():
        print("skipped: this PyTorch has no gloo")
        sys.exit(77)
    failed = [r for r in (1, 2, 3, 4) if not compare(sys.argv[1], r)]
    sys.exit(f"ranks that differ: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
