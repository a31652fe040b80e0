"""The trainings that the paper tunes over."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from samphire.checks import check_one_of
from samphire.data.domains import OFFICEHOME, PACS, VLCS

if TYPE_CHECKING:
    from samphire.train.configs import Config

__all__ = ["GRIDS", "Grid", "grid"]

Grid = dict[str, Sequence[Any]]  # learning rates, radii and, for sets with domains, targets
DOMINOES: Grid = {"lr": (0.01, 0.05, 0.1), "rho": (0, 0.01, 0.03, 0.05, 0.07, 0.1, 0.2), "targets": (None,)}
GROUPS: Grid = {"lr": (0.0005, 0.001, 0.005, 0.01), "rho": (0, 0.01, 0.02, 0.05, 0.07), "targets": (None,)}
DOMAINS: Grid = {"lr": (0.005, 0.01, 0.02), "rho": (0, 0.03, 0.05, 0.1)}
GRIDS: dict[str, Grid] = {
    "cifar-mnist": DOMINOES,
    "fmnist-mnist": DOMINOES,
    "celeba": GROUPS,
    "waterbirds": GROUPS,
    "pacs": DOMAINS | {"targets": tuple(PACS.official)},
    "vlcs": DOMAINS | {"targets": tuple(VLCS.official)},
    "officehome": DOMAINS | {"targets": tuple(OFFICEHOME.official)},
}


def grid(
    data: str,
    rules: Sequence[str] = ("sam", "lsam"),
    seeds: Sequence[int] = (0,),
    *,
    lr: Sequence[float] | None = None,
    rho: Sequence[float] | None = None,
    targets: Sequence[str] | None = None,
    **settings: Any,
) -> list[Config]:
    """The trainings that the paper tunes over. A radius of 0 is SGD, which all rules share.

    The first seed comes first, so that a sweep that is stopped early has a run of every setting.

    Args:
        data: The data set; one's own have the lists of Waterbirds.
        rules: Names of rules.
        seeds: Each setting is run with each.
        lr: Learning rates instead of the paper's.
        rho: Radii instead of the paper's; SGD is run if 0 is among them.
        targets: Domains to transfer to, for sets with domains; all of the set by default.
        **settings: Other fields of :class:`samphire.train.Config`, the same for all. SGD has no ``rule_settings``.

    Example:
        >>> jobs = grid("cifar-mnist", rules=["sam"])
        >>> len(jobs), [(job.rule, job.radius) for job in jobs[:3]]
        (21, [('sgd', 0.0), ('sam', 0.01), ('sam', 0.03)])

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendices B and F.
    """
    from samphire.train.configs import appendix_b

    if "@" not in data:
        check_one_of("grid", data, GRIDS)
    given = {"lr": lr, "rho": rho, "targets": targets}
    lists = GRIDS.get(data, GROUPS) | {name: values for name, values in given.items() if values is not None}
    plain = {name: value for name, value in settings.items() if name != "rule_settings"}
    sides = [plain | {"rule": "sgd"}] if 0 in lists["rho"] else []
    sides += [settings | {"rule": rule, "rho": radius} for rule in rules for radius in lists["rho"] if radius]
    every = itertools.product(seeds, lists["targets"], lists["lr"], sides)
    jobs = [appendix_b(data, seed=seed, target=target, lr=rate, **side) for seed, target, rate, side in every]
    if not jobs:
        raise ValueError(f"a grid must have a job, got {seeds=}, {rules=} and {lists}; give each a value.")
    return list(dict.fromkeys(jobs))
