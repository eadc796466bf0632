"""Five hundred commands, most of them wrong: each ends, with a sentence where it cannot be done.

Half of them get odd words, half get odd files; which ones is drawn from fixed seeds, so that what
fails once fails again. Exit code 1 and a traceback mean that something was not foreseen.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from pendulum_log import ENV, write_log

from pbrl.cli.main import COMMANDS, main
from pbrl.data import convert

TRAIN = [
    "--hidden", "8", "--policy-hidden", "8", "--batch-size", "16", "--ensemble-size", "2",
    "--n-ood", "2", "--steps", "4", "--threads", "1", "--no-tensorboard", "--checkpoint-every", "2",
    "--log-every", "2", "--no-eval",
]  # fmt: skip
GROUPS, EACH = 25, 20
LONGEST = 60  # seconds, of which a usual one takes a hundredth

NUMBERS = [
    "0", "-1", "1", "3", "2.5", "nan", "inf", "1e400", "9" * 25, "2147483648", "x", "", "٣",
]  # fmt: skip
WORDS = [
    "", " ", "-", "--", "[/b]", "x[old]", "\x1b[31m", "é", "\u202e", "a" * 300, "../..", "~", "%s",
    "/dev/null", "/etc/passwd", "{}", "$HOME", "\n", "2026-01-01", "evil_mod:Foo-v0", "hopper",
    "hopper-medium-v9", "mujoco/hopper/none-v0", "minari:x/y-v0", "http://x", "module:", ":x",
    "none", "None",
]  # fmt: skip
ODD_BYTES = [
    b"", b"\x00", b"\xff\xfe\x00", b"{", b"[]", b"null", b"[" * 5000, b'{"a": 1}', b"nan",
]  # fmt: skip


LONG = ("train", "bench", "theory")  # by themselves they work for minutes, as they say
COUNTS = ("--steps", "--episodes", "--eval-episodes", "--attempts", "--timeout")


class TooLong(BaseException):
    """A command is still at it; no OSError, which commands answer with a sentence."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run and a log in every format."""
    place = tmp_path_factory.mktemp("fuzz")
    log = write_log(place / "log.npz", rows=120)
    for suffix in ("hdf5", "csv", "parquet", "store"):
        convert(log, place / f"log.{suffix}")
    words = ["train", "--dataset", "log.npz", "--env-id", ENV, "--run-dir", "run", *TRAIN]
    before = Path.cwd()
    os.chdir(place)
    try:
        assert main([*words, "--quiet"]) == 0
    finally:
        os.chdir(before)
    (place / "sweep.yaml").write_text("datasets: [log.npz]\nseeds: 1\nsettings: {steps: 4}\n")
    return place


def usual(rng: random.Random) -> list[str]:
    """A command that could be done, in a moment or two."""
    data = rng.choice(["log.npz", "log.hdf5", "log.csv", "log.parquet", "log.store"])
    evaluate = ["--episodes", "1", "--seed", "1", "--env-id", ENV]
    return rng.choice(
        [
            ["train", "--dataset", data, "--run-dir", "new", *TRAIN],
            ["train", "--dataset", data, "--run-dir", "run", "--resume", *TRAIN],
            ["train", "--config", "run/config.json", "--run-dir", "new", "--steps", "4"],
            ["evaluate", "run", *evaluate],
            ["probe", "run"],
            ["data", "inspect", data, "--json", "about.json", "--html", "about.html"],
            ["data", "convert", data, rng.choice(["o.hdf5", "o.npz", "o.csv", "o.parquet", "o"])],
            ["data", "list"],
            ["data", "download", "hopper-medium-v2", "--mirror", "http://127.0.0.1:9",
             "--attempts", "1", "--timeout", "1", "--directory", "there"],
            ["data", "collect", "Pendulum-v1", "--tiers", "random", "--steps", "50", "--out", "c"],
            ["ope", "run", "--steps", "2", "--threads", "1"],
            ["export", "run", "--file", "p.onnx"],
            ["report", "run", "--out", "r.html"],
            ["finetune", "run", "--steps", "2", "--run-dir", "f", "--threads", "1",
             "--eval-episodes", "1", "--capacity", "1000", "--env-id", ENV],
            ["sweep", "sweep.yaml", "--dry-run", "--out", "runs"],
            ["reproduce", "list"],
            ["theory", "none"],
            [rng.choice([name for name in COMMANDS if name not in LONG])],
        ]
    )  # fmt: skip


def odd_words(rng: random.Random, words: list[str]) -> list[str]:
    """The same command with one or two of its words changed, added, doubled or left out."""
    words = list(words)
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(1, len(words) + 1)
        kind = rng.random()
        if kind < 0.6 and at < len(words):
            words[at] = rng.choice(NUMBERS if rng.random() < 0.6 else WORDS)
        elif kind < 0.75 and at < len(words) and len(words) > 2:
            del words[at]
        elif kind < 0.9:
            words.insert(at, rng.choice(WORDS))
        else:
            words += rng.choice([["--seed"], ["--no-such"], ["--env-id", "x"], ["--threads", "-1"]])
    for at, word in enumerate(words[:-1]):  # who asks for a billion steps gets them
        if word in COUNTS and words[at + 1] in ("9" * 25, "2147483648"):
            words[at + 1] = "-1"
    return words


def odd_file(rng: random.Random, place: Path) -> str:
    """One file changed: its end cut, some bytes flipped, other content, a value of its JSON."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    file = rng.choice(files)
    content = file.read_bytes()
    values = json.loads(content) if file.suffix == ".json" else None
    kind = rng.random()
    if isinstance(values, dict) and kind < 0.6:
        part = values
        while True:
            name = rng.choice([*part])
            if not isinstance(part[name], dict) or not part[name] or rng.random() < 0.3:
                break
            part = part[name]
        part[name] = rng.choice([None, [], {}, "x", -1, 0, 1e30, True, [1, 2], "[/b]"])
        file.write_text(json.dumps(values))
    elif kind < 0.5:
        flipped = bytearray(content)
        for _ in range(rng.choice([1, 5, 50])):
            if flipped:
                flipped[rng.randrange(len(flipped))] = rng.randrange(256)
        file.write_bytes(bytes(flipped))
    elif kind < 0.75:
        file.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind < 0.9:
        file.write_bytes(rng.choice(ODD_BYTES))
    else:
        file.unlink()
    return str(file.relative_to(place))


def ended(words: list[str]) -> int:
    """The exit code of a command run in this process."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"over {LONGEST} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST)
    try:
        return main(words)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_command_ends_well(
    group: int,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rng = random.Random(group)
    monkeypatch.setenv("PBRL_DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    failures = []
    for number in range(EACH):
        here = tmp_path / str(number)
        shutil.copytree(place, here)
        monkeypatch.chdir(here)
        words = usual(rng)
        file = ""
        if rng.random() < 0.5:
            words = odd_words(rng, words)
        else:
            file = odd_file(rng, here)
        try:
            code: object = ended(words)
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
        said = capfd.readouterr().err
        if code not in (0, 2, 3, 130) or "Traceback" in said:
            failures.append(f"{words} with {file or 'all files whole'}: {code} {said[-300:]}")
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(here)
    assert not failures, "\n".join(failures)


WHOLE: dict[str, Callable[[], list[str]]] = {
    "a number": lambda: ["train", "--steps", "nan"],
    "a file": lambda: ["data", "inspect", "/dev/zero"],
    "a name": lambda: ["evaluate", "[/b]"],
    "nothing": list,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE)
def test_as_processes(case: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pbrl", *WHOLE[case]()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
