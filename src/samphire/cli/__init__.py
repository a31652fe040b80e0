"""The command line: one command, one library function. Each command is a module of this folder."""

from __future__ import annotations

import sys
from typing import Any

import typer

from samphire.cli import audit, data, probe, reproduce, rules, sharpness, sweep, train

__all__ = ["app", "main"]

UsageError: Any = typer.BadParameter.__base__  # from click, or from typer's own copy of it
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sharpness-aware training and feature quality for PyTorch.",
)


@app.callback()
def samphire() -> None:
    """Sharpness-aware training and feature quality for PyTorch."""


app.command(
    epilog="Example:  samphire audit birds/ --model timm:resnet18 --weights model.pt --label bird --features place"
)(audit.audit)
app.command(epilog="Example:  samphire rules --json")(rules.rules)
app.add_typer(data.app, name="data")
app.command(epilog="Example:  samphire train cifar-mnist rule=sam rho=0.1 --root data")(train.train)
app.command(epilog="Example:  samphire sweep cifar-mnist --seeds 0,1,2,3 --on processes --root data --out runs")(
    sweep.sweep
)
app.command(epilog="Example:  samphire probe runs/3f2a --root data --out probe.png")(probe.probe)
app.command(epilog="Example:  samphire sharpness runs/3f2a --root data --groups --out pictures")(sharpness.sharpness)
app.command(epilog="Example:  samphire reproduce fig2 fig3 --scale paper --out report")(reproduce.reproduce)


def main() -> None:
    """Run the command line; bad input ends with one sentence and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        code = _refuse(error.format_message())
    except (ValueError, OSError) as error:
        code = _refuse(str(error))
    except typer.Abort:  # Ctrl-C
        code = 130
    sys.exit(code)


def _refuse(sentence: str) -> int:
    if sentence:  # none where the help has been shown
        print(f"samphire: {sentence}", file=sys.stderr)
    return 2
