"""What the documentation site adds to the pages of this folder when it is built; see ``mkdocs.yml``.

Pages made from records: one for each rule, each figure and table of ``results/``, each package of the API, and each
tutorial. Formulas become MathML, which browsers show without a script.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import yaml
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
RESULTS, TUTORIALS = ROOT / "results", ROOT / "docs" / "tutorials"
SHOWN = (".png", ".csv", ".json")
PACKAGES = ("optim", "data", "models", "baselines", "probes", "landscape", "mechanisms", "train", "sweep", "report",
            "experiments", "records", "statistics")  # fmt: skip
MARKS = {"holds": "✓", "contradicted": "✗", "open": "○"}


# Hooks of MkDocs


def on_files(files: Files, config: Any) -> Files:
    """Add what is made from records."""
    for path, content in pages():
        files.append(File.generated(config, path, content=content))
    for path in sorted(RESULTS.rglob("*")):
        if path.suffix in SHOWN:
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show formulas, and let links into the checkout lead to the site's own copies."""
    up = "../" * page.file.src_uri.count("/")
    text = re.sub(r"\]\(\.\./results/([\w-]+/[\w.-]+|[\w-]+\.json)\)", rf"]({up}results/\1)", markdown)
    text = re.sub(r"\]\(\.\./results(?:/([\w-]+))?\)", rf"]({up}gallery/index.md)", text)
    return with_mathml(text)


def on_post_page(output: str, **_: Any) -> str:
    """Leave out the one script that the theme would load from elsewhere: it lets the search run without a server."""
    return output.replace('<script src="https://unpkg.com/iframe-worker/shim"></script>', "")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page of what is not there."""
    return on_post_page(output_content)


# Formulas


def with_mathml(text: str) -> str:
    r"""Formulas as GitHub writes them, in MathML; code that only shows them stays.

    Example:
        >>> with_mathml("$`x`$")[:5]
        '<math'
    """
    text = re.sub(r"```math\n(.*?)\n```", lambda found: _mathml(found[1], "block"), text, flags=re.S)
    return re.sub(r"\$`(.+?)`\$", lambda found: _mathml(found[1], "inline"), text)


def _mathml(latex: str, display: str) -> str:
    return convert(" ".join(latex.split()).replace("{aligned}", "{split}"), display=display)


class Markup(griffe.Extension):
    """Docstrings as this package writes them, in the site's Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = from_docstring(obj.docstring.value)


def from_docstring(text: str) -> str:
    r"""Roles, literals and mathematics of a docstring in Markdown.

    Example:
        >>> from_docstring("See :func:`~samphire.optim.sam` and ``rho``::")
        'See `sam` and `rho`:'
    """
    text = re.sub(
        r"\.\. math::\s*(.+?)(?=\n\s*\n|\Z)", lambda found: _mathml(_aligned(found[1]), "block"), text, flags=re.S
    )
    text = re.sub(r":math:`([^`]*)`", lambda found: _mathml(found[1], "inline"), text)
    text = re.sub(r":\w+:`~[^`]*?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", text)
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.M)  # the section that holds doctests
    return re.sub(r"::$", ":", text.replace("``", "`"), flags=re.M)


def _aligned(latex: str) -> str:
    return rf"\begin{{split}} {latex} \end{{split}}" if "&" in latex else latex


# Pages from records


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Each generated page with its place."""
    yield "contributing.md", (ROOT / "CONTRIBUTING.md").read_text()
    yield from rule_pages()
    yield from gallery_pages()
    yield from api_pages()
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        yield f"tutorials/{path.stem}.md", from_notebook(json.loads(path.read_text()))


def rule_pages() -> Iterator[tuple[str, str | bytes]]:
    """A page for each rule: what it does, formula, picture, cost, when to use it and when not, settings."""
    from samphire import optim, report
    from samphire.experiments import rules_gallery
    from samphire.optim.describe import describe, section

    advice = yaml.safe_load((ROOT / "docs" / "rules_advice.yml").read_text())
    for name in optim.RULES:
        known = describe(name)
        text = "\n".join(section(known)).replace("## ", "# ", 1)
        first, formula, rest = text.partition("\n\n```math") if known.formulas else text.partition("\n\n|")
        use, avoid = advice[name]
        cost = f"**Cost** {known.passes:.3g} passes a step, {known.memory:.3g} copies of the parameters kept"
        picture = f"![{name} on a landscape of two weights, beside SGD]({name}.png)\n\nThe landscape of [all rules]"
        yield (
            f"rules/{name}.md",
            f"{first}\n\n**Use it when** {use}\n\n**Not when** {avoid}\n\n{cost}; it perturbs {known.perturbs}."
            f"{formula}{rest}\n\n{picture}(../rules.md).\n",
        )
        yield f"rules/{name}.png", report.png(rules_gallery.picture([name]))


def gallery_pages() -> Iterator[tuple[str, str]]:
    """Every figure and table with its pictures, the command that makes it, its claims and their verdicts."""
    from samphire.experiments import EXPERIMENTS

    index = ["# Gallery", "", "Every figure and table we have computed, with what holds of it.", ""]
    for folder in sorted(path.parent for path in RESULTS.glob("*/claims.json")):
        claims = json.loads((folder / "claims.json").read_text())
        for name in dict.fromkeys(claim["figure"] for claim in claims):
            own = [claim for claim in claims if claim["figure"] == name]
            counts = ", ".join(
                f"{mark} {n}" for verdict, mark in MARKS.items() if (n := sum(c["verdict"] == verdict for c in own))
            )
            experiment = EXPERIMENTS[name]
            index.append(f"- [{name}]({name}.md): {experiment.title} {counts}")
            yield f"gallery/{name}.md", "\n".join(_figure(folder, experiment, own))
    yield "gallery/index.md", "\n".join(index) + "\n"


def _figure(folder: Path, experiment: Any, claims: list[dict[str, Any]]) -> Iterator[str]:
    scale = json.loads((folder / "provenance.json").read_text())["scale"]
    root = " --root data" if experiment.data else ""
    module = experiment.runs.__module__.replace(".", "/")
    yield from (f"# {experiment.name}", "", experiment.title, "")
    for path in sorted(folder.glob(f"{experiment.name}*.png")):
        if re.fullmatch(rf"{re.escape(experiment.name)}(-\d+)?", path.stem):
            yield from (f"![{experiment.title}](../results/{folder.name}/{path.name})", "")
    yield from (f"**{experiment.source.capitalize()}** {experiment.says}", "")
    yield from ("```shell", f"samphire reproduce {experiment.name} --scale {scale}{root}", "```", "")
    yield from (f"Code: `src/{module}.py`. Rows and tables: `results/{folder.name}`.", "")
    yield from ("| verdict | claim | ours | theirs |", "|---|---|---|---|")
    for claim in claims:
        cells = (claim[name].replace("|", r"\|") for name in ("claim", "ours", "paper"))
        yield f"| {MARKS[claim['verdict']]} {claim['verdict']} | {' | '.join(cells)} |"
    if experiment.notes:
        yield from ("", f"Where we differ from {experiment.source}:", "", *(f"- {note}" for note in experiment.notes))


def api_pages() -> Iterator[tuple[str, str]]:
    """A page for each package with the names it promises."""
    index = ["# API", "", "The names each package promises, from their docstrings.", ""]
    for package in ("samphire", *(f"samphire.{name}" for name in PACKAGES)):
        module = importlib.import_module(package)
        names = [name for name in module.__all__ if callable(getattr(module, name))]
        lines = [f"# {package}", "", *(f"::: {package}.{name}" for name in names)]
        index.append(
            f"- [`{package}`]({package}.md): {(module.__doc__ or '').strip().splitlines()[0].replace('``', '`')}"
        )
        yield f"api/{package}.md", "\n\n".join(lines) + "\n"
    yield "api/index.md", "\n".join(index) + "\n"


def from_notebook(notebook: dict[str, Any]) -> str:
    """Text and code of a notebook; its output is what a reader gets by running it."""
    cells = (("".join(cell["source"]), cell["cell_type"]) for cell in notebook["cells"])
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for text, kind in cells) + "\n"
