"""Writes settings into docs/algorithms/*.md as the code has them: ``python docs/draw/settings.py``.

A page marks the place with ``<!-- settings: NAME -->`` or, for those alone that are not as another
algorithm has them, ``<!-- settings: NAME beside OTHER -->``, and with ``<!-- end of settings -->``.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

from pbrl.algorithms import ALGORITHMS

PAGES = Path(__file__).parent.parent / "algorithms"
PLACE = re.compile(
    r"(<!-- settings: (\S+)(?: beside (\S+))? -->\n).*?(<!-- end of settings -->)", re.DOTALL
)


def meanings(config: type) -> dict[str, str]:
    """The text under each field of a config and of those it inherits from."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__[:-1]):
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                assert isinstance(text.value, ast.Constant)
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def entries(name: str) -> list[str]:
    """Every setting with its default and meaning, and what the presets change."""
    cls = ALGORITHMS[name]
    texts = meanings(cls.Config)
    lines = [f"- `{f.name}`, {f.default!r}: {texts[f.name]}" for f in fields(cls.Config)]
    presets = {preset: values for preset, values in cls.presets.items() if preset != "paper"}
    return lines + [f"- preset `{preset}`: {changes(values)}" for preset, values in presets.items()]


def settings(name: str, beside: str | None) -> str:
    """The entries as a list, without those that ``beside`` has as well."""
    known = entries(beside) if beside else []
    lines = [line for line in entries(name) if line not in known]
    return "\n".join(textwrap.fill(x, 118, subsequent_indent="  ") for x in lines) + "\n"


def changes(values: dict[str, Any]) -> str:
    """``name value, name value``."""
    return ", ".join(f"`{k}` {v!r}" for k, v in values.items()) or "the defaults"


def with_settings(page: str) -> str:
    """A page with the settings as they are now."""
    return PLACE.sub(lambda place: place[1] + settings(place[2], place[3]) + place[4], page)


if __name__ == "__main__":
    for path in PAGES.glob("*.md"):
        path.write_text(with_settings(path.read_text()))
