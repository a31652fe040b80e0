"""What the documentation site adds to the pages of this folder when it is built; see ``mkdocs.yml``.

Pages made from records: one for each rule, each figure and table of ``results/``, each package of the API, and each
tutorial. Formulas become MathML, which browsers show without a script.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe
import yaml
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
RESULTS, TUTORIALS = ROOT / "results", ROOT / "docs" / "tutorials"
SHOWN = (".png", ".csv", ".json")
PACKAGES = ("optim", "audits", "data", "models", "baselines", "probes", "landscape", "mechanisms", "train", "sweep",
            "report", "experiments", "records", "statistics", "integrations.transformers", "integrations.lightning",
            "integrations.accelerate", "integrations.trackers")  # fmt: skip
TOY, IMAGES, REVIEW = "The paper's toy", "The paper on images, and its tables", "The review"
NOT_RUN = "Not run yet"
LANDSCAPE = (
    "From two starts on the landscape of [all rules](../rules.md), beside SGD. The dashed curve has the minima, flat "
    "in the middle; the number is the sharpness where a run ends, the mean of both."
)
INTRODUCTION = (
    "Every figure and table of the paper and the review that there is code for: ours, beside what they say. "
    "✓ holds, ✗ contradicted, ○ open (within the noise); [how that is decided](../results.md)."
)
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
    if page.file.src_uri == "rules.md":
        markdown = without_sections(markdown)
    text = re.sub(r"\]\(\.\./results/([\w-]+/[\w.-]+|[\w-]+\.json)\)", rf"]({up}results/\1)", markdown)
    text = re.sub(r"\]\(\.\./results(?:/([\w-]+))?\)", rf"]({up}gallery/index.md)", text)
    return with_mathml(text)


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


def without_sections(page: str) -> str:
    """The table and the picture of all rules; each links to its own page."""
    return re.sub(r"\]\(#(\w+)\)", r"](rules/\1.md)", page.partition("\n## ")[0])


def rule_pages() -> Iterator[tuple[str, str | bytes]]:
    """A page for each rule: what it does, when to use it and when not, cost, example, formula, settings, picture."""
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
        picture = f"![{name} on a landscape of two weights, beside SGD]({name}.png)"
        yield (
            f"rules/{name}.md",
            f"{first}\n\n**Use it when** {use}\n\n**Not when** {avoid}\n\n{cost}; it perturbs {known.perturbs}.\n\n"
            f"```pycon\n{example(name)}```{formula}{rest}\n\n{picture}\n\n{LANDSCAPE}\n",
        )
        yield f"rules/{name}.png", report.png(rules_gallery.picture([name]))


def example(name: str) -> str:
    """The example of a rule's docstring as it is typed, with the imports that it needs."""
    from samphire import optim

    examples = doctest.DocTestParser().get_examples(inspect.getdoc(optim.RULES[name]) or "")
    lines = [f">>> {'... '.join(e.source.splitlines(keepends=True))}{e.want}" for e in examples]
    words = set(re.findall(r"\w+", "".join(e.source for e in examples)))
    start = [">>> import torch\n"] if "torch" in words else []
    start += [">>> from torch import nn\n"] if "nn" in words else []
    start += [f">>> from samphire.optim import {', '.join(sorted(words & {*optim.__all__}))}\n"]
    return "".join(start + lines)


def gallery_pages() -> Iterator[tuple[str, str]]:
    """Every figure and table with its pictures, the command that makes it, claims and verdicts; and their code."""
    from samphire.experiments import EXPERIMENTS

    stored: dict[str, tuple[Path, list[dict[str, Any]]]] = {}
    for path in RESULTS.glob("*/claims.json"):
        for claim in json.loads(path.read_text()):
            stored.setdefault(claim["figure"], (path.parent, []))[1].append(claim)
    groups: dict[str, list[str]] = {TOY: [], IMAGES: [], REVIEW: [], NOT_RUN: []}
    for name, experiment in EXPERIMENTS.items():
        folder, claims = stored.get(name, (None, []))
        pictures = _stored(folder, name, "png")
        kind = REVIEW if experiment.source == "the review" else IMAGES if experiment.data else TOY
        groups[kind if folder else NOT_RUN].append(_card(experiment, claims, pictures))
        yield f"gallery/{name}.md", "\n".join(_figure(folder, experiment, claims, pictures))
    yield from code_pages({_module(experiment): None for experiment in EXPERIMENTS.values()})
    index = ["---", "hide: [toc]", "---", "", "# Gallery", "", INTRODUCTION, ""]
    for title, cards in groups.items():
        index += [f"## {title}", "", '<div class="gallery" markdown>', "", *cards, "", "</div>", ""]
    yield "gallery/index.md", "\n".join(index)


def _stored(folder: Path | None, name: str, ending: str) -> list[str]:
    """The files of a figure, as ``fig1.png`` and ``fig1-2.png``, where its page finds them."""
    found = folder.glob(f"{name}*.{ending}") if folder else ()
    own = [path for path in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", path.stem)]
    return [f"../results/{path.parent.name}/{path.name}" for path in sorted(own, key=lambda path: len(path.stem))]


def _card(experiment: Any, claims: list[dict[str, Any]], pictures: list[str]) -> str:
    from samphire.experiments.paper import story

    best = {name: index for name, index, _ in story.PICTURES}
    name, title = experiment.name, experiment.title.rstrip(".")
    picture = f"[![{title}]({pictures[best.get(name, 0)]}){{ loading=lazy }}]({name}.md) " if pictures else ""
    return f"- {picture}[{title}]({name}.md) {_tally(claims)}"


def _tally(claims: list[dict[str, Any]]) -> str:
    counts = Counter(claim["verdict"] for claim in claims)
    return " ".join(f"{mark}&nbsp;{counts[verdict]}" for verdict, mark in MARKS.items() if verdict in counts)


def _figure(folder: Path | None, experiment: Any, claims: list[dict[str, Any]], pictures: list[str]) -> Iterator[str]:
    module = _module(experiment)
    scale = json.loads((folder / "provenance.json").read_text())["scale"] if folder else "quick"
    yield from (f"# {experiment.title.rstrip('.')}", "")
    if folder:
        held = sum(claim["verdict"] == "holds" for claim in claims)
        yield from (f"**{held} of {len(claims)} claims hold** {_tally(claims)}", "")
    else:
        yield from ("Its code is tested; it has not been run at a scale that says something.", "")
    for picture in pictures:
        yield from (f"![{experiment.title}]({picture})", "")
    yield from (f"**{experiment.source.capitalize()}** {experiment.says}", "")
    root = " --root data" if experiment.data else ""
    yield from ("```shell", f"samphire reproduce {experiment.name} --scale {scale}{root}", "```", "")
    if claims:
        yield from ('<div class="claims" markdown>', "", "| verdict | claim | ours | theirs |", "|---|---|---|---|")
        for claim in claims:
            cells = (claim[name].replace("|", r"\|") for name in ("claim", "ours", "paper"))
            yield f"| {MARKS[claim['verdict']]} {claim['verdict']} | {' | '.join(cells)} |"
        yield from ("", "</div>", "")
    if experiment.notes:
        yield from (f"Where we differ from {experiment.source}:", "", *(f"- {note}" for note in experiment.notes), "")
    if folder:
        tables = _stored(folder, experiment.name, "csv")
        links = ", ".join(f"[{Path(table).name}]({table})" for table in tables)
        yield from (f"Numbers: {links}; rows of every run in `results/{folder.name}`.", "")
    yield f"Code: [src/{module}.py](../{_code(module)})"


def code_pages(modules: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The code of figures, once for all that share it, and not searched."""
    for module in modules:
        source = (ROOT / "src" / f"{module}.py").read_text().rstrip()
        head = "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n"
        yield _code(module), f"{head}\n# src/{module}.py\n\n```python\n{source}\n```\n"


def _code(module: str) -> str:
    return f"code/{module.replace('/', '.')}.md"


def _module(experiment: Any) -> str:
    """Where the code of a figure is, below ``src``."""
    modules = (function.__module__ for function in (experiment.runs, experiment.claims))
    return next(name for name in modules if name.startswith("samphire")).replace(".", "/")


def api_pages() -> Iterator[tuple[str, str]]:
    """A page for each package with the names it promises."""
    index = ["# API", "", "The names each package promises, with their types, from the docstrings.", ""]
    for package in ("samphire", *(f"samphire.{name}" for name in PACKAGES)):
        module = importlib.import_module(package)
        first = (module.__doc__ or "").strip().splitlines()[0].replace("``", "`")
        names = [name for name in module.__all__ if callable(getattr(module, name))]
        lines = [f"# {package}", first, *(f"::: {package}.{name}" for name in names)]
        index.append(f"- [`{package}`]({package}.md): {first}")
        yield f"api/{package}.md", "\n\n".join(lines) + "\n"
    yield "api/index.md", "\n".join(index) + "\n"


def from_notebook(notebook: dict[str, Any]) -> str:
    """Text and code of a notebook; its output is what a reader gets by running it."""
    cells = (("".join(cell["source"]), cell["cell_type"]) for cell in notebook["cells"])
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for text, kind in cells) + "\n"
