"""The schemas of the files of reproductions."""

from pydantic import Field

from graphfed.files import JsonObject
from graphfed.runs.folder_schema import FileModel


class _Item(FileModel):
    item: str


class ReproductionFile(FileModel):
    """The content of reproduce.json: the items that were reproduced."""

    items: list[_Item] = Field(default_factory=list)


class WorkloadsFile(FileModel):
    """The content of workloads.json of a row of a reproduction."""

    asked: JsonObject
