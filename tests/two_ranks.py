"""Two processes for tests of ranks, with the imports made once."""

import torch.multiprocessing as mp


def on_two_ranks(work, *args):
    """Run ``work(rank, *args)`` on ranks 0 and 1; both are forked off one fresh process that has imported all of it."""
    mp.spawn(_fork, (work, args))


def _fork(_, work, args):
    import torch._dynamo  # noqa: F401, each optimizer's constructor does

    mp.start_processes(work, args, nprocs=2, start_method="fork")
