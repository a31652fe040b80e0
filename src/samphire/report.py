"""Results as tables, pictures and one self-contained page that opens anywhere, offline.

A :class:`Result` is immutable and knows nothing of how it was computed. :func:`page` escapes every text it is given
and puts pictures inside the file; :func:`write` also leaves every picture as PNG and every table as CSV beside it.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import itertools
import json
import math
import os
import re
import statistics
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samphire.records import write_atomic

if TYPE_CHECKING:
    import rich.table
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the number of runs behind it.

    Args:
        mean: Of the runs.
        error: Standard error of the mean; nan for fewer than two runs.
        n: Number of runs.

    Example:
        >>> print(Estimate(0.1234, 0.0101, 10))
        0.123 ± 0.010 (n=10)
    """

    mean: float
    error: float
    n: int

    def __str__(self) -> str:
        if not (math.isfinite(self.mean) and math.isfinite(self.error) and self.error > 0):
            return f"{show(self.mean)} (n={self.n})"
        places = 1 - math.floor(math.log10(self.error))
        if places > 6:
            return f"{self.mean:.2e} ± {self.error:.0e} (n={self.n})"
        return f"{self.mean:.{max(places, 0)}f} ± {self.error:.{max(places, 0)}f} (n={self.n})"


def estimate(values: Iterable[Any]) -> Estimate:
    r"""Mean and standard error, :math:`s / \sqrt n` with :math:`s^2` divided by :math:`n - 1`, of some runs.

    Args:
        values: One number per run. A nan makes the mean nan: leave collapsed runs out yourself, and say how many.

    Example:
        >>> estimate([1.0, 2.0, 3.0])
        Estimate(mean=2.0, error=0.577350269189625..., n=3)
    """
    numbers = [float(v) for v in values]
    n = len(numbers)
    mean = math.fsum(numbers) / n if n else math.nan
    if n < 2 or not math.isfinite(mean):
        return Estimate(mean, math.nan, n)
    return Estimate(mean, statistics.stdev(numbers) / math.sqrt(n), n)


def show(value: Any) -> str:
    """A cell as text: numbers with four significant digits, ``None`` and nan as a dash.

    Args:
        value: A number, text, truth value, :class:`Estimate` or ``None``.

    Example:
        >>> [show(v) for v in (0.123456, 3, True, None, "text", 6000.0)]
        ['0.1235', '3', 'yes', '–', 'text', '6000']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """A time as people say it.

    Args:
        seconds: nan for unknown.

    Example:
        >>> [duration(s) for s in (0.25, 12.3, 200, 3725, math.nan)]
        ['0.2 s', '12 s', '3 min 20 s', '1 h 02 min', '–']
    """
    if math.isnan(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass(frozen=True)
class Table:
    """Columns and rows of cells.

    Args:
        columns: Their heads.
        rows: One cell for each column: numbers, text, truth values, :class:`Estimate` or ``None``.
        caption: One sentence.

    Example:
        >>> Table(["rho", "error"], [[0.0, Estimate(0.28, 0.02, 3)]])
        Table(columns=('rho', 'error'), rows=((0.0, Estimate(mean=0.28, error=0.02, n=3)),), caption='')
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(_scalar(cell) for cell in row) for row in self.rows))
        for i, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {i} of the table must have {len(self.columns)} cells, one for each of "
                    f"{', '.join(self.columns)}, got {len(row)}."
                )


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None, caption: str = "") -> Table:
    """A table from rows as :mod:`samphire.records` stores them.

    Args:
        rows: Cells by column; a column that a row lacks is left empty.
        columns: Which, in this order; by default all, in order of appearance.
        caption: One sentence.

    Example:
        >>> table([{"rho": 0.0}, {"rho": 0.5, "error": 0.2}]).rows
        ((0.0, None), (0.5, 0.2))
    """
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
    return Table(names, [[row.get(name) for name in names] for row in rows], caption)


@dataclass(frozen=True)
class Claim:
    """Something the paper says a figure shows, and whether ours shows it.

    Args:
        text: The claim, one sentence.
        holds: ``None`` if it was not judged.
        ours: What we measured, short.
        paper: What the paper has, short.
        detail: How it was judged, or why it does not hold.
    """

    text: str
    holds: bool | None
    ours: str = ""
    paper: str = ""
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", None if self.holds is None else bool(self.holds))

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "holds", False: "does not hold", None: "not judged"}[self.holds]


@dataclass(frozen=True)
class Result:
    """One figure or table of the paper, reproduced.

    Args:
        name: Short and unique on a page, for instance ``"fig2"``; names its files.
        title: One line.
        paper_says: What the paper reports, one or two sentences.
        figures: matplotlib figures, or PNG images as bytes.
        tables: Ours beside theirs.
        claims: What must hold.
        notes: Where we differ from the paper, one sentence each.
        provenance: From :func:`samphire.records.provenance`, or a part of it.
        seconds: What it took to compute.
        error: Why it could not be computed, if it could not.
        source: Whose claims these are; on a page of several sources each has a heading.
    """

    name: str
    title: str
    paper_says: str = ""
    figures: Sequence[Figure | bytes] = ()
    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = math.nan
    error: str = ""
    source: str = "the paper"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", self.name):
            raise ValueError(f"a result's name may have letters, digits, '_' and '-', got {self.name!r}.")
        for name in ("tables", "claims", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "figures", tuple(png(figure) for figure in self.figures))


def summary(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One row per claim: figure, claim, ours, the paper's, verdict, seconds; a result without claims has one row.

    Args:
        results: In the order of the rows.

    Example:
        >>> summary([Result("fig2", "Error against rho", claims=[Claim("It falls.", True, ours=".28 to .01")])])
        [{'figure': 'fig2', 'claim': 'It falls.', 'ours': '.28 to .01', 'paper': '', 'verdict': 'holds',
          'seconds': nan}]
    """
    rows = []
    for result in results:
        for claim in result.claims or (Claim(result.title, None),):
            rows.append(
                {
                    "figure": result.name,
                    "claim": claim.text,
                    "ours": claim.ours,
                    "paper": claim.paper,
                    "verdict": "failed" if result.error else claim.verdict,
                    "seconds": result.seconds,
                }
            )
    return rows


# Text


def rich_table(table: Table) -> rich.table.Table:
    """A table for the terminal, to be printed by rich.

    Args:
        table: Its texts are shown as they are, brackets included.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=Text(table.caption) if table.caption else None, title_justify="left")
    for i, name in enumerate(table.columns):
        shown.add_column(Text(name), justify="right" if _numeric(table, i) else "left")
    for row in table.rows:
        shown.add_row(*(Text(show(cell)) for cell in row))
    return shown


def text(table: Table, width: int = 120) -> str:
    """A table as plain text.

    Args:
        table: The table.
        width: Longest line.

    Example:
        >>> print(text(Table(["rho", "error"], [[0.0, 0.28], [0.5, 0.2]])))
        ┏━━━━━┳━━━━━━━┓
        ┃ rho ┃ error ┃
        ┡━━━━━╇━━━━━━━┩
        │   0 │  0.28 │
        │ 0.5 │   0.2 │
        └─────┴───────┘
    """
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(rich_table(table))
    return console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]


def to_csv(table: Table) -> str:
    """A table as CSV in full precision; an estimate takes three columns: mean, standard error and n.

    Args:
        table: The table.

    Example:
        >>> print(to_csv(Table(["rho", "error"], [[0.5, Estimate(0.2, 0.1, 3)]])), end="")
        rho,error,error_se,error_n
        0.5,0.2,0.1,3
    """
    wide = [any(isinstance(row[i], Estimate) for row in table.rows) for i in range(len(table.columns))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [h for c, w in zip(table.columns, wide, strict=True) for h in ((c, f"{c}_se", f"{c}_n")[: 3 if w else 1])]
    )
    for row in table.rows:
        writer.writerow([part for cell, w in zip(row, wide, strict=True) for part in _parts(cell, w)])
    return file.getvalue()


def to_json(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as strict JSON for other programs: nan and infinities, which JSON lacks, become null.

    Args:
        rows: Cells by name; an :class:`Estimate` becomes its mean, error and n.

    Example:
        >>> print(to_json([{"rho": 0.5, "error": math.nan}]))
        [
         {
          "rho": 0.5,
          "error": null
         }
        ]
    """
    return json.dumps([strict(row) for row in rows], indent=1, ensure_ascii=False, allow_nan=False)


# Pictures

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
_SCALE = 2  # PNG pixels per CSS pixel, of which there are 96 to the inch
_RC: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.titlesize": 12,
    "figure.constrained_layout.h_pad": 0.09,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.prop_cycle": f"cycler(color={list(PALETTE)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "image.cmap": "viridis",
}


@contextmanager
def figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] | None = None, **kwargs: Any
) -> Iterator[tuple[Figure, Any]]:
    """A matplotlib figure in the package's one style, without pyplot: draw inside the block, keep the figure.

    Args:
        rows: Of panels.
        columns: Of panels.
        size: In inches, shown at 96 CSS pixels to the inch; by default 4 by 3 for each panel.
        **kwargs: For matplotlib's ``Figure.subplots``, for instance ``sharey=True``.

    Example:
        >>> with figure(1, 2, sharey=True) as (fig, (left, right)):
        ...     _ = left.plot([0, 1], [0, 1], label="SGD")
        >>> png(fig)[1:4]
        b'PNG'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _style():
        fig = Figure(figsize=size or (4 * columns, 3 * rows), layout="constrained")
        FigureCanvasAgg(fig)
        yield fig, fig.subplots(rows, columns, **kwargs)


def curve(axes: Axes, x: Sequence[float], y: Sequence[Estimate], label: str, **kwargs: Any) -> None:
    """Draw means as a line and one standard error to either side as a band.

    Args:
        axes: Where.
        x: Abscissas.
        y: One estimate for each.
        label: For the legend.
        **kwargs: For matplotlib's ``plot``.
    """
    mean = [e.mean for e in y]
    error = [e.error if math.isfinite(e.error) else 0.0 for e in y]
    (line,) = axes.plot(x, mean, label=label, **({"marker": "o"} | kwargs))
    low, high = ([m + sign * s for m, s in zip(mean, error, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=line.get_color(), alpha=0.18, linewidth=0)


def png(figure: Figure | bytes) -> bytes:
    """A figure as a PNG image on white; bytes that already are one pass through.

    Args:
        figure: A matplotlib figure or PNG bytes.
    """
    if isinstance(figure, bytes):
        if not figure.startswith(b"\x89PNG\r\n\x1a\n"):
            raise ValueError(
                f"a figure given as bytes must be a PNG image, got {figure[:8]!r}; pass the matplotlib figure."
            )
        return figure
    if not hasattr(figure, "savefig"):
        raise TypeError(f"a figure must be a matplotlib Figure or PNG bytes, got {type(figure).__name__}.")
    file = io.BytesIO()
    with _style():  # some parts, such as further ticks, are made only now
        figure.savefig(file, format="png", dpi=96 * _SCALE, facecolor="white", metadata={"Software": None})
    return file.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """The package's style and nothing of the user's."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


# The page


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
    return _PAGE.format(title=_text(title), style=_STYLE, body=body)


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


_MARK = {"holds": "✓", "does not hold": "✗", "not judged": "○", "failed": "!"}
_WORDS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "not judged": ("is not judged", "are not judged"),
    "failed": ("could not be computed", "could not be computed"),
}


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
    numeric = ['class="number"' if _numeric(table, i) else "" for i in range(len(table.columns))]
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
    width, height = (side // _SCALE for side in struct.unpack(">II", image[16:24]))
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


def _numeric(table: Table, i: int) -> bool:
    cells = [row[i] for row in table.rows if row[i] is not None]
    return bool(cells) and all(isinstance(c, (int, float, Estimate)) and not isinstance(c, bool) for c in cells)


def _scalar(value: Any) -> Any:
    """A NumPy or PyTorch scalar as a Python number."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _parts(cell: Any, wide: bool) -> list[Any]:
    if not wide:
        return [cell]
    return [cell.mean, cell.error, cell.n] if isinstance(cell, Estimate) else [cell, None, None]


def strict(value: Any) -> Any:
    """A cell, or cells in lists and by name, as data that strict JSON can hold; see :func:`to_json`."""
    value = _scalar(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Estimate):
        return strict({"mean": value.mean, "error": value.error, "n": value.n})
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    return [strict(v) for v in value] if isinstance(value, (list, tuple)) else value


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

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5c6570; --paper: #ffffff; --line: #d9dee3;
  --stripe: #f5f7f9; --link: #00558a; --good: #00694d; --bad: #a83c00; --open: #5c6570; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #a2abb5; --paper: #15181b; --line: #363c43; --stripe: #1d2125;
    --link: #74bdf0; --good: #4fd1a5; --bad: #ff9a5c; --open: #a2abb5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 1rem; }
h2 a { display: inline-block; margin-right: .4rem; padding: 0 .45rem; border: 1px solid var(--line);
  border-radius: 4px; font-size: .9em; text-decoration: none; }
.part { margin: 3.5rem 0 -1rem; font-size: 1.5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
a { color: var(--link); }
header p { max-width: none; margin: 0 0 1.25rem; color: var(--soft); }
section, footer { margin-top: 2.5rem; padding-top: 1.75rem; border-top: 1px solid var(--line);
  scroll-margin-top: .5rem; }
p, ul, dl { max-width: 75ch; }
figure { margin: 0 0 1rem; }
img { display: block; max-width: 100%; height: auto; background: #ffffff; border-radius: 4px; }
.wide { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
figcaption { color: var(--soft); font-size: .875rem; padding: 0 0 .35rem; }
th, td { padding: .35rem .75rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
tbody tr:nth-child(even) td { background: var(--stripe); }
.number { text-align: right; white-space: nowrap; }
.summary { width: 100%; min-width: 46rem; }
.summary tbody tr td { background: none; }
.summary th[scope=row] { white-space: nowrap; }
@media (max-width: 46rem) {
  .summary { min-width: 0; }
  .summary thead, .summary td:empty { display: none; }
  .summary tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line); }
  .summary td, .summary th { display: block; border: 0; padding: .1rem 0; text-align: left; }
  .summary td[data-label]::before { content: attr(data-label) ": "; color: var(--soft); } }
.badge { white-space: nowrap; font-weight: 600; color: var(--open); }
.holds { color: var(--good); }
.does-not-hold, .failed { color: var(--bad); }
.claims { list-style: none; padding: 0; }
.claims li { padding: .5rem .9rem; margin: 0 0 .5rem; background: var(--stripe); border-radius: 4px; }
.error { white-space: pre-wrap; overflow-wrap: anywhere; }
.notes { margin-top: 0; padding-left: 1.2rem; }
.origin { max-width: none; font-size: .8rem; color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .875rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print {
  :root { color-scheme: light; --ink: #000000; --soft: #444444; --paper: #ffffff; --line: #bbbbbb; --stripe: #f4f4f4;
    --link: #000000; --good: #00694d; --bad: #a83c00; --open: #444444; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  .wide { overflow: visible; }
  .summary { min-width: 0; }
  figure, tr, .claims li { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""
