"""``samphire audit``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from samphire import data, records, report
from samphire.cli.options import AsJson, Cache, Features, Image, Label, Split
from samphire.cli.own import own_data
from samphire.cli.progress import bar

if TYPE_CHECKING:
    from torch import nn

    from samphire.audits import Audit

Source = Annotated[
    str, typer.Argument(metavar="DATA", help="Your own folder, table or .npz file, or a built-in set.")
]
Network = Annotated[
    str | None, typer.Option(help="Network: timm:NAME, torchvision:NAME, module:function, or one of ours.")
]
Side = Annotated[int, typer.Option(min=1, help="Side to which image files are resized.")]
Out = Annotated[Path, typer.Option(help="Folder for the page and what a stopped audit goes on from.")]


def audit(
    source: Source,
    model: Network = None,
    weights: Annotated[Path | None, typer.Option(help="File with the model's state dict.")] = None,
    label: Label = None,
    features: Features = None,
    image: Image = None,
    split: Split = None,
    root: Annotated[Path, typer.Option(help="The folder of a built-in set, or the one above it.")] = Path("data"),
    pretrained: Annotated[str | None, typer.Option(help="Weights the training began with: a control.")] = None,
    layer: Annotated[str | None, typer.Option(help="A module's name instead of the last Linear's input.")] = None,
    size: Side = 224,
    name: Annotated[list[str] | None, typer.Option(help="Name an inferred group, as cluster3=beach.")] = None,
    no_images: Annotated[bool, typer.Option("--no-images", help="Show no example on the page.")] = False,
    fix: Annotated[
        Path | None, typer.Option(help="Write the weights with a retrained last layer to this file.")
    ] = None,
    cache: Cache = None,
    out: Out = Path("audit"),
    as_json: AsJson = False,
) -> None:
    """Say what a model leans on, what that costs and what to do: one page. Goes on where it was stopped."""
    from samphire import audits, models

    if fix is not None and model is None:
        raise ValueError(
            f"--fix cannot write {fix}: features and logits have no weights; name the model with --model."
        )
    opened = opened_data(source, label=label, features=features, image=image, split=split, root=root)
    classes = next(iter(opened.parts.values())).n_classes
    network = None if model is None else loaded(model, classes, weights)
    before: Any = None if pretrained is None or model is None else models.load(model, classes, pretrained)
    if before is not None:
        before.normalize = getattr(network, "normalize", before.normalize)
    with bar() as progress:
        result = audits.audit(
            network,
            opened,
            label=label,
            features=features,
            pretrained=before,
            layer=layer,
            size=size,
            names=dict(_named(given) for given in name or ()),
            images=not no_images,
            folder=out,
            cache=cache,
            progress=progress,
        )
    page = result.page(out / "index.html")
    if fix is not None and network is not None:
        _fix(result, network, fix)
    says = {"verdict": result.verdict, "level": result.judged.level, "page": str(page)}
    show(says, result.table(), result.rows(), as_json)


def opened_data(source: str, *, root: Path, label: str | None, features: str | None, **columns: Any) -> data.Opened:
    """Data of any kind; the columns of a built-in set are its own, and are chosen from afterwards."""
    from samphire.audits.audit import is_built_in

    if is_built_in(source):
        return data.open(source, root=root)
    opened = own_data(source, label=label, features=features, **columns)
    assert opened is not None
    return opened


def loaded(model: str, classes: int, weights: Path | None) -> nn.Module:
    """The network with the weights of a file; without one it could only be audited by chance."""
    from samphire.train.trained import load_weights

    if weights is None:
        raise ValueError(f"{model} has no trained weights; give the file of its state dict with --weights.")
    if not weights.is_file():
        raise FileNotFoundError(f"there is no file {weights}; give the model's state dict with --weights.")
    return load_weights(model, classes, weights).eval()


def _named(given: str) -> tuple[str, str]:
    group, sign, name = given.partition("=")
    if not sign or not name:
        raise ValueError(f"--name takes a group and its name, as in cluster3=beach, got {given!r}.")
    return group, name


def _fix(result: Audit, network: nn.Module, file: Path) -> None:
    import torch

    from samphire import models
    from samphire.audits.remedy import fixed_weights
    from samphire.train.trained import scale_file

    if result.remedy is None:
        raise ValueError(f"--fix cannot write {file}: {result.remedy_problem}")
    buffer = io.BytesIO()
    torch.save(fixed_weights(network, result.remedy.head), buffer)
    records.write_atomic(file, buffer.getvalue())
    scale: Any = getattr(network, "normalize", None)
    if isinstance(scale, models.Normalize):
        records.write_atomic(scale_file(file), json.dumps({"mean": scale.mean, "std": scale.std}).encode())


def show(says: Mapping[str, str], table: report.Table, rows: Iterable[records.Row], as_json: bool) -> None:
    """The verdict, the numbers behind it, and where the page is."""
    if as_json:
        for row in (says, *rows):
            print(json.dumps(report.strict(row)))
        return
    console = Console()
    console.print(says["verdict"], highlight=False, markup=False)
    console.print(report.rich_table(table))
    print(says["page"])
