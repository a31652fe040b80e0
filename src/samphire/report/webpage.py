"""One self-contained page."""

from __future__ import annotations

import base64
import html
import itertools
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from samphire.records import write_atomic
from samphire.report.cells import duration, show
from samphire.report.pictures import PIXELS
from samphire.report.results import Claim, Result, summary
from samphire.report.tables import Table, is_numeric, to_csv

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
_MARK = {"holds": "✓", "does not hold": "✗", "not judged": "○", "failed": "!"}
_WORDS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "not judged": ("is not judged", "are not judged"),
    "failed": ("could not be computed", "could not be computed"),
}


def page(
    results: Sequence[Result], machine: Mapping[str, Any] | None = None, title: str = "samphire: results"
) -> str:
    """All results as one HTML page without outside parts: no script, no font, no style sheet, no image file.

    Args:
        results: In the order shown; their names must differ.
        machine: Where it ran, from :func:`samphire.records.provenance`.
        title: Of the page.

    Example:
        >>> "&lt;b&gt;" in page([Result("fig2", "<b>")])
        True
    """
    names = [result.name for result in results]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"results on one page must have different names, got {twice!r} twice; rename one.")
    several = len(_sources(results)) > 1
    parts = [_overview(results, title)]
    for source, group in itertools.groupby(results, lambda result: result.source):
        parts += [f'<h2 class="part">{_text(_capital(source))}</h2>'] if several else []
        parts += map(_section, group)
    body = "\n".join([*parts, _footer(machine or {})])
    return _PAGE.format(title=_text(title), style=_style(), body=body)


def write(
    out: str | os.PathLike[str],
    results: Sequence[Result],
    machine: Mapping[str, Any] | None = None,
    title: str = "samphire: results",
) -> Path:
    """Write ``index.html``, and beside it ``<name>.png`` and ``<name>.csv`` of every result; returns the page.

    A second picture or table of one result is ``<name>-2``. Each file appears whole or not at all.

    Args:
        out: A folder, made if absent.
        results: As for :func:`page`.
        machine: As for :func:`page`.
        title: As for :func:`page`.
    """
    out = Path(out)
    files: dict[str, bytes] = {}
    for result in results:
        files |= {_numbered(result.name, i, "png"): bytes(f) for i, f in enumerate(result.figures)}  # type: ignore[arg-type]
        files |= {_numbered(result.name, i, "csv"): to_csv(t).encode() for i, t in enumerate(result.tables)}
    files["index.html"] = page(results, machine, title).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_atomic(out / name, data)
    except OSError as error:
        message = f"cannot write the report to {out}: {error.strerror}; choose another output folder."
        raise type(error)(error.errno, message) from None
    return out / "index.html"


def _overview(results: Sequence[Result], title: str) -> str:
    rows = summary(results)
    count = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in _MARK}
    said = ", ".join(f"{n} {_WORDS[verdict][n > 1]}" for verdict, n in count.items() if n)
    known = [r.seconds for r in results if not math.isnan(r.seconds)]
    took = f" Computed in {duration(sum(known))}." if known else ""
    lines = []
    for result in results:
        mine = [row for row in rows if row["figure"] == result.name]
        for i, row in enumerate(mine):
            span = f' rowspan="{len(mine)}"'
            link = f'<th scope="row"{span}><a href="#{result.name}">{_text(result.name)}</a></th>'
            took_cell = f'<td class="number" data-label="time"{span}>{duration(result.seconds)}</td>'
            cells = f"<td>{_text(row['claim'])}</td>"
            cells += f'<td data-label="ours">{_text(row["ours"])}</td>'
            cells += f'<td data-label="{_text(result.source)}\'s">{_text(row["paper"])}</td>'
            cells += f"<td>{_badge(row['verdict'])}</td>"
            lines.append(f"<tr>{link if i == 0 else ''}{cells}{took_cell if i == 0 and known else ''}</tr>")
    sources = _sources(results)
    theirs = f"{sources[0]}'s" if len(sources) == 1 else "theirs"
    heads = ("figure", "claim", "ours", theirs, "verdict", *(["time"] if known else []))
    head = "".join(f'<th scope="col">{_text(h)}</th>' for h in heads)
    claim = f"{' and '.join(sources)} claim{'s' if len(sources) == 1 else ''}"
    return (
        f"<header><h1>{_text(title)}</h1><p>Of what {_text(claim)}, {said or 'nothing was computed'}.{took}</p>"
        f'</header>\n<div class="wide"><table class="summary"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>"
    )


def _sources(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.source for result in results)) or ["the paper"]


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _section(result: Result) -> str:
    parts = [f'<h2><a href="#{result.name}">{_text(result.name)}</a> {_text(result.title)}</h2>']
    if result.error:
        parts.append(f'<p class="error">{_badge("failed")} {_text(result.error)}</p>')
    parts += [_image(figure, result.title) for figure in result.figures]  # type: ignore[arg-type]
    if result.paper_says:
        parts.append(f"<p><strong>{_text(_capital(result.source))}:</strong> {_text(result.paper_says)}</p>")
    parts += map(_html_table, result.tables)
    if result.claims:
        parts.append(_list("claims", (_claim(claim, result.source) for claim in result.claims)))
    if result.notes:
        parts.append(f"<h3>Differences from {_text(result.source)}</h3>" + _list("notes", map(_text, result.notes)))
    origin = [f"{_text(k)} {_text(show(v))}" for k, v in result.provenance.items() if v is not None]
    if not math.isnan(result.seconds):
        origin.insert(0, f"computed in {duration(result.seconds)}")
    if origin:
        parts.append(f'<p class="origin">{" · ".join(origin)}</p>')
    return f'<section id="{result.name}">\n' + "\n".join(parts) + "\n</section>"


def _claim(claim: Claim, source: str) -> str:
    both = (("ours", claim.ours), (f"{source}'s", claim.paper))
    beside = [f"{_text(who)}: {_text(what)}" for who, what in both if what]
    lines = [f"{_badge(claim.verdict)} {_text(claim.text)}", "; ".join(beside), _text(claim.detail)]
    return "<br>".join(line for line in lines if line)


def _html_table(table: Table) -> str:
    numeric = ['class="number"' if is_numeric(table, i) else "" for i in range(len(table.columns))]
    head = "".join(f'<th scope="col" {c}>{_text(h)}</th>' for h, c in zip(table.columns, numeric, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(f"<td {c}>{_text(show(cell))}</td>" for cell, c in zip(row, numeric, strict=True)) + "</tr>"
        for row in table.rows
    )
    caption = f"<figcaption>{_text(table.caption)}</figcaption>\n" if table.caption else ""
    grid = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<figure class="wide">{caption}{grid}</figure>'


def _image(image: bytes, alt: str) -> str:
    """At its true size in inches; the width and height are in the PNG's header."""
    width, height = (side // PIXELS for side in struct.unpack(">II", image[16:24]))
    data = base64.b64encode(image).decode()
    size = f'width="{width}" height="{height}"'
    return f'<figure><img {size} alt="{_text(alt)}" src="data:image/png;base64,{data}"></figure>'


def _footer(machine: Mapping[str, Any]) -> str:
    facts = "".join(f"<dt>{_text(k)}</dt><dd>{_text(show(v))}</dd>" for k, v in machine.items())
    return f"<footer><h2>Machine</h2><dl>{facts}</dl></footer>" if facts else ""


def _badge(verdict: str) -> str:
    return f'<span class="badge {verdict.replace(" ", "-")}">{_MARK[verdict]} {verdict}</span>'


def _list(kind: str, items: Iterable[str]) -> str:
    return f'<ul class="{kind}">' + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _numbered(name: str, i: int, suffix: str) -> str:
    return f"{name}-{i + 1}.{suffix}" if i else f"{name}.{suffix}"


def _style() -> str:
    return resources.files("samphire.report").joinpath("page.css").read_text(encoding="utf-8")
