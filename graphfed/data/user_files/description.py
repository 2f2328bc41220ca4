"""What the descriptions of graphs and of sensors have in common: models of YAML whose faults are explained in
one line, and keys that name a column of a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer, ValidationError

from graphfed.data.messages import brief
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.validation import explain_content

__all__ = ["DescribedFile", "YamlModel"]

#: A file that a description names; a manifest has its absolute path.
DescribedFile = Annotated[Path, PlainSerializer(lambda path: str(path.resolve()))]


class YamlModel(BaseModel):
    """Content of a YAML file. A number stands for its text where text is expected.

    Validators find in the context what to call the content in messages, and raise InputError themselves where
    keys do not fit together."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)

    @classmethod
    def check(cls, content: object, origin: str) -> Self:
        """Return the content as a model; InputError with what is wrong. origin: what to call it."""
        try:
            return cls.model_validate(
                dict(content) if isinstance(content, Mapping) else content, context=origin
            )
        except ValidationError as error:
            # A misspelt key is both unknown and missing: what it was meant to be says more.
            faults = sorted(
                error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden"
            )
            raise InputError(cls.explain(faults[0], origin)) from None

    @classmethod
    def explain(cls, fault: Mapping[str, Any], origin: str) -> str:
        """Return a complaint of pydantic in one line."""
        return explain_content(fault, cls, origin, f"{origin}: ")

    @property
    def given(self) -> list[str]:
        """The keys that the content has, in the order of the model."""
        fields = type(self).model_fields.items()
        return [field.alias or name for name, field in fields if name in self.model_fields_set]

    def column(self, name: str, file: TableFile, origin: str, required: bool = False) -> str | None:
        """Return the column of a file that a key names, or its default if the file has such a column.

        Args:
            name: the key's field.
            file: the file.
            origin: what to call the description in messages.
            required: whether the column must be there if it is the default, too.

        Raises:
            InputError: for a column that is not there, with those that are.
        """
        column: str | None = getattr(self, name)
        if column in file.columns or (column is None and not required):
            return column
        key = type(self).model_fields[name].alias or name
        if column is None:
            raise InputError(f"{origin}: {key} must name a column of {file.path}")
        if name in self.model_fields_set:
            raise InputError(
                f"{origin}: {file.path} has no column {column!r} ({key}); "
                f"{did_you_mean(column, file.columns)}"
            )
        if required:
            columns = ", ".join(map(shown, file.columns[:8])) + (", ..." if len(file.columns) > 8 else "")
            raise InputError(
                f"{file.path} has no column {column!r} ({key}); the columns are {columns}: name the one to "
                f"use in {origin}, as in '{key}: {brief(file.columns[0][:40])}'"
            )
        return None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, which are not checked again."""
        return self.model_copy(update=changes)
