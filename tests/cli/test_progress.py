"""A bar with time left on a terminal; elsewhere a plain line now and then."""

import pytest
from rich.console import Console

from samphire.cli import progress


def test_lines_come_now_and_then_with_the_time_left(capsys):
    now = 0.0
    tell = progress.Lines(every=20, clock=lambda: now)
    for now in (0.0, 5.0, 19.9, 20.0, 39.0, 60.0):
        tell("training", int(now), 100)
    assert capsys.readouterr().err.splitlines() == [
        "training: 0% done, time left: not known yet",
        "training: 20% done, time left: 1 min 20 s",  # a unit a second
        "training: 60% done, time left: 40 s",
    ]


@pytest.mark.parametrize("total", [100, 50])
def test_work_that_follows_has_a_time_of_its_own(capsys, total):
    now = 0.0
    tell = progress.Lines(every=20, clock=lambda: now)
    tell("decoding", 90, 100)
    now = 100.0
    tell("training", 10, total)  # resumed: those ten took no time
    now = 120.0
    tell("training", 20, total)
    *_, first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("not known yet")
    assert second == f"training: {2000 // total}% done, time left: {'2 min 40 s' if total == 100 else '1 min 00 s'}"


def test_without_a_terminal_there_are_lines(capsys):
    with progress.bar() as tell:
        tell("decoding", 1, 3)
        tell("decoding", 2, 3)
    printed = capsys.readouterr()
    assert printed.err == "decoding: 33% done, time left: not known yet\n"
    assert not printed.out


def test_on_a_terminal_there_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(stderr=stderr, force_terminal=True, width=100))
    with progress.bar() as tell:
        tell("decoding", 3, 3)
    printed = capsys.readouterr()
    assert "decoding" in printed.err
    assert "100%" in printed.err
    assert "left:" in printed.err
    assert not printed.out


def test_what_is_printed_beside_the_bar_goes_where_it_should(capsys, monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(stderr=stderr, force_terminal=True, width=100))
    with progress.bar() as tell:
        tell("training", 1, 3)
        print("fig2 holds")  # stdout is a file here
        tell("training", 3, 3)
    printed = capsys.readouterr()
    assert printed.out == "fig2 holds\n"
    assert "fig2" not in printed.err


def test_without_work_nothing_is_shown(capsys):
    with progress.bar():
        pass
    assert capsys.readouterr().err == ""
