"""Networks that are trained already, probed in other ways: a row of its own for each."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from samphire import records
from samphire.checks import check_one_of
from samphire.data.parts import PROBE_ON, Parts, ProbeOn, load_parts
from samphire.records import Row
from samphire.train.configs import Config
from samphire.train.judging import ProbeSettings, probe_features
from samphire.train.trained import load_network

__all__ = ["Probing", "probe_stored"]


@dataclass(frozen=True)
class Probing:
    """A trained network and a way to probe it; its key names the row.

    Args:
        run: What was trained.
        on: What probes are trained on, see :func:`samphire.data.parts.load_parts`.
        settings: How.

    Example:
        >>> from samphire.train import appendix_b
        >>> run = appendix_b("cifar-mnist", resamples=0)
        >>> records.key(Probing(run, "train")) == records.key(Probing(run, "val"))
        False
    """

    run: Config
    on: ProbeOn
    settings: ProbeSettings = field(default_factory=ProbeSettings)

    def __post_init__(self) -> None:
        check_one_of("probing set", self.on, PROBE_ON)


def probe_stored(
    job: Probing,
    root: str | os.PathLike[str],
    runs: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
) -> Row:
    """Probe the network of a finished run, or return the row of an earlier call.

    The row is that of :func:`samphire.train.judging.probe_features`, with the ``run``'s key and the ``seconds``
    it took; a training that stopped early gives one with the reason under ``stopped``.

    Args:
        job: The network and the way to probe it.
        root: The folder of the data set, or the one above it.
        runs: The folder of the trainings.
        out: The folder of the probings.
        cache: For decoded images; the user's cache by default.
    """
    trained = Path(runs) / records.key(job.run)
    if not records.is_done(trained):
        raise FileNotFoundError(f"there is no finished training at {trained}; train it first.")
    with records.open_run(out, job) as run:
        if not run.rows:
            run.append(_row(job, trained, root, cache))
        row: Row = run.rows[-1]
        return row


def _row(job: Probing, trained: Path, root: Any, cache: Any) -> Row:
    last = records.last_row(trained) or {}
    if "stopped" in last:
        return {"run": trained.name, "stopped": last["stopped"]}
    chosen = tuple((name, getattr(job.run, name)) for name in ("size", "target", "examples"))
    parts = _parts(job.run.data, job.on, os.fspath(root), None if cache is None else os.fspath(cache), chosen)
    started = time.perf_counter()
    row = probe_features(load_network(trained), parts, job.settings)
    return {"run": trained.name, "seconds": time.perf_counter() - started} | row


@lru_cache(maxsize=1)
def _parts(data: str, on: ProbeOn, root: str, cache: str | None, chosen: Sequence[tuple[str, Any]]) -> Parts:
    """Many networks are probed on the same examples, one after the other."""
    return load_parts(data, root, judged_only=True, probe_on=on, cache=cache, **dict(chosen))
