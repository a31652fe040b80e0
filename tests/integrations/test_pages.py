"""Every recipe of the page about trainers runs, in its order."""

import re
from pathlib import Path

import pytest
import torch

from samphire.optim import SharpnessAware, sam

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"


@pytest.mark.filterwarnings("ignore")  # what the libraries say about settings as small as these
def test_recipes_run_and_skorch_equals_a_plain_loop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(blocks) == 5
    scope = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), scope)

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
