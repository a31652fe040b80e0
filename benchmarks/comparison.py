"""What other packages do with one step, one Hessian and one erasure: the evidence behind docs/comparison.md.

    python benchmarks/comparison.py [--sam FILE] [--composer FILE]

Packages that are not installed are left out and named. Two of them are files of repositories: ``sam.py`` of
davda54/sam and ``composer/algorithms/sam/sam.py`` of mosaicml/composer. Each is used as its documentation shows.
"""

from __future__ import annotations

import argparse
import ast
import copy
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samphire import SharpnessAware, sam
from samphire.landscape import Landscape, eigenvalues
from samphire.probes.erasure import erase
from timing import machine, store

RESULTS = Path(__file__).parent.parent / "results" / "bench-comparison.json"
MODULES = {"pytorch-optimizer": "pytorch_optimizer", "PyHessian": "pyhessian", "curvlinops-for-pytorch": "curvlinops",
           "concept-erasure": "concept_erasure"}  # fmt: skip
Wrap = Callable[[nn.Module, float], torch.optim.Optimizer]


# One step of SAM, as each package documents it


def ours(model: nn.Module, lr: float) -> SharpnessAware:
    return SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), sam(rho=0.05))


def by_class(peer: Any) -> Wrap:
    """pytorch-optimizer and davda54/sam take the base optimizer's class."""
    return lambda model, lr: peer(model.parameters(), torch.optim.SGD, rho=0.05, lr=lr, momentum=0.9)


def around(peer: Any) -> Wrap:
    """Composer takes an optimizer; its trainer gives the closure more arguments."""
    return lambda model, lr: peer(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), rho=0.05)


def step(opt: torch.optim.Optimizer, closure: Callable[..., Tensor]) -> None:
    if isinstance(opt, SharpnessAware):
        opt.step(closure)
    elif hasattr(opt, "_step_supports_amp_closure"):  # Composer
        opt.step(lambda **_: closure())
    else:
        closure()
        opt.step(closure)


class Kept(nn.Module):
    """Dropout that keeps what it dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.masks.append(torch.rand_like(x) < 0.5)
        return x * self.masks[-1]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), Kept(), nn.Linear(32, 3))


def batch(seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(40, 6, generator=source), torch.randint(3, (40,), generator=source)


def closure_of(model: nn.Module, opt: torch.optim.Optimizer, seed: int, fail_at: int = 0) -> Callable[..., Tensor]:
    (x, y), calls = batch(seed), []

    def closure() -> Tensor:
        calls.append(1)
        if len(calls) == fail_at:
            raise RuntimeError("out of memory")
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def one_step(wrap: Wrap) -> dict[str, Any]:
    """What a step with a learning rate of zero disturbs, what an error leaves, and whether a run can be resumed."""
    model = network()
    before, opt = weights(model), wrap(model, 0.0)
    step(opt, closure_of(model, opt, 0))
    facts = {
        "BatchNorm's updates in one step": int(model[1].num_batches_tracked),
        "equal dropout masks in both passes": torch.equal(*model[3].masks),
        "weights back bit for bit": torch.equal(weights(model), before),
    }
    model = network()
    before, opt = weights(model), wrap(model, 0.0)
    try:
        step(opt, closure_of(model, opt, 0, fail_at=2))
    except RuntimeError:
        facts["weights back after an error in the second pass"] = torch.equal(weights(model), before)
    return facts | {"resumed run equals an uninterrupted one": resumes(wrap)}


def resumes(wrap: Wrap) -> bool:
    """Three steps, a checkpoint, three steps; against six. In evaluation mode, without random numbers."""

    def train(model: nn.Module, opt: torch.optim.Optimizer, seeds: range) -> None:
        for seed in seeds:
            step(opt, closure_of(model, opt, seed))

    model = network().eval()
    model[3] = nn.Identity()
    opt = wrap(model, 0.1)
    train(model, opt, range(3))
    other = copy.deepcopy(model)
    again = wrap(other, 0.1)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    train(model, opt, range(3, 6))
    train(other, again, range(3, 6))
    return torch.equal(weights(model), weights(other))


# One Hessian


def dense(model: nn.Module, x: Tensor, y: Tensor) -> np.ndarray:
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(w: Tensor) -> Tensor:
        parts = torch.split(w, [s.numel() for s in shapes])
        values = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return cross_entropy(torch.func.functional_call(model, values, (x,)), y)

    return np.linalg.eigvalsh(torch.autograd.functional.hessian(loss, weights(model)).numpy())


def by_landscape(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float(eigenvalues(Landscape.of(model, cross_entropy, [(x, y)]), k=1).values[0])


def by_pyhessian(model: nn.Module, x: Tensor, y: Tensor) -> float:
    from pyhessian import hessian

    return float(hessian(model, cross_entropy, data=(x, y), cuda=False).eigenvalues()[0][0])


def by_curvlinops(model: nn.Module, x: Tensor, y: Tensor) -> float:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    operator = HessianLinearOperator(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])
    return float(eigsh(operator.to_scipy(), k=1, which="LA", return_eigenvectors=False)[0])


HESSIANS = {"samphire": by_landscape, "PyHessian": by_pyhessian, "curvlinops-for-pytorch": by_curvlinops}


def one_hessian(top: Callable[[nn.Module, Tensor, Tensor], float]) -> dict[str, Any]:
    """The largest eigenvalue beside a dense computation in float64, and what is left in the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).double().train()
    x, y = batch(0)
    x = x.double()
    expected = dense(model, x, y)[-1]
    found = top(model, x, y)
    return {
        "relative error of the largest eigenvalue": float(f"{abs(found - expected) / expected:.1e}"),
        "model still in training mode": model.training,
        "no gradients left behind": all(p.grad is None for p in model.parameters()),
    }


# One erasure


def one_erasure() -> float:
    """The largest difference between concept-erasure's erased features and ours, both without shrinkage."""
    from concept_erasure import LeaceFitter

    source = np.random.default_rng(0)
    z = source.integers(2, size=500)
    x = source.normal(size=(500, 8)) @ source.normal(size=(8, 8))
    x[:, 0] += 3 * z
    theirs = LeaceFitter.fit(torch.tensor(x), torch.tensor(z), shrinkage=False).eraser(torch.tensor(x)).numpy()
    return float(f"{np.abs(theirs - erase(x, z)(x)).max():.1e}")


def class_of(file: Path, name: str) -> Any:
    """One class of a file, without what else the file imports."""
    tree = ast.parse(file.read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module([found], []), str(file), "exec"), scope)
    return scope[name]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sam", type=Path, help="sam.py of davda54/sam")
    parser.add_argument("--composer", type=Path, help="composer/algorithms/sam/sam.py of mosaicml/composer")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: version(name) for name, module in MODULES.items() if find_spec(module)}
    print("left out, not installed:", *(MODULES.keys() - found) or ["none"])

    wraps: dict[str, Wrap] = {"samphire": ours}
    if "pytorch-optimizer" in found:
        wraps["pytorch-optimizer"] = by_class(import_module("pytorch_optimizer").SAM)
    if asked.sam:
        wraps["davda54/sam"] = by_class(class_of(asked.sam, "SAM"))
    if asked.composer:
        wraps["Composer"] = around(class_of(asked.composer, "SAMOptimizer"))
    facts: dict[str, Any] = {
        "versions": found,
        "one step": {name: one_step(wrap) for name, wrap in wraps.items()},
        "one Hessian": {name: one_hessian(top) for name, top in HESSIANS.items() if name in {"samphire", *found}},
    }
    if "concept-erasure" in found:
        facts["one erasure"] = {"largest difference from ours": one_erasure()}
    store(RESULTS, facts | machine())


if __name__ == "__main__":
    main()
