"""An audit as one self-contained page, from the templates of this folder."""

from __future__ import annotations

import base64
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samphire import records
from samphire.audits import figures, tables, words
from samphire.audits.results import Audit
from samphire.report.cells import show
from samphire.report.pictures import size

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["html", "render", "write_page"]


def html(audit: Audit) -> str:
    """An audit as a page: no script, no font, no image file; every text is escaped."""
    return render("audit.html", audit=audit, verdict=audit.judged, figures=figures, tables=tables, cost=words.cost)


def render(template: str, **values: Any) -> str:
    """A template of this folder, filled."""
    return _environment().get_template(template).render(**values)


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page, whole or not at all; the folder is made if absent."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write_atomic(path, text.encode())
    except OSError as error:
        message = f"cannot write the page to {path}: {error.strerror}; choose another place."
        raise type(error)(error.errno, message) from None
    return path


@cache
def _environment() -> Environment:
    """The templates of this folder; whatever is put into them is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("samphire.audits"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "base64": lambda image: base64.b64encode(image).decode(),
        "between_percent": words.between_percent,
        "percent": words.percent,
        "show": show,
        "size": size,
    }
    return made
