"""``pbrl``: finds the command, runs it, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from pathlib import Path

from pbrl.errors import PbrlError, is_out_of_memory, unknown_name

# Command -> (module with main(argv) -> exit code, what it is for).
COMMANDS = {
    "train": ("pbrl.cli.train", "train an agent from logged data"),
    "evaluate": ("pbrl.cli.evaluate", "score a run in its environment"),
    "probe": ("pbrl.cli.probe", "how sure a run is of five kinds of actions"),
    "data": ("pbrl.cli.data", "inspect, convert, collect, list or download datasets"),
    "theory": ("pbrl.cli.theory", "the paper's theory, measured"),
    "bench": ("pbrl.cli.bench", "training speed against the machine's own limit"),
    "reproduce": ("pbrl.cli.reproduce", "a table or figure of the paper"),
    "sweep": ("pbrl.cli.sweep", "many runs on Ray"),
    "report": ("pbrl.cli.report", "one HTML page from runs"),
    "ope": ("pbrl.cli.ope", "value of a policy without an environment"),
    "decide": ("pbrl.cli.decide", "deploy or not, from logged data alone"),
    "export": ("pbrl.cli.export", "ONNX policy with its uncertainty"),
    "finetune": ("pbrl.cli.finetune", "continue a run online"),
}


def main(argv: list[str] | None = None) -> int:
    """Run ``pbrl`` with ``argv`` (the process's own when omitted); returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        from pbrl import __version__

        print(f"pbrl {__version__}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            raise unknown_name("command", argv[0], COMMANDS)
        # OpenMP threads that spin while they wait starve whoever shares their core: two trainings
        # side by side then run many times slower. On an idle machine sleeping costs a tenth of the
        # speed instead. Must be decided before torch is loaded; results do not depend on it.
        if _others_running():
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        command = importlib.import_module(COMMANDS[argv[0]][0])
        return int(command.main(argv[1:]))
    except PbrlError as error:
        if debug:
            traceback.print_exc()
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted.")
        return 130
    except BrokenPipeError:
        return 141
    except (RuntimeError, MemoryError, ValueError, OverflowError) as error:
        if not is_out_of_memory(error):
            raise
        if debug:
            traceback.print_exc()
        reason = " ".join(str(error).split())[:200]
        _complain(f"not enough memory for these data and settings; choose smaller ones. ({reason})")
        return 2
    except OSError as error:
        if debug:
            traceback.print_exc()
        where = f" ({error.filename})" if error.filename else ""
        _complain(f"the system refused: {error.strerror or error}{where}.")
        return 2


def _complain(sentence: str) -> None:
    """Print a sentence where errors go, if anybody is left to read it."""
    from pbrl.console import plain_console

    plain_console(stderr=True).print(f"pbrl: {sentence}", soft_wrap=True)


def _others_running(samples: int = 10) -> bool:
    """Whether other processes use the processor just now (Linux; elsewhere False)."""
    running = 0
    try:
        for _ in range(samples):
            # The fourth field is runnable/all tasks; one of the runnable ones is this process.
            running += int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1
            time.sleep(0.005)
    except (OSError, ValueError, IndexError):
        return False
    return running > samples / 2


def _usage() -> str:
    lines = [f"  {name:<10} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(
        [
            "pbrl: offline reinforcement learning that knows what it does not know",
            "",
            "usage: pbrl COMMAND [options]; pbrl COMMAND --help shows every setting",
            "",
            *lines,
            "",
            "  --debug    show the traceback of an error",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
