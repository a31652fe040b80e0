"""What is said of the rules is what they do, and the page in docs is what the code would write today."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from samphire import optim
from samphire.experiments import rules_gallery
from samphire.optim import At, describe
from samphire.tree import Vector

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def described():
    return {name: describe.describe(name) for name in optim.RULES}


# The page


def test_the_page_is_up_to_date(described):
    now = describe.page(list(described.values()), rules_gallery.PICTURE, rules_gallery.SHOWN)
    stored = (DOCS / rules_gallery.PAGE).read_text()
    assert stored == now, "docs/rules.md is old; run: samphire rules --page docs"
    assert (DOCS / rules_gallery.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_the_page_has_every_rule_with_its_settings_and_reference(described):
    text = (DOCS / rules_gallery.PAGE).read_text()
    for name, d in described.items():
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert d.summary.replace("``", "`") in section
        assert all(f"| `{s.name}` | `{s.default}` |" in section for s in d.settings)
        assert all(s.meaning for s in d.settings), name
        assert "```math" in section or name == "every"
        assert "Reference: " in section or name == "random"
    assert ":math:" not in text
    assert "``" not in text.replace("```math", "").replace("\n```\n", "\n")


# By driving


@pytest.mark.parametrize(
    ("name", "memory", "perturbs"),
    [
        ("sam", 0, "all parameters"),
        ("lsam", 0, "the head"),
        ("sam_on", 0, "the norm layers"),
        ("random", 0, "all parameters"),
        ("looksam", 1, "all parameters"),
        ("msam", 1, "all parameters"),
        ("friendly", 1, "all parameters"),
        ("ae_sam", 0, "all parameters"),
        ("esam", 0, "a random part of the tensors"),
        ("ssam_f", 0.25, "part of the entries"),  # a byte for each four of a parameter
        ("ssam_d", 0.25, "part of the entries"),
        ("imb_sam", 0, "all parameters"),
    ],
)
def test_memory_and_scope_are_seen(described, name, memory, perturbs):
    assert (described[name].memory, described[name].perturbs) == (memory, perturbs)


def test_what_is_seen_follows_the_settings():
    assert describe.watch(optim.m_sharpness(16, optim.friendly())).memory == 2  # one for each half of 32 examples
    assert describe.watch(optim.m_sharpness(8, optim.every(2, optim.stale()))).memory == 4
    assert describe.watch(optim.on("0", optim.sam())).perturbs == "0.bias, 0.weight"
    assert describe.watch(optim.on("3", optim.gsam())).perturbs == "the head"
    assert describe.watch(optim.ssam_f(sparsity=0.0)).perturbs == "all parameters"
    assert describe.watch(optim.esam(beta=1.0)).perturbs == "all parameters"


@dataclass(frozen=True)
class Plain:
    passes = 1.0

    def gradient(self, w, memory):
        return (yield At())


def test_a_rule_that_stays_where_it_is_perturbs_nothing():
    assert describe.watch(Plain()) == describe.Footprint(0.0, "nothing")


def test_watching_leaves_the_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    describe.watch(optim.sam())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", optim.RULES)
def test_declared_passes_are_the_requests_made(name):
    """Over whole periods, each request counted by its share of the examples, a forward alone as a third."""
    rule, n, steps = optim.rule_for_run(name, steps=40, batch=32), 32, 40
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    w = {k: p.detach() for k, p in model.named_parameters()}
    bound, memory, asked = optim.bind(rule, model), optim.Memory(labels=torch.arange(n) % 2), 0.0
    source = torch.Generator().manual_seed(0)
    for _ in range(steps):
        answering = bound.gradient(Vector(w), memory)
        request = next(answering)
        try:
            while True:
                share = 1 if request.examples is None else len(torch.arange(n)[request.examples]) / n
                asked += share / 3 if request.wrt == frozenset() else share
                g = Vector({k: torch.randn(p.shape, generator=source) for k, p in w.items()})
                request = answering.send((g, torch.rand(n, generator=source)) if request.losses else g)
        except StopIteration:
            memory.step += 1
    if name == "ae_sam":  # decides by the gradients; random ones here
        assert steps < asked < 2 * steps
    else:
        assert math.isclose(asked / steps, rule.passes)


# By reading


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            "Foret et al., Sharpness-Aware Minimization, ICLR 2021, https://arxiv.org/abs/2010.01412",
            "Foret et al. 2021",
        ),
        ("Foret et al. 2021, section 4; Others, ICML 2022.", "Foret et al. 2021"),
        ("Li and Giannakis, Enhancing Sharpness-Aware\nOptimization, NeurIPS 2023", "Li and Giannakis 2023"),
        ("Wu, Luo, Wunsch, CR-SAM: Curvature, AAAI 2024", "Wu, Luo, Wunsch 2024"),
        ("Becker et al., Momentum-SAM, 2024, https://arxiv.org/abs/1999.12033", "Becker et al. 2024"),
        ("A title without authors, NeurIPS 2024", "A title without authors 2024"),
        ("", ""),
    ],
)
def test_authors_and_year_are_found(reference, expected):
    assert describe.paper(reference) == expected


def test_every_rule_but_the_ablation_has_a_paper(described):
    assert [name for name, d in described.items() if not d.paper] == ["random"]


def test_markup_becomes_markdown():
    assert describe._markdown("``a|b`` and :math:`|w|` by :func:`~x.y`::") == "`a|b` and $`|w|$` by `x.y`:".replace(
        "|$`", "|`$"
    )
    assert describe._cell("``|w|``") == r"`\|w\|`"


def test_a_rule_is_watched_with_one_thread():
    seen = []

    @dataclass(frozen=True)
    class spy:
        def gradient(self, w, memory):
            seen.append(torch.get_num_threads())
            return (yield At())

    torch.set_num_threads(2)
    try:
        describe.watch(spy())
        assert (set(seen), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(1)
