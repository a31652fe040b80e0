"""The shape of the project: layers, light imports, documented names, a README that runs."""

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import samphire
from samphire import optim
from waiting import PATIENCE

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "samphire"

# The lowest layer first. A file may import from layers before its own in this list, and from its own folder.
LAYERS = [
    {"tree", "restore", "checks", "statistics", "progress", "pool"},
    {"records"},
    {"optim", "models"},
    {"data"},
    {"baselines"},
    {"probes", "landscape"},
    {"mechanisms"},
    {"train"},
    {"sweep", "report"},
    {"audits"},
    {"experiments", "integrations"},
    {"cli"},
    {"__main__"},
]
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names}
# What measures must not depend on how steps are taken.
STEPS = {f"samphire.optim.{name}" for name in ("step", "passes", "last_layer", "batched", "feature_runs")}


def imports(path):
    """The samphire modules a file imports anywhere in it, in full."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("samphire"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("samphire"):
            for alias in (a for a in node.names if a.name != "__version__"):
                full = f"{node.module}.{alias.name}"
                yield (
                    full
                    if node.module == "samphire"
                    or (SOURCE.parent / full.replace(".", "/")).with_suffix(".py").exists()
                    else node.module
                )


def part(module):
    return module.split(".")[1] if "." in module else None


def violations(path, found):
    here = path.relative_to(SOURCE).with_suffix("").parts[0]
    for module in found:
        there = part(module)
        if there is None or there not in LAYER:
            yield f"{path.name} imports {module}, which is in no layer"
        elif there != here and LAYER[there] >= LAYER[here]:
            yield f"{path.name} (layer {LAYER[here]}) imports {module} (layer {LAYER[there]})"
        elif LAYER[here] == LAYER["probes"] and module in STEPS:
            yield f"{path.name} measures, so it must not import {module}"


@pytest.mark.parametrize(
    "path", [p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py"], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_go_downwards_only(path):
    assert not list(violations(path, imports(path)))


def test_the_layer_test_can_fail():
    assert list(violations(SOURCE / "tree.py", ["samphire.optim"]))
    assert list(violations(SOURCE / "models.py", ["samphire.data"]))
    assert list(violations(SOURCE / "landscape.py", ["samphire.optim.step"]))
    assert list(violations(SOURCE / "cli.py", ["samphire.utils"]))
    assert not list(violations(SOURCE / "optim" / "step.py", ["samphire.optim.rules", "samphire.tree"]))


HEAVY = (
    "torch",
    "matplotlib",
    "ray",
    "lightning",
    "sklearn",
    "PIL",
    "torchvision",
    "transformers",
    "accelerate",
    "tensorboard",
    "mlflow",
    "wandb",
    "submitit",
    "scipy",
    "pandas",
)


@pytest.mark.slow
def test_imports_are_light():
    """Torch alone takes longer than everything else that a worker, or a command that shows its help, needs."""
    bare = [
        f"samphire{name}"
        for name in ("", *(f".{name}" for name in ("checks", "pool", "progress", "records", "statistics")))
    ]
    code = f"""
import importlib, sys
for modules, heavy in (({bare}, {(*HEAVY, "numpy", "typer")}), (["samphire.data", "samphire.sweep", "samphire.cli"], {HEAVY})):
    for module in modules:
        importlib.import_module(module)
        print(module, [name for name in heavy if name in sys.modules])
import samphire
print(samphire.data.open.__name__, samphire.sam.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    light = [f"{module} []" for module in (*bare, "samphire.data", "samphire.sweep", "samphire.cli")]
    assert done.stdout.splitlines() == [*light, "open sam"]


def test_public_names_are_listed_without_an_import_and_found_when_used():
    assert sorted(samphire.__all__) == sorted({"SharpnessAware", "last_layer", "audit", *optim.rules.__all__})
    scope = {}
    exec("from samphire import *", scope)
    homes = {name: samphire.audits if name == "audit" else optim for name in samphire.__all__}
    assert all(scope[name] is getattr(samphire, name) is getattr(home, name) for name, home in homes.items())
    assert {*samphire.__all__, *samphire.PACKAGES, "__version__"} <= set(dir(samphire))
    with pytest.raises(AttributeError, match="module 'samphire' has no attribute 'smaa'"):
        samphire.smaa  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'smaa' from 'samphire'"):
        from samphire import smaa  # noqa: F401


def test_every_package_is_reached_without_importing_it_by_name():
    found = {module.name for module in pkgutil.iter_modules(samphire.__path__) if module.ispkg}
    assert found - {"cli", "records"} == set(samphire.PACKAGES)
    assert all(getattr(samphire, name).__name__ == f"samphire.{name}" for name in samphire.PACKAGES)


@pytest.mark.parametrize(
    "name", [f"samphire.{n}" for n in samphire.__all__] + [f"samphire.optim.{n}" for n in optim.__all__]
)
def test_every_public_name_is_documented(name):
    thing = getattr(optim if ".optim." in name else samphire, name.rpartition(".")[2])
    assert (thing.__doc__ or "").strip()
    page = "rules.md" if name.rpartition(".")[2] in optim.RULES else "reference.md"
    text = (ROOT / "docs" / page).read_text()
    assert re.search(rf"`{name.rpartition('.')[2]}\b", text), f"{name} is not in docs/{page}"


@pytest.mark.parametrize("name", optim.RULES)
def test_every_rule_has_example_and_passes_in_its_docstring(name):
    doc = optim.RULES[name].__doc__
    assert "passes" in doc.split("\n")[0].lower() or "pass" in doc.split("\n")[0].lower()
    assert ">>>" in doc
    assert "Args:" in doc


PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
PAGES.remove("docs/trainers.md")  # its code writes files; tests/integrations/test_pages.py runs it


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of lightning, by torch 2.13
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in (ROOT / page).read_text()])
def test_code_in_the_pages_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what the examples write does not land in the tree
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    scope = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_the_architecture_names_is_there():
    named = set(re.findall(r"`([\w/]+\.(?:py|md))`", ARCHITECTURE))
    assert len(named) > 30
    places = (ROOT, SOURCE, SOURCE / "experiments" / "paper")
    assert not [name for name in named if not any((place / name).exists() for place in places)]


def test_the_layers_are_drawn_as_they_are_listed():
    drawing = ARCHITECTURE.split("```")[1].splitlines()
    drawn = [
        set(re.split(r" {4,}", line.strip())[0].split())
        for line in drawing
        if line.startswith(" ") and line[1:2].strip()
    ]
    listed = [names - {"__main__"} for names in LAYERS]
    assert drawn[::-1] == [names for names in listed if names]


def test_versions_agree():
    assert samphire.__version__ in (ROOT / "CHANGELOG.md").read_text()
