"""The explorer as readers meet it: one file, no network, controls, presets, tour, keys, the lines of Python."""

import contextlib
import csv
import importlib.util
import io
import re

import pytest

from browser import WIDTHS
from explorer_page import FOLDER, explorer  # noqa: F401

ROOT = FOLDER.parents[1]
PRESETS = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig10", "fig11")


def build():
    spec = importlib.util.spec_from_file_location("build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_its_sources_give():
    assert (FOLDER / "index.html").read_text("utf-8") == build().page(), "run docs/explorer/build.py"


def test_a_name_in_two_modules_is_refused(tmp_path, monkeypatch):
    module = build()
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nconst twice = 1;\n')
    (tmp_path / "b.js").write_text("export const b = 1;\nfunction twice() {}\n")
    monkeypatch.setattr(module, "SOURCES", tmp_path)
    with pytest.raises(ValueError, match="must differ, got twice"):
        module.bundle("a.js")
    (tmp_path / "b.js").write_text("export const b = 1;\n")
    assert module.bundle("a.js") == "// b.js\nconst b = 1;\n\n// a.js\nconst twice = 1;\n"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_has_no_faults(explorer, width, dark):  # noqa: F811
    page = explorer.open(width, dark=dark, epoch=2, rho=1)
    page.click("#tour-open")
    page.click("#tour-options button")
    page.until("Number(data.epoch) > 0")
    page.click("#play")
    page.rest(0)
    assert page.browser.faults() == []


def test_it_loads_nothing(explorer):  # noqa: F811
    page = explorer.open(epoch=1)
    loaded = page.browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith(("blob:", "data:"))] == []
    assert page.browser.wait("const done = arguments[0]; fetch('https://example.org').then(() => done('loaded'), () => done('refused'))") == "refused"  # fmt: skip


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_opened_as_it_is_it_runs_at_once_unless_the_reader_wants_no_motion(explorer, motion):  # noqa: F811
    browser = explorer.browser
    browser.open("about:blank")
    features = [{"name": "prefers-reduced-motion", "value": motion}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.driver.get((FOLDER / "index.html").as_uri())
    if motion == "reduce":
        explorer.rest(0)
        assert explorer.text("#play") == "Run"
    else:
        explorer.until("data.playing === 'true' && Number(data.epoch) >= 1")
        assert explorer.text("#play") == "Pause"


def test_the_address_holds_the_picture(explorer):  # noqa: F811
    settings = {"left": "weights", "right": "rates", "rho": 0.5, "vStar": 4, "trainHead": "no", "lr": 0.02, "batch": 20, "epochs": 50,
                "chi": 450, "corruption": "dropout", "level": 0.3, "where": "hard", "seed": 12, "epoch": 2}  # fmt: skip
    page = explorer.open(**settings)
    assert dict(pair.split("=") for pair in page.hash[1:].split("&")) == {k: str(v) for k, v in settings.items()}
    before = page.text("#numbers")
    page.click("#step-epoch")
    page.rest(3)
    assert page.text("#numbers") != before
    explorer.open(**settings)
    assert page.text("#numbers") == before
    page.browser.run("location.hash = 'seed=1&rho=99&batch=3&nonsense=1&left=adam&epoch=1'")
    page.until("location.hash === '#seed=1&epoch=1'")  # what has no meaning is left at its start


def test_steps_keys_and_reset(explorer):  # noqa: F811
    page = explorer.open(epochs=10, batch=20)
    page.press(".")
    page.rest(0.01)
    assert page.text("#epoch") == "Epoch 0.07 of 10"
    page.press("e")
    page.rest(1)
    page.press("r")
    page.until("data.epoch === '0'")
    page.press(" ")
    page.until("data.playing === 'true'")
    page.rest(10)
    assert page.text("#play") == "Run again"
    assert "Epoch 10 of 10" in page.text("#status")


def test_a_changed_setting_starts_anew(explorer):  # noqa: F811
    page = explorer.open(epoch=1)
    page.choose("#set-chi", "180")
    page.until("location.hash === '#chi=180'")
    assert page.text("#epoch") == "Epoch 0 of 100"
    page.choose("#set-corruption", "gaussian")
    page.until("location.hash.includes('level=0.25')")


def test_runs_lie_over_the_band_of_ten_seeds(explorer):  # noqa: F811
    (at_two,) = [row for row in build().reference() if row[:2] == [360.0, 2.0]]
    assert at_two == [360.0, 2.0, 0.0215, 0.02029, 0.0033, 0.00307]  # standard errors times the root of 10
    bands = "return document.querySelectorAll('#chart-errors .band').length"
    assert explorer.open(rho=1.25).browser.run(bands) == 4  # of each run, hard and easy
    assert explorer.open(rho=2.5).browser.run(bands) == 2  # LSAM was not run at this radius
    assert explorer.open(batch=20).browser.run(bands) == 0


def test_finished_runs_leave_marks_beside_runs_of_their_kind(explorer):  # noqa: F811
    past = "return document.querySelectorAll('#chart-radius .past').length"
    page = explorer.open(epochs=10, batch=100)
    page.click("#play")
    page.rest(10)
    page.choose("#set-rho", "1")
    page.until("data.epoch === '0' && location.hash.includes('rho=1')")
    assert page.browser.run(past) == 2
    page.choose("#set-chi", "180")
    page.until("location.hash.includes('chi=180')")
    page.rest(0)
    assert page.browser.run(past) == 0


def test_points_are_followed_by_pointer_and_keys(explorer):  # noqa: F811
    page = explorer.open(epoch=1)
    page.press("\ue014", "#left-hard")  # arrow right: the heaviest point
    assert "rank 1 of 300" in page.text("#point").split(";")[0]
    assert page.text("#status") == page.text("#point")
    assert page.browser.run("return document.querySelectorAll('.ring').length") == 2


def test_every_preset_shows_its_figure(explorer):  # noqa: F811
    page = explorer.open()
    for name in PRESETS:
        page.choose("#preset", name)
        number = name.removeprefix("fig")
        assert page.text("#caption-title").startswith(f"Figure {number}:")
        assert page.browser.run("return document.querySelectorAll('.pointed').length") == 1, name
        page.until("Number(data.epoch) > 0")
        page.press("r")
        page.until("data.epoch === '0'")


def test_the_tour_has_six_steps_with_one_right_answer_each(explorer):  # noqa: F811
    page = explorer.open()
    page.click("#tour-open")
    for step in range(6):
        assert page.text("#tour-count") == f"Step {step + 1} of 6"
        assert page.text("#tour-why") == ""  # the prediction comes first
        page.click("#tour-options button")
        assert page.text("#tour-why").startswith(("Yes.", "Watch:"))
        assert page.browser.run("return document.querySelectorAll('.right-answer').length") == 1
        assert page.browser.run("return document.activeElement !== document.body")
        page.click("#tour-next")
    assert page.browser.run("return document.querySelector('#tour').hidden")


SCRIPTS = [
    {"epochs": 10},
    {"left": "sam", "right": "both", "rho": 0.1, "vStar": 1.5, "epochs": 10, "trainHead": "no", "batch": 20, "lr": 0.02, "seed": 7},
    {"left": "weights", "right": "rates", "epochs": 10, "chi": 270, "corruption": "gaussian", "level": 0.25, "where": "hard"},
]  # fmt: skip


@pytest.mark.parametrize("settings", SCRIPTS, ids=str)
def test_the_lines_of_python_give_the_same_runs(explorer, settings):  # noqa: F811
    page = explorer.open(**settings | {"rho": settings.get("rho", 0.5)}, epoch=10)
    page.click("#python-open")
    code = page.text("#python-code")
    assert len(code.splitlines()) == 10
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    ours = {
        name: [100 * float(share) for share in shares]
        for name, *shares in map(str.split, printed.getvalue().splitlines())
    }
    for side, start in (("left", "sgd"), ("right", "lsam")):
        shown = [float(page.text(f"#{side}-{kind}-error").removesuffix(" %")) for kind in ("hard", "easy", "all")]
        assert ours[settings.get(side, start)] == pytest.approx(shown, abs=0.05 + 1e-9)  # shown with one digit


def rows(name):
    with (ROOT / "results" / "toy" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def error(name, **cell):
    (row,) = [row for row in rows(name) if all(row[column] == value for column, value in cell.items())]
    return f"{100 * float(row['hard probe error']):.2g} %".replace("e+01", "0")


RADIUS = {"χ (degrees)": "360.0"}
NUMBERS = [
    ("fig1", "for SGD and {} for LSAM with ρ = 2", error("fig2", **RADIUS, ρ="2.0")),
    ("fig1", "hard probe error is {} for SGD", error("fig2", **RADIUS, ρ="0.0")),
    ("fig2", "to {} at 1 and", error("fig2", **RADIUS, ρ="1.0")),
    ("fig7", "LSAM {},", error("fig7", head="trained head", algorithm="LSAM", setting="ρ = 1.5")),
    ("fig7", "both effects by hand {},", error("fig7", head="trained head", algorithm="both", setting="v*_hard = 1.5")),
    ("fig7", "weights only {},", error("fig7", head="trained head", algorithm="weights", setting="v*_hard = 1.5")),
    ("fig7", "rates only {}.", error("fig7", head="trained head", algorithm="rates", setting="v*_hard = 1.5")),
    ("fig10", "seeds: {} against", error("fig10", noise="label", on="hard", level="0.05", ρ="0.0")),
    ("fig10", "against {})", error("fig10", noise="label", on="hard", level="0.05", ρ="2.0")),
    ("fig11", "seeds: {} against", error("fig11", batch="20", ρ="0.0", **{"learning rate": "0.01"})),
    ("fig11", "against {})", error("fig11", batch="20", ρ="1.0", **{"learning rate": "0.01"})),
    ("tour", "SGD {}, weights", error("fig2", **RADIUS, ρ="0.0")),
    ("tour", "weights only {},", error("fig7", head="trained head", algorithm="weights", setting="v*_hard = 3")),
    ("tour", "rates only {},", error("fig7", head="trained head", algorithm="rates", setting="v*_hard = 3")),
    ("tour", "the pair {}.", error("fig7", head="trained head", algorithm="both", setting="v*_hard = 3")),
]  # fmt: skip


@pytest.mark.parametrize(("where", "words", "number"), NUMBERS)
def test_numbers_in_the_text_are_those_we_measured(where, words, number):
    text = (FOLDER / "src" / ("tour.js" if where == "tour" else "presets.js")).read_text("utf-8")
    text = re.sub(r'" \+\s+"', "", text)
    part = text if where == "tour" else re.search(rf"{where}: \{{.*?\n  \}},", text, re.DOTALL)[0]
    value = float(number.removesuffix(" %"))
    rounded = number if value < 1 else f"{value + 1e-9:.0f} %"
    assert words.format(rounded) in part


def test_the_wheel_has_the_page():
    text = (ROOT / "pyproject.toml").read_text()
    assert '"docs/explorer/index.html" = "samphire/report/explorer.html"' in text
