"""Figures 1, 4, 5, 6, 8, 9 and theory: what their rows hold, and rows that satisfy, contradict and leave open every claim."""

import copy
import json

import pytest
import torch
from torch.nn import functional as F

from samphire import experiments, report
from samphire.experiments.paper import fig1, fig4, theory
from samphire.experiments.paper import importance_weights as weights
from samphire.train import ToyConfig, fit_many

pytestmark = pytest.mark.usefixtures("rough_pictures")


@pytest.fixture(scope="module")
def results():
    """An SGD and an LSAM run with their weights after one and two epochs, and a frozen pair."""
    runs = [
        ToyConfig(rho=r, train_head=h, epochs=2) for h, r in ((True, 0.0), (True, 1.0), (False, 0.0), (False, 0.5))
    ]
    return list(fit_many(runs, checkpoints=(1,), keep_weights=True))


@pytest.fixture(scope="module")
def trained_rows(results):
    return {
        "fig1": [fig1.row(r) for r in results[:2]],
        "fig4": [fig4.row(r) for r in results if r.config.rho],
        "theory": [theory.row(r) for r in results[:2]],
        "weights": [weights.row(r) for r in results],
    }


def verdicts(claims):
    return [claim.verdict[0] for claim in claims]  # h(olds), c(ontradicted), o(pen)


# The rows


@pytest.mark.parametrize("k", [0, 1])
def test_phantom_weights_are_those_of_two_passes_on_every_batch(results, k):
    result = results[k]
    phi, y, v = weights.features(result.config, result.checkpoints[0].weights)
    index = weights.batches(result.config, 5)
    assert sorted(index.flatten().tolist()) == list(range(300))
    expected = torch.empty(300, dtype=torch.float64)
    for batch in index:
        head = v.clone().requires_grad_()
        (g,) = torch.autograd.grad(F.softplus(-y[batch] * (phi[batch] @ head)).mean(), head)
        expected[batch] = torch.sigmoid(-y[batch] * (phi[batch] @ (v + g / g.norm())))
    torch.testing.assert_close(weights.phantom_weights(phi, y, v, 1.0, index), expected)


def test_features_are_the_networks(results):
    result = results[1]
    net = result.config.network()
    net.load_state_dict(result.checkpoints[0].weights)
    phi, y, v = weights.features(result.config, result.checkpoints[0].weights)
    points = result.config.train_points()
    torch.testing.assert_close((phi @ v).float(), net(points.x), atol=1e-5, rtol=1e-4)
    assert (y == points.y).all()


def test_a_checkpoint_row_has_the_numbers_of_its_weights(results, trained_rows):
    result, row = results[1], trained_rows["weights"][1]
    assert [c["epoch"] for c in row["checkpoints"]] == [1, 2]
    phi, y, v = weights.features(result.config, result.checkpoints[0].weights)
    point = row["checkpoints"][0]
    real, easy, hard = torch.sigmoid(-y * (phi @ v)), y * v[0] * phi[:, 0], y * v[1] * phi[:, 1]
    phantom = weights.phantom_weights(phi, y, v, 1.0, weights.batches(result.config, 5))
    for name, lam in (("real", real), ("phantom", phantom)):
        assert point[f"gini_{name}"] == pytest.approx(float((lam[:, None] - lam).abs().mean() / (2 * lam.mean())))
        assert point[f"ess_{name}"] == pytest.approx(float(lam.sum() ** 2 / (lam**2).sum()))
        assert point[f"lorenz_{name}"][30] == pytest.approx(
            float(lam.sort().values[:150].sum() / lam.sum()), rel=1e-3
        )
        group = (easy > easy.sort().values[149]) & (hard < hard.sort().values[149])
        assert point[f"share_{name}"] == pytest.approx(float(lam[group].sum() / lam.sum()))
    gain = rank(phantom.log() - real.log())
    assert point["gain_easy"] == pytest.approx(correlation(gain, rank(easy)))
    assert point["gain_hard"] == pytest.approx(correlation(gain, rank(hard)))
    margin = rank(easy + hard)
    assert point["gain_hard_matched"] == pytest.approx(correlation(rest(gain, margin), rest(rank(hard), margin)))
    assert sum(cell[2] > 0 for cell in point["cells"]) == len(point["cells"]) > 10
    i, j, median, _ = point["cells"][5]
    a, b = weights.BINS[0][i], weights.BINS[1][j]
    inside = (easy >= a) & (easy < a + 1) & (hard >= b) & (hard < b + 0.5)
    assert median == pytest.approx(float(real[inside].quantile(0.5)), rel=1e-3)


def rank(x):
    return x.argsort().argsort().double()


def correlation(a, b):
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def rest(a, given):
    design = torch.stack([torch.ones_like(given), given], 1)
    return a - design @ torch.linalg.lstsq(design, a[:, None]).solution[:, 0]


def test_at_sgds_checkpoints_the_phantom_has_lsams_rho(results, trained_rows):
    for result, row in zip(results, trained_rows["weights"], strict=True):
        phi, y, v = weights.features(result.config, result.checkpoints[-1].weights)
        rho = 1.0 if result.config.train_head else 0.5
        lam = weights.phantom_weights(phi, y, v, rho, weights.batches(result.config, 5))
        assert row["checkpoints"][-1]["mean_phantom"] == pytest.approx(float(lam.mean()))


def test_rows_of_figure_4_summarize_every_step(results, trained_rows):
    result, row = results[1], trained_rows["fig4"][0]
    factor = result.phantom / result.v
    assert [row["factor_easy"], row["factor_hard"]] == pytest.approx(factor.median(0).values.tolist())
    assert row["raised"] == pytest.approx(float((factor[:, 1] > factor[:, 0]).double().mean()))
    for name, edges in fig4.SERIES.items():
        assert sum(row["histogram"][name]) == pytest.approx(1, abs=1e-3)
        assert len(row["histogram"][name]) == len(edges) - 1
        assert all(low <= mid <= high for low, mid, high in row["along"][name])
    shares = torch.tensor(row["histogram"]["part_real"])
    part = result.v[:, 1] / result.v.sum(1)
    assert float(fig4.PARTS[int(shares.argmax())]) <= part.max()
    assert float(fig4.PARTS[int(shares.argmax()) + 1]) >= part.min()


def test_values_outside_the_histogram_count_in_its_last_bins():
    counted = fig4._histogram(torch.tensor([-50.0, 0.02, 0.03, 99.0]), torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    assert counted == [0.25, 0.5, 0.25]


def test_planes_of_figure_1_are_the_networks_features(results, trained_rows):
    net = results[0].config.network()
    net.load_state_dict(results[0].checkpoints[-1].weights)
    height, width = 33, 11
    axis = torch.linspace(-fig1.SPANS["hard"], fig1.SPANS["hard"], fig1.GRID)
    x = torch.tensor([[0.0, 0.0, axis[width], axis[height]]])
    expected = torch.sigmoid(net.head.weight[0, 1] * net.features(x)[0, 1]).item()
    assert trained_rows["fig1"][0]["planes"]["hard"][height][width] == pytest.approx(expected, abs=6e-3)


def test_figure_1_shows_the_typical_seed():
    rows = [
        {"rho": rho, "seed": s, "probe_hard": e + rho} for rho in (0.0, 2.0) for s, e in enumerate((0.3, 0.1, 0.2))
    ]
    assert fig1.typical_seed(rows) == 2


def test_nearest_neighbours_tell_the_variants_apart():
    errors = {name: fig1.nearest_error(360.0, 0, **variant) for name, variant in fig1.VARIANTS.items()}
    assert errors["point"] == 0 < errors["outside"] < errors["literal"] < 0.1 < errors["printed"] < 0.3


def test_theory_agrees_with_measurement_on_trained_networks(trained_rows):
    for row in trained_rows["theory"]:
        for name, check in theory.CHECKS.items():
            summary = row["checks"][name]
            assert summary["size"] > 0
            assert summary["n"] >= len(summary["predicted"]) == len(summary["measured"]) > 0
            if check.tolerance:
                assert summary["error"] <= check.tolerance * summary["size"], name
        assert all(point["valid"] == point["agree"] > 0 for point in row["rises"])
        assert any(0 < point["raised"] <= point["valid"] for point in row["rises"])
        assert row["checks"]["lsam_5"]["n"] == 600


def test_rows_are_small_and_json(trained_rows):
    for name, rows in trained_rows.items():
        for row in rows:
            assert len(json.dumps(row)) < (60_000 if name == "fig1" else 15_000)


@pytest.mark.parametrize("name", ["fig1", "fig4", "fig5-toy", "fig6-toy", "fig8-toy", "fig9-toy", "theory"])
def test_tables_and_pictures_need_nothing_but_stored_rows(trained_rows, name):
    experiment = experiments.load(name)
    rows = json.loads(json.dumps(trained_rows.get(name, trained_rows["weights"])))
    for table in experiment.tables(rows):
        assert table.rows
    for figure in experiment.plots(rows):
        assert report.png(figure).startswith(b"\x89PNG")


def test_figures_5_6_8_and_9_train_their_runs_once(tmp_path):
    experiments.reproduce(["fig5-toy"], scale="tiny", out=tmp_path)
    seen = []
    experiments.reproduce(
        ["fig6-toy", "fig8-toy", "fig9-toy"], scale="tiny", out=tmp_path, progress=lambda *a: seen.append(a)
    )
    assert not seen


# Rows as a figure gets them, made up


def checkpoint_rows(**changes):
    """Runs of three seeds that satisfy figures 5, 6, 8 and 9; changes apply to LSAM's second checkpoint."""
    rows = []
    for train_head, rho, seed in ((h, r, s) for h in (True, False) for r in (0.0, 1.0) for s in range(3)):
        points = [_checkpoint(epoch, seed, sgd=rho == 0) for epoch in (5, 10, 25)]
        if rho:
            points[1] |= {name: value + 0.001 * seed for name, value in changes.items()}
        rows.append({"seed": seed, "rho": rho, "train_head": train_head, "collapsed": False, "checkpoints": points})
    return rows


def _checkpoint(epoch, seed, sgd):
    jitter = 0.001 * seed
    return {
        "epoch": epoch, "gini_real": (0.8 if sgd else 0.9) + jitter, "gini_phantom": 0.6 - jitter,
        "share_real": 0.1, "share_phantom": 0.3 + jitter, "gain_easy": 0.5 + jitter, "gain_hard": -0.2 + jitter,
        "gain_hard_matched": -0.4 - jitter,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["fig5-toy", "fig8-toy"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "hh"),
        ({"gini_phantom": 0.95}, "cc"),  # phantom less uniform than the real weights and than SGD's
        ({"gini_phantom": 0.85}, "hc"),  # between: more uniform than the real ones, not than SGD's
        ({"gini_real": 0.5}, "ch"),
        ({"gini_real": 0.6}, "oh"),  # differences of 0.000, 0.002 and 0.004
        ({"gini_phantom": 0.8}, "ho"),
    ],
)
def test_claims_about_uniformity(name, changes, expected):
    assert "".join(verdicts(experiments.load(name).claims(checkpoint_rows(**changes)))) == expected * 2


@pytest.mark.parametrize("name", ["fig6-toy", "fig9-toy"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "hhhh"),
        ({"share_phantom": 0.05}, "chhh"),
        ({"gain_easy": -0.1}, "hchh"),
        ({"gain_hard": 0.1}, "hhch"),
        ({"gain_hard_matched": 0.1}, "hhhc"),
        ({"share_phantom": 0.1}, "ohhh"),
        ({"gain_easy": -0.001, "gain_hard": -0.001, "gain_hard_matched": -0.001}, "hooo"),  # -0.001, 0 and 0.001
    ],
)
def test_claims_about_which_points_lsam_weights_more(name, changes, expected):
    assert "".join(verdicts(experiments.load(name).claims(checkpoint_rows(**changes)))) == expected * 2


def test_one_checkpoint_or_all_of_them():
    rows = checkpoint_rows(gini_phantom=0.95)
    for row in rows:  # now the checkpoint that breaks the claim is not the one of figure 5
        row["checkpoints"][1]["epoch"], row["checkpoints"][0]["epoch"] = 9, 8
        row["checkpoints"].insert(2, {**row["checkpoints"][0], "epoch": 10})
    assert verdicts(experiments.load("fig5-toy").claims(rows)) == ["h"] * 4
    claims = experiments.load("fig8-toy").claims(rows)
    assert verdicts(claims) == ["c"] * 4
    assert claims[0].detail.endswith("Contradicted at epoch 9.")


def test_collapsed_runs_are_left_out_unless_they_are_most():
    rows = checkpoint_rows()
    bad = copy.deepcopy(next(row for row in rows if row["rho"]))
    bad |= {"collapsed": True}
    for point in bad["checkpoints"]:
        point["gini_phantom"] = 99.0
    claims = experiments.load("fig5-toy").claims
    assert verdicts(claims([*rows, bad | {"seed": 9}])) == ["h"] * 4
    most = [bad | {"seed": seed} for seed in range(3, 7)]
    assert verdicts(claims([*rows, *most])) == ["o", "h", "h", "h"]


def fig1_rows(**lsam):
    common = {"collapsed": False, "nearest_point": 0.0, "nearest_printed": 0.2}
    sgd = {"rho": 0.0, "test_error": 0.002, "probe_hard": 0.25}
    lsam = {"rho": 2.0, "test_error": 0.001, "probe_hard": 0.02} | lsam
    return [
        {**common, **row, "seed": s, "probe_hard": row["probe_hard"] + 0.01 * s * bool(row["rho"])}
        for row in (sgd, lsam)
        for s in range(3)
    ]


@pytest.mark.parametrize(
    ("lsam", "data", "expected"),
    [
        ({}, {}, "hhh"),
        ({"test_error": 0.03}, {}, "hch"),
        ({"probe_hard": 0.24}, {}, "hho"),  # differences of -0.01, 0 and 0.01
        ({"probe_hard": 0.5}, {}, "hhc"),
        ({}, {"nearest_point": 0.1}, "chh"),
        ({}, {"nearest_point": 0.005}, "ohh"),
        ({"test_error": 0.012}, {}, "hoh"),
    ],
)
def test_claims_of_figure_1(lsam, data, expected):
    assert "".join(verdicts(fig1.claims([row | data for row in fig1_rows(**lsam)]))) == expected


def fig4_rows(**changes):
    row = {"train_head": True, "rho": 1.0, "collapsed": False,
           "factor_easy": 0.5, "factor_hard": 1.2, "part_real": 0.4, "part_phantom": 0.6} | changes  # fmt: skip
    return [{**row, "seed": s, "part_phantom": row["part_phantom"] + 0.001 * s} for s in range(3)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "hhhh"),
        ({"factor_easy": 1.3}, "cchh"),
        ({"factor_easy": 1.1}, "hchh"),
        ({"factor_hard": 0.9}, "hhch"),
        ({"part_phantom": 0.3}, "hhhc"),
        ({"factor_easy": 1.0, "factor_hard": 1.0}, "oooh"),
        ({"part_phantom": 0.399}, "hhho"),  # differences of -0.001, 0 and 0.001
    ],
)
def test_claims_of_figure_4(changes, expected):
    assert "".join(verdicts(fig4.claims(fig4_rows(**changes)))) == expected


@pytest.mark.parametrize(("lost", "expected"), [(3, "hhhh"), (4, "oooo")])
def test_where_most_runs_collapsed_the_claims_of_figure_4_are_open(lost, expected):
    rows = fig4_rows()
    rows += [rows[0] | {"seed": 3 + k, "collapsed": True} for k in range(lost)]
    assert "".join(verdicts(fig4.claims(rows))) == expected


def theory_rows(name="", **changes):
    checks = {n: {"error": 1e-12, "mean_error": 1e-12, "size": 1.0, "n": 3} for n in theory.CHECKS}
    for rho in theory.SAM_RHOS:
        checks[f"sam_{rho:g}"]["mean_error"] = rho**2
    rows = [
        {"rho": 0.0, "checks": copy.deepcopy(checks), "rises": [{"epoch": 0, "valid": 60, "agree": 60, "raised": 50}]}
        for _ in range(2)
    ]
    if name:
        rows[1]["checks"][name] |= changes
    return rows


@pytest.mark.parametrize("name", [name for name, check in theory.CHECKS.items() if check.tolerance])
def test_claims_of_theory_can_fail_one_by_one(name):
    assert set(verdicts(theory.claims(theory_rows()))) == {"h"}
    claims = theory.claims(theory_rows(name, error=0.01))
    assert [(c.text, c.verdict) for c in claims if c.verdict != "holds"] == [
        (f"{theory.CHECKS[name].text}: as predicted.", "contradicted")
    ]


@pytest.mark.parametrize(("runs", "verdict"), [(1, "open"), (2, "contradicted")])
def test_the_order_of_sams_remainder_can_fail(runs, verdict):
    rows = theory_rows()
    for row in rows[:runs]:
        row["checks"]["sam_0.1"]["mean_error"] = 0.0001
    assert [(c.text, c.verdict) for c in theory.claims(rows) if c.verdict != "holds"] == [
        ("SAM's logit shift is as predicted up to O(ρ²).", verdict)
    ]


def test_the_condition_of_p2_must_be_right_everywhere():
    rows = theory_rows()
    rows[0]["rises"][0]["agree"] = 59
    assert [(c.text[:3], c.verdict) for c in theory.claims(rows) if c.verdict != "holds"] == [("P2:", "contradicted")]
