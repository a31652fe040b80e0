"""What a rule is, in words and numbers, from reading its docstring and from driving it.

Nothing here knows the rules by name: the paper, the formula and the settings are in a rule's docstring and
signature; what it remembers and what it perturbs are measured while it trains a small network.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from samphire import tree
from samphire.optim import scopes
from samphire.optim.requests import LossOfOutputs, Memory, Rule, bind, gradient_at, watched
from samphire.optim.rules import RULES, rule_for_run
from samphire.restore import threads
from samphire.tree import Vector

__all__ = ["Description", "Footprint", "Setting", "describe", "page", "paper", "section", "table", "watch"]

STEPS = 12  # two periods of the rules that have one (k=5), and a little
EXAMPLES = 32  # two parts for the rules that split a batch (m=16)


@dataclass(frozen=True)
class Setting:
    """An argument of a rule: its name, its default as Python shows it, what it means."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Description:
    """A rule at its default settings.

    Attributes:
        name: Under which :func:`samphire.optim.rule` knows it.
        summary: What it does, one sentence.
        cost: What a step costs, in words.
        passes: Forward and backward computations a step; SGD has 1.
        memory: What it keeps from step to step, in copies of the parameters.
        perturbs: Which parameters it evaluates away from where they are.
        paper: Authors and year; empty if it has no reference.
        formulas: In LaTeX.
        remarks: What else the docstring says before the arguments, by paragraph.
        settings: Its arguments.
        reference: In full.
        differences: From the published method or its code.
    """

    name: str
    summary: str
    cost: str
    passes: float
    memory: float
    perturbs: str
    paper: str
    formulas: tuple[str, ...]
    remarks: tuple[str, ...]
    settings: tuple[Setting, ...]
    reference: str
    differences: str


@cache
def describe(name: str) -> Description:
    """A rule by name, described.

    Example:
        >>> looksam = describe("looksam")
        >>> looksam.paper, looksam.passes, looksam.memory, looksam.perturbs
        ('Liu et al. 2022', 1.2, 1.0, 'all parameters')
    """
    make = RULES[name]
    first, formulas, remarks, sections = _read(inspect.getdoc(make) or "")
    summary, _, cost = first.partition(".  ")
    footprint = watch(rule_for_run(name, STEPS, EXAMPLES))
    return Description(
        name,
        f"{summary}.",
        cost,
        make().passes,
        footprint.memory,
        footprint.perturbs,
        paper(sections.get("References", "")),
        formulas,
        remarks,
        tuple(_settings(make, sections.get("Args", ""))),
        _joined(sections.get("References", "")),
        _joined(sections.get("Differences", "")),
    )


# By driving


@dataclass(frozen=True)
class Footprint:
    """What a rule did to a small network: the copies of the parameters it keeps, the parameters it displaces."""

    memory: float
    perturbs: str


@threads(1)  # on a busy machine a second one made this twenty times slower
def watch(rule: Rule) -> Footprint:
    """Train a network of a Linear, a LayerNorm and a Linear layer (the head) for some steps, and look.

    Example:
        >>> from samphire.optim import friendly, lsam
        >>> watch(friendly()).memory, watch(lsam()).perturbs
        (1.0, 'the head')
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
        x, y = torch.randn(EXAMPLES, 6), torch.arange(EXAMPLES) % 3

    losses = LossOfOutputs(
        lambda w, examples=slice(None): torch.func.functional_call(model, w, (x[examples],)),
        lambda out, examples=slice(None): nn.functional.cross_entropy(out, y[examples], reduction="none"),
    )
    w = {name: p.detach() for name, p in model.named_parameters()}
    bound, memory, steps = bind(rule, model), Memory(labels=y), []
    for _ in range(STEPS):
        descent, displacements = watched(bound, w, memory, gradient_at(losses, w))
        along = (descent.gradient + descent.directly).dense()
        w = {name: t - 0.1 * along[name] if name in along else t for name, t in w.items()}
        steps.append(_moved(displacements))
    size = sum(t.nbytes for t in w.values())
    return Footprint(round(sum(t.nbytes for t in memory.tensors() if t.ndim) / size, 2), _perturbed(steps, model))


Moved = dict[str, Tensor]  # for each displaced tensor, where


def _moved(displacements: list[Vector]) -> Moved:
    """Which entries the requests of a step displace, together."""
    moved: Moved = {}
    for eps in displacements:
        for name, t in eps.dense().items():
            if t.any():
                moved[name] = moved.get(name, torch.zeros_like(t, dtype=torch.bool)) | (t != 0)
    return moved


def _perturbed(steps: list[Moved], model: nn.Module) -> str:
    """In words; what is displaced in one step may not be in another."""
    steps = [moved for moved in steps if moved]
    if not steps:
        return "nothing"
    if not all(entries.all() for moved in steps for entries in moved.values()):
        return "part of the entries"
    tensors = {frozenset(moved) for moved in steps}
    if len(tensors) > 1:
        return "a random part of the tensors"
    (names,) = tensors
    known = {
        frozenset(tree.named_parameters(model)): "all parameters",
        scopes.head(model): "the head",
        scopes.of_type(scopes.NORM_LAYERS)(model): "the norm layers",
    }
    return known.get(names, ", ".join(sorted(names)))


# By reading

SECTION = re.compile(r"^([A-Z][a-z]+):$", flags=re.M)
SURNAME = r"[A-Z][\w'’-]+"
AUTHORS = re.compile(rf"^(?:{SURNAME}, )*{SURNAME}(?: and {SURNAME}| et al\.)?(?=,| \d{{4}})")
YEAR = re.compile(r"\b(?:19|20)\d\d\b")


def paper(reference: str) -> str:
    """Authors and year of the first work of a list of references; its first words if it names no authors.

    Example:
        >>> paper("Liu et al., Towards Efficient and Scalable SAM, CVPR 2022, https://arxiv.org/abs/2203.02714")
        'Liu et al. 2022'
        >>> paper("Composer's interval; it scales rho up with k.")
        "Composer's interval"
    """
    first = _joined(reference).split(";")[0].split("http")[0].replace("`", "")
    authors, year = AUTHORS.match(first), YEAR.search(first)
    who = authors[0] if authors else first.split(",")[0].strip()
    return f"{who} {year[0]}" if year else who


def _read(doc: str) -> tuple[str, tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """A docstring's first line, formulas, further paragraphs (code stays as it is), and sections by name."""
    text, *rest = SECTION.split(doc)
    sections = dict(zip(rest[::2], map(inspect.cleandoc, rest[1::2]), strict=True))
    first, *paragraphs = re.split(r"\n\n", text.strip())
    formulas = [_joined(p.removeprefix(".. math::")) for p in paragraphs if p.startswith(".. math::")]
    remarks = [p if p.startswith(" ") else _joined(p) for p in paragraphs if not p.startswith(".. math::")]
    return first, tuple(formulas), tuple(remarks), sections


def _settings(make: Callable[..., Rule], args: str) -> Iterator[Setting]:
    """The arguments; not the keyword-only ones, which say where a rule climbs and are set by ``on``."""
    meanings = dict(re.findall(r"^(\w+): (.*?)(?=^\w|\Z)", args, flags=re.M | re.S))
    for p in inspect.signature(make).parameters.values():
        if p.kind is not p.KEYWORD_ONLY:
            yield Setting(p.name, _default(p.default), _joined(meanings.get(p.name, "")))


def _default(value: Any) -> str:
    """A default as a user would write it: rules and scopes by their names."""
    if isinstance(value, tuple) and value and all(isinstance(v, type) for v in value):
        return ", ".join(v.__name__.lstrip("_") for v in value)
    if hasattr(value, "gradient"):
        return f"{type(value).__name__}({value.rho!r})"
    return value.__name__ if callable(value) else repr(value)


def _joined(text: str) -> str:
    return " ".join(text.split())


# As a page


def table(descriptions: list[Description]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns, and a row for each rule; the last column is long."""
    columns = ("rule", "paper", "passes", "memory", "perturbs", "what it does")
    rows = [
        [d.name, d.paper or "–", f"{d.passes:.3g}", f"{d.memory:.3g}", d.perturbs, d.summary] for d in descriptions
    ]
    return columns, rows


def page(descriptions: list[Description], picture: str, picture_text: str) -> str:
    """All rules as a Markdown page, with formulas that GitHub and most viewers show.

    Args:
        descriptions: In the order of the page.
        picture: The name of its picture.
        picture_text: What the picture shows.
    """
    columns, rows = table(descriptions)
    lines = [
        "# Rules",
        "",
        "Made by `samphire rules --page docs` from the docstrings and from watching each rule train a small network, "
        "so do not edit it. Costs are at the default settings: *passes* of forward and backward a step (SGD: 1), and "
        "*memory* kept from one step to the next, in copies of the parameters.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join((f"[`{name}`](#{name})", *map(_cell, rest))) + " |" for name, *rest in rows),
        "",
        f"![Every rule on one landscape]({picture})",
        "",
        picture_text,
        "",
        "Symbols: *w* weights, *g* clean gradient, ε displacement, ρ its length, *t* step from 0.",
    ]
    for d in descriptions:
        lines += ["", *section(d)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def section(d: Description) -> Iterator[str]:
    """One rule in Markdown, line by line."""
    yield f"## {d.name}"
    yield ""
    yield f"{_markdown(d.summary)} {_markdown(d.cost)}"
    for formula in d.formulas:
        yield from ("", "```math", _aligned(formula), "```")
    for remark in d.remarks:
        yield from ("", remark if remark.startswith(" ") else _markdown(remark))
    yield from ("", "| setting | default | meaning |", "|---|---|---|")
    for s in d.settings:
        yield f"| `{s.name}` | `{s.default}` | {_cell(s.meaning)} |"
    if d.reference:
        yield from ("", f"Reference: {_markdown(d.reference)}")
    if d.differences:
        yield from ("", f"Differences: {_markdown(d.differences)}")


def _aligned(formula: str) -> str:
    return rf"\begin{{aligned}} {formula} \end{{aligned}}" if "&" in formula else formula


def _markdown(text: str) -> str:
    """Docstring markup as Markdown's: literals, mathematics, roles."""
    text = re.sub(r":math:`([^`]*)`", r"$`\1`$", text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    return re.sub("::$", ":", text.replace("``", "`"))


def _cell(text: str) -> str:
    """The same in a cell of a table, where a bar would end it."""
    return _markdown(text).replace("|", r"\|")
