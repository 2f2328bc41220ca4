"""The common base of the descriptions of graphs and of sensors.

It is a model of YAML content with error messages of one line, and with keys that name a column of a file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer, ValidationError

from graphfed.data.messages import listed
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, did_you_mean
from graphfed.validation import explain_content

#: A file that a description names. In JSON it is an absolute path.
DescribedFile = Annotated[Path, PlainSerializer(lambda path: str(path.resolve()))]


#: Words in the name of a column that has distances, of which the larger one means farther.
_DISTANCE_WORDS = {
    "distance", "distances", "dist", "cost", "costs", "length", "km", "miles", "metres", "meters", "duration",
    "travel", "minutes", "seconds",
}  # fmt: skip


def names_distance(column: str) -> bool:
    """Decide by the words of its name whether a column has distances and not weights."""
    return not _DISTANCE_WORDS.isdisjoint(re.split(r"[^a-z]+", column.lower()))


def no_column(column: str, key: str, file: TableFile, origin: str) -> InputError:
    """Build the error for a key that names a column which a file does not have."""
    hint = did_you_mean(column, file.columns)
    return InputError(f"{origin}: {file.path} has no column {column!r} ({key}); {hint}")


class YamlModel(BaseModel):
    """The content of a YAML file. A number is accepted in place of a text.

    The validation context is the name of the content in messages. Validators raise InputError if keys do not
    fit together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)

    @classmethod
    def check(cls, content: object, origin: str) -> Self:
        """Validate content, which messages call `origin`; an InputError states the first error."""
        try:
            return cls.model_validate(
                dict(content) if isinstance(content, Mapping) else content, context=origin
            )
        except ValidationError as error:
            # A misspelt key gives two errors, an unknown key and a missing one. The first is more helpful.
            faults = sorted(
                error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden"
            )
            raise InputError(cls.explain(faults[0], origin)) from None

    @classmethod
    def explain(cls, fault: Mapping[str, Any], origin: str) -> str:
        """Write one of pydantic's errors as a message of one line."""
        return explain_content(fault, cls, origin, f"{origin}: ")

    @property
    def given(self) -> list[str]:
        """The keys that the content states, in the order of the model."""
        fields = type(self).model_fields.items()
        return [field.alias or name for name, field in fields if name in self.model_fields_set]

    def column(self, name: str, file: TableFile, origin: str, required: bool = False) -> str | None:
        """Return the column that a key names, or its default if the file has such a column, else None.

        A column that the key names, or that is `required`, must exist.
        """
        column: str | None = getattr(self, name)
        if column in file.columns or (column is None and not required):
            return column
        key = type(self).model_fields[name].alias or name
        if column is None:
            raise InputError(f"{origin}: {key} must name a column of {file.path}")
        if name in self.model_fields_set:
            raise no_column(column, key, file, origin)
        if required:
            raise InputError(
                f"{file.path} has no column {column!r} ({key}); the columns are {listed(file.columns, 8)}: "
                f"name the one to use in {origin}, as in '{key}: COLUMN'; if these are no names, add a first "
                f"line with the names of the columns{file.header_fix}"
            )
        return None

    def replace(self, **changes: Any) -> Self:
        """Copy the model with other values, which are not validated."""
        return self.model_copy(update=changes)
