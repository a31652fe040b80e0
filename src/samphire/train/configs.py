"""What a run on a real data set is: its configuration, and the settings of the paper's appendix B for each set."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from samphire import data
from samphire.checks import (
    AtLeastZero,
    Count,
    Positive,
    Range,
    Whole,
    check_fields,
    check_number,
    check_one_of,
    check_whole,
)
from samphire.data.parts import ProbeOn
from samphire.models.loading import NETWORKS
from samphire.optim import RULES
from samphire.optim.requests import Rule, rho_of, with_rho
from samphire.records import added
from samphire.train.bases import BASES, check_base

__all__ = ["DEFAULTS", "METHODS", "Config", "Method", "Settings", "appendix_b", "parse", "value_of"]

Settings = tuple[tuple[str, Any], ...]
Method = Literal["erm", "reweight", "group_dro", "jtt", "useful", "spectral_decoupling", "swa", "dfr"]
METHODS: dict[str, dict[str, Any]] = {
    "erm": {},
    "reweight": {},
    "group_dro": {"eta": 0.01, "adjustment": 0.0},
    "jtt": {"epochs": 1, "times": 50},
    "useful": {"epochs": 1, "times": 2},
    "spectral_decoupling": {"lam": 0.01},
    "swa": {"epochs": 5},
    "dfr": {"resamples": 20},
}
"""What training may do beside the rule, mostly about groups, with its settings and their defaults."""


@dataclass(frozen=True)
class Config:
    """One training on a real data set: everything its outcome depends on, and no path.

    Runs with equal seeds are paired: they share initial weights, order of the batches and crops, whatever the rule.

    Args:
        data: A name of :func:`samphire.data.load` with a validation part, or, for data of one's own, the name that
            :func:`samphire.data.open` gave them, such as ``birds@3f2a9c01``.
        model: A name for :func:`samphire.models.load`.
        weights: What training starts from, as there; ``None`` for fresh weights.
        rule: ``"sgd"``, or a rule of ``samphire.optim.RULES``. ``"lsam"`` runs its body once (one-pass), except
            with a head that is named (``rule.head``), or with several processes and one perturbation.
        rho: The rule's radius; ``None`` for its default. 0 and ``"sgd"`` are the same.
        rule_settings: The rule's other settings, by name.
        method: ``"erm"``: all examples alike. ``"reweight"``: every group equally often. ``"group_dro"``: the same,
            and :class:`samphire.baselines.GroupDRO`. ``"jtt"``: just train twice. ``"useful"``: likewise, with the
            slowly learned part of each class repeated. ``"spectral_decoupling"``: a penalty on the logits.
            ``"swa"``: in the end the mean of the last epochs' weights; take a constant schedule. ``"dfr"``:
            ``"erm"``, then the last layer retrained on the probing part or, for sets with domains, the validation
            part.
        method_settings: ``eta`` and ``adjustment`` of GroupDRO; ``epochs`` (of the first training) and ``times`` of
            JTT and USEFUL; ``lam`` of spectral decoupling; ``epochs`` (that are averaged) of SWA; ``resamples`` of
            DFR.
        epochs: Passes over the training part.
        batch: Examples per step, over all ranks.
        lr: Learning rate at the start.
        schedule: ``"cosine"``, step by step to zero, or ``"constant"``.
        momentum: Of the base ``"sgd"``.
        weight_decay: Of the base: added to the gradient by SGD and Adam, applied to the weights by the others.
        size: Side of the network's images, for sets of image files.
        augment: Random crops and flips, for these.
        target: Domain to transfer to, for sets with domains.
        examples: How many of the training part to train on, chosen within groups; ``None`` for all.
        probe_at: Epochs after which features are probed; the end always is.
        probe_on: What probes are trained on: ``"train"``, the training images (those of dominoes paired anew: the
            paper's way), or ``"val"``, images the network never saw. Sets with domains are probed on the target.
        resamples: Balanced halves that choose the probes' penalty and, where groups differ in size, balanced samples
            that they are trained on; 0 for no probes.
        keep: Epochs after which the weights are kept, as ``epoch-<n>.pt``; 0 for before training.
        perturbation: Under torchrun: ``"global"``, of the whole batch, or ``"local"``, each rank its own.
        seed: Of everything random except the data set's own splits.
        base: The optimizer under the rule: ``"sgd"``, ``"adam"``, ``"adamw"`` or ``"muon"`` (weight matrices by
            Muon, the rest by AdamW).
        base_settings: ``nesterov`` of SGD; ``betas`` and ``eps`` of Adam and AdamW; these and ``momentum``,
            ``nesterov``, ``ns_steps`` of Muon.

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
    rho: AtLeastZero | None = None
    rule_settings: Settings = ()
    method: Method = "erm"
    method_settings: Settings = ()
    epochs: Count = 20
    batch: Count = 100
    lr: Positive = 0.05
    schedule: Literal["cosine", "constant"] = "cosine"
    momentum: Annotated[float, Range(least=0, below=1)] = 0.9
    weight_decay: AtLeastZero = 0.0
    size: Count = 96
    augment: bool = False
    target: str | None = None
    examples: Count | None = None
    probe_at: tuple[int, ...] = ()
    probe_on: ProbeOn = added("val")
    resamples: Whole = 20
    keep: tuple[int, ...] = ()
    perturbation: Literal["global", "local"] = "global"
    seed: Whole = 0
    base: Literal["sgd", "adam", "adamw", "muon"] = added("sgd")
    base_settings: Settings = added(())

    def __post_init__(self) -> None:
        _check_data(self.data)
        check_one_of("rule", self.rule, ("sgd", *RULES))
        check_one_of("method", self.method, METHODS)
        check_one_of("base", self.base, BASES)
        if not isinstance(self.model, str) or ":" not in self.model:
            check_one_of("network", self.model, NETWORKS)
        check_fields(self)
        for name, first in (("probe_at", 1), ("keep", 0)):
            for epoch in getattr(self, name):
                check_whole(f"{name}: an epoch", epoch, first, self.epochs)
        self._check_target()
        self._check_method()
        self._check_rule()
        self._check_base()

    def _check_target(self) -> None:
        if (self.target is None) == self._has_domains:
            way = "name one, as in target=photo" if self._has_domains else "leave it out"
            raise ValueError(f"target must be a domain for sets with domains only, got {self.target!r}; {way}.")
        if self.target is not None:
            check_one_of("domain", self.target, data.SETS[self.data].official)

    def _check_method(self) -> None:
        known = METHODS[self.method]
        for name, value in self.method_settings:
            if name not in known:
                raise ValueError(f"{self.method} has no setting {name!r}; its settings: {_listed(known)}.")
            whole = isinstance(known[name], int)
            check_number(f"method.{name}", value, Range(least=1 if whole else 0, whole=whole))
        if self.method == "swa":
            check_whole("method.epochs of swa", self.method_setting("epochs"), most=self.epochs)

    def _check_rule(self) -> None:
        if self.rule == "sgd":
            if self.rho or self.rule_settings:
                raise ValueError(
                    f"sgd has no rho and no settings, got rho={self.rho!r}; name a rule, as in rule=sam."
                )
            return
        parameters = inspect.signature(RULES[self.rule]).parameters.values()
        known = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.name not in ("rho", "rule")]
        for name, _ in self.rule_settings:
            if name not in known:
                way = "write rho=" if name == "rho" else f"its settings: {_listed(known)}"
                raise ValueError(f"{self.rule} has no setting rule.{name}; {way}.")
        rule: Any = self._default_rule(steps=1)
        if self.rho is not None and rho_of(rule) is None:
            raise ValueError(f"{self.rule} has no radius, got rho={self.rho!r}; leave it out.")
        if self.rule == "imb_sam" and not rule.tail:
            raise ValueError("imb_sam perturbs for rare classes, got none; name them, as in rule.tail=1.")

    def _check_base(self) -> None:
        check_base(self.base, dict(self.base_settings))
        if self.base != "sgd" and self.momentum != Config.momentum:
            raise ValueError(
                f"momentum is SGD's, got {self.momentum:g} for {self.base}; write base.betas= or base.momentum=."
            )

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Fields that do not count in this run's key: without probes, how to probe."""
        return () if self.resamples else ("probe_on",)

    @property
    def _has_domains(self) -> bool:
        return DEFAULTS.get(self.data) is DOMAINS

    @property
    def radius(self) -> float:
        """The rule's radius, 0 for SGD, NaN for a rule that has none or changes it."""
        rule = self.optimizer_rule(steps=1)
        radius = 0.0 if rule is None else rho_of(rule)
        return math.nan if radius is None else float(radius)

    @property
    def runs_body_once(self) -> bool:
        """Whether the rule moves the last layer alone, so that the features of one pass serve the next."""
        return self.rule == "lsam" and "head" not in dict(self.rule_settings)

    def optimizer_rule(self, steps: int) -> Rule | None:
        """The rule for a training of a number of steps, or ``None`` for the plain gradient."""
        if self.rule == "sgd" or self.rho == 0:
            return None
        rule = self._default_rule(steps)
        return rule if self.rho is None else with_rho(rule, self.rho)

    def _default_rule(self, steps: int) -> Any:
        """The rule with its settings, at its default radius."""
        factory = RULES[self.rule]
        length = {"steps": steps} if "steps" in inspect.signature(factory).parameters else {}
        try:
            return factory(**length | dict(self.rule_settings))
        except TypeError as error:
            raise ValueError(f"{self.rule} cannot be made with {dict(self.rule_settings)}: {error}") from None

    def method_setting(self, name: str) -> Any:
        """A setting of the method, its default unless given."""
        return {**METHODS[self.method], **dict(self.method_settings)}[name]


DOMINOES: dict[str, Any] = {
    "model": "small_cnn", "epochs": 20, "batch": 100, "lr": 0.05, "weight_decay": 0.0, "probe_on": "train",
    "resamples": 5,
}  # fmt: skip
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
OWN: dict[str, Any] = BIRDS | {"epochs": 20}  # for data of one's own


def _check_data(name: object) -> None:
    """Refuse a name that is neither built in nor that of opened data."""
    if not (isinstance(name, str) and "@" in name):
        check_one_of("data set", name, DEFAULTS)


def appendix_b(data: str, **settings: Any) -> Config:
    """The paper's settings for a data set, with some of them changed; own data have those of Waterbirds, 20 epochs.

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
        augmentation of the sets with domains are not printed: we take those of Waterbirds, at 224 pixels and for
        20 epochs.
    """
    _check_data(data)
    return Config(data, **{**DEFAULTS.get(data, OWN), **settings})


def parse(data: str, given: Iterable[str]) -> Config:
    """A configuration from ``key=value`` words, on top of :func:`appendix_b`.

    Settings of the rule, of the method and of the base are written with a dot.

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
    inner: dict[str, list[tuple[str, Any]]] = {"rule": [], "method": [], "base": []}
    known = [f.name for f in fields(Config) if f.name != "data" and not f.name.endswith("_settings")]
    for word in given:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"settings are written key=value, got {word!r}; write for instance lr=0.01.")
        owner, dot, name = key.partition(".")
        if dot and owner in inner:
            inner[owner].append((name, _several(value_of(text)) if name == "tail" else value_of(text)))
        else:
            check_one_of("setting", key, known)
            values[key] = _several(value_of(text)) if key in ("probe_at", "keep") else value_of(text)
    settings = {f"{owner}_settings": tuple(pairs) for owner, pairs in inner.items() if pairs}
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
