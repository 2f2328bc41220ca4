"""DataFrames of pandas, polars or pyarrow in the place of the files of a description.

They are read through Arrow's interface for Python (`__arrow_c_stream__`), so none of these libraries is
imported, and written to temporary Parquet files, so that they pass the same checks as files.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from graphfed.data.messages import brief
from graphfed.errors import InputError
from graphfed.files import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa


def is_frame(value: object) -> bool:
    """Decide whether a value is a table of a library that knows Arrow's interface."""
    return hasattr(value, "__arrow_c_stream__")


def has_frames(content: object) -> bool:
    """Decide whether a description has a DataFrame in the place of a file, perhaps of one client."""
    if isinstance(content, Mapping):
        return any(map(has_frames, content.values()))
    return is_frame(content)


@contextmanager
def as_files(content: Mapping[str, Any]) -> Iterator[JsonObject]:
    """Write the DataFrames of a description to files while this context lasts, and yield the description of
    the files. An InputError that names such a file names the DataFrame instead.
    """
    named: dict[str, str] = {}
    with TemporaryDirectory(prefix="graphfed-") as folder:

        def with_paths(content: Mapping[str, Any], of: str) -> JsonObject:
            written: JsonObject = {}
            for key, value in content.items():
                if isinstance(value, Mapping):
                    # Only `clients` has mappings in it: the files of each client.
                    written[key] = with_paths(value, f" of client {key!r}" if key != "clients" else "")
                elif is_frame(value):
                    path = Path(folder) / f"{len(named)}.parquet"
                    named[str(path)] = f"the DataFrame {key!r}{of}"
                    _write(value, path, named[str(path)])
                    written[key] = str(path)
                else:
                    written[key] = value
            return written

        try:
            yield {"name": "custom", **with_paths(content, "")}
        except InputError as error:
            text = str(error)
            for path, name in named.items():
                text = text.replace(path, name)
            raise InputError(text) from None


def _write(frame: Any, path: Path, name: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.table(frame)
        pq.write_table(table.cast(pa.schema(map(_plain_texts, table.schema))), path)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(
            f"{name}, a {type(frame).__name__}, cannot be read as a table ({brief(error)}); give every "
            "column values of one type"
        ) from None


def _plain_texts(field: "pa.Field") -> "pa.Field":
    """Return a column's type, with plain texts in the place of views of texts, which polars has."""
    import pyarrow as pa

    return field.with_type(pa.large_string()) if pa.types.is_string_view(field.type) else field
