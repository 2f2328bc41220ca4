"""The schemas of the JSON files in a run's folder, and of every manifest, and the types they are made of.

A pydantic model describes each file. `check_content` compares a parsed file with its model and says in one
line what is wrong. A folder may come from an untrusted source, so nothing in it is used before this check.

Every model accepts keys that it does not name, because a later version may write more. A key that it names
has one type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from graphfed.errors import InputError
from graphfed.federation.ledger import PHASES
from graphfed.files import JsonObject
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.tasks.registry import TASKS, task_or_default
from graphfed.validation import explain_content

#: Whole numbers that every reader can hold in 64 bits.
Count = Annotated[int, Field(ge=0, lt=2**63)]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Positive = Annotated[int, Field(ge=1, lt=2**63)]
#: A finite number. The bound keeps sums over many of them finite.
Real = Annotated[float, Field(ge=-1e300, le=1e300)]
Amount = Annotated[float, Field(ge=0, le=1e300)]
Share = Annotated[float, Field(ge=0, le=1)]
#: Who takes part: a bit for each client, in hexadecimal.
Roster = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
#: Metrics by name; null where there was nothing to score.
Metrics = dict[str, Real | None]


def _check_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


#: A date and time in ISO 8601.
Time = Annotated[str, AfterValidator(_check_time)]


class FileModel(BaseModel):
    """The base of the schemas: values have exactly the stated types, and further keys are accepted."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


@dataclass(frozen=True)
class Form:
    """The form of an object of a file that stays a mapping, with the keys that the model does not name."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the model, and return the object itself."""

        def check(content: Any, validate: ValidatorFunctionWrapHandler) -> Any:
            validate(content)
            return content

        anything = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(check, handler(self.model), serialization=anything)


def check_content(content: Any, model: type[BaseModel], origin: str) -> JsonObject:
    """Compare a parsed JSON file with its schema.

    The result is `content` itself, so that keys that the schema does not name are kept. InputError names the
    file, the first wrong field, and what was expected.
    """
    try:
        model.model_validate(content)
    except ValidationError as error:
        damaged = f"{origin} is damaged, or of another version of graphfed: "
        fault = error.errors(include_url=False)[0]
        raise InputError(explain_content(fault, model, f"{damaged}it", damaged)) from None
    checked: JsonObject = content
    return checked


# ---- a run -------------------------------------------------------------------------------------------------


class Hashes(FileModel):
    """Digests of the data, the split and the partition."""

    data: str
    split: str
    partition: str


class Seconds(FileModel):
    """Durations in seconds."""

    total: Amount
    __pydantic_extra__: dict[str, Real | None]


class SentBytes(FileModel):
    """Payload bytes of set-up and training, by direction and by transfer."""

    total: Count
    up: Count
    down: Count
    peer: Count
    setup: Count
    by_transfer: dict[str, Count]


class _Verified(FileModel):
    sites: list[str]
    request: str
    ledgers: dict[str, str]


class _Warning(FileModel):
    code: str
    text: str


class _Left(FileModel):
    bytes: Count
    transfers: list[str]


class Privacy(FileModel):
    """The privacy statement that follows from the ledger."""

    left_the_clients: dict[str, _Left] = {}


class _ClassScores(FileModel):
    precision: Share | None
    recall: Share | None


class Details(FileModel):
    """The details of a result that the report, the tables and the summary read."""

    changed_settings: JsonObject = {}
    test_classes: list[_ClassScores] | None = None
    test_confusion: list[list[Amount]] | None = None
    test_pooled: Metrics | None = None
    test_roc: list[Annotated[list[Share], Field(min_length=2, max_length=2)]] | None = None
    test_by_horizon: dict[str, list[Real | None]] | None = None
    diverged_in_round: Count | None = None
    headline: list[str] | None = None
    selected_by: str | None = None
    training: JsonObject = {}
    warnings: list[_Warning] = []
    verified: _Verified | None = None

    @model_validator(mode="after")
    def check_confusion(self) -> "Details":
        """Check that the confusion table has a row for each class, and one more column for nodes without
        prediction.
        """
        table = self.test_confusion or []
        # The last column counts nodes without a prediction.
        if any(len(row) != len(table) + 1 for row in table):
            raise ValueError("test_confusion must have a row for each class and a column more")
        return self


def check_metrics(task: str, **parts: Mapping[str, object]) -> None:
    """Check that the metric that decides in a task is in each part, because tables and reports show it."""
    needed = task_or_default(task).metric
    for part, metrics in parts.items():
        if needed not in metrics:
            raise ValueError(f"{part} has no {needed!r}")


class MetricsLine(FileModel):
    """A line of metrics.jsonl."""

    round: Count
    val: Metrics | None
    bytes: Count
    seconds: Amount
    facts: dict[str, Real | None] = {}


class Transfer(FileModel):
    """An entry of the ledger: all messages of one name, direction and phase."""

    phase: Literal[PHASES]  # type: ignore[valid-type]
    name: str
    sender: Literal["clients", "server"] = Field(alias="from")
    receiver: Literal["clients", "server"] = Field(alias="to")
    kind: str
    dtype: str
    protection: str
    transfers: Count
    messages: Count
    bytes: Count
    sent: list[Count]
    received: list[Count]
    rounds: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Count]

    @model_validator(mode="after")
    def check_direction(self) -> "Transfer":
        """Check that the server does not send to itself."""
        if self.sender == self.receiver == "server":
            raise ValueError("the server sends nothing to itself")
        return self


class LedgerFile(FileModel):
    """ledger.json."""

    num_clients: Count
    entries: list[Transfer]

    @model_validator(mode="after")
    def check_lengths(self) -> "LedgerFile":
        """Check that every entry has a number for each client."""
        for number, entry in enumerate(self.entries):
            if not len(entry.sent) == len(entry.received) == self.num_clients:
                raise ValueError(
                    f"entries.{number}: sent and received must have a number for each of "
                    f"{self.num_clients} clients"
                )
        return self


class _Progress(FileModel):
    best_round: Count
    best: Annotated[str, AfterValidator(lambda text: str(float(text)) and text)] | None
    stale: Count
    latest_is_best: bool
    diverged: Count


class _Decision(FileModel):
    """The control values that open a round."""

    keep: bool
    stop: bool
    roster: Roster | None
    best_round: Count
    diverged: Count
    save: Annotated[int, Field(ge=0, le=1)]
    interrupt: Annotated[int, Field(ge=0, le=1)]


class CheckpointFile(FileModel):
    """checkpoint/round-*/PROCESS.json."""

    version: Integer
    sha256: str
    number: Positive
    decision: _Decision | None
    shared: list[str]
    members: dict[str, Roster | None]
    places: dict[str, Literal["clients", "server"]]
    names: list[str]
    progress: list[_Progress]
    history: list[MetricsLine]
    planned: Count = 0
    setup_seconds: Amount
    seconds: Amount
    ledger: LedgerFile


class _Check(FileModel):
    check: str
    tests: str
    attacker_sees: str
    result: str
    baseline: str
    verdict: str
    leaks: bool | None


class AuditFile(FileModel):
    """audit.json."""

    checks: list[_Check]


# ---- manifests ---------------------------------------------------------------------------------------------


def _check_task(task: str) -> str:
    if task not in TASKS:
        raise ValueError(f"expected one of {', '.join(TASKS)}")
    return task


class _Plugin(FileModel):
    """A plug-in that a run was made with, by its distribution, or by the file or module that was given."""

    version: str
    distribution: str | None = None
    module: str | None = None

    @model_validator(mode="after")
    def check_name(self) -> "_Plugin":
        if (self.distribution is None) == (self.module is None):
            raise ValueError("a plug-in must have a distribution or a module")
        return self


class _AskedOptions(FileModel):
    """A run's config. `config_from_json` checks every option again by its declaration in `run_options`."""

    method: str
    seed: Integer
    training: JsonObject
    task: Annotated[str, AfterValidator(_check_task)] = CLASSIFICATION
    runtime: str = "local"
    plugins: list[_Plugin] = []


class _LocalRunOptions(_AskedOptions):
    data: str
    data_options: JsonObject
    data_source: str | JsonObject | None
    partition_options: JsonObject
    partition_seed: Integer | None
    partition_file: str | None = None
    split_seed: Integer


class _Resumed(FileModel):
    at: str


class _DataFacts(FileModel):
    name: str
    split: str
    nodes: Count | None = None
    edges: Count | None = None
    features: Count | None = None
    classes: Count | None = None
    class_names: list[str] | None = None
    feature_names: list[str] | None = None
    edge_weights: bool | None = None
    edge_features: list[str] | None = None
    directed: bool | None = None


class _PartitionFacts(FileModel):
    name: str
    options: JsonObject
    file: str | None
    client_names: list[str] = []


class AnyManifest(FileModel):
    """A manifest.json of any kind: a mapping."""


class _Manifest(FileModel):
    command: str
    started: Time
    hashes: dict[str, str]
    resumed: list[_Resumed] = []


class _OneRun(_Manifest):
    seeds: dict[str, Integer | None]
    data: _DataFacts
    partition: _PartitionFacts
    versions: dict[str, str]
    device: str


class ModelManifest(_OneRun):
    """What every manifest.json of a run says about its model."""

    config: _AskedOptions


class RunManifest(_OneRun):
    """The manifest.json of a run whose data was on this machine."""

    config: _LocalRunOptions
    threads: Count | None


class _Asked(FileModel):
    run: Annotated[str, Field(pattern=r"^[\w.-]{1,200}$")]
    startup_kit: str
    split: str
    split_seed: Integer
    checkpoint_every: Amount


class DeployedManifest(_OneRun):
    """The manifest.json of a run whose data was at the sites."""

    deployment: _Asked
    config: _AskedOptions
    threads: str


class _PlannedRun(FileModel):
    seed: Integer
    config: _LocalRunOptions


class _PlannedRow(FileModel):
    label: str
    runs: Annotated[list[_PlannedRun], Field(min_length=1)]


class ComparisonManifest(FileModel):
    """The manifest.json of a comparison."""

    command: str
    rows: Annotated[list[_PlannedRow], Field(min_length=1)]
    added: list[str]
    hashes: dict[str, Hashes]

    @model_validator(mode="after")
    def _check_seeds(self) -> "ComparisonManifest":
        _check_seeds([run.seed for row in self.rows for run in row.runs], self.hashes)
        return self


class _SweepPlan(FileModel):
    grid: dict[str, Annotated[list[object], Field(min_length=1)]]
    ranges: dict[str, Annotated[list[Real | bool], Field(min_length=2, max_length=3)]]
    trials: Positive | None
    runs: Annotated[list[_PlannedRun], Field(min_length=1)]


class SweepManifest(FileModel):
    """The manifest.json of a sweep."""

    command: str
    sweep: _SweepPlan
    hashes: dict[str, Hashes]

    @model_validator(mode="after")
    def _check_seeds(self) -> "SweepManifest":
        _check_seeds([run.seed for run in self.sweep.runs], self.hashes)
        return self


def _check_seeds(seeds: Sequence[int], hashes: Mapping[str, object]) -> None:
    for seed in seeds:
        if str(seed) not in hashes:
            raise ValueError(f"hashes has none of seed {seed}")


class OtherManifest(FileModel):
    """The manifest.json of a reproduction or a policy. The choices in it are checked when they are used
    again.
    """

    reproduce: JsonObject = {}
    policy: JsonObject = {}
