"""A sweep from the words of a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from samphire.sweep.grids import grid

if TYPE_CHECKING:
    from samphire.train.configs import Config

__all__ = ["listed", "plan", "whole_numbers"]

VARIED = ("data", "rule", "rho", "lr", "seed", "target")


def plan(data: str, words: Sequence[str], rules: Sequence[str], seeds: Sequence[int]) -> list[Config]:
    """The jobs of :func:`samphire.sweep.grid`, from words.

    Args:
        data: The data set.
        words: ``key=value``; ``lr``, ``rho`` and ``target`` may have several values with commas between.
        rules: Names of rules.
        seeds: Of each setting.

    Example:
        >>> jobs = plan("cifar-mnist", ["epochs=5", "lr=0.1", "rho=0,0.05"], ["sam"], [0])
        >>> [(job.rule, job.radius, job.epochs) for job in jobs]
        [('sgd', 0.0, 5), ('sam', 0.05, 5)]
    """
    from samphire.train.configs import parse

    lists: dict[str, list[str]] = {}
    others = []
    for word in words:
        key, _, text = word.partition("=")
        if key in ("rule", "seed"):
            raise ValueError(f"a sweep has several {key}s, got {word!r}; write --{key}s {text}.")
        if key in ("lr", "rho", "target"):
            lists[key] = listed(text)
        else:
            others.append(word)
    numbers = {key: [_number(key, text) for text in lists[key]] for key in ("lr", "rho") if key in lists}
    first = grid(data, rules[:1], seeds[:1])[-1]  # refuses what is unknown, and has a target if one is needed
    target = [] if first.target is None else [f"target={first.target}"]
    base = parse(data, [*others, f"rule={first.rule}", *target])
    fixed = {field.name: getattr(base, field.name) for field in fields(base) if field.name not in VARIED}
    return grid(data, rules, seeds, **numbers, targets=lists.get("target"), **fixed)


def listed(text: str) -> list[str]:
    """The parts of a text with commas between.

    Example:
        >>> listed("sam, lsam")
        ['sam', 'lsam']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(name: str, text: str) -> list[int]:
    """Whole numbers with commas between.

    Example:
        >>> whole_numbers("seeds", "0,1")
        [0, 1]
    """
    for part in listed(text):
        if not part.isdecimal():
            raise ValueError(f"{name} must be whole numbers with commas between, got {part!r}; write --{name} 0,1.")
    return [int(part) for part in listed(text)]


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key} must be numbers with commas between, got {text!r}; write {key}=0.01,0.05.") from None
