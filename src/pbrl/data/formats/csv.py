"""CSV: a header row that names the columns, then one row a step."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pbrl.data.formats import Format, Reading
from pbrl.data.formats.table import (
    EpisodeNumbers,
    Keys,
    Matrix,
    described,
    table_columns,
    table_source,
)
from pbrl.data.formats.table_columns import TableLayout, find_columns
from pbrl.data.missing import MissingCell
from pbrl.data.rows import Rows, RowSource
from pbrl.data.validate import reading
from pbrl.errors import PbrlError

_TRUTH = {"true": 1.0, "false": 0.0}


def open_csv(path: Path, how: Reading) -> RowSource:
    """A CSV file with a header row as a source of rows."""
    where = f"'{path}'"
    with reading(path, "CSV"), path.open(newline="", encoding="utf-8-sig") as file:
        header, delimiter = _header(where, file.readline())
        if not file.readline().strip():
            raise PbrlError(f"{where} has no rows.")
    layout = find_columns(where, header, how.columns)

    def pieces(size: int) -> Iterator[tuple[Matrix, Keys]]:
        with reading(path, "CSV"), path.open(newline="", encoding="utf-8-sig") as file:
            yield from _parse(where, file, header, delimiter, layout, size, how.strict)

    carried: object = {}
    sidecar = _sidecar(path)
    if sidecar.is_file():
        with reading(sidecar, "JSON"):
            carried = json.loads(sidecar.read_text())
    metadata = described(path, layout, f"'{sidecar}'", carried)
    return table_source(where, layout, metadata, pieces, how.strict)


class CsvWriter:
    """CSV with a header; what is known besides the rows goes to ``<name>.csv.json``.

    Args:
        path: the file to create.
        source: the rows to come: their shape and metadata.
    """

    def __init__(self, path: Path, source: RowSource) -> None:
        self.sidecar = _sidecar(path)
        self.metadata = source.metadata
        self.episodes = EpisodeNumbers()
        self.file = path.open("w", newline="", encoding="utf-8")
        csv.writer(self.file, lineterminator="\n").writerow(table_columns(source))

    def append(self, rows: Rows) -> None:
        """Adds raw rows. Nine digits give a float32 back exactly."""
        parts = [rows.observations, rows.actions, rows.rewards[:, None], rows.terminals[:, None]]
        widths = [rows.observations.shape[1] + rows.actions.shape[1] + 1, 1]
        formats = ["%.9g"] * widths[0] + ["%d"]
        if rows.timeouts is not None:
            parts.append(rows.timeouts[:, None])
            formats.append("%d")
        if rows.next_observations is not None:
            parts.append(rows.next_observations)
            formats += ["%.9g"] * rows.next_observations.shape[1]
        if rows.timeouts is not None:
            parts.append(self.episodes.of(rows)[:, None])
            formats.append("%d")
        matrix = np.concatenate([part.astype(np.float64) for part in parts], axis=1)
        line = ",".join(formats) + "\n"
        self.file.writelines(line % tuple(row) for row in matrix.tolist())

    def close(self) -> None:
        """Completes the file and its side file."""
        self.file.close()
        self.sidecar.write_text(json.dumps(self.metadata.to_json(), indent=1) + "\n")

    def abandon(self) -> None:
        """Closes the file as it is."""
        self.file.close()


def _sidecar(path: Path) -> Path:
    """Where what is known besides the rows is kept."""
    return path.with_name(path.name + ".json")


def _header(where: str, line: str) -> tuple[list[str], str]:
    line = line.strip("\r\n")
    if not line.strip():
        raise PbrlError(f"{where} is empty; CSV needs a header row and at least one row of data.")
    delimiter = next((sign for sign in (",", ";", "\t") if sign in line), ",")
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter))]
    if all(_number(name) is not None for name in names):
        raise PbrlError(
            f"{where} starts with numbers; its first row must name the columns (obs_0, …, "
            "action_0, …, reward, terminal, timeout, episode)."
        )
    return names, delimiter


def _number(cell: str) -> float | None:
    """A cell as a number: what ``float`` takes, without its underscores, and true/false."""
    text = cell.strip()
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _parse(
    where: str,
    file: Any,
    header: list[str],
    delimiter: str,
    layout: TableLayout,
    size: int,
    strict: bool,
) -> Iterator[tuple[Matrix, Keys]]:
    """Blocks of numbers: by NumPy's parser where every cell is plain, else cell by cell."""
    file.readline()
    line = 2
    place_of = {name: place for place, name in enumerate(header)}
    places = [place_of[name] for name in layout.numeric()]
    episode = place_of[layout.episode] if layout.episode is not None else None
    wanted = places if episode is None else [*places, episode]
    while lines := list(islice(file, size)):
        if any('"' in text for text in lines):
            # A quoted cell may go on over the block's last line.
            while sum(text.count('"') for text in lines) % 2 and (more := file.readline()):
                lines.append(more)
        parsed = _parse_fast(lines, len(header), delimiter, wanted, episode is not None)
        if parsed is None:
            parsed = _parse_slow(where, lines, line, header, delimiter, places, episode, strict)
        if len(parsed[0]):
            yield parsed
        line += len(lines)


def _parse_fast(
    lines: list[str], width: int, delimiter: str, wanted: list[int], episodes: bool
) -> tuple[Matrix, Keys] | None:
    if any(text.count(delimiter) != width - 1 or '"' in text for text in lines):
        return None
    try:
        values = np.loadtxt(lines, delimiter=delimiter, usecols=wanted, ndmin=2, comments=None)
    except ValueError:
        return None
    if not episodes:
        return values, None
    keys = values[:, -1]
    if not np.all(np.abs(keys) < 2**53):
        return None  # such numbers are not told apart as floats
    return values[:, :-1], keys.tolist()


def _parse_slow(
    where: str,
    lines: list[str],
    first_line: int,
    header: list[str],
    delimiter: str,
    places: list[int],
    episode: int | None,
    strict: bool,
) -> tuple[Matrix, Keys]:
    values: list[list[float]] = []
    keys: list[Any] = []
    reader = csv.reader(lines, delimiter=delimiter)
    for cells in reader:
        number = first_line + reader.line_num - 1
        if not cells:
            continue
        if len(cells) != len(header):
            raise PbrlError(
                f"{where}, line {number}: {len(cells)} cells, but the header names "
                f"{len(header)} columns."
            )
        row = []
        for place in places:
            value = _number(cells[place])
            if value is None and strict:
                what = f"'{cells[place][:40]}'" if cells[place].strip() else "an empty cell"
                raise MissingCell(
                    f"{where}, line {number}, column '{header[place]}': {what} is not a number."
                )
            row.append(np.nan if value is None else value)
        values.append(row)
        if episode is not None:
            text = cells[episode].strip()
            if not text:
                raise PbrlError(
                    f"{where}, line {number}, column '{header[episode]}': an empty cell names no "
                    "episode."
                )
            value = _number(text)
            keys.append(value if value is not None and abs(value) < 2**53 else text)
    matrix = np.array(values, np.float64).reshape(len(values), len(places))
    return matrix, None if episode is None else keys


CSV = Format(open_csv, CsvWriter)
