"""The written-out kernels against autograd, the toy's algorithms against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samphire.models import ToyNet, two_views
from samphire.optim.batched import stacked
from samphire.optim.feature_runs import FeatureRuns, Stack

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


# The kernels against autograd.

STACKS = {
    "toy": lambda: ToyNet(width=8).phi,
    "mlp": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2)),
    "norm after relu": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.LayerNorm(5), nn.LayerNorm(5), nn.ReLU()),
}


@pytest.mark.parametrize("build", STACKS.values(), ids=STACKS)
def test_stack_has_the_gradients_of_autograd(build: Any) -> None:
    runs, rows = 3, 7
    nets = [build().double() for _ in range(runs)]
    for i, net in enumerate(nets):
        for j, p in enumerate(net.parameters()):
            p.data = normal(*p.shape, seed=10 * i + j)  # also LayerNorm's, which start trivial
    w = stacked([net.state_dict() for net in nets], DOUBLE)
    stack, into = Stack(nets[0]), {name: torch.full_like(t, 0.5) for name, t in w.items()}
    for seed in (1, 2):  # the second call finds the buffers of the first
        x = normal(runs, rows, 4, seed=seed)
        out = stack.forward(w, x).clone()
        cot = normal(*out.shape, seed=3)
        for t in into.values():
            t.fill_(0.5)
        stack.backward(w, cot.clone(), into, alpha=-2.0)
        for r, net in enumerate(nets):
            expected = net(x[r])
            torch.testing.assert_close(out[r], expected)
            grads = torch.autograd.grad(expected, list(net.parameters()), cot[r])
            for (name, _), g in zip(net.named_parameters(), grads, strict=True):
                torch.testing.assert_close(into[name][r], 0.5 - 2.0 * g, rtol=1e-11, atol=1e-11)


def test_stack_descends_in_place_along_the_gradient_at_the_old_weights() -> None:
    net = ToyNet(width=8).phi.double()
    w = stacked([net.state_dict()], DOUBLE)
    x, cot = normal(1, 5, 4), normal(1, 5, 1, seed=1)
    stack = Stack(net)
    stack.forward(w, x)
    stack.backward(w, cot, into=w, alpha=-0.1)
    net(x[0]).backward(cot[0])
    for name, p in net.named_parameters():
        torch.testing.assert_close(w[name][0], p.data - 0.1 * p.grad)


def test_stack_refuses_layers_it_has_no_kernel_for() -> None:
    with pytest.raises(ValueError, match=r"got Linear, Tanh; use ModuleRuns for other modules"):
        Stack(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    with pytest.raises(ValueError, match=r"a Stack is a Linear layer and then .*, got ReLU, Linear"):
        Stack(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))


# The toy's algorithms against numbers worked out by hand.


def features(P: list[list[float]], algorithm: str, rho: float = 0.0, v_star: float = 1.0) -> tuple[Any, ...]:
    """A body that hands its input on (Phi = P), one step with lr 1 on labels 1, and where it leads."""
    w = {"phi.0.weight": torch.tensor([[[1.0]]], dtype=DOUBLE), "phi.0.bias": torch.zeros(1, 1, dtype=DOUBLE)}
    w["head.weight"] = torch.ones(1, 1, 2, dtype=DOUBLE)
    one = torch.ones(1, dtype=DOUBLE)
    star = torch.tensor([[1.0, v_star]], dtype=DOUBLE)
    runs = FeatureRuns(nn.Sequential(nn.Linear(1, 1)), w, [algorithm], rho * one, one, star, one.bool())
    x = torch.tensor(P, dtype=DOUBLE)[None, ..., None]
    v, phantom = runs.step(x, torch.ones(1, len(P), dtype=DOUBLE))
    return v[0, 0], phantom[0, 0], runs.weights["phi.0.weight"].item() - 1.0, runs.weights["head.weight"][0, 0]


def test_phantom_head_of_a_batch_worked_out_by_hand() -> None:  # MATH G6
    _, phantom, step, v = features([[2.0, 0.5], [1.0, -0.5]], "lsam", rho=0.5)
    torch.testing.assert_close(phantom, torch.tensor([0.51914812, 1.13704550], dtype=DOUBLE))
    lam = torch.tensor([0.16703072, 0.51234115], dtype=DOUBLE)  # at the phantom head
    P = torch.tensor([[2.0, 0.5], [1.0, -0.5]], dtype=DOUBLE)
    torch.testing.assert_close(v, 1 + lam @ P / 2, rtol=1e-7, atol=1e-7)
    assert step == pytest.approx((lam @ (P @ phantom)).item() / 2, abs=1e-7)


def test_one_example_worked_out_by_hand() -> None:  # MATH G4: v~ = (.7, .6), f~ = 4.5
    lam, phantom_lam = 0.0009110511944006454, 0.01098694263059318
    assert features([[3.0, 4.0]], "sgd")[2] == pytest.approx(7 * lam, rel=1e-12)
    assert features([[3.0, 4.0]], "lsam", rho=0.5)[2] == pytest.approx(4.5 * phantom_lam, rel=1e-12)
    # v* = (1, 2) has f* = 11: it enters the weight, the rates, or both.
    star = 1 / (1 + math.exp(11))
    assert features([[3.0, 4.0]], "weights", v_star=2.0)[2] == pytest.approx(7 * star, rel=1e-12)
    assert features([[3.0, 4.0]], "rates", v_star=2.0)[2] == pytest.approx(11 * lam, rel=1e-12)
    assert features([[3.0, 4.0]], "both", v_star=2.0)[2] == pytest.approx(11 * star, rel=1e-12)
    for name in ("weights", "rates", "both"):  # the head follows its ordinary gradient
        torch.testing.assert_close(features([[3.0, 4.0]], name, v_star=2.0)[3], features([[3.0, 4.0]], "sgd")[3])


def test_no_climb_where_the_gradient_is_zero() -> None:
    _, phantom, step, _ = features([[0.0, 0.0]], "lsam", rho=0.5)
    assert phantom.tolist() == [1.0, 1.0]
    assert step == 0


def test_sam_alone_pays_for_the_second_pass_but_may_be_mixed() -> None:
    nets = [ToyNet(generator=torch.Generator().manual_seed(seed)).state_dict() for seed in (3, 1)]
    x, y = (normal(2, 5, 4), normal(2, 5, seed=1).sign())

    def step(which: list[int]) -> dict[str, Tensor]:
        def column(values: list[Any]) -> Tensor:
            return torch.tensor([values[i] for i in which], dtype=DOUBLE)

        runs = FeatureRuns(
            ToyNet().phi, stacked([nets[i] for i in which], DOUBLE), [["sam", "lsam"][i] for i in which],
            column([0.4, 0.7]), column([0.1, 0.1]), torch.ones(len(which), 2, dtype=DOUBLE), column([1, 1]).bool(),
        )  # fmt: skip
        runs.step(two_views(x[which]), y[which])
        return runs.weights

    mixed, *alone = step([0, 1]), step([0]), step([1])
    for i in (0, 1):
        assert all((mixed[n][i] - alone[i][n][0]).abs().max() < 1e-14 for n in mixed)
