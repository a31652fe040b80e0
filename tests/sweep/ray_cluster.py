"""A Ray cluster on this machine, for tests and rehearsals."""

import contextlib

SETTINGS = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2,
    "worker_niceness": 0,  # Ray's own 15 makes a worker wait for every other test of a busy machine
}  # fmt: skip
STARTS = 5  # Ray gives a node 30 s to come up, which a busy machine may not have


def patiently(start):
    """What a start gives, tried again if Ray ran out of its time."""
    for _ in range(STARTS - 1):
        with contextlib.suppress(Exception):
            return start()
    return start()


@contextlib.contextmanager
def cluster(head_cores):
    """A head with some cores; more nodes join by :func:`patiently` calling its ``add_node``."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": head_cores, "include_dashboard": False, "_system_config": SETTINGS}
    made = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    try:
        yield made
    finally:
        made.shutdown()
