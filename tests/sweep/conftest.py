"""Sweeps that look often, and a small data set."""

import pytest

import trees
from samphire import sweep


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sweep.running, "POLL", 0.05)


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    return trees.dominoes(tmp_path_factory.mktemp("tree"))
