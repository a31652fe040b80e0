"""Grids are the papers', or those of the words."""

from dataclasses import replace

import pytest

from samphire import records, sweep
from samphire.sweep.plans import plan
from samphire.train import appendix_b


@pytest.mark.parametrize(
    ("data", "lr", "rho", "targets"),
    [
        ("cifar-mnist", {0.01, 0.05, 0.1}, {0, 0.01, 0.03, 0.05, 0.07, 0.1, 0.2}, 1),
        ("fmnist-mnist", {0.01, 0.05, 0.1}, {0, 0.01, 0.03, 0.05, 0.07, 0.1, 0.2}, 1),
        ("celeba", {0.0005, 0.001, 0.005, 0.01}, {0, 0.01, 0.02, 0.05, 0.07}, 1),
        ("waterbirds", {0.0005, 0.001, 0.005, 0.01}, {0, 0.01, 0.02, 0.05, 0.07}, 1),
        ("pacs", {0.005, 0.01, 0.02}, {0, 0.03, 0.05, 0.1}, 4),
        ("vlcs", {0.005, 0.01, 0.02}, {0, 0.03, 0.05, 0.1}, 4),
        ("officehome", {0.005, 0.01, 0.02}, {0, 0.03, 0.05, 0.1}, 4),
    ],
)
def test_the_grids_are_the_papers(data, lr, rho, targets):
    jobs = sweep.grid(data, rules=("sam", "lsam"), seeds=(0, 1))
    assert len({records.key(job) for job in jobs}) == len(jobs) == 2 * targets * len(lr) * (1 + 2 * (len(rho) - 1))
    for rule in ("sam", "lsam"):
        assert {job.radius for job in jobs if job.rule == rule} == rho - {0}
    assert {job.radius for job in jobs if job.rule == "sgd"} == {0}
    assert {job.lr for job in jobs} == lr
    assert len({job.target for job in jobs}) == targets
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)
    assert all(replace(job, rule="sgd", rho=None) == appendix_b(data, lr=job.lr, seed=job.seed, target=job.target) for job in jobs)  # fmt: skip


def test_every_set_with_settings_has_a_grid():
    from samphire.train.configs import DEFAULTS

    assert sweep.GRIDS.keys() == DEFAULTS.keys()


def test_lists_of_a_grid_can_be_replaced():
    jobs = sweep.grid("pacs", ["looksam"], lr=[0.1], rho=[0, 0.2], targets=["photo"], epochs=2, rule_settings=(("k", 3),))  # fmt: skip
    assert [(j.rule, j.rho, j.rule_settings) for j in jobs] == [("sgd", None, ()), ("looksam", 0.2, (("k", 3),))]
    assert all((j.lr, j.target, j.epochs) == (0.1, "photo", 2) for j in jobs)
    assert [j.rule for j in sweep.grid("cifar-mnist", ["sam"], rho=[0.1], lr=[0.1])] == ["sam"]
    assert len(sweep.grid("cifar-mnist", ["sam", "sam"], [0, 0], rho=[0.1, 0.1], lr=[0.1])) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sweep.grid("mnist"), "no grid is named 'mnist'; did you mean 'cifar-mnist'"),
        (lambda: sweep.grid("cifar-mnist", ["sma"]), "no rule is named 'sma'; did you mean 'sam'"),
        (lambda: sweep.grid("cifar-mnist", seeds=()), "a grid must have a job"),
        (lambda: sweep.select([], by="test_error"), "no criterion is named 'test_error'; did you mean 'val_error'"),
        (
            lambda: sweep.run([], print, ".", on="cloud"),
            "no executor is named 'cloud'; there are here, processes, ray, slurm",
        ),
        (lambda: sweep.run([], print, ".", on="processes", workers=0), "workers must be a whole number >= 1, got 0"),
        (lambda: sweep.run([], print, ".", workers=2), "one job at a time, got workers=2; take on='processes'"),
        (lambda: sweep.run([], print, ".", address="auto"), "got 'auto' and on='here'; take on='ray'"),
    ],
)
def test_bad_input_is_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_words_become_jobs():
    jobs = plan("pacs", ["epochs=3", "lr=0.1", "rho=0,0.2", "target=photo,sketch", "rule.k=4"], ["looksam"], [0, 1])
    assert jobs == sweep.grid(
        *("pacs", ["looksam"], [0, 1]), lr=[0.1], rho=[0, 0.2], targets=["photo", "sketch"], epochs=3, rule_settings=(("k", 4),)
    )  # fmt: skip
    assert len(jobs) == 8
    assert plan("waterbirds", [], ["sam", "lsam"], [0]) == sweep.grid("waterbirds")
