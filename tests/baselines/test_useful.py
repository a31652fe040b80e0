"""USEFUL's slow part against scikit-learn's k-means, and what has none."""

import pytest
import torch
from sklearn.cluster import KMeans

from samphire.baselines import slow_part


def test_the_slow_part_is_the_cluster_of_larger_loss_of_each_class():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    slow = torch.rand(300, generator=draw) < 0.3
    logits = torch.nn.functional.one_hot(labels, 3) * torch.where(slow, 0.5, 4.0)[:, None]
    logits = logits + 0.7 * torch.randn(300, 3, generator=draw)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = []
    for c in range(3):
        mine = (labels == c).nonzero().squeeze(1)
        cluster = torch.from_numpy(KMeans(2, n_init=20, random_state=0).fit_predict(logits[mine].numpy()))
        means = [losses[mine[cluster == k]].mean() for k in (0, 1)]
        expected += mine[cluster == (0 if means[0] > means[1] else 1)].tolist()
    chosen = slow_part(logits, labels)
    assert chosen.tolist() == sorted(expected)
    assert slow[chosen].double().mean() > 0.8


def test_the_same_seed_chooses_the_same():
    logits, labels = torch.randn(50, 2, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 2
    assert torch.equal(slow_part(logits, labels, seed=3), slow_part(logits, labels, seed=3))


def test_equal_outputs_have_no_slow_part():
    assert slow_part(torch.ones(6, 2), torch.arange(6) % 2).tolist() == []


def test_shapes_that_do_not_fit_are_one_sentence():
    with pytest.raises(
        ValueError, match=r"needs outputs \(n, classes\) and labels \(n,\), got shapes \(3,\) and \(3,\)"
    ):
        slow_part(torch.ones(3), torch.zeros(3, dtype=torch.long))
