"""``samphire sharpness``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from samphire import records, report
from samphire.cli.options import AsJson, Cache, Data, Features, Image, Label, Model, Root, Run, Size, Target, Trust
from samphire.cli.own import own_data
from samphire.cli.progress import bar


def sharpness(
    run: Run,
    data: Data = None,
    root: Root = Path("data"),
    image: Image = None,
    label: Label = None,
    split_column: Annotated[str | None, typer.Option("--split", help="Own data: the column of the part.")] = None,
    features: Features = None,
    model: Model = None,
    target: Target = None,
    part: Annotated[str, typer.Option(help="Part of the data set to measure on.")] = "train",
    examples: Annotated[int, typer.Option(min=2, help="How many of its examples, chosen at random.")] = 2000,
    rho: Annotated[float, typer.Option(help="Radius of the ball.")] = 0.05,
    rho_scaled: Annotated[float, typer.Option(help="The same in ASAM's coordinates, T = |w| + 0.01.")] = 0.5,
    m: Annotated[list[int] | None, typer.Option("--m", help="Also m-sharpness; may be repeated.")] = None,
    k: Annotated[int, typer.Option("--k", help="Eigenvalues at either end of the Hessian's spectrum.")] = 5,
    groups: Annotated[bool, typer.Option("--groups", help="Also the sharpness of every group of examples.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Examples per pass; decides the memory.")] = 100,
    size: Size = None,
    cache: Cache = None,
    out: Annotated[Path | None, typer.Option(help="Also write pictures to this folder.")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Say where a network sits: sharpness, Hessian and bound on its data, each with what it means."""
    from samphire.landscape.measures import measure_all
    from samphire.report import sharpness as shown
    from samphire.train.saved import saved_network

    own = own_data(data, image, label, split_column, features)
    trained = saved_network(run, trust=trust, data=data, own=own, model=model, target=target, size=size)
    with bar() as progress:
        split = trained.examples(part, examples, root, cache, progress)
        network: Any = trained.network(split)
        results = measure_all(
            network,
            split,
            network.normalize,
            rho=rho,
            rho_scaled=rho_scaled,
            m=m or (),
            k=k,
            groups=groups,
            surfaces=out is not None,
            batch=batch,
            progress=progress,
        )
    for name, result in results.items():
        if as_json:
            print(json.dumps({"measure": name, "words": result.in_words()} | shown.row(result)))
        else:
            Console().print(f"[bold]{name}[/]  {result.in_words()}", highlight=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, picture in shown.pictures(results).items():
            records.write_atomic(out / f"{name}.png", report.png(picture))
