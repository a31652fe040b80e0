from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire import pool
from samphire.models import ToyNet, mlp
from samphire.optim.feature_runs import ALGORITHMS
from samphire.optim.rules import asam, lsam, sam
from samphire.records import generator
from samphire.train import ModuleConfig, Problem, Result, RuleConfig, ToyConfig, fit_many, fleets

fit_many_module = importlib.import_module("samphire.train.fit_many")

DOUBLE = torch.float64


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def loop(config: ToyConfig) -> tuple[ToyNet, list[Tensor]]:
    """One run in plain eager PyTorch, with losses whose gradients are the algorithms (MATH section 2)."""
    net = config.network().double()
    x, y = config.train_points(DOUBLE)
    order = generator(config.seed, "order")
    v, theta, everything = net.head.weight, list(net.phi.parameters()), list(net.parameters())
    star, phantoms = torch.tensor([1.0, config.v_star], dtype=DOUBLE), []
    for _ in range(config.epochs):
        for part in torch.randperm(config.n, generator=order).split(config.batch):
            bx, by = x[part], y[part]
            kept = [p.detach().clone() for p in everything]
            moved = {"lsam": [v], "sam": everything}.get(config.algorithm, [])
            if moved:
                g = torch.autograd.grad(F.softplus(-by * net(bx)).mean(), moved)
                length = torch.cat([t.flatten() for t in g]).norm()
                with torch.no_grad():
                    for p, t in zip(moved, g, strict=True):
                        p += config.rho * t / length
            phantoms.append(v.detach()[0].clone())
            grads = torch.autograd.grad(F.softplus(-by * net(bx)).mean(), everything)
            *g_theta, g_v = grads
            P, lam = net.features(bx), torch.sigmoid(-by * net(bx)).detach()
            lam_star = torch.sigmoid(-by * (P @ star)).detach()
            surrogate = {
                "weights": -by * lam_star * (P @ v.detach()[0]),  # eq. 10
                "rates": -by * lam * (P @ star),  # eq. 11
                "both": -by * lam_star * (P @ star),  # eq. 12
            }
            if config.algorithm in surrogate:
                g_theta = list(torch.autograd.grad(surrogate[config.algorithm].mean(), theta))
            with torch.no_grad():
                for p, old, t in zip(everything, kept, [*g_theta, g_v], strict=True):
                    frozen = p is v and not config.train_head
                    p.copy_(old if frozen else old - config.lr * t)
    return net, phantoms


SMALL = ToyConfig(n=23, batch=5, epochs=3, lr=0.05)  # 23 is not a multiple of 5
MIXED = [
    replace(SMALL, algorithm="sgd", seed=1),
    replace(SMALL, rho=0.7, seed=1, chi=540.0),
    replace(SMALL, rho=0.3, seed=2, lr=0.02, train_head=False),
    replace(SMALL, rho=0.4, algorithm="sam", seed=3),
    replace(SMALL, rho=0.2, algorithm="sam", seed=1, train_head=False, batch=7),
    replace(SMALL, algorithm="weights", v_star=3.0, seed=4),
    replace(SMALL, algorithm="rates", v_star=3.0, corruption="gaussian", level=0.5, seed=5),
    replace(SMALL, algorithm="both", v_star=3.0, spiral="literal", noise="outside", batch=1, seed=6),
]
CHAOTIC = [replace(SMALL, rho=2.0, seed=s, epochs=9, batch=b) for s in range(6) for b in (4, 5)]  # at rho = 2


def trained(runs: list[Any], **settings: Any) -> dict[Any, Result]:
    settings = {"dtype": DOUBLE, "keep_weights": True, **settings}
    return {result.config: result for result in fit_many(runs, **settings)}


def weights(result: Result, at: int = -1) -> dict[str, Tensor]:
    kept = result.checkpoints[at].weights
    assert kept is not None
    return kept


def test_every_algorithm_is_in_the_mix() -> None:
    assert {run.algorithm for run in MIXED} == set(ALGORITHMS)


@pytest.fixture(scope="module")
def together() -> dict[Any, Result]:
    return trained(MIXED)


@pytest.mark.parametrize("config", MIXED, ids=lambda c: f"{c.algorithm}-{c.batch}-{c.train_head}")
def test_a_run_among_others_is_the_plain_loop(config: ToyConfig, together: dict[Any, Result]) -> None:
    net, phantoms = loop(config)
    result = together[config]
    moved = max((p - q).abs().max() for p, q in zip(net.parameters(), config.network().parameters(), strict=True))
    assert moved > 1e-2
    for name, t in net.state_dict().items():
        torch.testing.assert_close(weights(result)[name], t, rtol=0, atol=1e-12)
    assert result.phantom is not None
    torch.testing.assert_close(result.phantom, torch.stack(phantoms), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_neighbours_order_and_chunks_change_not_one_bit(dtype: torch.dtype) -> None:
    """In chaotic training the last bit of one step decides the outcome, so nothing less will do."""
    runs = [*MIXED, *CHAOTIC]
    once = trained(runs, dtype=dtype)
    others = [replace(run, seed=run.seed + 100) for run in runs]
    for again in (
        trained(runs, chunk=1, dtype=dtype),
        trained([*others, *reversed(runs)], chunk=7, dtype=dtype),
        trained([*reversed(runs), *others], chunk=3, dtype=dtype),
    ):
        for config in runs:
            one, two = weights(once[config]), weights(again[config])
            assert all(torch.equal(one[name], two[name]) for name in one)
            assert once[config].final == again[config].final
            assert torch.equal(once[config].phantom, again[config].phantom)  # type: ignore[arg-type]


def test_runs_of_one_shape_advance_together_and_only_sam_pays_for_its_second_pass() -> None:
    shapes = [
        {(run.batch, run.algorithm == "sam") for run in part} for part in fit_many_module._chunks(MIXED, 160, 1)
    ]
    assert sorted(map(sorted, shapes)) == [[(1, False)], [(5, False)], [(5, True)], [(7, True)]]


def test_work_is_shared_only_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(
        fit_many_module, "_by_workers", lambda jobs, workers, counter: started.append((len(jobs), workers)) or []
    )
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    list(fit_many([replace(SMALL, epochs=1, seed=s) for s in range(9)]))
    assert not started
    list(fit_many([ToyConfig(seed=s) for s in range(60)]))  # 360000 steps
    assert started == [(2, 2)]


def test_training_leaves_torchs_threads_as_they_were() -> None:
    torch.set_num_threads(2)
    seen = []
    list(fit_many([SMALL], progress=lambda what, done, total: seen.append(torch.get_num_threads())))
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_a_failure_in_a_worker_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = replace(SMALL)
    object.__setattr__(odd, "algorithm", "none such")
    with pytest.raises(KeyError, match="none such"):
        list(fit_many([odd, replace(SMALL, epochs=2)], workers=2))
    monkeypatch.setattr(pool.sys, "executable", "false")
    with pytest.raises(RuntimeError, match=r"a worker process ended with exit code 1 before its task did; -9 often"):
        list(fit_many([SMALL, replace(SMALL, epochs=2)], workers=2))


def test_relations_between_algorithms() -> None:
    frozen = replace(SMALL, train_head=False)
    runs = [SMALL, replace(SMALL, algorithm="sgd"), replace(SMALL, algorithm="both", v_star=2.0)]
    runs += [replace(SMALL, algorithm="both", v_star=2.0, train_head=False), replace(frozen, algorithm="sgd")]
    runs += [replace(frozen, algorithm=a) for a in ("weights", "rates", "both")]
    lsam0, sgd, both, both_frozen, *equal = (weights(r) for r in trained(runs).values())
    assert all(torch.equal(lsam0[n], sgd[n]) for n in sgd)  # rho = 0 is SGD, bit for bit
    assert all(torch.equal(both[n], both_frozen[n]) for n in both if n.startswith("phi"))  # v is not used
    assert not torch.equal(both["head.weight"], both_frozen["head.weight"])
    for other in equal[1:]:  # v* = v = (1, 1)
        assert all((other[n] - equal[0][n]).abs().max() < 1e-14 for n in other)


def test_problems_that_differ_in_data_train_together_and_are_tested() -> None:
    def model(g: torch.Generator) -> nn.Module:
        return mlp((4, 8, 3), g)

    labels = torch.arange(30) % 3
    test = (normal(20, 4, seed=9), torch.arange(20) % 3)
    problems = [Problem(model, normal(30, 4, seed=s), labels.roll(s), test=test) for s in range(3)]
    runs = [ModuleConfig(p, sam(0.1), i, 3, 7, 0.2, torch.optim.Adam) for i, p in enumerate(problems)]
    other_base = replace(runs[0], base=torch.optim.SGD)
    assert [len(part) for part in fit_many_module._chunks([*runs, other_base], 80, 1)] == [3, 1]
    together = trained(runs)
    for run in runs:
        alone = trained([run])[run]
        for name, t in weights(alone).items():
            torch.testing.assert_close(weights(together[run])[name], t, rtol=0, atol=1e-12)
        net = model(torch.Generator()).double()
        net.load_state_dict(weights(together[run]))
        values = together[run].final
        assert values["test_loss"] == pytest.approx(F.cross_entropy(net(test[0]), test[1]).item(), abs=1e-12)
        assert values["test_error"] == (net(test[0]).argmax(1) != test[1]).double().mean().item()
        assert values["loss"] == pytest.approx(F.cross_entropy(net(run.problem.x), run.problem.y).item(), abs=1e-12)


def test_averages_are_the_mean_of_the_weights_at_the_ends_of_epochs() -> None:
    x, y = normal(12, 4), torch.arange(12) % 3
    problem = Problem(lambda g: mlp((4, 3), g), x, y)
    run = ModuleConfig(problem, None, 1, 5, 4, 0.3, average_from=3)
    result = trained([run], checkpoints=[2, 3, 4])[run]
    assert ["averaged_loss" in c.values for c in result.checkpoints] == [False, True, True, True]
    net = mlp((4, 3)).double()
    for last in (1, 2, 3):  # the averages of one, two and three sets of weights
        kept = [weights(result, i) for i in range(1, last + 1)]
        net.load_state_dict({name: torch.stack([w[name] for w in kept]).mean(0) for name in kept[0]})
        found = result.checkpoints[last].values["averaged_loss"]
        assert found == pytest.approx(F.cross_entropy(net(x), y).item(), abs=1e-12)
    with pytest.raises(ValueError, match=r"average_from must be a whole number in \[0, 5\], got 6"):
        replace(run, average_from=6)


@pytest.mark.parametrize("config", [MIXED[0], MIXED[1], MIXED[3]], ids=lambda c: c.algorithm)
def test_the_toy_by_the_general_engine_is_the_toy_by_its_own(config: ToyConfig, together: dict[Any, Result]) -> None:
    rule = {"sgd": None, "lsam": lsam(config.rho), "sam": sam(config.rho)}[config.algorithm]
    x, y = config.train_points(DOUBLE)
    problem = Problem(lambda g: ToyNet(generator=g), x, y, lambda f, y: F.softplus(-y * f).mean())
    run = ModuleConfig(problem, rule, config.seed, config.epochs, config.batch, config.lr)
    result = trained([run])[run]
    for name, t in weights(together[config]).items():
        torch.testing.assert_close(weights(result)[name], t, rtol=0, atol=1e-12)
    assert result.final["loss"] == pytest.approx(together[config].final["loss"], abs=1e-12)


def test_workers_give_what_one_process_gives() -> None:
    problem = Problem(partial(mlp, (4, 8, 3)), normal(30, 4), torch.arange(30) % 3)
    modules = [ModuleConfig(problem, rule, seed, epochs=2, batch=7) for rule in (None, sam(0.1)) for seed in (0, 1)]
    rules = [RuleConfig(n=10, epochs=1, name=name, settings=(("rho", 0.1),)) for name in ("sam", "ae_sam")]
    runs = [*modules, *rules, *CHAOTIC]
    here, there = (list(fit_many(runs, workers=n, keep_weights=True)) for n in (1, 2))
    for a, b in zip(here, there, strict=True):
        assert a.config is b.config
        for name, t in weights(a).items():
            torch.testing.assert_close(weights(b)[name], t, rtol=0, atol=0.0 if a.config in CHAOTIC else 1e-6)
        if a.config not in modules:
            assert a.final == b.final


def test_small_modules_are_shared_among_workers_if_these_can_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(partial(mlp, (4, 8, 3)), normal(30, 4), torch.arange(30) % 3)
    runs = [ModuleConfig(problem, rule, seed, epochs=2, batch=7) for rule in (None, sam(0.1)) for seed in (0, 1)]
    started = []
    monkeypatch.setattr(fit_many_module, "_by_workers", lambda jobs, workers, counter: started.append(workers) or [])
    monkeypatch.setattr(fit_many_module, "WORTH_WORKERS", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    unnamed = replace(problem, model=lambda g: mlp((4, 8, 3), g))
    list(fit_many([replace(run, problem=unnamed) for run in runs]))
    assert not started
    list(fit_many(runs))
    assert started == [2]


def test_small_modules_train_together_over_seeds_and_rho() -> None:
    x, y = normal(30, 4), torch.arange(30) % 3
    problem = Problem(lambda g: mlp((4, 8, 3), g), x, y)
    runs = [ModuleConfig(problem, sam(rho), seed, epochs=2, batch=7, lr=0.2) for rho in (0.0, 0.3) for seed in (0, 1)]
    runs += [ModuleConfig(problem, None, 0, epochs=2, batch=7, lr=0.2), ModuleConfig(problem, asam(0.5), 0, batch=9)]
    results = trained(runs)
    assert [len(part) for part in fit_many_module._chunks(runs, 160, 1)] == [4, 1, 1]
    for run in (runs[3], runs[4]):
        net = mlp((4, 8, 3), generator(run.seed, "init")).double()
        order = generator(run.seed, "order")
        for _ in range(2):
            for part in torch.randperm(30, generator=order).split(7):
                g = list(torch.autograd.grad(F.cross_entropy(net(x[part]), y[part]), list(net.parameters())))
                if run.rule is not None:
                    length, kept = torch.cat([t.flatten() for t in g]).norm(), [p.clone() for p in net.parameters()]
                    with torch.no_grad():
                        for p, t in zip(net.parameters(), g, strict=True):
                            p += 0.3 * t / length
                    g = list(torch.autograd.grad(F.cross_entropy(net(x[part]), y[part]), list(net.parameters())))
                    with torch.no_grad():
                        for p, t in zip(net.parameters(), kept, strict=True):
                            p.copy_(t)
                with torch.no_grad():
                    for p, t in zip(net.parameters(), g, strict=True):
                        p -= 0.2 * t
        for name, t in net.state_dict().items():
            torch.testing.assert_close(weights(results[run])[name], t, rtol=0, atol=1e-12)
        assert results[run].final["train_error"] == (net(x).argmax(1) != y).double().mean().item()
    assert all(
        torch.equal(weights(results[runs[0]])[n], weights(results[runs[4]])[n]) for n in weights(results[runs[4]])
    )


# What a run records.


def test_checkpoints_are_the_run_stopped_there() -> None:
    run = replace(SMALL, rho=0.5)
    result = trained([run], checkpoints=[0, 2])[run]
    assert [c.epoch for c in result.checkpoints] == [0, 2, 3]
    short = replace(run, epochs=2)
    stopped = trained([short])[short]
    assert all(torch.equal(weights(result, 1)[n], weights(stopped)[n]) for n in weights(stopped))
    start = run.network().state_dict()
    assert all(torch.equal(weights(result, 0)[n], start[n].double()) for n in start)
    assert result.v is not None
    assert result.v.shape == (15, 2)
    assert result.v[0].tolist() == [1.0, 1.0]
    torch.testing.assert_close(result.v[10], weights(result, 1)["head.weight"][0], rtol=0, atol=0)
    assert next(iter(fit_many([run]))).checkpoints[0].weights is None


def test_values_are_those_of_the_network(together: dict[Any, Result]) -> None:
    config = MIXED[6]  # corrupted: the test points must not be
    net = ToyNet().double()
    net.load_state_dict(weights(together[config]))
    x, y = config.test_points(DOUBLE)
    assert torch.equal(x, replace(config, corruption="none", level=0.0).test_points(DOUBLE).x)
    assert len(y) == 2000
    values = together[config].final
    sign = net.head.weight[0].sign()
    for k, name in enumerate(("probe_easy", "probe_hard")):
        wrong = ((sign[k] * net.features(x)[:, k]).sign() != y).double().mean().item()
        assert values[name] == pytest.approx(wrong, abs=1e-12)
    assert values["test_error"] == pytest.approx((net(x).sign() != y).double().mean().item(), abs=1e-12)
    x, y = config.train_points(DOUBLE)
    assert values["loss"] == pytest.approx(torch.log1p(torch.exp(-y * net(x))).mean().item(), abs=1e-12)
    assert values["train_error"] == pytest.approx((net(x).sign() != y).double().mean().item(), abs=1e-12)


def test_a_feature_with_a_negative_weight_is_read_with_its_sign(together: dict[Any, Result]) -> None:
    fleet, w = fleets.ToyFleet([MIXED[1]], DOUBLE), weights(together[MIXED[1]])
    turned = {**w, "head.weight": w["head.weight"] * torch.tensor([1.0, -1.0])}
    values = fleet.evaluate(0, turned)
    assert values["probe_easy"] == together[MIXED[1]].final["probe_easy"]
    assert values["probe_hard"] == pytest.approx(1 - together[MIXED[1]].final["probe_hard"], abs=1e-12)


def test_a_tie_and_a_nan_are_errors() -> None:
    assert fleets._share_wrong(torch.tensor([1.0, 0.0, -1.0, math.nan])) == 0.75


def test_a_run_that_blows_up_is_marked_and_harms_nobody() -> None:
    good, bad = replace(SMALL, seed=1), replace(SMALL, seed=2, lr=1e300)
    results = trained([good, bad])
    assert results[bad].collapsed
    assert not math.isfinite(results[bad].final["loss"])
    assert results[bad].final["probe_hard"] == 1.0
    alone = trained([good])[good]
    assert all((weights(alone)[n] - weights(results[good])[n]).abs().max() < 1e-13 for n in weights(alone))


def test_progress_reaches_the_total_and_a_dropped_iteration_stops() -> None:
    runs = [replace(SMALL, seed=s) for s in range(4)]
    seen: list[tuple[int, int]] = []
    list(fit_many(runs, chunk=2, progress=lambda what, done, total: seen.append((done, total))))
    assert seen[-1] == (4 * 15, 4 * 15)
    assert all(a[0] < b[0] for a, b in pairwise(seen))
    seen.clear()
    short_and_long = [replace(SMALL, epochs=1), replace(SMALL, epochs=3000)]
    some = fit_many(short_and_long, workers=2, progress=lambda what, done, total: seen.append((done, total)))
    next(some)
    some.close()
    assert 0 < seen[-1][0] < seen[-1][1]


def test_seeds_choose_data_weights_and_order_and_the_global_rng_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, two = replace(SMALL, seed=1), replace(SMALL, seed=2)
    assert not torch.equal(one.train_points().x, two.train_points().x)
    assert not torch.equal(one.train_points().x[:20], one.test_points().x[:20])
    assert torch.equal(one.train_points().x, replace(one, rho=1.0, batch=3).train_points().x)  # paired
    trained([one, two])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chi": -360.0}, r"chi must be a finite number > 0, got -360.0"),
        ({"batch": 301}, r"batch must be a whole number in \[1, 300\], got 301"),
        ({"batch": 0}, r"batch must be a whole number in \[1, 300\], got 0"),
        ({"rho": -0.1}, r"rho must be a finite number >= 0, got -0.1"),
        ({"rho": math.nan}, r"rho must be a finite number >= 0, got nan"),
        ({"rho": 1.0, "algorithm": "sgd"}, r"rho must be 0 for 'sgd', which does not climb, got 1.0"),
        ({"algorithm": "lsma"}, r"no algorithm is named 'lsma'; did you mean 'lsam'\?"),
        ({"epochs": 0}, r"epochs must be a whole number >= 1, got 0"),
        ({"lr": 0.0}, r"lr must be a finite number > 0, got 0.0"),
        ({"seed": 1.5}, r"seed must be a whole number, got 1.5"),
        ({"v_star": 2.0}, r"v_star must be 1 for 'lsam', which does not use it, got 2.0"),
        ({"v_star": math.inf, "algorithm": "both"}, r"v_star must be a finite number, got inf"),
        ({"corruption": "dropout", "level": 2.0}, r"level must be a finite number in \[0, 1\]"),
    ],
)
def test_bad_settings_get_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToyConfig(**settings)


def test_bad_module_runs_and_checkpoints_get_one_sentence() -> None:
    problem = Problem(lambda g: mlp((2, 2), g), normal(5, 2), torch.zeros(5).long())
    with pytest.raises(ValueError, match=r"batch must be a whole number in \[1, 5\], got 10"):
        ModuleConfig(problem)
    with pytest.raises(ValueError, match=r"checkpoints: an epoch must be a whole number >= 0, got -1"):
        next(fit_many([SMALL], checkpoints=[-1]))


def test_what_the_paper_found_holds_over_seeds() -> None:
    """LSAM lowers the hard feature's error, raises the phantom ratio and, far too wide, learns nothing."""
    settings = [(0.0, True), (2.0, True), (6.0, True), (0.0, False), (0.5, False)]
    runs = [ToyConfig(rho=rho, seed=s, train_head=trains) for rho, trains in settings for s in range(5)]
    results = list(fit_many(runs))
    sgd, wide, far, frozen_sgd, frozen = (results[i : i + 5] for i in range(0, 25, 5))
    for better, worse in ((wide, sgd), (frozen, frozen_sgd)):
        assert all(a.final["probe_hard"] < b.final["probe_hard"] for a, b in zip(better, worse, strict=True))
        assert all(r.final["test_error"] < 0.02 and not r.collapsed for r in (*better, *worse))
    assert all(r.collapsed for r in far)
    for r in (*wide, *frozen):
        assert r.v is not None
        assert r.phantom is not None
        assert (r.phantom[:, 1] / r.phantom[:, 0]).median() > (r.v[:, 1] / r.v[:, 0]).median()
