"""Every name in the table of symbols is a name in the code."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "notation.md"
ROWS = [line.split("|")[3] for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line]
OWNED = re.compile(r"((?:`\w+` and )*`\w+`) of `([\w.]+)`")


def resolve(name):
    """The object of a dotted name relative to samphire; a name that is a function and a module is the module."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(["samphire", *parts[:i]]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            thing = getattr(thing, part)
        return thing
    raise AttributeError(f"samphire has no {name}")


def members(thing):
    fields = {f.name for f in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    return fields | set(dir(thing)) | set(inspect.signature(thing).parameters)


@pytest.mark.parametrize("cell", sorted({cell.strip() for cell in ROWS if "`" in cell}))
def test_names_of_the_notation_exist(cell):
    for names, owner in OWNED.findall(cell):
        assert set(re.findall(r"\w+", names.replace(" and ", " "))) <= members(resolve(owner))
    for name in re.findall(r"`([\w.]+)`", OWNED.sub("", cell)):
        resolve(name)


def test_a_name_that_is_gone_is_noticed():
    with pytest.raises(AttributeError):
        resolve("mechanisms.phantom_step")
    assert "sigma" not in members(resolve("optim.sam"))
