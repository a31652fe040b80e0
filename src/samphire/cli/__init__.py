"""The command line: one command, one library function. Each command is a module of this folder."""

from __future__ import annotations

import linecache
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from samphire.cli import audit, compare, data, probe, reproduce, rules, sharpness, sweep, train

__all__ = ["app", "is_meant", "main"]

UsageError: Any = typer.BadParameter.__base__  # from click, or from typer's own copy of it
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sharpness-aware training and feature quality for PyTorch.",
)


@app.callback()
def samphire(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole trace of an error.")] = False,
) -> None:
    """Sharpness-aware training and feature quality for PyTorch."""
    _shown["trace"] = debug


app.command(
    epilog="Example:  samphire audit birds/ --model timm:resnet18 --weights model.pt --label bird --features place"
)(audit.audit)
app.command(
    epilog="Example:  samphire compare birds/ --label bird --features place --model resnet18 --rules sgd,lsam,sam"
)(compare.compare)
app.command(epilog="Example:  samphire rules --json")(rules.rules)
app.add_typer(data.app, name="data")
app.command(epilog="Example:  samphire train cifar-mnist rule=sam rho=0.1 --root data")(train.train)
app.command(epilog="Example:  samphire sweep cifar-mnist --seeds 0,1,2,3 --on processes --root data --out runs")(
    sweep.sweep
)
app.command(epilog="Example:  samphire probe runs/3f2a --root data --out probe.png")(probe.probe)
app.command(epilog="Example:  samphire sharpness runs/3f2a --root data --groups --out pictures")(sharpness.sharpness)
app.command(epilog="Example:  samphire reproduce fig2 fig3 --scale paper --out report")(reproduce.reproduce)


_shown = {"trace": False}


def main() -> None:
    """Run the command line; bad input ends with one sentence and exit code 2, a fault of ours with 1 and a trace."""
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        code = _refuse(error.format_message())
    except typer.Abort:  # Ctrl-C
        code = 130
    except Exception as error:
        if _shown["trace"]:
            raise
        code = _refuse(_sentence(error)) if is_meant(error) else _report(error)
    sys.exit(code)


def is_meant(error: Exception) -> bool:
    """Whether a statement of ours raised an error to be read, or a file could not be read or written."""
    if isinstance(error, OSError):
        return True
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    ours = Path(file).is_relative_to(Path(__file__).parents[1])
    said = isinstance(error, ValueError | TypeError | RuntimeError)
    return said and ours and linecache.getline(file, line).lstrip().startswith("raise")


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}."
    return str(error)


def _report(error: Exception) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="samphire-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    what = next(iter(str(error).splitlines()), "")
    print(
        f"samphire: {type(error).__name__}: {what}\nThis should not happen; please report it with {file.name}, which "
        "has the whole trace (--debug shows it).",
        file=sys.stderr,
    )
    return 1


def _refuse(sentence: str) -> int:
    if sentence:  # none where the help has been shown
        print(f"samphire: {sentence}", file=sys.stderr)
    return 2
