"""The page about trainers: every recipe runs, in its order, and a test stands behind every cell of the table."""

import importlib
import re
from pathlib import Path

import pytest
import table
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, GradientNormClipping, LRScheduler

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


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """What the recipes of the page have defined, after all of them ran."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(blocks) == 5
    scope = {}
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
    net = scope["SharpNet"](scope["Net"], **settings, train_split=None, batch_size=24, verbose=0).fit(x, y)
    torch.manual_seed(0)
    model = scope["Net"]()
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam(0.05))
    losses = []
    for _ in range(2):
        for p in opt.passes():
            p.backward(torch.nn.functional.cross_entropy(model(x), y))
        losses.append(float(opt.step()))
    assert all(torch.equal(p, q) for p, q in zip(net.module_.parameters(), model.parameters(), strict=True))
    assert net.history[:, "train_loss"] == losses


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
        net = kind(recipes["Net"], **settings, optimizer__momentum=0.9, batch_size=8, callbacks=callbacks, verbose=0)
        nets.append(net.fit(x, y))
        net.load_params(checkpoint=callbacks[-1])
        net.partial_fit(x, y, epochs=1)
    plain, ours = nets
    assert isinstance(ours.optimizer_, SharpnessAware)
    assert all(torch.equal(p, q) for p, q in zip(ours.module_.parameters(), plain.module_.parameters(), strict=True))
    assert ours.history[:, ("train_loss", "valid_loss")] == plain.history[:, ("train_loss", "valid_loss")]
