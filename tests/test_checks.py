"""One-sentence errors: every kind of declaration, what it takes and what it refuses."""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Union

import pytest

from samphire.checks import (
    AtLeastZero,
    Count,
    Fraction,
    Positive,
    Range,
    Whole,
    check_fields,
    check_one_of,
    check_value,
    check_whole,
    declared_ranges,
)


@dataclass(frozen=True)
class Settings:
    lr: Positive = 0.1
    decay: AtLeastZero = 0
    share: Fraction = 1.0
    seed: Whole = 0
    epochs: Count = 1
    momentum: Annotated[float, Range(least=0, below=1)] = 0.9
    examples: Count | None = None
    schedule: Literal["cosine", "constant"] = "cosine"
    augment: bool = False
    name: str = "anything"

    def __post_init__(self) -> None:
        check_fields(self, "settings")


@pytest.mark.parametrize("field", declared_ranges(Settings))
def test_what_lies_outside_a_declared_range_is_refused_by_name_and_value(field):
    limits = declared_ranges(Settings)[field]
    for value in limits.outside():
        with pytest.raises(ValueError, match=rf"^settings: {field} must be a .* got ") as error:
            replace(Settings(), **{field: value})
        assert repr(value) in str(error.value)
        assert str(limits) in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", 5), ("decay", 0.0), ("share", 0), ("momentum", 0.999), ("examples", None), ("examples", 3), ("name", 7)],
)
def test_what_lies_inside_is_taken(field, value):
    assert getattr(replace(Settings(), **{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schedule", "linear", "settings: schedule must be 'cosine' or 'constant', got 'linear'."),
        ("augment", 1, "settings: augment must be true or false, got 1."),
        ("epochs", 2.0, "settings: epochs must be a whole number >= 1, got 2.0."),
        ("epochs", None, "settings: epochs must be a whole number >= 1, got None."),
        ("momentum", 1.0, "settings: momentum must be a finite number in [0, 1), got 1.0."),
        ("lr", math.inf, "settings: lr must be a finite number > 0, got inf."),
    ],
)
def test_messages(field, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(Settings(), **{field: value})


def test_names_come_with_a_guess_or_with_all_there_are():
    with pytest.raises(ValueError, match=r"^no rule is named 'looksma'; did you mean 'looksam'\?$"):
        check_one_of("rule", "looksma", ["sam", "looksam"])
    with pytest.raises(ValueError, match=r"^no rule is named 'xyz'; there are sam, looksam\.$"):
        check_one_of("rule", "xyz", ["sam", "looksam"])
    with pytest.raises(
        ValueError, match=r"there are a0, a1, a2, a3, a4, a5, \.\.\. \(38 more\), a44, .*, a48, fc\.$"
    ):
        check_one_of("layer", "head", [*(f"a{i}" for i in range(49)), "fc"])


def test_whole_numbers_have_two_ends():
    check_whole("batch", 3, least=1, most=3)
    with pytest.raises(ValueError, match=r"^batch must be a whole number in \[1, 3\], got 4\.$"):
        check_whole("batch", 4, least=1, most=3)


def test_a_union_also_takes_what_its_other_types_take():
    kind = Union[AtLeastZero, str, None]  # noqa: UP007
    for value in (0.5, "schedule", None):
        check_value("rho", value, kind)
    for value in (-1, True, [0.5]):
        with pytest.raises(ValueError, match=rf"^rho must be a finite number >= 0, got {re.escape(repr(value))}\.$"):
            check_value("rho", value, kind)
    check_value("anything", object(), int | str)
