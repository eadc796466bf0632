"""CSV and Parquet: one row a step, one column a dimension."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbrl.data.dataset import numbered_names
from pbrl.data.rows import Metadata, Rows, RowSource
from pbrl.data.table_columns import TableLayout, find_columns
from pbrl.data.validate import reading, to_rows
from pbrl.errors import PbrlError, optional_import

Columns = Mapping[str, str | Sequence[str]] | None
Matrix = NDArray[np.float64]
Keys = list[Any] | None

_TRUTH = {"true": 1.0, "false": 0.0}


def open_csv(path: Path, columns: Columns = None, strict: bool = True) -> RowSource:
    """A CSV file with a header row as a source of rows."""
    where = f"'{path}'"
    with reading(path, "CSV"), path.open(newline="", encoding="utf-8-sig") as file:
        header, delimiter = _header(where, file.readline())
        if not file.readline().strip():
            raise PbrlError(f"{where} has no rows.")
    layout = find_columns(where, header, columns)

    def pieces(size: int) -> Iterator[tuple[Matrix, Keys]]:
        with reading(path, "CSV"), path.open(newline="", encoding="utf-8-sig") as file:
            yield from _parse(where, file, header, delimiter, layout, size)

    carried: object = {}
    sidecar = path.with_name(path.name + ".json")
    if sidecar.is_file():
        with reading(sidecar, "JSON"):
            carried = json.loads(sidecar.read_text())
    metadata = _described(path, layout, f"'{sidecar}'", carried)
    return _source(where, layout, metadata, pieces, strict)


def open_parquet(path: Path, columns: Columns = None, strict: bool = True) -> RowSource:
    """A Parquet file as a source of rows."""
    where = f"'{path}'"
    with reading(path, "Parquet"):
        if path.is_dir():
            raise IsADirectoryError(path)
        path.open("rb").close()
        parquet = optional_import("pyarrow.parquet", "parquet")
        opened = parquet.ParquetFile(path)
        schema = opened.schema_arrow
        length = opened.metadata.num_rows
        opened.close()
    if length == 0:
        raise PbrlError(f"{where} has no rows.")
    layout = find_columns(where, schema.names, columns)
    for name in layout.numeric():
        _check_arrow_type(where, name, schema.field(name).type)

    def pieces(size: int) -> Iterator[tuple[Matrix, Keys]]:
        with reading(path, "Parquet"), parquet.ParquetFile(path) as file:
            wanted = [*layout.numeric(), *([layout.episode] if layout.episode else [])]
            start = 0
            for batch in file.iter_batches(size, columns=wanted):
                yield _from_arrow(where, batch, layout, start)
                start += batch.num_rows

    with reading(path, "Parquet metadata"):
        carried = json.loads((schema.metadata or {}).get(b"pbrl", "{}"))
    metadata = _described(path, layout, where, carried)
    return _source(where, layout, metadata, pieces, strict)


def _described(path: Path, layout: TableLayout, where: str, carried: object) -> Metadata:
    """What is known of a table; ``carried`` is what our own writer kept with it."""
    notes = []
    if layout.ignored:
        listed = ", ".join(layout.ignored[:8]) + (", …" if len(layout.ignored) > 8 else "")
        notes.append(f"Ignored what training does not use: {listed}.")
    if layout.timeouts is None and layout.episode is None:
        notes.append(
            "No timeout and no episode column: episodes end at terminals only, and a row before a "
            "cut would be joined to the next episode."
        )
    metadata = Metadata(path.stem, str(path), notes=tuple(notes)).updated(where, carried)
    # Our writer calls the columns obs_0, … and keeps their names apart; other tables' names stand.
    if layout.observations != numbered_names("obs", len(layout.observations)):
        metadata = replace(metadata, observation_names=layout.observations)
    if layout.actions != numbered_names("action", len(layout.actions)):
        metadata = replace(metadata, action_names=layout.actions)
    return metadata


def _source(
    where: str,
    layout: TableLayout,
    metadata: Metadata,
    pieces: Callable[[int], Iterator[tuple[Matrix, Keys]]],
    strict: bool,
) -> RowSource:
    s, a = len(layout.observations), len(layout.actions)
    has_timeouts = layout.timeouts is not None or layout.episode is not None
    has_next = layout.next_observations is not None

    def blocks(size: int) -> Iterator[Rows]:
        """Rows with timeouts where the episode changes; one row waits for its successor."""
        start = 0
        held: Rows | None = None
        held_key: Any = None
        finished: set[Any] = set()
        for matrix, keys in pieces(size):
            arrays = {
                "observations": matrix[:, :s],
                "actions": matrix[:, s : s + a],
                "rewards": matrix[:, s + a],
                "terminals": matrix[:, s + a + 1],
            }
            if layout.timeouts is not None:
                arrays["timeouts"] = matrix[:, s + a + 2]
            elif has_timeouts:
                arrays["timeouts"] = np.zeros(len(matrix))
            if has_next:
                arrays["next_observations"] = matrix[:, -s:]
            rows = to_rows(where, arrays, start, strict)
            if keys is None:
                yield rows
                start += len(rows)
                continue
            if held is not None:
                rows = Rows.concatenate([held, rows])
                keys = [held_key, *keys]
            offset = start - (0 if held is None else 1)
            changes = [i for i in range(len(keys) - 1) if keys[i] != keys[i + 1]]
            for i in changes:
                finished.add(keys[i])
                if keys[i + 1] in finished:
                    raise PbrlError(
                        f"{where}: episode {keys[i + 1]} goes on at row {offset + i + 1} after "
                        "another one; sort the rows by episode and time."
                    )
            assert rows.timeouts is not None
            rows.timeouts[changes] |= ~rows.terminals[changes]
            start += len(matrix)
            held, held_key = rows[-1:], keys[-1]
            if len(rows) > 1:
                yield rows[:-1]
        if held is not None:
            yield held

    return RowSource(metadata, s, a, has_timeouts, has_next, blocks)


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
    where: str, file: Any, header: list[str], delimiter: str, layout: TableLayout, size: int
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
            parsed = _parse_slow(where, lines, line, header, delimiter, places, episode)
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
            if value is None:
                what = f"'{cells[place][:40]}'" if cells[place].strip() else "an empty cell"
                raise PbrlError(
                    f"{where}, line {number}, column '{header[place]}': {what} is not a number."
                )
            row.append(value)
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


def _check_arrow_type(where: str, name: str, kind: Any) -> None:
    types = optional_import("pyarrow.types", "parquet")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return
    nested = types.is_nested(kind)
    hint = " Store one column a dimension (obs_0, obs_1, …)." if nested else ""
    raise PbrlError(f"{where}: column '{name}' holds {kind} values; numbers are needed.{hint}")


def _from_arrow(where: str, batch: Any, layout: TableLayout, start: int) -> tuple[Matrix, Keys]:
    names = layout.numeric()
    matrix = np.empty((batch.num_rows, len(names)), np.float64)
    wanted = [*names, *([layout.episode] if layout.episode else [])]
    for name in wanted:
        column = batch.column(name)
        if column.null_count:
            row = start + column.is_null().to_numpy(zero_copy_only=False).argmax()
            raise PbrlError(
                f"{where}: column '{name}' is null at row {row}; fill or remove such rows."
            )
    for place, name in enumerate(names):
        matrix[:, place] = batch.column(name).to_numpy(zero_copy_only=False)
    return matrix, None if layout.episode is None else batch.column(layout.episode).to_pylist()
