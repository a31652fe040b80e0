"""The review's theory: closed forms, golden numbers, equality with the reference rule, and claims that can fail."""

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.polynomial import Polynomial
from scipy.integrate import quad

from samphire import experiments, records, report
from samphire.experiments import runner
from samphire.experiments.experiment import one_by_one
from samphire.experiments.review import diffusion, fig1, fig2, rates
from samphire.optim import Memory, sharpness_aware_gradient
from samphire.optim.rules import sam
from samphire.optim.schedules import inverse_sqrt

pytestmark = pytest.mark.usefixtures("rough_pictures")

NAMES = ("review-fig1", "review-fig2", "review-rates", "review-diffusion")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The four experiments at their tiny scale: their rows, and where they are."""
    out = tmp_path_factory.mktemp("review")
    results = experiments.reproduce(list(NAMES), scale="tiny", out=out)
    rows = {run.config["experiment"]: list(run.rows) for run in records.read(out / "runs")}
    return SimpleNamespace(out=out, results=results, rows=rows)


def reference(loss, rho, w, lr, steps):
    """Plain SGD on the gradient that the rule's specification descends along."""
    memory = Memory()
    for _ in range(steps):
        g = sharpness_aware_gradient(sam(rho=rho), loss, {"w": w}, memory)["w"]
        w = w - lr * g
    return w.numpy()


# Figure 1


def f(w):
    return (w["w"] ** 2 * (w["w"] - 1) ** 2 / (w["w"] ** 2 + 1e-4)).sum()


@pytest.mark.parametrize("rho", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("lr", [5e-5, 3e-3])
def test_the_step_on_the_line_is_sams(lr, rho):
    x = start = np.array(-0.05)
    for _ in range(20):
        x = fig1.step(x, np.array(lr), np.array(rho))
    assert x == pytest.approx(
        reference(f, rho, torch.tensor([float(start)], dtype=torch.float64), lr, 20)[0], abs=1e-9
    )


def test_slope_and_curvature_on_the_line():
    x = np.array([-0.7, -0.004, 0.0, 0.013, 0.2, 1.0, 1.4])
    difference = (fig1.f(x + 1e-6) - fig1.f(x - 1e-6)) / 2e-6
    np.testing.assert_allclose(fig1.slope(x), difference, atol=1e-5)
    at = np.array([0.0, 1.0, fig1.BARRIER])
    curvature = (fig1.slope(at + 1e-7) - fig1.slope(at - 1e-7)) / 2e-7
    np.testing.assert_allclose(curvature, [20000, 1.99980002, -119.487], rtol=1e-5)
    assert pytest.approx(0.044980071138068, abs=1e-14) == fig1.BARRIER
    assert fig1.f(np.array(fig1.BARRIER)) == pytest.approx(0.8691062001849671, abs=1e-14)
    assert fig1.slope(at) == pytest.approx(0, abs=1e-11)


def test_golden_ends_on_the_line():
    low, high = fig1.settle(np.array(-0.5), np.array([9.9e-5, 5e-5]), np.array([0.0, 0.3]), 20_000)
    assert abs(low[0]) < 1e-8 > abs(high[0])
    assert [low[1], high[1]] == pytest.approx([0.3, 0.3], abs=1e-7)


@pytest.mark.parametrize(
    ("lr", "expected"),  # without the chaotic cells, for rho = 0, .001, .02, .04, .05, .3
    [(9.9e-5, "0ooorr"), (3e-4, "oooobb"), (8e-4, "11oo11"), (1e-2, "111o11"), (1e-1, "111111")],
)
def test_where_the_line_ends_as_worked_out_before(lr, expected):
    rho = np.array([0.0, 0.001, 0.02, 0.04, 0.05, 0.3])
    low, high = fig1.settle(np.array(-0.5), np.array(lr), rho, 20_000)
    assert "".join(fig1.ends(low, high, np.array(lr), rho)) == expected


def test_an_orbit_that_diverges_is_called_wide():
    low, high = fig1.settle(np.array(-0.5), np.array(1.5), np.array(0.0), 3000)
    assert fig1.ends(low, high, np.array(1.5), np.array(0.0)) == "w"


# Figure 2


def plane(w):
    return (w["w"][0] - 1) ** 2 * w["w"][1] ** 2


@pytest.mark.parametrize("rho", [0.0, 1e-5, 0.1])
def test_the_step_in_the_plane_is_sams(rho):
    w = np.array([[1.8, 1.1], [0.3, -0.4], [1.0, 0.7]])
    ends = fig2.descend(w, np.array(rho), 30)
    for start, end in zip(w, ends, strict=True):
        np.testing.assert_allclose(end, reference(plane, rho, torch.tensor(start), 0.1, 30), atol=1e-13)


def test_golden_numbers_in_the_plane():
    rhos = np.array([0.0, 1e-5, 0.1])
    ends = fig2.descend(np.broadcast_to([1.8, 1.1], (3, 2)), rhos)
    assert ends[0] == pytest.approx([1.0, 0.7284985877341897], abs=1e-12)
    assert ends[2] == pytest.approx([0.9999236652021393, 0.0871613170850353], abs=1e-9)
    expected = [1.0614203846614179, 1.0613973934, 0.0151942370078998]
    assert fig2.largest(ends) == pytest.approx(expected, abs=1e-9)
    for start, printed in (((1.94, 1.25), 1.225077), ((1.16, 0.8), 1.225447), ((2.0, 1.3), 1.22589)):
        assert fig2.largest(fig2.descend(np.array(start), np.array(0.0))) == pytest.approx(printed, abs=5e-6)


def test_the_eigenvalue_is_that_of_the_dense_hessian():
    for w in np.random.default_rng(0).normal(size=(5, 2)):
        hessian = torch.func.hessian(lambda t: plane({"w": t}))(torch.tensor(w))
        assert fig2.largest(w) == pytest.approx(torch.linalg.eigvalsh(hessian)[-1].item())


def test_the_level_falls_by_the_same_amount_at_each_step_in_the_valley():
    rho = np.array([1e-3, 1e-2])
    half = fig2.descend(np.broadcast_to([1.94, 1.25], (2, 2)), rho, 500)
    end = fig2.descend(half, rho, 500)
    fell = fig2.level(fig2.largest(half)) - fig2.level(fig2.largest(end))
    np.testing.assert_allclose(fell / fig2.fall(rho, 500), 1, atol=4e-5)


# Theorem 2


def test_the_stochastic_step_is_sams_with_the_schedule():
    data = rates.problem()
    a, b = torch.tensor(data.a), torch.tensor(data.b)
    order = np.array([3, 7, 3, 0])
    x = np.array([[1.0, -0.5]])
    w, memory = torch.tensor(x[0]), Memory()
    for t, i in enumerate(order, 1):
        one = rates._estimate(data, np.array([i]))
        x = rates.step(x, 0.25 / t**0.5, 0.4 / t**0.5, one, one)
        r = lambda w, i=i: a[i] @ w["w"] - b[i]
        g = sharpness_aware_gradient(
            sam(rho=inverse_sqrt(0.4)), lambda w, r=r: r(w) ** 2 / (1 + r(w) ** 2), {"w": w}, memory
        )
        w = w - 0.25 / t**0.5 * g["w"]
    np.testing.assert_allclose(x[0], w.numpy(), atol=1e-14)


def test_the_problem_has_the_constants_it_claims():
    data = rates.problem()
    np.testing.assert_allclose(np.linalg.norm(data.a, axis=1), 1)
    r = np.linspace(-20, 20, 400_001)
    slope = rates.influence(r)
    assert np.abs(slope).max() == pytest.approx(rates.G, abs=1e-8)
    assert np.abs(np.diff(slope) / np.diff(r)).max() == pytest.approx(rates.L, abs=1e-6)
    w = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
    square = (torch.tensor(data.a) @ w - torch.tensor(data.b)) ** 2
    value = (square / (1 + square)).mean()
    (g,) = torch.autograd.grad(value, w)
    assert rates.loss(w.detach().numpy(), data) == pytest.approx(value.item())
    np.testing.assert_allclose(rates.gradient(w.detach().numpy(), data), g.numpy(), atol=1e-15)
    single = [rates._estimate(data, np.array([i]))(w.detach().numpy()[None])[0] for i in range(len(data.b))]
    np.testing.assert_allclose(np.mean(single, axis=0), g.numpy(), atol=1e-15)  # unbiased
    hessian = torch.func.hessian(
        lambda x: ((torch.tensor(data.a) @ x - torch.tensor(data.b)) ** 2).pow(1).div(
            1 + (torch.tensor(data.a) @ x - torch.tensor(data.b)) ** 2).mean()
    )  # fmt: skip
    assert torch.linalg.eigvalsh(hessian(torch.tensor([3.0, 3.0]).double()))[0] < 0  # not convex


@pytest.mark.parametrize(("eta0", "steps", "mean", "bound"), [(2.5, 10, 0.2021, 0.1025), (10.0, 100, 0.2735, 0.0081)])
def test_the_counterexample_to_the_printed_bound(eta0, steps, mean, bound):
    row = rates.row(rates.Counterexample(eta0, steps))
    assert [row["mean"], row["bound"]] == pytest.approx([mean, bound], abs=5e-5)


def test_bounds_by_hand():
    row = {"eta0": 0.25, "rho0": 0.1, "start": 0.5, "loss": [0.4], "times": [4], "batches": 1}
    g2 = 27 / 64
    log = np.log(4)
    assert rates.printed(row) == pytest.approx([(0.8 + 2 * (2 * g2 / 4 + 0.2 * g2**0.5) * log) / 2])
    a = 4 + np.pi**2 / 3 * 8 * 0.25 * 0.01 + 4 * (0.1 * g2**0.5 + g2 / 4) * (1 + log)
    assert rates.corrected(row) == pytest.approx([a / 2])
    b = 4 + 2.6123753486854883 * 4 * 0.01 + 2 * 0.25 * g2 * (1 + log)
    assert rates.corrected(row | {"batches": 2}) == pytest.approx([b / 2])


# Diffusion


@pytest.mark.parametrize("sigma", [0.005, 0.05, 0.3])
@pytest.mark.parametrize("x", [-0.2, 0.01, 0.5])
def test_the_diffused_function_is_the_mean(x, sigma):
    def weighted(z):
        return fig1.f(np.array(x + sigma * z)) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)

    cuts = [c for c in (-x / sigma - 5e-2 / sigma, -x / sigma, -x / sigma + 5e-2 / sigma) if abs(c) < 10]
    mean, _ = quad(weighted, -10, 10, points=cuts or None, limit=500)
    at = np.array(x)
    assert diffusion.smooth(at, sigma) == pytest.approx(mean, abs=1e-10)
    for order in (0, 1):
        high, low = (diffusion.smooth(at + h, sigma, order) for h in (1e-6, -1e-6))
        assert diffusion.smooth(at, sigma, order + 1) == pytest.approx((high - low) / 2e-6, rel=1e-5, abs=1e-4)


def test_a_diffused_polynomial_has_the_moments_of_the_normal_distribution():
    points, weights = np.polynomial.hermite_e.hermegauss(12)
    p = Polynomial([0.3, -1.0, 2.0, 0.5, -0.7, 0.2, 1.1])
    x, sigma = np.array([-1.0, 0.4, 2.0]), np.array([0.5, 1.0, 2.0])
    expected = (p(x[:, None] + sigma[:, None] * points) * weights).sum(1) / weights.sum()
    np.testing.assert_allclose(diffusion.diffused(p, x, sigma), expected, rtol=1e-12)


def test_enough_diffusion_is_convex_and_less_is_not():
    row = diffusion.row(diffusion.Shape((0.01, 0.05, 0.08, 0.12, 0.2)))
    assert [len(c) for c in row["critical"]] == [3, 3, 1, 1, 1]
    assert [c > 0 for c in row["curvature"]] == [False, False, False, False, True]
    assert diffusion.single_from(row) == 0.08
    assert diffusion.convex_from(row) == 0.2


@pytest.mark.parametrize(("sigma", "ends"), [(0.02, 0.0), (0.2, 1.0)])
def test_tracing_back_depends_on_where_it_begins(sigma, ends):
    assert diffusion.trace(np.array(-0.3), np.array([sigma]), 15, 300)[-1] == pytest.approx(ends, abs=2e-3)


# The experiments


@pytest.mark.parametrize("name", NAMES)
def test_rows_make_tables_pictures_and_claims(tiny, name):
    (result,) = (r for r in tiny.results if r.name == name)
    assert result.source == "the review"
    assert all(t.rows for t in result.tables)
    assert result.claims
    assert all(c.text and c.ours and c.paper and c.verdict == "open" for c in result.claims)
    assert (tiny.out / f"{name}.png").exists()


def changed(rows, where, **columns):
    """Rows with some columns of the matching ones set."""
    rows = copy.deepcopy(rows)
    hit = [row for row in rows if all(row.get(k) == v for k, v in where.items())]
    assert hit
    for row in hit:
        row.update({k: v(row) if callable(v) else v for k, v in columns.items()})
    return rows


def figure_1(lr, *lines):
    """A map of one start with these lines over rho, one for each learning rate, and facts that hold."""
    facts = [
        {"fact": "S1", "start": 0.001, "lr": 5e-5, "rhos": [1e-5], "low": [-1e-5], "high": [1e-5], "ends": "o"},
        {"fact": "S2", "start": -0.5, "lr": 9.9e-5, "rhos": [0.3], "low": [0.3], "high": [0.3], "ends": "r"},
        {"fact": "S2", "start": -0.5, "lr": 1.01e-4, "rhos": [0.3], "low": [0.29], "high": [0.31], "ends": "b"},
        {"fact": "S3", "start": 0.05, "lr": 1e-4, "rhos": [0.0, 0.01], "low": [1, 0.045], "high": [1, 0.045], "ends": "1b"},
    ]  # fmt: skip
    rhos = [0.0, *(0.1 * (i + 1) for i in range(len(lines[0]) - 1))]
    return [{"fact": "", "starts": [-0.5], "lrs": list(lr), "rhos": rhos, "ends": [list(lines)], "steps": 1}, *facts]


def verdicts(module, rows):
    return [claim.verdict for claim in module.claims(rows)]


def test_claims_of_figure_1_can_fail_and_hold():
    assert verdicts(fig1, figure_1((5e-5, 1e-3), "0or", "111")) == [
        "contradicted",
        "holds",
        "holds",
        "holds",
        "holds",
        "holds",
    ]
    assert verdicts(fig1, figure_1((5e-5, 1e-3), "0o1", "111"))[:3] == ["holds", "holds", "holds"]
    assert verdicts(fig1, figure_1((5e-5, 1e-3), "00r", "11o"))[:3] == [
        "contradicted",
        "contradicted",
        "contradicted",
    ]
    assert verdicts(fig1, figure_1((1e-3,), "o11"))[:3] == ["holds", "open", "open"]
    rows = figure_1((5e-5,), "0o")
    assert verdicts(fig1, changed(rows, {"fact": "S1"}, high=[1.1e-5]))[3] == "contradicted"
    assert verdicts(fig1, changed(rows, {"fact": "S2", "lr": 9.9e-5}, ends="b"))[4] == "contradicted"
    assert verdicts(fig1, changed(rows, {"fact": "S2", "lr": 1.01e-4}, ends="r"))[4] == "contradicted"
    assert verdicts(fig1, changed(rows, {"fact": "S3"}, low=[1, 0.03]))[5] == "contradicted"
    assert verdicts(fig1, changed(rows, {"fact": "S3"}, ends="0b"))[5] == "contradicted"


def test_the_facts_of_figure_1_hold_as_computed(tiny):
    assert verdicts(fig1, tiny.rows["review-fig1"])[3:] == ["holds", "holds", "holds"]


def test_claims_of_figure_2_can_fail_and_hold(tiny):
    rows = tiny.rows["review-fig2"]
    assert verdicts(fig2, rows) == ["contradicted", "holds", "holds", "holds"]
    flat = changed(rows, {"kind": "curve"}, largest=lambda r: [v if rho == 0 else 0.016 for rho, v in zip(r["rhos"], r["largest"], strict=True)])  # fmt: skip
    assert verdicts(fig2, flat)[0] == "holds"
    steep = changed(rows, {"kind": "curve"}, largest=lambda r: [1.3 for _ in r["rhos"]])
    assert verdicts(fig2, steep)[1] == "contradicted"
    assert verdicts(fig2, changed(rows, {"kind": "map", "rho": 0.1}, largest=lambda r: (np.array(r["largest"]) + 1).tolist()))[2] == "contradicted"  # fmt: skip
    assert (
        verdicts(fig2, changed(rows, {"kind": "curve"}, half=lambda r: [1.02 * v for v in r["half"]]))[3]
        == "contradicted"
    )


def test_claims_of_the_rates_as_computed(tiny):
    assert verdicts(rates, tiny.rows["review-rates"])[:4] == ["holds", "contradicted", "holds", "holds"]
    bounded = changed(tiny.rows["review-rates"], {"kind": "huber"}, bound=1.0)
    assert verdicts(rates, bounded)[1] == "holds"


@pytest.mark.parametrize(("batches", "claim"), [(1, 2), (2, 3)])
@pytest.mark.parametrize(
    ("column", "factor", "verdict"), [("mean", 1, "holds"), ("mean", 100, "contradicted"), ("error", 1e6, "open")]
)
def test_a_bound_holds_if_every_mean_is_surely_below(tiny, batches, claim, column, factor, verdict):
    change = {column: lambda row: [factor * value for value in row[column]]}
    rows = changed(tiny.rows["review-rates"], {"batches": batches, "decays": True}, **change)
    assert verdicts(rates, rows)[0] == verdict
    assert verdicts(rates, rows)[claim] == verdict


@pytest.mark.parametrize(
    ("power", "error", "verdict"), [(-1, 1e-9, "holds"), (0, 1e-9, "contradicted"), (-1, 10.0, "open")]
)
def test_the_rate_is_judged_by_a_tenth_of_the_steps_and_all(tiny, power, error, verdict):
    curves = {
        "mean": lambda r: [float(t) ** power for t in r["times"]],
        "error": lambda r: [error for _ in r["times"]],
    }
    assert verdicts(rates, changed(tiny.rows["review-rates"], {"decays": True}, **curves))[4] == verdict


@pytest.mark.parametrize(
    ("end", "error", "verdict"), [(10.0, 1e-9, "holds"), (1e-6, 1e-9, "contradicted"), (10.0, 10.0, "open")]
)
def test_a_constant_radius_is_judged_by_the_last_mean(tiny, end, error, verdict):
    rows = changed(tiny.rows["review-rates"], {"kind": "stochastic"}, error=lambda r: [error for _ in r["times"]])
    rows = changed(rows, {"decays": False}, mean=lambda r: [end for _ in r["times"]])
    assert verdicts(rates, rows)[5] == verdict


def test_claims_of_the_diffusion_can_fail_and_hold():
    shape = {
        "kind": "shape",
        "sigmas": [0.01, 0.1, 0.2],
        "critical": [[0, 0.04, 1], [1], [1]],
        "curvature": [-9, -1, 1],
    }
    traced = {"kind": "traced", "strengths": [0.01, 0.2], "ends": ["01", "11"]}
    sam = {"kind": "sam", "strengths": [0.0, 0.1, 0.2], "ends": ["01", "r1", "o1"]}
    assert verdicts(diffusion, [shape, traced, sam]) == ["holds", "holds", "contradicted"]
    assert verdicts(diffusion, [shape | {"curvature": [-9, -1, -1]}, traced, sam])[0] == "contradicted"
    assert verdicts(diffusion, [shape, traced | {"ends": ["11", "01"]}, sam])[1] == "contradicted"
    assert verdicts(diffusion, [shape, traced, sam | {"ends": ["01", "11", "11"]}])[2] == "holds"


# The runner


def test_the_papers_figures_come_first_and_the_reviews_follow():
    sources = [experiment.source for experiment in experiments.EXPERIMENTS.values()]
    assert sources == sorted(sources)  # the paper, the review
    names = [name for name in experiments.EXPERIMENTS if name.startswith("review-")]
    assert names[:3] == ["review-fig1", "review-fig2", "review-fig3"]
    assert len(names) == sources.count("the review") == 10


def test_a_page_of_both_has_a_heading_for_each(tiny):
    fresh = report.Result("fig2", "Of the paper.", claims=[report.Claim("It falls.", "holds")])
    both = report.page([fresh, *tiny.results])
    assert both.index('<p class="part">The paper</p>') < both.index('<p class="part">The review</p>')
    assert "<summary>Differences from the review</summary>" in both
    assert "Of what the paper and the review claim," in both
    assert 'class="part"' not in report.page([fresh])


def test_rows_are_stored_as_they_come_and_computed_once(tmp_path, monkeypatch):
    computed, stop = [], [2]

    def row(run):
        if len(computed) == stop[0]:
            raise KeyboardInterrupt
        computed.append(run)
        return rates.row(run)

    watched = replace(rates.RATES, compute=one_by_one(row, rates.steps))
    monkeypatch.setitem(runner.EXPERIMENTS, "review-rates", watched)
    with pytest.raises(KeyboardInterrupt):
        experiments.reproduce(["review-rates"], scale="tiny", out=tmp_path)
    (stored,) = records.read(tmp_path / "runs")
    assert len(stored.rows) == 2
    assert not stored.done
    stop[0] = -1
    seen = []
    experiments.reproduce(["review-rates"], scale="tiny", out=tmp_path, progress=lambda *a: seen.append(a))
    runs = rates.runs(rates.RATES.at("tiny"))
    assert computed == runs
    assert seen[-1][1] == seen[-1][2] == sum(map(rates.steps, runs))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[0][1] > sum(map(rates.steps, runs[:2]))  # what was stored counts as done


@pytest.fixture
def needs_data(monkeypatch):
    """An experiment that computes its runs together, from data; the folders it is given."""
    folders = []

    def compute(runs, places, progress):
        folders.append(places.data)
        for i, run in enumerate(reversed(runs), 1):  # in any order
            progress("runs", i, len(runs))
            yield run, rates.row(run)

    changed = replace(rates.RATES, compute=compute, data=("mnist",))
    monkeypatch.setitem(runner.EXPERIMENTS, "review-rates", changed)
    return folders


def test_an_experiment_that_needs_data_asks_for_its_folder(needs_data, tmp_path):
    with pytest.raises(
        ValueError, match=r"review-rates needs mnist, got no folder of data; name one with --root DIR"
    ):
        experiments.reproduce(["review-rates"], scale="tiny", out=tmp_path)
    with pytest.raises(FileNotFoundError, match="mnist"):
        experiments.reproduce(["review-rates"], scale="tiny", out=tmp_path, data_root=tmp_path)
    assert not needs_data


def test_without_a_folder_of_data_the_others_are_computed(needs_data, tmp_path, monkeypatch):
    chosen = {name: runner.EXPERIMENTS[name] for name in ("review-diffusion", "review-rates")}
    monkeypatch.setattr(runner, "EXPERIMENTS", chosen)
    (result,) = experiments.reproduce(experiments.runnable(), scale="tiny", out=tmp_path)
    assert result.name == "review-diffusion"


def test_an_experiment_may_compute_its_runs_together(needs_data, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "find", lambda dataset, root: None)
    seen = []
    experiments.reproduce(
        ["review-rates"], scale="tiny", out=tmp_path, data_root="data", progress=lambda *a: seen.append(a)
    )
    (stored,) = records.read(tmp_path / "runs")
    assert needs_data == [Path("data")]
    assert sorted(map(str, stored.rows)) == sorted(map(str, tiny.rows["review-rates"]))
    assert seen[-1][1] == seen[-1][2]
