"""Inferred groups: planted clusters are found and numbered alike in all classes; errors and environments by hand."""

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from samphire.audits.example import example
from samphire.baselines import infer_groups
from samphire.baselines.infer_groups import Clusters, _nearest, _silhouette


def test_clusters_find_the_attribute_and_mean_the_same_in_both_classes():
    seen = example(0.9, place=6.0, bird=2.0)
    train, test = seen["train"], seen["test"]
    found = Clusters.of(train.features, train.split.label)
    assert found.k == 2
    cluster, place = found(test.features, test.split.label), test.split.features["place"]
    agree = [np.mean(cluster[test.split.label == y] == place[test.split.label == y]) for y in (0, 1)]
    assert min(agree) > 0.95 or max(agree) < 0.05


def test_groups_are_label_times_cluster():
    train = example(0.9, place=6.0)["train"]
    group = infer_groups(train.split.label, features=train.features, clusters=[2])
    np.testing.assert_array_equal(group // 2, train.split.label)
    np.testing.assert_array_equal(
        group % 2, Clusters.of(train.features, train.split.label, clusters=[2])(train.features, train.split.label)
    )


def test_the_number_of_clusters_is_the_one_with_the_best_silhouette():
    draw = np.random.default_rng(0)
    y, which = np.repeat([0, 1], 150), np.tile([0, 1, 2], 100)
    x = np.stack([20.0 * which, 5.0 * y], 1) + draw.normal(size=(300, 2))
    assert Clusters.of(x, y, clusters=(2, 3, 4)).k == 3


def test_the_silhouette_is_scikit_learns():
    x = np.random.default_rng(0).normal(size=(60, 3))
    centers = x[:3]
    assert _silhouette(x, centers) == pytest.approx(silhouette_score(x, _nearest(x, centers)))


def test_environments_part_what_a_biased_model_gets_right_from_what_it_gets_wrong():
    """Logits that follow the attribute alone: the penalty is largest with the conflicting examples on their own."""
    split = example(0.8)["train"].split
    place = split.features["place"]
    logits = np.stack([1.0 - 2 * place, 2.0 * place - 1], 1)
    environment = infer_groups(split.label, logits=logits, way="eiil") % 2
    conflicting = place != split.label
    assert np.mean(environment == conflicting) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"way": "clusters"}, "needs features with a row for each label, got none"),
        ({"way": "errors", "logits": np.zeros((2, 2))}, "got 2 rows for 3 labels"),
        ({"way": "george"}, "no way to infer groups is named 'george'"),
        ({"features": np.array([[0.0], [np.nan], [1.0]])}, "needs finite features, but row 1 is not"),
        ({"features": np.zeros((3, 2))}, "needs 2 examples of every class or more, got 1"),
    ],
)
def test_bad_input_gets_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        infer_groups(np.array([0, 1, 1]), **given)
