"""Two processes for tests of ranks, with the imports made once."""

import gc
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from waiting import PATIENCE, until


def on_two_ranks(work, *args):
    """Run ``work(rank, *args)`` on ranks 0 and 1 of a group; both are forked off one process that has all imports."""
    with tempfile.TemporaryDirectory() as folder:
        both = mp.spawn(_fork, (f"file://{folder}/meet", work, args), join=False)
        try:
            until(lambda: both.join(timeout=1), f"both ranks have done {work.__module__}.{work.__name__}")
        finally:
            for process in both.processes:
                process.kill()


def _fork(_, meet, work, args):
    import torch._dynamo  # noqa: F401, each optimizer's constructor does

    gc.collect()
    gc.freeze()  # what the imports made stays out of the collections that trainers ask for
    mp.start_processes(_joined, (meet, work, args), nprocs=2, start_method="fork")


def _joined(rank, meet, work, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=PATIENCE))
    work(rank, *args)
    gc.collect()  # a DistributedDataParallel that outlives its group can wait for ever
    dist.destroy_process_group()
