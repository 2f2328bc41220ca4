"""Schemas of the files in the folders of a deployment, and of what a site reports when it joins a run."""

from typing import Annotated, Literal

from pydantic import Field

from graphfed.files import JsonObject
from graphfed.runs.folder_schema import Amount, Count, Details, FileModel, Metrics, Seconds, SentBytes

#: Whole numbers that JSON readers represent exactly.
Exact = Annotated[int, Field(ge=0, lt=2**53)]


class DeployedResult(FileModel):
    """result.json of a deployed run at the server."""

    rounds: Count
    best_round: Count | None
    val: Metrics
    test: Metrics
    test_confusion: list[list[Amount]] | None
    seconds: Seconds
    bytes: SentBytes
    privacy: JsonObject
    details: Details
    wire: JsonObject


class SiteManifest(FileModel):
    """manifest.json of a deployed run at the server or at a site."""

    joined: JsonObject = Field(default_factory=dict)
    asked: JsonObject


class SiteReport(FileModel):
    """What a site reports about itself when it joins a run (`participant`)."""

    versions: JsonObject
    clients: Exact
    declared: dict[Literal["train", "val", "test"], list[Exact]]
    form: JsonObject = Field(alias="schema")
    config: str
    data: Annotated[str, Field(max_length=1000)]
    clock: float
    rounds: list[Exact]
