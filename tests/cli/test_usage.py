"""A mistake in the words of a command is answered with what was wrong and the usage line."""

from __future__ import annotations

import pytest

from pbrl.cli.data import COMMANDS as DATA_COMMANDS
from pbrl.cli.main import COMMANDS, main

ALL = [[name] for name in COMMANDS if name != "data"] + [["data", name] for name in DATA_COMMANDS]


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_an_unknown_flag(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # a narrow terminal breaks no words
    said = complaint(capsys, *command, "--no-such-flag-of-any-command").splitlines()
    assert said[0].startswith("pbrl: ")
    assert len(said) == 3
    assert said[1].startswith(f"usage: pbrl {' '.join(command)} ")
    assert "--help" in said[2]
    assert not set("╭│╰") & set("".join(said))


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("train --stepz 4", "no option --stepz, 4. Did you mean --steps?"),
        ("train --batch_sice=4", "no option --batch_sice=4. Did you mean --batch-size?"),
        ("train --steps abc", "--steps takes a whole number, not 'abc'."),
        ("train --steps", "--steps is given without a value."),
        ("train --gamma abc", "--gamma takes a number, not 'abc'."),
        ("train --device gpu", "--device takes one of ('auto', 'cpu', 'cuda'), not 'gpu'."),
        ("train --algorithm pbrl --l2 1", "pbrl has no --l2; it is a setting of pbrl-ablations."),
        ("train --dataset x --preset paper --cloning 3", "it is a setting of pbrl-anchored."),
        ("evaluate", "Missing: PATH the run directory."),
        ("evaluate run --step x", "--step takes INT, not 'x'."),
        ("evaluate run --episode 3", "Did you mean --episodes?"),
        ("evaluate run other", "There is no option other."),
        ("data inspect x.npz --jsn y", "Did you mean --json?"),
        ("train --\x1b[31mred 1", "no option --"),
    ],
)
def test_what_was_wrong_is_said(words: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, *words.split(" "))
    assert wrong in said.splitlines()[0]
    assert "\x1b" not in said


def test_help_is_still_the_whole_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["evaluate", "--help"])
    assert end.value.code == 0
    assert "how many episodes to play" in capsys.readouterr().out
