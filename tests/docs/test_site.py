"""The documentation site builds without a warning, has a page for everything there is, and reads well in a browser."""

import doctest
import importlib.util
import re
import warnings
from pathlib import Path

import nbformat
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from nbclient import NotebookClient

from browser import WIDTHS
from samphire import optim
from samphire.experiments import EXPERIMENTS
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("pages", DOCS / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` does, but by this process: a broken link, an unknown anchor or name, any warning ends it."""
    out = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python; those of MkDocs are logged and counted
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(out)))
    return out


def test_every_rule_figure_and_package_has_its_page(site):
    assert {path.stem for path in (site / "rules").glob("*.html")} == set(optim.RULES)
    assert {path.stem for path in (site / "gallery").glob("*.html")} == {"index", *EXPERIMENTS}
    assert (site / "api" / "samphire.optim.html").exists()
    assert (site / "explorer" / "index.html").read_bytes() == (DOCS / "explorer" / "index.html").read_bytes()


@pytest.mark.parametrize("package", ["optim", "audits", "probes", "landscape", "integrations.transformers"])
def test_every_public_name_is_in_the_api(site, package):
    module = importlib.import_module(f"samphire.{package}")
    page = (site / "api" / f"{module.__name__}.html").read_text()
    names = [name for name in module.__all__ if callable(getattr(module, name))]
    assert names
    assert not [name for name in names if f'id="{module.__name__}.{name}"' not in page]


@pytest.mark.parametrize("name", optim.RULES)
def test_a_rules_page_has_advice_cost_formula_and_picture(site, name):
    page = (site / "rules" / f"{name}.html").read_text()
    for part in ("Use it when", "Not when", "passes a step", f'src="{name}.png"', ">&gt;&gt;&gt; <"):
        assert part in page
    assert ("<math" in page) == (
        "```math" in (DOCS / "rules.md").read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]
    )


@pytest.mark.parametrize("name", optim.RULES)
def test_a_rules_example_runs_as_it_is_typed(pages, name):
    test = doctest.DocTestParser().get_doctest(pages.example(name), {}, name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_the_embedded_explorer_shows_both_networks(browser, site):
    browser.open(site / "concepts" / "features.html")
    browser.driver.switch_to.frame(browser.driver.find_element("tag name", "iframe"))
    browser.wait(
        "const done = arguments[0], look = () => document.body.dataset.epoch === '0' ? done() : setTimeout(look, 30); look()"
    )
    assert browser.run("return document.getElementById('left-hard-error').textContent").endswith("%")
    browser.driver.switch_to.default_content()


def test_search_finds_a_rule_from_a_file(browser, site):
    browser.open(site / "index.html")
    box = browser.driver.find_element("css selector", "input.md-search__input")
    box.click()
    box.send_keys("looksam")
    found = "document.querySelectorAll('.md-search-result__link').length"
    browser.wait(f"const done = arguments[0], look = () => {found} ? done() : setTimeout(look, 30); look()")
    links = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    assert any("rules/looksam.html" in link for link in browser.run(links))


def test_no_markup_is_left_over(site):
    for path in site.rglob("*.html"):
        if path.parent.name == "explorer":
            continue
        text = re.sub(r"<(pre|code|script|style).*?</\1>", "", path.read_text(), flags=re.S)
        assert not re.search(r":(func|class|mod|math|meth):`|\.\. math::|\$`|```", text), path


def test_nothing_is_loaded_from_elsewhere(site):
    for path in site.rglob("*.html"):
        assert not re.search(r'<(?:script|img|iframe|link)[^>]+(?:src|href)="(?:https?:)?//', path.read_text()), path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", ["index", "rules/sam", "gallery/fig2", "concepts/features", "api/samphire.optim"])
def test_a_page_reads_well(browser, site, page, dark):
    for width in WIDTHS:
        browser.open(site / f"{page}.html", width, dark=dark)
        assert [*browser.wider(), *browser.messages()] == []


def test_formulas_and_docstrings_become_the_sites_markup(pages):
    assert pages.with_mathml("a $`x^2`$ b").count("<math") == 1
    assert "<msup>" in pages.with_mathml("```math\nx^2\n```")
    assert (
        pages.from_docstring("See :func:`~samphire.optim.sam`, :class:`Rule` and ``x``::")
        == "See `sam`, `Rule` and `x`:"
    )
    assert pages.from_docstring(".. math:: a &= b").count("<mtable") == 1


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all tutorials: torch is loaded once."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=PATIENCE)
    with client.setup_kernel():
        yield client


@pytest.mark.parametrize("path", sorted((DOCS / "tutorials").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_tutorial_runs(kernel, path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    afresh = nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path}")  # with no name of another tutorial
    kernel.nb = nbformat.v4.new_notebook(cells=[afresh])
    kernel.nb.cells += notebook.cells
    kernel.execute(cleanup_kc=False)
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert printed
    assert not any(cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells)  # stored without output
