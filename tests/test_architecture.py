"""A room imports only from rooms above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pbrl

SOURCE = Path(pbrl.__file__).parent
ORDER = [
    ("errors", "console"), ("envs",), ("data",), ("nn",), ("algorithms",), ("deploy",),
    ("evaluation",), ("training",), ("theory",), ("collect", "sweep", "bench"), ("experiments",),
    ("reports",), ("cli",),
]  # fmt: skip
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def room_of(module: str) -> str:
    """``pbrl.sweep.cost`` belongs to ``sweep``."""
    return module.split(".")[1]


def imports_of(path: Path) -> set[str]:
    """Rooms of pbrl that a file imports, also inside functions; type-only imports aside."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pbrl."):
            found.add(room_of(node.module))
        elif isinstance(node, ast.Import):
            found |= {room_of(n.name) for n in node.names if n.name.startswith("pbrl.")}
    return found


def test_rooms_import_only_from_rooms_above() -> None:
    offences = []
    files = [p for p in SOURCE.rglob("*.py") if not p.stem.startswith("__") or p.parent != SOURCE]
    assert len(files) > 30
    for path in files:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        room = room_of(f"pbrl.{parts[0]}")
        assert room in LEVEL, f"{path} is in no room of the house"
        for other in imports_of(path):
            if LEVEL[other] > LEVEL[room]:
                offences.append(f"{'/'.join(parts)} imports {other}")
    assert not offences, offences


def test_theory_stands_alone() -> None:
    for path in (SOURCE / "theory").rglob("*.py"):
        text = path.read_text()
        assert "import torch" not in text, path
        assert imports_of(path) <= {"theory", "errors"}, path
