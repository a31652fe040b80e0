"""Figures 5, 6, 8 and 9 of CelebA and Waterbirds: on small trees, from rows written by hand, and a checkpoint in numbers."""

import copy
import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from samphire import experiments, probes, records, sweep
from samphire.data.parts import Parts
from samphire.data.split import Split
from samphire.experiments import EXPERIMENTS
from samphire.experiments.paper import image_weights
from samphire.experiments.paper.image_weights import Pair
from samphire.mechanisms import probed_contribution
from samphire.models.layers import Normalize
from samphire.records import generator

FIGURES = (5, 6, 8, 9)
FOLDERS = {"waterbirds": "waterbird_complete95_forest2water2", "celeba": "celeba"}
# Training examples by (label, attribute): Waterbirds has equal values together, CelebA unequal ones.
TRAIN = {"waterbirds": (24, 8, 8, 24), "celeba": (8, 24, 24, 8)}


def names(data):
    return [f"fig{n}-{data}" for n in FIGURES]


def write_tree(root, data):
    """A list and images: the upper half shows the attribute, the lower half the label."""
    folder = root / FOLDERS[data]
    folder.mkdir()
    draw, lines = np.random.default_rng(0), []
    for part, counts in enumerate((TRAIN[data], (8,) * 4, (4,) * 4)):
        for group, n in enumerate(counts):
            y, a = divmod(group, 2)
            for _ in range(n):
                pixels = draw.integers(0, 120, (16, 16, 3))
                pixels[:8, :, 0] += 80 * a
                pixels[8:, :, 1] += 100 * y
                name = f"{len(lines):03d}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
                lines.append([len(lines), name, y, part, a])
    with (folder / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["img_id", "img_filename", "y", "split", "place"], *lines])
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, in_this_process):
    """Decoded images do not go to the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stored(out, name):
    return [row for run in records.read(out / "runs") if run.config["experiment"] == name for row in run.rows]


@pytest.mark.parametrize("data", FOLDERS)
def test_four_figures_of_a_set_train_one_pair(tmp_path, data):
    root = write_tree(tmp_path, data)
    first, *others = names(data)
    results = experiments.reproduce([first], scale="tiny", out=tmp_path / "out", data_root=root)
    seen = []
    results += experiments.reproduce(
        others, scale="tiny", out=tmp_path / "out", data_root=root, progress=lambda *a: seen.append(a)
    )
    assert not seen
    assert len(list((tmp_path / "out" / "trainings").iterdir())) == 2
    for result in results:
        assert all(len(table.rows) for table in result.tables)
        assert result.claims
        assert (tmp_path / "out" / f"{result.name}.png").read_bytes().startswith(b"\x89PNG")
    (row,) = stored(tmp_path / "out", first)
    assert [(c["algorithm"], c["epoch"], c["rho"]) for c in row["checkpoints"]] == [
        ("SGD", 1, 0.0), ("SGD", 2, 0.0), ("SAM", 1, 0.05), ("SAM", 2, 0.05),
    ]  # fmt: skip
    assert set(row["probe"]["SGD"]) == set(row["probe"]["SAM"])
    for point in row["checkpoints"]:
        assert all(len(values) == 64 // 16 for values in point["batches"].values())
        assert point["lorenz_real"] != point["lorenz_phantom"]
        assert 0 < point["gini_real"] < 1


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupted_pair_goes_on_with_what_it_has_trained(tmp_path):
    root = write_tree(tmp_path, "waterbirds")
    settings = {"scale": "tiny", "data_root": root}
    experiments.reproduce(["fig5-waterbirds"], out=tmp_path / "whole", **settings)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(image_weights, "checkpoint", interrupt)
        experiments.reproduce(["fig5-waterbirds"], out=tmp_path / "parts", **settings)
    assert not stored(tmp_path / "parts", "fig5-waterbirds")
    experiments.reproduce(["fig5-waterbirds"], out=tmp_path / "parts", **settings)
    assert [len(run.sessions) for run in records.read(tmp_path / "parts" / "trainings")] == [1, 1]  # begun once each
    assert stored(tmp_path / "parts", "fig5-waterbirds") == stored(tmp_path / "whole", "fig5-waterbirds")


def test_the_reduced_figures_of_waterbirds_are_of_runs_that_table_1_has():
    table, figure = EXPERIMENTS["table1"], EXPERIMENTS["fig5-waterbirds"]
    (birds,) = (block for block in table.runs(table.at("reduced")) if block.data == "waterbirds")
    pairs = figure.runs(figure.at("reduced"))
    shared = {config for pair in pairs for config in pair.configs.values()}
    assert len(shared) == 6
    assert shared == {config for config in birds.repeats([]) if config.rule != "lsam"}


# A checkpoint in numbers


class Net(nn.Module):
    normalize = Normalize((0.5,), (0.25,))

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.fc = nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(self.body(x))


@pytest.fixture(scope="module")
def parts():
    draw = np.random.default_rng(0)

    def split(counts):
        y, place = (np.repeat(values, counts) for values in ([0, 0, 1, 1], [0, 1, 0, 1]))
        images = draw.integers(0, 150, (len(y), 3, 4, 4))
        images[:, 0] += 60 * y[:, None, None]
        images[:, 1] += 100 * place[:, None, None]
        return Split(images.astype(np.uint8), y, {"bird": y, "place": place})

    train, probing, test = split([30, 6, 6, 28]), split([20] * 4), split([5] * 4)
    return Parts(train, train, probing, test, probing, test, domain=False, probe_on="val")


@pytest.fixture(scope="module")
def net(parts):
    """Trained a little, so that its weights differ from image to image."""
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.3)
    x, y = net.normalize(torch.from_numpy(parts.whole.images)), torch.from_numpy(parts.whole.label)
    for _ in range(20):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return net.eval()


@pytest.mark.parametrize("batch_norm", ["train", "eval"])
def test_a_checkpoint_has_the_numbers_of_its_network(net, parts, batch_norm):
    pair = Pair("waterbirds", (1,), rho=0.4, batch_norm=batch_norm, settings=(("batch", 16),))
    row = image_weights.checkpoint(pair, net, parts, ("bird", "place"))
    real, phantom, order = (torch.empty(0) for _ in range(3))
    for batch in batches(70, 16):
        model = copy.deepcopy(net)
        model.body[2].train(batch_norm == "train")
        x, y = net.normalize(torch.from_numpy(parts.whole.images[batch])), torch.from_numpy(parts.whole.label[batch])
        F.cross_entropy(model(x), y).backward()
        length = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        real = torch.cat([real, 1 - model(x).softmax(1)[range(len(y)), y].detach()])
        with torch.no_grad():
            for p in model.parameters():
                p += 0.4 * p.grad / length
        phantom = torch.cat([phantom, 1 - model(x).softmax(1)[range(len(y)), y].detach()])
        order = torch.cat([order, torch.as_tensor(batch)])
    assert sorted(order.tolist()) == list(range(70))
    for name, lam in (("real", real), ("phantom", phantom)):
        assert row[f"gini_{name}"] == pytest.approx(gini(lam), rel=1e-4)
        assert row["batches"][f"gini_{name}"] == pytest.approx([gini(part) for part in lam[:64].split(16)], rel=1e-3)
        assert row[f"mean_{name}"] == pytest.approx(float(lam.mean()), rel=1e-4)
    assert row["train_error"] == pytest.approx(float((real > 0.5).float().mean()))
    easy, hard = contributions(net, parts, order.long())
    mine = (easy > easy.sort().values[34]) & (hard < hard.sort().values[34])
    assert row["share_phantom"] == pytest.approx(float(phantom[mine].sum() / phantom.sum()), rel=1e-4)
    assert len(row["cells"]) > 10
    for i, j, median, _ in row["cells"]:
        inside = (cell_of(easy) == i) & (cell_of(hard) == j)
        assert median == pytest.approx(float(real[inside].quantile(0.5)), rel=1e-3)


def cell_of(contribution):
    """The bin of 1/4 of a root mean square from -4 on."""
    return (4 * contribution / contribution.square().mean().sqrt()).floor() + 16


def batches(n, size):
    order = torch.randperm(n, generator=generator(0, "measure"))
    return [part.numpy() for part in order.split(size)]


def gini(lam):
    return float((lam[:, None] - lam).abs().mean() / (2 * lam.mean()))


def contributions(net, parts, order):
    probing, training = (probes.features(net, p.images) for p in (parts.probe_train, parts.whole))
    return [
        probed_contribution(training, parts.whole, f, probes.fitted_probe(probing, parts.probe_train, f))[order]
        for f in ("bird", "place")
    ]


def test_contributions_beyond_the_bins_count_in_the_outermost(net, parts, monkeypatch):
    edges = torch.linspace(-1, 1, 3).double()
    monkeypatch.setattr(image_weights, "BINS", (edges, edges))
    pair = Pair("waterbirds", (1,), settings=(("batch", 70),))
    row = image_weights.checkpoint(pair, net, parts, ("bird", "place"))
    easy, hard = contributions(net, parts, torch.arange(70))
    quadrants = {(int(e >= 0), int(h >= 0)) for e, h in zip(easy, hard, strict=True)}
    assert {(i, j) for i, j, *_ in row["cells"]} == quadrants
    assert easy.abs().max() > easy.square().mean().sqrt()


def test_easy_is_what_sgd_has_learned_better():
    assert image_weights.by_probe_error({"bird": 0.3, "place": 0.1}) == ["place", "bird"]
    table = image_weights.features_table(pair_rows(1))
    assert [line[:3] for line in table.rows] == [(0, "SGD", "bird"), (0, "SAM", "bird")]
    assert table.rows[1][3] == 0.3  # SAM's own order does not matter


# Rows written by hand


def pair_rows(seeds, collapsed=False, **changes):
    """Pairs that satisfy figures 5, 6, 8 and 9; changes apply to SAM's checkpoint after epoch 2."""
    rows = []
    for seed in range(seeds):
        points = []
        for name, rho, epoch in ((name, rho, e) for name, rho in (("SGD", 0.0), ("SAM", 0.05)) for e in (1, 2, 3)):
            change = changes if rho and epoch == 2 else {}
            points.append({"algorithm": name, "rho": rho, "epoch": epoch, **numbers(seed, name, change)})
            points[-1]["batches"] = {
                key: [values[key] for values in (numbers(seed + 0.1 * k, name, change) for k in range(4))]
                for key in image_weights.COUNTED
            }
        rows.append({
            "seed": seed, "collapsed": collapsed, "epochs": [1, 2, 3], "rho": 0.05, "batch_norm": "train",
            "probe": {"SGD": {"place": 0.2, "bird": 0.1}, "SAM": {"place": 0.15, "bird": 0.3}}, "checkpoints": points,
        })  # fmt: skip
    return rows


def numbers(seed, name, changes):
    jitter = 0.001 * seed
    values = {
        "gini_real": (0.8 if name == "SGD" else 0.9) + jitter, "gini_phantom": 0.6 - jitter, "share_real": 0.1,
        "share_phantom": 0.3 + jitter, "gain_easy": 0.5 + jitter, "gain_hard": -0.2 + jitter,
        "gain_hard_matched": -0.4 - jitter,
    }  # fmt: skip
    return values | {key: value(seed) if callable(value) else value + jitter for key, value in changes.items()}


def around(value):
    """Far apart over seeds, and over batches, which are tenths of a seed apart."""
    return lambda seed: value + 0.3 * (round(10 * seed) % 3 - 1)


def verdicts(claims):
    return [claim.verdict for claim in claims]


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", ["fig5-waterbirds", "fig8-waterbirds", "fig5-celeba", "fig8-celeba"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["holds", "holds"]),
        ({"gini_phantom": 0.95}, ["contradicted", "contradicted"]),
        ({"gini_phantom": 0.85}, ["holds", "contradicted"]),
        ({"gini_real": 0.5}, ["contradicted", "holds"]),
        ({"gini_phantom": around(0.9)}, ["open", "open"]),
    ],
)
def test_claims_about_uniformity_can_fail(name, changes, expected, seeds):
    assert verdicts(EXPERIMENTS[name].claims(pair_rows(seeds, **changes))) == expected


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", ["fig6-waterbirds", "fig9-waterbirds", "fig6-celeba", "fig9-celeba"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["holds", "holds", "holds", "holds"]),
        ({"share_phantom": 0.05}, ["contradicted", "holds", "holds", "holds"]),
        ({"gain_easy": -0.1}, ["holds", "contradicted", "holds", "holds"]),
        ({"gain_hard": 0.1}, ["holds", "holds", "contradicted", "holds"]),
        ({"gain_hard_matched": 0.1}, ["holds", "holds", "holds", "contradicted"]),
        ({"gain_easy": around(0.0)}, ["holds", "open", "holds", "holds"]),
        ({"share_phantom": around(0.1), "gain_hard": around(0.0)}, ["open", "holds", "open", "holds"]),
    ],
)
def test_claims_about_which_images_gain_weight_can_fail(name, changes, expected, seeds):
    assert verdicts(EXPERIMENTS[name].claims(pair_rows(seeds, **changes))) == expected


def test_few_seeds_are_judged_over_batches_and_the_claim_says_so():
    few, many = (EXPERIMENTS["fig5-waterbirds"].claims(pair_rows(seeds)) for seeds in (2, 3))
    assert "(n=8)" in few[0].ours
    assert "(n=8)" in few[1].ours
    assert few[0].detail.endswith("n counts batches (seeds: 2), so the error is that of batches, not of trainings.")
    assert "(n=3)" in many[0].ours
    assert "batches" not in many[0].detail


def test_figures_5_and_6_show_the_middle_epoch_the_others_all():
    rows = pair_rows(1)
    for name, epochs in (("fig5-waterbirds", [2, 2]), ("fig8-waterbirds", [1, 2, 3] * 2)):
        assert [line[2] for line in EXPERIMENTS[name].tables(with_spread(rows))[0].rows] == epochs
    assert "epoch 1: " in EXPERIMENTS["fig9-celeba"].claims(rows)[0].ours


def with_spread(rows):
    for row in rows:
        for point in row["checkpoints"]:
            point |= {"ess_real": 10.0, "ess_phantom": 12.0, "train_error": 0.1}
    return rows


def test_collapsed_pairs_are_left_out():
    bad = pair_rows(1, collapsed=True, gini_phantom=99.0)
    rows = pair_rows(1)
    assert verdicts(EXPERIMENTS["fig8-celeba"].claims(rows + bad)) == ["holds", "holds"]
    assert image_weights.features_table(rows + bad) == image_weights.features_table(rows)
    with pytest.raises(ValueError, match="in every pair a loss was not finite"):
        EXPERIMENTS["fig8-celeba"].claims(bad)


def test_a_diverged_training_is_not_measured(tmp_path):
    lost = sweep.Trial(None, tmp_path, "stopped", {"epoch": 1, "stopped": "the training loss is not finite"})
    trained = {"SGD": lost, "SAM": lost}
    assert list(image_weights.measured(Pair("waterbirds", (1,)), trained, tmp_path)) == []
    row = image_weights.row(Pair("waterbirds", (1,)), trained, [])
    assert row["collapsed"]
    json.dumps(row)


@pytest.mark.parametrize("data", FOLDERS)
def test_paper_scale_is_appendix_b(data):
    pair = EXPERIMENTS[f"fig5-{data}"].at("paper").pair
    for config in pair.configs.values():
        assert (config.model, config.weights, config.batch) == ("resnet18", "imagenet", 128)
        assert config.epochs == {"celeba": 20, "waterbirds": 100}[data]
        assert set(pair.epochs) == set(config.keep)
