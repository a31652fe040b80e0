"""Puts the explorer's modules, style and reference numbers into one page: docs/explorer/index.html.

Run it after a change in ``src``; a test compares the page with what this makes. A page opened from a file may not
load modules, so they are written one after the other, those that are imported first, without their import lines
and the word export. Names at the top of modules must therefore differ.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "src"
RESULTS = HERE.parents[1] / "results" / "toy" / "fig2.csv"

IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<module>[\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
TOP_NAME = re.compile(r"^(?:export )?(?:async )?(?:const|let|function\*?|class) (\w+)", re.MULTILINE)


def page() -> str:
    """The whole page."""
    parts = {
        "style": (SOURCES / "style.css").read_text("utf-8"),
        "worker": bundle("worker.js"),
        "reference": json.dumps(reference()),
        "main": bundle("main.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], (SOURCES / "page.html").read_text("utf-8"))


def bundle(entry: str) -> str:
    """A module and all it imports as one script."""
    texts = {name: (SOURCES / name).read_text("utf-8") for name in order(entry)}
    names = [name for text in texts.values() for name in TOP_NAME.findall(text)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{entry}: names at the top of modules must differ, got {', '.join(twice)} more than once.")
    return "\n".join(f"// {name}\n{EXPORT.sub('', IMPORT.sub('', text)).strip()}\n" for name, text in texts.items())


def order(entry: str) -> list[str]:
    """The modules that an entry needs, each after those it imports."""
    ordered: dict[str, None] = {}

    def visit(name: str) -> None:
        for match in IMPORT.finditer((SOURCES / name).read_text("utf-8")):
            visit(match["module"])
        ordered.setdefault(name)

    visit(entry)
    return list(ordered)


def reference() -> list[list[float]]:
    """Complexity, rho, and mean and standard deviation over seeds of the hard and of the easy probe error."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def spread(row: dict[str, str], name: str) -> list[float]:
        deviation = float(row[f"{name}_se"]) * float(row[f"{name}_n"]) ** 0.5
        return [round(float(row[name]), 5), round(deviation, 5)]

    return [
        [
            float(row["χ (degrees)"]),
            float(row["ρ"]),
            *spread(row, "hard probe error"),
            *spread(row, "easy probe error"),
        ]
        for row in rows
    ]


if __name__ == "__main__":
    (HERE / "index.html").write_text(page(), "utf-8")
