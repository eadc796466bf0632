"""Parquet: one row a step, one column a dimension."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from pbrl.errors import PbrlError, optional_import

METADATA_KEY = b"pbrl"


def open_parquet(path: Path, how: Reading) -> RowSource:
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
    layout = find_columns(where, schema.names, how.columns)
    for name in layout.numeric():
        _check_arrow_type(where, name, schema.field(name).type)

    def pieces(size: int) -> Iterator[tuple[Matrix, Keys]]:
        with reading(path, "Parquet"), parquet.ParquetFile(path) as file:
            wanted = [*layout.numeric(), *([layout.episode] if layout.episode else [])]
            start = 0
            for batch in file.iter_batches(size, columns=wanted):
                yield _from_arrow(where, batch, layout, start, how.strict)
                start += batch.num_rows

    with reading(path, "Parquet metadata"):
        carried = json.loads((schema.metadata or {}).get(METADATA_KEY, "{}"))
    metadata = described(path, layout, where, carried)
    return table_source(where, layout, metadata, pieces, how.strict)


class ParquetWriter:
    """Parquet with one float32 column a dimension.

    Args:
        path: the file to create.
        source: the rows to come: their shape and metadata.
    """

    def __init__(self, path: Path, source: RowSource) -> None:
        self.arrow = optional_import("pyarrow", "parquet")
        parquet = optional_import("pyarrow.parquet", "parquet")
        self.episodes = EpisodeNumbers()
        kinds = {"terminal": self.arrow.bool_(), "timeout": self.arrow.bool_()}
        kinds["episode"] = self.arrow.int64()
        self.schema = self.arrow.schema(
            [(name, kinds.get(name, self.arrow.float32())) for name in table_columns(source)],
            metadata={METADATA_KEY: json.dumps(source.metadata.to_json()).encode()},
        )
        self.writer = parquet.ParquetWriter(path, self.schema)

    def append(self, rows: Rows) -> None:
        """Adds raw rows as a row group."""
        columns: list[Any] = [*rows.observations.T, *rows.actions.T, rows.rewards, rows.terminals]
        if rows.timeouts is not None:
            columns.append(rows.timeouts)
        if rows.next_observations is not None:
            columns += [*rows.next_observations.T]
        if rows.timeouts is not None:
            columns.append(self.episodes.of(rows))
        arrays = [
            self.arrow.array(np.ascontiguousarray(values), field.type)
            for values, field in zip(columns, self.schema, strict=True)
        ]
        self.writer.write_table(self.arrow.Table.from_arrays(arrays, schema=self.schema))

    def close(self) -> None:
        """Completes the file."""
        self.writer.close()

    def abandon(self) -> None:
        """Closes the file as it is."""
        self.writer.close()


def _check_arrow_type(where: str, name: str, kind: Any) -> None:
    types = optional_import("pyarrow.types", "parquet")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return
    nested = types.is_nested(kind)
    hint = " Store one column a dimension (obs_0, obs_1, …)." if nested else ""
    raise PbrlError(f"{where}: column '{name}' holds {kind} values; numbers are needed.{hint}")


def _from_arrow(
    where: str, batch: Any, layout: TableLayout, start: int, strict: bool
) -> tuple[Matrix, Keys]:
    names = layout.numeric()
    matrix = np.empty((batch.num_rows, len(names)), np.float64)
    wanted = [*names, *([layout.episode] if layout.episode else [])]
    for name in wanted:
        column = batch.column(name)
        if column.null_count and (strict or name == layout.episode):
            row = start + column.is_null().to_numpy(zero_copy_only=False).argmax()
            if name == layout.episode:
                raise PbrlError(f"{where}: column '{name}' names no episode at row {row}.")
            raise MissingCell(f"{where}: column '{name}' is null at row {row}.")
    for place, name in enumerate(names):
        values = batch.column(name).to_numpy(zero_copy_only=False)
        matrix[:, place] = values.astype(np.float64)  # null becomes NaN
    return matrix, None if layout.episode is None else batch.column(layout.episode).to_pylist()


PARQUET = Format(open_parquet, ParquetWriter)
