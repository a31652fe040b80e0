"""Language models beyond training: sharpness and Hessian of a model whose batch is a dict."""

import pytest
import torch
from tiny import VOCABULARY, language_model
from torch.func import functional_call

from samphire import landscape
from samphire.landscape import Landscape


def batch():
    ids = torch.randint(1, VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids.masked_fill(ids % 3 == 0, -100)}


def of_dict_batches(model, batch, names):
    """The landscape of some weights of a model that takes a dict and returns its loss; tied weights stay tied."""
    weights = {name: p.detach() for name, p in model.named_parameters() if name in names}
    return Landscape.of_function(lambda w: functional_call(model, w, kwargs=batch).loss, weights)


@pytest.mark.parametrize("names", [{"transformer.ln_f.weight", "transformer.ln_f.bias"}, {"transformer.wte.weight"}])
def test_sharpness_and_hessian_of_a_dict_batch_model(names):
    model = language_model(attn_implementation="eager").double().eval()  # fused attention has no second derivative
    around = of_dict_batches(model, batch(), names)
    weights = {name: p for name, p in model.named_parameters() if name in names}

    def loss(*values):
        return functional_call(model, dict(zip(weights, values, strict=True)), kwargs=batch()).loss

    blocks = torch.autograd.functional.hessian(loss, tuple(weights.values()))
    sizes = [p.numel() for p in weights.values()]
    dense = torch.cat([torch.cat([b.reshape(m, n) for b, n in zip(row, sizes, strict=True)], 1) for row, m in zip(blocks, sizes, strict=True)])  # fmt: skip
    exact = torch.linalg.eigvalsh(dense)
    top = landscape.eigenvalues(around, 2)
    assert list(top.values) == pytest.approx(exact.flip(0)[:2].tolist(), rel=1e-4)
    estimate = landscape.trace(around, samples=200).trace
    assert abs(estimate.mean - exact.sum().item()) < 4 * estimate.deviation / estimate.n**0.5
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss(*weights.values()), list(weights.values()))])
    rise = landscape.sharpness(around, rho=0.01)
    assert rise.first_order == pytest.approx(0.01 * gradient.norm().item())
    assert rise.worst >= rise.one_step == pytest.approx(rise.first_order, rel=0.2)
