"""The page about trainers: every recipe runs, in its order, and a test stands behind every cell of the table."""

import importlib
import re
from pathlib import Path

import pytest
import table
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, GradientNormClipping, LRScheduler
from tiny import net, point_steps, points, same, sgd, sharpness_aware_loop
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from samphire.optim import SharpnessAware, sam

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"


def test_the_table_is_the_one_that_names_its_tests():
    assert table.markdown() in PAGE.read_text()


@pytest.mark.parametrize(("file", "test", "case"), sorted(set(table.tests())))
def test_the_test_behind_a_cell_is_there(file, test, case):
    module = importlib.import_module(file)
    assert callable(getattr(module, test))
    tables = [getattr(module, name, ()) for name in ("CASES", "SETTINGS", "KINDS")]
    assert not case or any(case in cases for cases in tables)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """What the recipes of the page have defined, after all of them ran."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(blocks) == 6
    scope = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("recipes"))
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), scope)
    return scope


quiet = pytest.mark.filterwarnings("ignore")  # what the libraries say about settings as small as these


@quiet
def test_recipes_run_and_skorch_equals_a_plain_loop(recipes):
    scope = recipes
    x, y = torch.randn(24, 4), torch.arange(24) % 2
    torch.manual_seed(0)
    settings = {"criterion": torch.nn.CrossEntropyLoss, "optimizer": torch.optim.SGD, "lr": 0.1, "max_epochs": 2}
    trained = scope["SharpNet"](scope["Net"], **settings, train_split=None, batch_size=24, verbose=0).fit(x, y)
    torch.manual_seed(0)
    model = scope["Net"]()
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam(0.05))
    losses = []
    for _ in range(2):
        for p in opt.passes():
            p.backward(torch.nn.functional.cross_entropy(model(x), y))
        losses.append(float(opt.step()))
    assert all(torch.equal(p, q) for p, q in zip(trained.module_.parameters(), model.parameters(), strict=True))
    assert trained.history[:, "train_loss"] == losses


@quiet
def test_a_trainer_of_ones_own_equals_a_plain_loop(recipes):
    def parts():
        model = net()
        base = sgd(model)
        return model, base, OneCycleLR(base, 0.1, total_steps=10)

    model, base, schedule = parts()
    loop = recipes["Loop"](model, SharpnessAware(model, base, sam(0.1)), schedule)
    torch.manual_seed(0)
    loop.fit(DataLoader(points(24), 4))
    expected, base, schedule = parts()
    torch.manual_seed(0)
    torch.empty((), dtype=torch.int64).random_()  # what a DataLoader draws as it begins
    losses, _ = sharpness_aware_loop(
        expected, base, sam(0.1), point_steps(expected, points(24), 4, 1), clip=1.0, after_step=schedule.step
    )
    assert same(model, expected)
    assert [float(loss) for loss in loop.losses] == losses


@quiet
def test_callbacks_and_checkpoints_of_skorch(recipes, monkeypatch, tmp_path):
    monkeypatch.setitem(recipes["SharpNet"].initialize_optimizer.__globals__, "sam", lambda rho: sam(0.0))
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    settings = {"criterion": torch.nn.CrossEntropyLoss, "optimizer": torch.optim.SGD, "lr": 0.1, "max_epochs": 4}
    nets = []
    for kind in (NeuralNetClassifier, recipes["SharpNet"]):
        torch.manual_seed(0)
        callbacks = [
            GradientNormClipping(0.01),
            LRScheduler("StepLR", step_size=2),
            EarlyStopping(patience=1),
            Checkpoint(dirname=tmp_path / kind.__name__),
        ]
        one = kind(recipes["Net"], **settings, optimizer__momentum=0.9, batch_size=8, callbacks=callbacks, verbose=0)
        nets.append(one.fit(x, y))
        one.load_params(checkpoint=callbacks[-1])
        one.partial_fit(x, y, epochs=1)
    plain, ours = nets
    assert isinstance(ours.optimizer_, SharpnessAware)
    assert all(torch.equal(p, q) for p, q in zip(ours.module_.parameters(), plain.module_.parameters(), strict=True))
    assert ours.history[:, ("train_loss", "valid_loss")] == plain.history[:, ("train_loss", "valid_loss")]
