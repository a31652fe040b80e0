"""One self-contained page, from the templates of this folder."""

from __future__ import annotations

import base64
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samphire.records import write_atomic
from samphire.report.cells import duration, show
from samphire.report.pictures import size
from samphire.report.results import Result, Story, count_verdicts, summary
from samphire.report.tables import to_csv

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["page", "write"]

MARKS = {"holds": "✓", "contradicted": "✗", "open": "○", "failed": "!"}
WORDS = {
    "holds": ("holds", "hold"),
    "contradicted": ("is contradicted", "are contradicted"),
    "open": ("is open", "are open"),
    "failed": ("could not be computed", "could not be computed"),
}
AGAIN = 10  # seconds after which an unfinished page is loaded again


def page(
    results: Sequence[Result],
    machine: Mapping[str, Any] | None = None,
    title: str = "samphire: results",
    story: Story | None = None,
    pending: Mapping[str, str] | None = None,
) -> str:
    """All results as one HTML page without outside parts: no script, no font, no style sheet, no image file.

    Args:
        results: In the order shown; their names must differ.
        machine: Where it ran, from :func:`samphire.records.provenance`.
        title: Of the page.
        story: What to tell first; pictures of results that are not there are left out.
        pending: Titles by name of results still to come: the page says so and loads itself again now and then.

    Example:
        >>> "&lt;b&gt;" in page([Result("fig2", "<b>")])
        True
    """
    names = [result.name for result in results]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"results on one page must have different names, got {twice!r} twice; rename one.")
    times = [result.seconds for result in results if not math.isnan(result.seconds)]
    return _template().render(
        title=title,
        results=results,
        groups=[(source, list(group)) for source, group in itertools.groupby(results, lambda r: r.source)],
        sources=list(dict.fromkeys(result.source for result in results)) or ["the paper"],
        counts=count_verdicts(results),
        seconds=sum(times) if times else None,
        machine=machine or {},
        story=story,
        shown=_shown(story, results),
        pending=pending or {},
        again=AGAIN,
    )


def write(
    out: str | os.PathLike[str],
    results: Sequence[Result],
    machine: Mapping[str, Any] | None = None,
    title: str = "samphire: results",
    story: Story | None = None,
    pending: Mapping[str, str] | None = None,
) -> Path:
    """Write ``index.html``, and beside it ``<name>.png`` and ``<name>.csv`` of every result; returns the page.

    A second picture or table of one result is ``<name>-2``. Each file appears whole or not at all. The folder ``out``
    is made if absent; the other arguments are those of :func:`page`.
    """
    out = Path(out)
    files: dict[str, bytes] = {}
    for result in results:
        files |= {_numbered(result.name, i, "png"): bytes(f) for i, f in enumerate(result.figures)}  # type: ignore[arg-type]
        files |= {_numbered(result.name, i, "csv"): to_csv(t).encode() for i, t in enumerate(result.tables)}
    files["index.html"] = page(results, machine, title, story, pending).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            if not _is(out / name, data):  # of a page that grows, most are there
                write_atomic(out / name, data)
    except OSError as error:
        message = f"cannot write the report to {out}: {error.strerror}; choose another output folder."
        raise type(error)(error.errno, message) from None
    return out / "index.html"


def _is(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


@cache
def _template() -> Template:
    """The page's template; every text put into it is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("samphire.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["marks"] = MARKS
    environment.filters |= {
        "base64": lambda image: base64.b64encode(image).decode(),
        "capital": lambda words: words[:1].upper() + words[1:],
        "claims": summary,
        "counted": _counted,
        "duration": duration,
        "origin": _origin,
        "show": show,
        "size": size,
    }
    return environment.get_template("page.html")


def _counted(counts: Mapping[str, int]) -> str:
    """For instance "2 hold, 1 is open"."""
    return ", ".join(f"{n} {WORDS[verdict][n > 1]}" for verdict, n in counts.items())


def _shown(story: Story | None, results: Sequence[Result]) -> list[tuple[Result, Any, str]]:
    """The story's pictures, each with its result and its caption."""
    named = {result.name: result for result in results}
    pictures = story.pictures if story else ()
    return [(named[name], named[name].figures[i], caption) for name, i, caption in pictures if name in named]


def _origin(result: Result) -> list[str]:
    """How long a result took and where it comes from."""
    took = [] if math.isnan(result.seconds) else [f"computed in {duration(result.seconds)}"]
    return took + [f"{name} {show(value)}" for name, value in result.provenance.items() if value is not None]


def _numbered(name: str, i: int, suffix: str) -> str:
    return f"{name}-{i + 1}.{suffix}" if i else f"{name}.{suffix}"
