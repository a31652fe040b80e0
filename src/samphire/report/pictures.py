"""Pictures in one style."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from samphire.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image as Picture

__all__ = ["PALETTE", "PIXELS", "curve", "figure", "png", "size"]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
PIXELS = 2  # PNG pixels per CSS pixel; an inch has 96 CSS pixels
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
        x: Positions on the x axis.
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

    It has the 256 colors that cover the picture best, which no eye tells from all of them and which takes a third of
    the space; as SVG every picture of the paper's takes more.

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
    return _few_colors(_drawn(figure))


def size(image: bytes) -> tuple[int, int]:
    """Width and height of a PNG image in CSS pixels, from its header."""
    width, height = struct.unpack(">II", image[16:24])
    return width // PIXELS, height // PIXELS


def _drawn(figure: Figure) -> Picture:
    """The figure on white, left as it was; drawn once, where ``savefig`` draws everything twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas, dpi, color = figure.canvas, figure.dpi, figure.get_facecolor()
    own = FigureCanvasAgg(figure)
    try:
        with _style():  # some parts, such as further ticks, are made only now
            figure.set(dpi=96 * PIXELS, facecolor="white")
            own.draw()
        return Image.frombytes("RGBA", own.get_width_height(), own.buffer_rgba()).convert("RGB")
    finally:
        figure.set(dpi=dpi, facecolor=color)
        figure.set_canvas(canvas)


def _few_colors(image: Picture) -> bytes:
    from PIL import Image

    settled = image.width * image.height // 200  # pixels that may still change their color: half a percent
    few = image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=settled, dither=Image.Dither.NONE)
    file = io.BytesIO()
    few.save(file, format="PNG", optimize=True)
    return file.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """The package's style and nothing of the user's."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield
