"""Vector arithmetic against plain tensor arithmetic, and exact displacement."""

import math

import pytest
import torch

from samphire import tree
from samphire.restore import undone
from samphire.tree import Vector, dot, norm, project, unit

torch.manual_seed(0)
A = {"x": torch.randn(3, 2, dtype=torch.float64), "y": torch.randn(4, dtype=torch.float64)}
B = {"x": torch.randn(3, 2, dtype=torch.float64), "z": torch.randn(2, dtype=torch.float64)}


def flat(v: Vector, names: str = "xyz") -> torch.Tensor:
    sizes = {"x": 6, "y": 4, "z": 2}
    entries = v.dense()
    return torch.cat([entries[n].reshape(-1) if n in entries else torch.zeros(sizes[n]).double() for n in names])


@pytest.mark.parametrize(
    "expression",
    [
        lambda a, b: a + b,
        lambda a, b: a - 2 * b,
        lambda a, b: 3 * (a + b) - b / 4,
        lambda a, b: -a + torch.tensor(0.5, dtype=torch.float64) * b,
        lambda a, b: 0.0 * a + b,
    ],
)
def test_arithmetic_is_that_of_flat_vectors(expression):
    a, b = Vector(A), Vector(B)
    torch.testing.assert_close(flat(expression(a, b)), expression(flat(a), flat(b)), rtol=1e-14, atol=1e-15)


def test_arithmetic_under_vmap_equals_a_loop():
    factors, xs = torch.randn(5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)

    def formula(r, x):
        v = Vector({"x": x, "y": 2 * x})
        return (v + r * unit(v) - project(v, onto=Vector({"x": x.flip(0)}))).dense()

    batched = torch.vmap(formula)(factors, xs)
    for i in range(5):
        alone = formula(factors[i], xs[i])
        for name in alone:
            torch.testing.assert_close(batched[name][i], alone[name], rtol=1e-13, atol=1e-14)


def test_norm_and_dot_are_those_of_flat_vectors_and_follow_the_factor():
    a, b = Vector(A), Vector(B)
    torch.testing.assert_close(norm(-2 * a), 2 * flat(a).norm())
    torch.testing.assert_close(dot(3 * a, b), 3 * (flat(a) @ flat(b)))
    assert norm(Vector()).item() == 0


def test_projection_is_orthogonal():
    a, b = Vector(A), Vector(B)
    rest = a - project(a, onto=b)
    assert abs(dot(rest, b).item()) < 1e-14
    torch.testing.assert_close(flat(project(b, onto=b)), flat(b))


def test_unit_of_zero_is_zero_of_tiny_is_finite_of_nan_is_nan():
    assert torch.equal(unit(Vector({"x": torch.zeros(2)})).dense()["x"], torch.zeros(2))
    assert unit(Vector({"x": torch.tensor([1e-44])})).dense()["x"].isfinite().all()
    assert unit(Vector({"x": torch.tensor([math.nan])})).dense()["x"].isnan().all()


def test_norm_of_half_precision_is_taken_in_float32():
    x = torch.full((4,), 1e-4, dtype=torch.float16)  # squares underflow in float16
    assert norm(Vector({"x": x})).item() == pytest.approx(2 * x[0].item(), rel=1e-6)
    y = torch.full((1 << 16,), 300.0, dtype=torch.bfloat16)
    assert dot(Vector({"y": y}), Vector({"y": y})).item() == pytest.approx(90000 * (1 << 16), rel=1e-3)


def test_sparse_entries_count_like_dense_ones():
    index = torch.tensor([[0, 2, 2]])
    sparse = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0, 2.0]), (4,), check_invariants=True)
    dense = sparse.to_dense()
    assert norm(Vector({"e": sparse})).item() == pytest.approx(dense.norm().item())
    assert dot(Vector({"e": sparse}), Vector({"e": dense})).item() == pytest.approx(dense.square().sum().item())
    w = {"e": torch.ones(4)}
    with undone() as undo:
        tree.displace(w, 0.5 * Vector({"e": sparse}), {}, undo.note)
        assert torch.equal(w["e"], 1 + 0.5 * dense)
    assert torch.equal(w["e"], torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_displacement_moves_and_restores_every_bit_in_place(dtype):
    w = {"x": torch.randn(1000).to(dtype)}
    before, address = w["x"].clone(), w["x"].data_ptr()
    by = Vector({"x": torch.randn(1000).to(dtype)}, 0.01)
    with pytest.raises(KeyError), undone() as undo:
        tree.displace(w, by, {}, undo.note)
        torch.testing.assert_close(w["x"], (before.double() + by.tensors["x"].double() * 0.01).to(dtype))
        raise KeyError
    assert torch.equal(w["x"], before)
    assert w["x"].data_ptr() == address


def test_displacement_is_measured_as_the_weights_really_moved():
    w, kept = {"x": torch.tensor([1.0, 1.0, 0.0]).bfloat16()}, {}
    g = Vector({"x": torch.tensor([0.0, 1.0, 2.0]).bfloat16()})
    with undone() as undo:
        tree.displace(w, Vector({"x": torch.tensor([1e-4, 1 / 64, 0.25]).bfloat16()}), kept, undo.note)
        seen = tree.measure_displacement(w, kept, g)
    assert seen.length.item() == pytest.approx(math.hypot(1 / 64, 0.25))  # 1e-4 rounds away
    assert seen.along.item() == pytest.approx(1 / 64 + 0.5)
    assert seen.moved == pytest.approx(2 / 3)


def test_random_directions_depend_on_the_seed_alone():
    state = torch.get_rng_state()
    a, b = tree.randn_like(Vector(A), 1), tree.randn_like(Vector(A), 1)
    assert torch.equal(flat(a), flat(b))
    assert not torch.equal(flat(a), flat(tree.randn_like(Vector(A), 2)))
    assert torch.equal(state, torch.get_rng_state())
    big = tree.randn_like(Vector({"x": torch.empty(100_000)}), 3).tensors["x"]
    assert abs(big.mean().item()) < 0.02
    assert abs(big.std().item() - 1) < 0.02


def test_largest_marks_exactly_k_entries():
    v = Vector({"a": torch.tensor([[1.0, 5.0], [5.0, 2.0]]), "b": torch.tensor([5.0, 0.0])})
    assert [int(sum(t.sum() for t in tree.largest(v, k).tensors.values())) for k in range(7)] == list(range(7))
    assert tree.largest(v, 4).dense()["a"].tolist() == [[False, True], [True, True]]
