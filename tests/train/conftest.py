"""Small data sets for the tests of training."""

import pytest

import trees


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return trees.waterbirds(trees.dominoes(tmp_path_factory.mktemp("data")))
