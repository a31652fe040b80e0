"""The page is parsed, not searched: every text arrives as text, nothing is loaded from outside, every link lands."""

import base64
import csv
import io
import json
import math
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib.figure
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from samphire import records, report
from samphire.report import Claim, Result, Story, Table, pictures
from samphire.statistics import Estimate, estimate
from waiting import PATIENCE

NASTY = "<script>alert('x')</script> & \"quotes\" </style></td> ü"


class Parsed(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.texts.append(data)

    def values(self, name):
        return [value for _, key, value in self.attributes if key == name]


def picture(width=2.0):
    with report.figure(size=(width, 1.5)) as (fig, axes):
        axes.plot([0, 1], [0, 1])
    return fig


def result(name="fig2", **kwargs):
    return Result(name, "Error against rho", **kwargs)


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Estimate(0.1234, 0.0101, 10), "0.123 ± 0.010 (n=10)"),
        (Estimate(0.1234, 0.0099, 10), "0.1234 ± 0.0099 (n=10)"),
        (Estimate(12345.6, 234.5, 3), "12346 ± 234 (n=3)"),
        (Estimate(-2.0, 1.5, 2), "-2.0 ± 1.5 (n=2)"),
        (Estimate(1e-8, 1e-9, 5), "1.00e-08 ± 1e-09 (n=5)"),
        (Estimate(0.25, 0.0, 5), "0.25 (n=5)"),
        (Estimate(0.25, math.nan, 1), "0.25 (n=1)"),
        (Estimate(math.nan, math.nan, 0), "– (n=0)"),
    ],
)
def test_estimates_show_two_digits_of_their_error(value, text):
    assert str(value) == text
    assert report.show(value) == text


def test_estimate_of_runs():
    values = [0.1, 0.2, 0.4, 0.8]
    ours = estimate(torch.tensor(values, dtype=torch.float64))
    assert ours.mean == pytest.approx(statistics.fmean(values))
    assert ours.error == pytest.approx(np.std(values, ddof=1) / 2)
    assert ours.n == 4
    assert math.isnan(estimate([1.0]).error)
    assert math.isnan(estimate([1.0, math.nan]).mean)
    assert estimate([]).n == 0


def test_cells():
    shown = [report.show(v) for v in (None, math.nan, math.inf, True, False, 3, 0.123456, 1e-9, "a")]
    assert shown == ["–", "–", "inf", "yes", "no", "3", "0.1235", "1e-09", "a"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"), (math.nan, "–")],
)
def test_durations(seconds, text):
    assert report.duration(seconds) == text


# Tables


def test_table_from_rows():
    rows = [{"rho": np.float64(0.0), "n": torch.tensor(3)}, {"rho": 0.5, "error": 0.2}]
    assert report.table(rows) == Table(["rho", "n", "error"], [[0.0, 3, None], [0.5, None, 0.2]])
    assert report.table(rows, columns=["error", "rho"]).rows == ((None, 0.0), (0.2, 0.5))


def test_table_rows_must_fit_their_columns():
    with pytest.raises(ValueError, match="row 2 of the table must have 2 cells, one for each of a, b, got 1"):
        Table(["a", "b"], [[1, 2], [1]])


def test_table_on_a_terminal_shows_brackets_as_they_are():
    table = Table(["[bold]x", "y"], [["[red]a[/red]", Estimate(0.1234, 0.0101, 10)]], "Cap [i].")
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(report.rich_table(table))
    text = console.file.getvalue()
    for expected in ("[bold]x", "[red]a[/red]", "0.123 ± 0.010 (n=10)", "Cap [i]."):
        assert expected in text
    assert "\x1b" not in text


def test_table_as_csv_reads_back():
    table = Table(["name", "err"], [['a,"b"\n', Estimate(1 / 3, 0.1, 3)], ["c", None], ["d", 0.5]])
    rows = list(csv.DictReader(io.StringIO(report.to_csv(table), newline="")))
    assert rows[0] == {"name": 'a,"b"\n', "err": repr(1 / 3), "err_se": "0.1", "err_n": "3"}
    assert rows[1] == {"name": "c", "err": "", "err_se": "", "err_n": ""}
    assert rows[2]["err"] == "0.5"


def test_rows_as_strict_json():
    rows = [{"a": math.nan, "b": [math.inf, np.float64(1.5)], "c": Estimate(1.0, math.nan, 1), "d": "ü", "e": True}]

    def refuse(word):
        raise AssertionError(word)

    back = json.loads(report.to_json(rows), parse_constant=refuse)
    assert back == [{"a": None, "b": [None, 1.5], "c": {"mean": 1.0, "error": None, "n": 1}, "d": "ü", "e": True}]


# Pictures


@pytest.fixture
def whole_pictures(monkeypatch):
    monkeypatch.setattr(pictures, "PIXELS", 2)


@pytest.mark.usefixtures("whole_pictures")
def test_picture_has_its_size_on_white():
    image = Image.open(io.BytesIO(report.png(picture(2.0))))
    assert image.size == (2 * 192, 1.5 * 192)
    assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


def test_a_figure_is_left_as_it_was():
    fig = matplotlib.figure.Figure(dpi=50, facecolor="black")
    before = fig.canvas, fig.dpi, fig.get_facecolor()
    assert Image.open(io.BytesIO(report.png(fig))).convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert (fig.canvas, fig.dpi, fig.get_facecolor()) == before


@pytest.mark.usefixtures("whole_pictures")
def test_a_picture_of_few_colors_is_small_and_looks_the_same():
    with report.figure(1, 2, size=(8, 3)) as (fig, (left, right)):
        right.contourf(np.add.outer(np.arange(40), np.arange(40)) % 37, levels=20, cmap="RdBu")
        for k, color in enumerate(report.PALETTE):
            report.curve(left, range(9), [Estimate(k + i * k / 9, 0.3, 5) for i in range(9)], f"{k}", color=color)
    few, file = report.png(fig), io.BytesIO()
    full = pictures._drawn(fig)
    full.save(file, format="PNG", optimize=True)
    all_colors, seen = (np.asarray(image.convert("RGB")).astype(int) for image in (full, Image.open(io.BytesIO(few))))
    assert len(few) < len(file.getvalue()) / 2
    assert np.abs(seen - all_colors).mean() < 1
    assert np.quantile(np.abs(seen - all_colors), 0.999) <= 24  # of 255


def test_style_leaves_no_trace():
    with matplotlib.rc_context({"font.size": 30, "xtick.direction": "inout"}):
        before = dict(matplotlib.rcParams)
        report.png(picture())
        with pytest.raises(ZeroDivisionError), report.figure():
            _ = 1 / 0
        assert dict(matplotlib.rcParams) == before


def test_style_does_not_depend_on_the_users():
    plain = report.png(picture())
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "xtick.direction": "in", "axes.linewidth": 5}):
        assert report.png(picture()) == plain


def test_curve_draws_means_and_a_band_of_one_standard_error():
    with report.figure() as (_, axes):
        report.curve(axes, [0, 1], [Estimate(1.0, 0.5, 3), Estimate(2.0, math.nan, 1)], "SGD", color="black")
    (line,) = axes.lines
    assert line.get_ydata().tolist() == [1.0, 2.0]
    assert line.get_label() == "SGD"
    corners = {tuple(point) for point in axes.collections[0].get_paths()[0].vertices}
    assert {(0.0, 0.5), (0.0, 1.5), (1.0, 2.0)} <= corners


def test_what_is_no_picture_is_refused():
    with pytest.raises(ValueError, match=r"must be a PNG image, got b'GIF89a'; pass the matplotlib figure"):
        result(figures=[b"GIF89a"])
    with pytest.raises(TypeError, match="must be a matplotlib Figure or PNG bytes, got int"):
        result(figures=[3])


def test_importing_the_report_loads_no_matplotlib_and_drawing_no_pyplot():
    code = """
import sys, samphire.report as report
assert not {"matplotlib", "rich", "jinja2"} & set(sys.modules)
with report.figure() as (fig, axes):
    axes.plot([0, 1])
report.png(fig)
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


# Results


def test_summary_has_a_row_for_every_claim():
    claims = [Claim("a", "holds"), Claim("b", "contradicted", "1", "2"), Claim("c", "open")]
    rows = report.summary(
        [result(claims=claims, seconds=2.0), result("fig3"), result("fig4", claims=claims[:1], error="e")]
    )
    assert [row["verdict"] for row in rows] == ["holds", "contradicted", "open", "open", "failed"]
    expected = {"figure": "fig2", "claim": "b", "ours": "1", "paper": "2", "verdict": "contradicted", "seconds": 2.0}
    assert rows[1] == expected
    assert rows[3]["claim"] == "Error against rho"


@pytest.mark.parametrize("verdict", [True, None, "does not hold"])
def test_a_verdict_is_one_of_three(verdict):
    with pytest.raises(ValueError, match=f"must be one of holds, contradicted, open, got {verdict!r}"):
        Claim("a", verdict)


@pytest.mark.parametrize("name", ["", "a b", "../a", "a.b", '"'])
def test_names_are_fit_for_files_and_anchors(name):
    with pytest.raises(ValueError, match=re.escape(f"letters, digits, '_' and '-', got {name!r}")):
        result(name)


# The page


def full(name="fig2"):
    return Result(
        name,
        NASTY + "title",
        paper_says=NASTY + "says",
        figures=[picture(), report.png(picture(3.0))],
        tables=[Table([NASTY + "head", "n"], [[NASTY + "cell", 1]], NASTY + "caption")],
        claims=[Claim(NASTY + "claim", "contradicted", NASTY + "ours", NASTY + "paper", NASTY + "detail")],
        notes=[NASTY + "note"],
        settings={"rho-setting": NASTY + "setting"},
        provenance={NASTY + "key": NASTY + "value"},
        seconds=83.2,
        error=NASTY + "error",
    )


def test_every_text_arrives_as_text():
    page = report.page([full()], {NASTY + "machine": NASTY + "cpu"}, NASTY + "page")
    parsed = Parsed(page)
    assert "script" not in parsed.tags
    text = "".join(parsed.texts)
    for what in [
        "title",
        "says",
        "head",
        "cell",
        "caption",
        "claim",
        "ours",
        "paper",
        "detail",
        "note",
        "setting",
        "key",
        "value",
        "error",
        "machine",
        "cpu",
        "page",
    ]:
        assert NASTY + what in text, what
    assert parsed.values("alt") == [NASTY + "title (1)", NASTY + "title (2)"]


def test_page_is_whole_and_loads_nothing():
    page = report.page([full(), result("fig3")], records.provenance())
    parsed = Parsed(page)
    assert not {"script", "link", "iframe", "object", "base"} & set(parsed.tags)
    assert all(src.startswith("data:image/png;base64,") for src in parsed.values("src"))
    assert all(href.startswith("#") for href in parsed.values("href"))
    assert "url(" not in page
    assert "@import" not in page
    assert "http:" not in page
    assert "https:" not in page
    policy = next(content for content in parsed.values("content") if "default-src" in content)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_a_card_shows_its_picture_first_then_both_sides_and_folds_the_rest():
    card = report.page([full()]).partition("<article")[2].partition("</article>")[0]
    parts = ("<img", "says", "<details", 'class="claims"', "<table", "Differences", "rho-setting", "computed in")
    order = [card.index(part) for part in parts]
    assert order == sorted(order)


def test_a_card_counts_its_claims_and_shows_the_number_that_matters():
    claims = [Claim("a", "holds", "1 of 2"), Claim("b", "holds", "3 of 4", main=True), Claim("c", "open", "5 of 6")]
    one = result(claims=claims)
    assert one.main == claims[1]
    assert one.counts == {"holds": 2, "open": 1}
    card = "".join(Parsed(report.page([one]).partition("<article")[2].partition("<details")[0]).texts)
    assert "2 of 3 hold" in card
    assert "3 of 4" in card
    assert "1 of 2" not in card
    assert result(claims=claims[2:]).main == claims[2]
    assert result().main is None


STORY = Story("Why?", "Because.", [("fig2", 1, "Look here."), ("fig9", 0, "Not there.")], setting="We looked.")


def test_the_story_comes_first_with_the_pictures_that_are_there():
    page = report.page([full()], story=STORY)
    order = [
        page.index(part)
        for part in ("Why?", "Because.", "<nav", "<img", "Look here.", "We looked.", "<article", "All claims")
    ]
    assert order == sorted(order)
    assert "Not there." not in page
    assert Parsed(page).values("src").count(Parsed(page).values("src")[0]) == 2  # in the story and in its card


def test_an_unfinished_page_names_what_is_to_come_and_loads_itself_again():
    page = report.page([result()], pending={"fig3": "Later.", "fig4": "Last."})
    assert "Still to come: fig3, fig4." in "".join(Parsed(page).texts)
    assert ("meta", "http-equiv", "refresh") in Parsed(page).attributes
    assert "refresh" not in report.page([result()])


def test_pictures_are_inside_and_at_their_size():
    parsed = Parsed(report.page([full()]))
    first = base64.b64decode(parsed.values("src")[0].partition(",")[2])
    assert first == report.png(picture())
    assert parsed.values("width") == ["192", "288"]
    assert parsed.values("height") == ["144", "144"]


def test_links_land_and_summary_counts():
    claims = [Claim("a", "holds"), Claim("b", "holds"), Claim("c", "contradicted")]
    parsed = Parsed(report.page([result(claims=claims, seconds=83.2), result("fig3"), result("fig4", error="e")]))
    assert (
        {href[1:] for href in parsed.values("href")} == {"fig2", "fig3", "fig4", "claims"} <= set(parsed.values("id"))
    )
    text = "".join(parsed.texts)
    counts = "Of what the paper claims, 2 hold, 1 is contradicted, 1 is open, 1 could not be computed."
    assert f"{counts} Computed in 1 min 23 s." in text
    rows = [value for tag, name, value in parsed.attributes if (tag, name) == ("tr", "class")]
    assert rows == ["holds", "holds", "contradicted", "open", "failed"]


def test_page_tags_are_balanced():
    page = report.page([full(), result("fig3")], {"cpu": "x"})
    body = re.sub(r"<(meta|img|br|input)[^>]*>|<!doctype html>", "", page)
    open_tags = []
    for closing, tag in re.findall(r"<(/?)([a-z][a-z0-9]*)", body):
        if closing:
            assert open_tags.pop() == tag
        else:
            open_tags.append(tag)
    assert not open_tags


def test_page_without_results():
    assert "nothing was computed" in report.page([])


def test_two_results_of_one_name_are_refused():
    with pytest.raises(ValueError, match="must have different names, got 'fig2' twice"):
        report.page([result(), result()])


def test_write_leaves_page_pictures_and_tables(tmp_path):
    out = tmp_path / "deep" / "report"
    tables = [Table(["a"], [[1]]), Table(["b"], [[2]])]
    some = Result("fig2", "t", figures=[picture(), picture(3.0)], tables=tables)
    assert report.write(out, [some]) == out / "index.html"
    names = ["fig2-2.csv", "fig2-2.png", "fig2.csv", "fig2.png", "index.html"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "index.html").read_text(encoding="utf-8") == report.page([some])
    assert (out / "fig2-2.csv").read_text() == "b\n2\n"
    assert (out / "fig2.png").read_bytes() == some.figures[0]
    report.write(out, [])
    assert (out / "index.html").read_text(encoding="utf-8") == report.page([])


def test_a_page_that_grows_writes_what_is_new_or_damaged(tmp_path):
    first, second = (Result(name, "t", tables=[Table(["a"], [[1]])]) for name in ("fig2", "fig3"))
    report.write(tmp_path, [first])
    before = (tmp_path / "fig2.csv").stat().st_ino  # a file that is written anew is another one
    report.write(tmp_path, [first, second])
    assert (tmp_path / "fig2.csv").stat().st_ino == before
    assert (tmp_path / "fig3.csv").read_text() == "a\n1\n"
    (tmp_path / "fig2.csv").write_text("a\n2\n")
    report.write(tmp_path, [first, second])
    assert (tmp_path / "fig2.csv").read_text() == "a\n1\n"


def test_write_to_what_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write the report to .*file: .*; choose another output folder"):
        report.write(tmp_path / "file", [])
