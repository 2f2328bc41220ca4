"""The files of a deployment's folders, as their readers expect them."""

from typing import Any

from pydantic import Field

from graphfed.runs.folder_schema import Amount, Count, Details, FileModel, Metrics, Seconds, SentBytes

__all__ = ["DeployedResult", "SiteManifest"]


class DeployedResult(FileModel):
    """result.json that the server's place of a deployed run keeps."""

    rounds: Count
    best_round: Count | None
    val: Metrics
    test: Metrics
    test_confusion: list[list[Amount]] | None
    seconds: Seconds
    bytes: SentBytes
    privacy: dict[str, Any]
    details: Details
    wire: Any


class SiteManifest(FileModel):
    """manifest.json that a place of a deployed run keeps."""

    joined: dict[str, Any] = Field(default_factory=dict)
    asked: dict[str, Any] = Field(default_factory=dict)
