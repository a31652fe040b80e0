"""What a run on a real data set is: its configuration, and the settings of the paper's appendix B for each set."""

from __future__ import annotations

import ast
import difflib
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from samphire import data
from samphire.models.loading import NETWORKS
from samphire.optim import RULES
from samphire.optim.requests import rho_of, with_rho

Settings = tuple[tuple[str, Any], ...]
Method = Literal["erm", "reweight", "group_dro", "jtt", "dfr"]
LearningRates = Literal["cosine", "constant"]
Perturbation = Literal["global", "local"]
METHODS: dict[str, dict[str, Any]] = {
    "erm": {},
    "reweight": {},
    "group_dro": {"eta": 0.01, "adjustment": 0.0},
    "jtt": {"epochs": 1, "times": 50},
    "dfr": {"resamples": 20},
}
"""What a training may do about groups, with its settings and their defaults."""


@dataclass(frozen=True)
class Config:
    """One training on a real data set: everything its outcome depends on, and no path.

    Equal seeds are paired: they share initial weights, order of the batches and crops, whatever the rule.

    Args:
        data: A name of :func:`samphire.data.load` with a validation part.
        model: A name for :func:`samphire.models.load`.
        weights: What training starts from, as there; ``None`` for fresh weights.
        rule: ``"sgd"``, or a rule of ``samphire.optim.RULES``. ``"lsam"`` runs its body once (one-pass), but for
            several processes with one perturbation.
        rho: The rule's radius; ``None`` for its default. 0 and ``"sgd"`` are the same.
        rule_settings: The rule's other settings, by name.
        method: ``"erm"``: all examples alike. ``"reweight"``: every group equally often. ``"group_dro"``: the same,
            and :class:`samphire.baselines.losses.GroupDRO`. ``"jtt"``: just train twice. ``"dfr"``: ``"erm"``,
            then the last layer retrained on the probing part or, for sets with domains, the validation part.
        method_settings: ``eta`` and ``adjustment`` of GroupDRO; ``epochs`` (of the first training) and ``times`` of
            JTT; ``resamples`` of DFR.
        epochs: Passes over the training part.
        batch: Examples per step, over all ranks.
        lr: Learning rate at the start.
        schedule: ``"cosine"``, step by step to zero, or ``"constant"``.
        momentum: Of SGD.
        weight_decay: Of SGD.
        size: Side of the network's images, for sets of image files.
        augment: Random crops and flips, for these.
        target: Domain to transfer to, for sets with domains.
        examples: Train on so many of the training part, chosen within groups; ``None`` for all.
        probe_at: Epochs after which features are probed; the end always is.
        resamples: Balanced samples that probes are trained on; 0 for no probes.
        keep: Epochs after which the weights are kept, as ``epoch-<n>.pt``; 0 for before training.
        perturbation: Under torchrun: ``"global"``, of the whole batch, or ``"local"``, each rank its own.
        seed: Of everything that is drawn but the data set's own splits.

    Example:
        >>> appendix_b("waterbirds", rule="sam", rho=0.05).batch
        128
        >>> Config("cifar-mnist", rule="sma")
        Traceback (most recent call last):
            ...
        ValueError: no rule is named 'sma'; did you mean 'sam'?
    """

    data: str
    model: str = "small_cnn"
    weights: str | None = None
    rule: str = "sgd"
    rho: float | None = None
    rule_settings: Settings = ()
    method: Method = "erm"
    method_settings: Settings = ()
    epochs: int = 20
    batch: int = 100
    lr: float = 0.05
    schedule: LearningRates = "cosine"
    momentum: float = 0.9
    weight_decay: float = 0.0
    size: int = 96
    augment: bool = False
    target: str | None = None
    examples: int | None = None
    probe_at: tuple[int, ...] = ()
    resamples: int = 20
    keep: tuple[int, ...] = ()
    perturbation: Perturbation = "global"
    seed: int = 0

    def __post_init__(self) -> None:
        _check_one_of("data set", self.data, DEFAULTS)
        _check_one_of("rule", self.rule, ("sgd", *RULES))
        _check_one_of("method", self.method, METHODS)
        _check_one_of("schedule", self.schedule, get_args(LearningRates))
        _check_one_of("perturbation", self.perturbation, get_args(Perturbation))
        if not isinstance(self.model, str) or ":" not in self.model:
            _check_one_of("network", self.model, NETWORKS)
        for name, least in (("epochs", 1), ("batch", 1), ("size", 1), ("resamples", 0), ("seed", 0)):
            _check_whole(name, getattr(self, name), least)
        if self.examples is not None:
            _check_whole("examples", self.examples, 1)
        if not isinstance(self.augment, bool):
            raise ValueError(f"augment must be true or false, got {self.augment!r}.")
        _check_number("lr", self.lr, lambda v: v > 0, "> 0")
        _check_number("weight_decay", self.weight_decay, lambda v: v >= 0, ">= 0")
        _check_number("momentum", self.momentum, lambda v: 0 <= v < 1, "in [0, 1)")
        for name, first in (("probe_at", 1), ("keep", 0)):
            bad = [e for e in getattr(self, name) if type(e) is not int or not first <= e <= self.epochs]
            if bad:
                raise ValueError(f"{name} must be epochs from {first} to the last, {self.epochs}, got {bad[0]!r}.")
        self._check_target()
        self._check_method()
        self._check_rule()

    def _check_target(self) -> None:
        if (self.target is None) == self._has_domains:
            way = "name one, as in target=photo" if self._has_domains else "leave it out"
            raise ValueError(f"target must be a domain for sets with domains only, got {self.target!r}; {way}.")
        if self.target is not None:
            _check_one_of("domain", self.target, data.SETS[self.data].official)

    def _check_method(self) -> None:
        for name, value in self.method_settings:
            if name not in METHODS[self.method]:
                has = ", ".join(METHODS[self.method]) or "none"
                raise ValueError(f"{self.method} has no setting {name!r}; its settings: {has}.")
            if isinstance(METHODS[self.method][name], int):
                _check_whole(f"method.{name}", value, 1)
            else:
                _check_number(f"method.{name}", value, lambda v: v >= 0, ">= 0")

    def _check_rule(self) -> None:
        if self.rule == "sgd":
            if self.rho or self.rule_settings:
                raise ValueError(
                    f"sgd has no rho and no settings, got rho={self.rho!r}; name a rule, as in rule=sam."
                )
            return
        takes = [name for name in inspect.signature(RULES[self.rule]).parameters if name not in ("rho", "rule")]
        for name, _ in self.rule_settings:
            if name not in takes:
                way = "write rho=" if name == "rho" else f"its settings: {', '.join(takes) or 'none'}"
                raise ValueError(f"{self.rule} has no setting rule.{name}; {way}.")
        made = self._made(steps=1)
        if self.rho is not None:
            _check_number("rho", self.rho, lambda v: v >= 0, ">= 0")
            if rho_of(made) is None:
                raise ValueError(f"{self.rule} has no radius, got rho={self.rho!r}; leave it out.")
        if self.rule == "imb_sam" and not made.tail:
            raise ValueError("imb_sam perturbs for rare classes, got none; name them, as in rule.tail=1.")

    @property
    def _has_domains(self) -> bool:
        return DEFAULTS[self.data] is DOMAINS

    @property
    def radius(self) -> float:
        """The rule's radius, 0 for SGD, NaN for a rule that has none or changes it."""
        rule = self.optimizer_rule(steps=1)
        radius = 0.0 if rule is None else rho_of(rule)
        return math.nan if radius is None else float(radius)

    def optimizer_rule(self, steps: int) -> Any:
        """The rule for a training of so many steps, or ``None`` for the plain gradient."""
        if self.rule == "sgd" or self.rho == 0:
            return None
        made = self._made(steps)
        return made if self.rho is None else with_rho(made, self.rho)

    def _made(self, steps: int) -> Any:
        told = {"steps": steps} if "steps" in inspect.signature(RULES[self.rule]).parameters else {}
        try:
            return RULES[self.rule](**told | dict(self.rule_settings))
        except TypeError as error:
            raise ValueError(f"{self.rule} cannot be made with {dict(self.rule_settings)}: {error}") from None

    def method_setting(self, name: str) -> Any:
        """A setting of the method, its default unless given."""
        return {**METHODS[self.method], **dict(self.method_settings)}[name]


DOMINOES: dict[str, Any] = {"model": "small_cnn", "epochs": 20, "batch": 100, "lr": 0.05, "weight_decay": 0.0}
FACES: dict[str, Any] = {
    "model": "resnet18", "weights": "imagenet", "epochs": 20, "batch": 128, "lr": 0.001, "weight_decay": 1e-4,
    "size": 64,
}  # fmt: skip
BIRDS: dict[str, Any] = FACES | {"epochs": 100, "size": 96, "augment": True}
DOMAINS: dict[str, Any] = FACES | {"epochs": 20, "lr": 0.01, "size": 224, "augment": True}
DEFAULTS: dict[str, dict[str, Any]] = {
    "cifar-mnist": DOMINOES,
    "fmnist-mnist": DOMINOES,
    "celeba": FACES,
    "waterbirds": BIRDS,
    "pacs": DOMAINS,
    "vlcs": DOMAINS,
    "officehome": DOMAINS,
}


def appendix_b(data: str, **settings: Any) -> Config:
    """The paper's settings for a data set, with some of them changed.

    Args:
        data: The data set.
        settings: Fields of :class:`Config`.

    Example:
        >>> config = appendix_b("cifar-mnist", rule="sam", rho=0.1)
        >>> config.epochs, config.batch, config.lr, config.schedule, config.momentum
        (20, 100, 0.05, 'cosine', 0.9)

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendices B and F.

    Differences:
        The paper sweeps the learning rate; the one here is the middle of its list. Network, epochs, batch and
        augmentation of the sets with domains are not printed: those of Waterbirds are taken, at 224 pixels and for
        20 epochs.
    """
    _check_one_of("data set", data, DEFAULTS)
    return Config(data, **{**DEFAULTS[data], **settings})


def parse(data: str, given: Iterable[str]) -> Config:
    """A configuration from ``key=value`` words, on top of :func:`appendix_b`.

    Settings of the rule and of the method are written with a dot.

    Args:
        data: The data set.
        given: For instance ``["rule=looksam", "rho=0.1", "rule.k=10", "method=jtt", "method.times=20"]``.

    Example:
        >>> parse("cifar-mnist", ["rule=looksam", "rule.k=10", "lr=1e-2", "keep=0,20"]).rule_settings
        (('k', 10),)
        >>> parse("cifar-mnist", ["rho:0.1"])
        Traceback (most recent call last):
            ...
        ValueError: settings are written key=value, got 'rho:0.1'; write for instance lr=0.01.
    """
    values: dict[str, Any] = {}
    inner: dict[str, list[tuple[str, Any]]] = {"rule": [], "method": []}
    known = [f.name for f in fields(Config) if f.name not in ("data", "rule_settings", "method_settings")]
    for word in given:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"settings are written key=value, got {word!r}; write for instance lr=0.01.")
        of, dot, name = key.partition(".")
        if dot and of in inner:
            value = _several(value_of(text)) if name == "tail" else value_of(text)
            inner[of].append((name, value))
        else:
            _check_one_of("setting", key, known)
            values[key] = _several(value_of(text)) if key in ("probe_at", "keep") else value_of(text)
    settings = {f"{of}_settings": tuple(pairs) for of, pairs in inner.items() if pairs}
    return appendix_b(data, **values, **settings)


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def value_of(text: str) -> Any:
    """A number, truth value, ``None`` or list of numbers if it reads as one, else the text itself.

    Example:
        >>> value_of("1e-2"), value_of("5,10"), value_of("resnet18"), value_of("true"), value_of("none")
        (0.01, (5, 10), 'resnet18', True, None)
    """
    words = {"true": True, "yes": True, "false": False, "no": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return tuple(value) if isinstance(value, list) else value


def _check_one_of(what: str, value: Any, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        close = difflib.get_close_matches(str(value), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}."
        raise ValueError(f"no {what} is named {value!r}; {hint}")


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}.")


def _check_number(name: str, value: Any, fine: Callable[[float], bool], condition: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and fine(value)):
        raise ValueError(f"{name} must be a finite number {condition}, got {value!r}.")
