from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats

from samphire.data.synthetic import Points, toy

CORRUPTIONS = ["label", "gaussian", "dropout"]


def draw(n: int = 4000, seed: int = 0, **settings: Any) -> Points:
    return toy(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **settings)


def test_easy_feature_is_twice_a_uniform_number_on_the_side_of_the_label() -> None:  # eq. 41-42
    x, y = draw()
    torch.testing.assert_close(x[:, 0], x[:, 1], rtol=0, atol=0)
    assert stats.kstest((x[:, 0] * y / 2).numpy(), "uniform").pvalue > 1e-3
    assert abs(y.mean()) < 4 / math.sqrt(len(y))
    assert set(y.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("chi", [180.0, 540.0])
def test_hard_feature_is_the_spiral_plus_noise(chi: float) -> None:  # eq. 43-44, as a point reflection
    inside, y = draw(chi=chi)
    outside, _ = draw(chi=chi, noise="outside")
    # inside = y a (s + eta) and outside = y a s + eta, so both unknowns follow.
    eta = (inside - outside)[:, 2:] / (0.25 * y - 1)[:, None]
    s = (inside[:, 2:] * y[:, None]) / 0.25 - eta
    r = s.norm(dim=1)
    torch.testing.assert_close(s, torch.stack([-r * r.cos(), r * r.sin()], 1))
    assert stats.kstest((r / math.radians(chi)).square().numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest((2 * eta).flatten().numpy(), "uniform").pvalue > 1e-3


def test_literal_spiral_mirrors_one_arm_where_the_default_reflects_it_in_the_origin() -> None:
    point, y = draw()
    literal, _ = draw(spiral="literal")
    up, down = y > 0, y < 0
    torch.testing.assert_close(point[up], literal[up], rtol=0, atol=0)
    # y = -1: a [r cos r + eta, r sin r + eta'] against a [r cos r - eta, -r sin r - eta'].
    torch.testing.assert_close(literal[down, 3], -point[down, 3])
    double = (literal - point)[down, 2] / (2 * 0.25)
    assert double.min() >= 0
    assert double.max() <= 0.5


# Measured independently in numpy: 6000 reference and 800 test points, chi = 360.
@pytest.mark.parametrize(
    ("spiral", "noise", "error"),
    [
        ("point", "inside", 0.0),
        ("point", "outside", 0.007),
        ("literal", "inside", 0.060),
        ("literal", "outside", 0.179),
    ],
)
def test_nearest_neighbour_error_of_the_hard_feature(spiral: str, noise: str, error: float) -> None:
    known, y = draw(6000, seed=1, spiral=spiral, noise=noise)
    new, z = draw(2000, seed=2, spiral=spiral, noise=noise)
    nearest = torch.cdist(new[:, 2:], known[:, 2:]).argmin(1)
    assert (y[nearest] != z).double().mean().item() == pytest.approx(error, abs=0.02 if error > 0.02 else 0.006)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_corruption_of_the_hard_feature_leaves_the_easy_one(corruption: str) -> None:
    clean, y = draw()
    noisy, z = draw(corruption=corruption, level=0.3, where="hard")
    both, _ = draw(corruption=corruption, level=0.3)
    assert torch.equal(y, z)
    assert torch.equal(noisy[:, :2], clean[:, :2])
    assert torch.equal(noisy[:, 2:], both[:, 2:])
    assert not torch.equal(both[:, :2], clean[:, :2])


@pytest.mark.parametrize(("corruption", "factor"), [("label", -1.0), ("dropout", 0.0)])
def test_a_share_of_features_is_flipped_or_dropped_each_by_its_own_draw(corruption: str, factor: float) -> None:
    clean, _ = draw()
    noisy, _ = draw(corruption=corruption, level=0.3)
    easy, hard = ((noisy[:, k] == factor * clean[:, k]) & (clean[:, k] != 0) for k in (0, 2))
    for feature, hit in ((slice(0, 2), easy), (slice(2, 4), hard)):
        assert hit.double().mean().item() == pytest.approx(0.3, abs=0.03)
        assert torch.equal(noisy[hit, feature], factor * clean[hit, feature])
        assert torch.equal(noisy[~hit, feature], clean[~hit, feature])
    assert (easy & hard).double().mean().item() == pytest.approx(0.09, abs=0.02)


def test_gaussian_noise_has_the_level_as_standard_deviation() -> None:
    noise = (draw(corruption="gaussian", level=0.7).x - draw().x) / 0.7
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
    assert torch.corrcoef(noise.T).triu(1).abs().max() < 0.08


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_level_zero_is_no_corruption(corruption: str) -> None:
    assert torch.equal(draw(corruption=corruption, level=0.0).x, draw().x)


def test_only_the_generator_is_used() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert torch.equal(draw(seed=5).x, draw(seed=5).x)
    assert not torch.equal(draw(seed=5).x, draw(seed=6).x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(toy(9, generator=torch.Generator().manual_seed(5)).x, draw(9, seed=5).x.float())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chi": -1.0}, r"chi must be a finite number > 0, got -1.0"),
        ({"chi": math.nan}, r"chi must be .* got nan"),
        ({"n": 0}, r"n must be a whole number >= 1, got 0"),
        ({"spiral": "round"}, r"spiral must be 'point' or 'literal', got 'round'"),
        ({"noise": "none"}, r"noise must be 'inside' or 'outside', got 'none'"),
        ({"corruption": "salt"}, r"corruption must be 'none' or 'label' or 'gaussian' or 'dropout', got 'salt'"),
        ({"where": "easy"}, r"where must be 'both' or 'hard', got 'easy'"),
        ({"corruption": "label", "level": 1.5}, r"level must be a finite number in \[0, 1\], got 1.5"),
        ({"corruption": "gaussian", "level": -0.1}, r"level must be a finite number >= 0, got -0.1"),
        ({"level": 0.2}, r"level is 0.2 but corruption is 'none'"),
    ],
)
def test_bad_settings_get_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(**{"n": 5, **settings})
