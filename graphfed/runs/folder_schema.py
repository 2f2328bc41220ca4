"""The schema of every JSON file in the folder of a run, a comparison, a sweep, a reproduction or a policy.

One pydantic model describes each file; `check_content` compares a parsed file with its model and says in one
line what is wrong. A folder may come from anybody, so nothing in it is used before this check.

Every model takes keys that it does not name: a later version may write more. What it names has one type.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from graphfed.errors import InputError, shown
from graphfed.federation.ledger import PHASES
from graphfed.methods.tasks import CLASSIFICATION, TASKS

__all__ = [
    "AnyManifest",
    "AuditFile",
    "CheckpointFile",
    "ComparisonFile",
    "ComparisonManifest",
    "DeployedManifest",
    "DeployedResult",
    "EpisodeLine",
    "GraphOverview",
    "LedgerFile",
    "MetricsLine",
    "OtherManifest",
    "PolicyResult",
    "ReproductionFile",
    "ResultFile",
    "RunManifest",
    "SensorOverview",
    "SiteManifest",
    "SweepFile",
    "SweepManifest",
    "TrialFile",
    "WorkloadsFile",
    "check_content",
]

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


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def check_content(content: Any, model: type[BaseModel], origin: str) -> Any:
    """Compare a parsed JSON file with its schema.

    Args:
        content: the value of the file.
        model: the model of this kind of file.
        origin: the file, for the message.

    Returns:
        `content` itself, so that what the model does not name stays there.

    Raises:
        InputError: naming the file, the first field that is wrong, and what was expected.
    """
    try:
        model.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        raise InputError(f"{origin} is damaged, or of another version of graphfed: {_fault(fault)}") from None
    return content


def _fault(fault: Any) -> str:
    """The first complaint of pydantic as a short sentence."""
    place = [str(part) for part in fault["loc"]]
    where = f"{shown('.'.join(place))[1:-1]}: " if place else ""
    if fault["type"] == "missing":
        inside = "it" if len(place) == 1 else shown(".".join(place[:-1]))[1:-1]
        return f"{inside} has no {shown(place[-1])}"
    if fault["type"] in ("model_type", "dict_type"):
        return f"{where}expected an object (found {shown(fault['input'])})"
    expected = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    expected = re.sub(r"^Input should be ", "expected ", expected)
    return f"{where}{expected} (found {shown(fault['input'])})"


# ---- a run -------------------------------------------------------------------------------------------------


class _Hashes(_Model):
    data: str
    split: str
    partition: str


class _Seconds(_Model):
    total: Amount
    __pydantic_extra__: dict[str, Real | None]


class _Bytes(_Model):
    total: Count
    up: Count
    down: Count
    peer: Count
    setup: Count
    by_transfer: dict[str, Count]


class _Warning(_Model):
    code: str
    text: str


class _Privacy(_Model):
    left_the_clients: dict[str, Any] = {}


class _Details(_Model):
    """What the report, the tables and the summary read of a result's details."""

    recipe: dict[str, Any] = {}
    test_confusion: list[list[Amount]] | None = None
    test_pooled: Metrics | None = None
    test_roc: list[Annotated[list[Share], Field(min_length=2, max_length=2)]] | None = None
    test_by_horizon: dict[str, list[Real | None]] | None = None
    diverged_in_round: Count | None = None
    headline: list[str] | None = None
    selected_by: str | None = None
    training: dict[str, Any] = {}
    warnings: list[_Warning] = []

    @model_validator(mode="after")
    def check_confusion(self) -> "_Details":
        table = self.test_confusion or []
        # The last column counts vertices without a prediction.
        if any(len(row) != len(table) + 1 for row in table):
            raise ValueError("test_confusion must have a row for each class and a column more")
        return self


def _check_metrics(task: str, **parts: dict[str, Any]) -> None:
    """The metric that decides in a task must be there: tables and reports are made of it."""
    needed = TASKS.get(task, TASKS[CLASSIFICATION]).metric
    for part, metrics in parts.items():
        if needed not in metrics:
            raise ValueError(f"{part} has no {needed!r}")


class ResultFile(_Model):
    """result.json of a run."""

    method: str
    dataset: str
    task: str
    clients: Positive
    partition: str
    rounds: Count
    best_round: Count | None
    seed: Integer
    runtime: str
    val: Metrics
    test: Metrics
    seconds: _Seconds
    bytes: _Bytes
    privacy: _Privacy
    peak_rss_mb: Real
    hashes: _Hashes
    versions: dict[str, str]
    details: _Details

    @model_validator(mode="after")
    def check_metrics(self) -> "ResultFile":
        _check_metrics(self.task, val=self.val, test=self.test)
        return self


class MetricsLine(_Model):
    """A line of metrics.jsonl."""

    round: Count
    val: Metrics | None
    bytes: Count
    seconds: Amount
    facts: dict[str, Real | None] = {}


class _Transfer(_Model):
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
    def check_direction(self) -> "_Transfer":
        if self.sender == self.receiver == "server":
            raise ValueError("the server sends nothing to itself")
        return self


class LedgerFile(_Model):
    """ledger.json."""

    num_clients: Count
    entries: list[_Transfer]

    @model_validator(mode="after")
    def check_lengths(self) -> "LedgerFile":
        for number, entry in enumerate(self.entries):
            if not len(entry.sent) == len(entry.received) == self.num_clients:
                raise ValueError(
                    f"entries.{number}: sent and received must have a number for each of "
                    f"{self.num_clients} clients"
                )
        return self


class _Progress(_Model):
    best_round: Count
    best: Annotated[str, AfterValidator(lambda text: str(float(text)) and text)] | None
    stale: Count
    latest_is_best: bool
    diverged: Count


class _Decision(_Model):
    """The control values that open a round."""

    keep: bool
    stop: bool
    roster: Roster | None
    best_round: Count
    diverged: Count
    save: Annotated[int, Field(ge=0, le=1)]
    interrupt: Annotated[int, Field(ge=0, le=1)]


class CheckpointFile(_Model):
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
    setup_seconds: Amount
    seconds: Amount
    ledger: LedgerFile


class _Check(_Model):
    check: str
    tests: str
    attacker_sees: str
    result: str
    baseline: str
    verdict: str
    leaks: bool | None


class AuditFile(_Model):
    """audit.json."""

    checks: list[_Check]


# ---- manifests ---------------------------------------------------------------------------------------------


def _check_task(task: str) -> str:
    if task not in TASKS:
        raise ValueError(f"expected one of {', '.join(TASKS)}")
    return task


class _Config(_Model):
    """A run's config. Its values are checked again where it is used: here only their kinds."""

    method: str
    seed: Integer
    training: dict[str, Any]
    task: Annotated[str, AfterValidator(_check_task)] = CLASSIFICATION
    runtime: str = "local"


class _AnyConfig(_Config):
    data: str
    data_options: dict[str, Any]
    data_dir: str | None
    data_source: str | dict[str, Any] | None
    clients: Count | None
    partition: str | None
    partition_options: dict[str, Any]
    partition_seed: Integer | None
    partition_file: str | None = None
    split: str
    split_seed: Integer
    sites: Count | None
    placement: str
    device: str
    threads: Count | None
    checkpoint_every: Amount


class _Resumed(_Model):
    at: str


class _DataFacts(_Model):
    name: str
    split: str
    vertices: Count | None = None
    edges: Count | None = None
    features: Count | None = None
    classes: Count | None = None
    class_names: list[str] | None = None
    feature_names: list[str] | None = None
    edge_weights: bool | None = None


class _PartitionFacts(_Model):
    name: str
    options: dict[str, Any]
    file: str | None
    site_names: list[str] = []


class AnyManifest(_Model):
    """manifest.json of whatever kind: a mapping."""


class _Manifest(_Model):
    command: str
    started: Time
    hashes: dict[str, str]
    resumed: list[_Resumed] = []


class RunManifest(_Manifest):
    """manifest.json of a run whose data was here."""

    config: _AnyConfig
    seeds: dict[str, Integer | None]
    data: _DataFacts
    partition: _PartitionFacts
    versions: dict[str, str]
    device: str
    threads: Count | None


class _Asked(_Model):
    run: Annotated[str, Field(pattern=r"^[\w.-]{1,200}$")]
    kit: str
    split: str
    split_seed: Integer
    checkpoint_every: Amount


class DeployedManifest(_Manifest):
    """manifest.json of a run whose data was at the sites."""

    deployment: _Asked
    config: _Config
    seeds: dict[str, Integer | None]
    data: _DataFacts
    partition: _PartitionFacts
    versions: dict[str, str]
    device: str
    threads: str


class _PlannedRun(_Model):
    seed: Integer
    config: _AnyConfig


class _PlannedRow(_Model):
    label: str
    runs: Annotated[list[_PlannedRun], Field(min_length=1)]


class ComparisonManifest(_Model):
    """manifest.json of a comparison."""

    command: str
    rows: Annotated[list[_PlannedRow], Field(min_length=1)]
    added: list[str]
    hashes: dict[str, _Hashes]

    @model_validator(mode="after")
    def check_seeds(self) -> "ComparisonManifest":
        _check_seeds([run.seed for row in self.rows for run in row.runs], self.hashes)
        return self


class _SweepPlan(_Model):
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]]
    ranges: dict[str, Annotated[list[Real | bool], Field(min_length=2, max_length=3)]]
    trials: Positive | None
    runs: Annotated[list[_PlannedRun], Field(min_length=1)]


class SweepManifest(_Model):
    """manifest.json of a sweep."""

    command: str
    sweep: _SweepPlan
    hashes: dict[str, _Hashes]

    @model_validator(mode="after")
    def check_seeds(self) -> "SweepManifest":
        _check_seeds([run.seed for run in self.sweep.runs], self.hashes)
        return self


def _check_seeds(seeds: Sequence[int], hashes: dict[str, Any]) -> None:
    for seed in seeds:
        if str(seed) not in hashes:
            raise ValueError(f"hashes has none of seed {seed}")


class OtherManifest(_Model):
    """manifest.json of a reproduction or a policy. What was asked is checked where it is asked again."""

    reproduce: dict[str, Any] = {}
    policy: dict[str, Any] = {}


# ---- the overview ------------------------------------------------------------------------------------------


class _Class(_Model):
    name: str
    vertices: Count
    train: Count
    val: Count
    test: Count


class _ConstantFeatures(_Model):
    count: Count
    names: list[str]


class _Missing(_Model):
    labels: Count
    split: Count
    features: Count
    constant_features: _ConstantFeatures


class _Components(_Model):
    count: Count
    largest: Count
    isolated_vertices: Count


class _Degrees(_Model):
    min: Count
    median: Amount
    mean: Amount
    percentile_99: Amount
    max: Count
    histogram: list[Annotated[list[Count], Field(min_length=3, max_length=3)]]


class _Site(_Model):
    site: Count
    name: str
    owned: Count
    edges: Count
    cut_edges: Count
    train: Count
    val: Count
    test: Count
    classes: list[Count]


class _Pairs(_Model):
    val: Count
    test: Count


class _Weights(_Model):
    min: Real
    median: Real
    max: Real


class _Sizes(_Model):
    smallest: Count
    largest: Count
    ratio: Amount | None


class _Shared(_Model):
    vertices: Count
    edges: Count


class _Cut(_Model):
    count: Count
    share: Real | None


class _Drawing(_Model):
    vertices: list[Count]
    positions: list[Annotated[list[Real], Field(min_length=2, max_length=2)]]
    sites: list[Count]
    edges: list[Annotated[list[Count], Field(min_length=3, max_length=3)]]
    sampled: bool

    @model_validator(mode="after")
    def check_drawing(self) -> "_Drawing":
        count = len(self.vertices)
        if not count == len(self.positions) == len(self.sites):
            raise ValueError("vertices, positions and sites must have the same length")
        if any(end >= count for *ends, _ in self.edges for end in ends):
            raise ValueError(f"an edge ends at none of the {count} vertices")
        return self


class GraphOverview(_Model):
    """overview.json of a graph (`graphfed.data.graphs.overview`)."""

    kind: Literal["graph"] = "graph"
    name: str
    dropped: list[str] = []
    vertices: Count
    edges: Count
    features: Count
    classes: list[_Class]
    pairs: _Pairs | None = None
    missing: _Missing
    edge_weights: _Weights | None
    components: _Components
    degrees: _Degrees
    homophily: Real | None
    num_sites: Count
    sites: list[_Site]
    site_sizes: _Sizes | None = None
    shared: _Shared | None = None
    cut_edges: _Cut
    label_skew: Real | None
    drawing: _Drawing

    @model_validator(mode="after")
    def check_classes(self) -> "GraphOverview":
        for number, site in enumerate(self.sites):
            if len(site.classes) != len(self.classes):
                raise ValueError(f"sites.{number}.classes must have {len(self.classes)} numbers")
        return self


class _Sensors(_Model):
    ids: Annotated[list[str], Field(min_length=1)]
    position: list[Annotated[list[Real], Field(min_length=2, max_length=2)]] | None
    geographic: bool
    missing: list[Share]
    observed: list[bool]


class _Windows(_Model):
    lags: Positive
    horizon: Positive
    every: Positive
    train: Count
    val: Count
    test: Count


class _Gap(_Model):
    sensor: str
    start: Time
    steps: Annotated[int, Field(ge=0, le=10**9)]


class _Summary(_Model):
    end: Time
    missing: Share
    availability: list[Share]
    longest_gap: _Gap | None
    edges: Count
    components: Count
    largest_component: Count
    isolated: Count


class SensorOverview(_Model):
    """overview.json of sensors (`graphfed.data.sensors.overview`)."""

    kind: Literal["sensors"]
    name: str
    note: str
    quantity: str
    # A day at most: what readings in a table may have.
    step_minutes: Annotated[int, Field(ge=1, le=10**6)]
    start: Time
    steps: Annotated[int, Field(ge=1, le=10**9)]
    sensors: _Sensors
    edges: list[Annotated[list[Real], Field(min_length=3, max_length=3)]]
    windows: _Windows
    summary: _Summary

    @model_validator(mode="after")
    def check_sensors(self) -> "SensorOverview":
        each, count = self.sensors, len(self.sensors.ids)
        lengths = {len(each.missing), len(each.observed)}
        lengths |= {count} if each.position is None else {len(each.position)}
        if lengths != {count}:
            raise ValueError(f"sensors: every list must have {count} entries, one for each id")
        if any(not (0 <= end < count and end == int(end)) for *ends, _ in self.edges for end in ends):
            raise ValueError(f"an edge ends at none of the {count} sensors")
        return self


# ---- several runs ------------------------------------------------------------------------------------------


class _Statistic(_Model):
    mean: Real | None
    std: Amount | None
    values: list[Real | None]


class _ComparedRow(_Model):
    label: str
    method: str
    seeds: Annotated[list[Integer], Field(min_length=1)]
    test: dict[str, _Statistic]
    val: dict[str, _Statistic]
    test_pooled: dict[str, _Statistic] = {}
    bytes: _Statistic
    seconds: _Statistic
    rounds: Annotated[list[Count], Field(min_length=1)]
    recipe: dict[str, Any]
    folders: Annotated[list[str | None], Field(min_length=1)]


class ComparisonFile(_Model):
    """comparison.json."""

    dataset: str
    task: str
    clients: Positive
    partition: str
    seeds: Annotated[list[Integer], Field(min_length=1)]
    references_added: list[str]
    references_missing: list[str]
    rows: Annotated[list[_ComparedRow], Field(min_length=1)]

    @model_validator(mode="after")
    def check_rows(self) -> "ComparisonFile":
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}")
        first = self.rows[0]
        for number, row in enumerate(self.rows):
            _check_metrics(self.task, **{f"rows.{number}.test": row.test, f"rows.{number}.val": row.val})
            if row.test.keys() != first.test.keys():
                raise ValueError(f"rows.{number}.test and rows.0.test have different metrics")
            if row.bytes.mean is None or row.seconds.mean is None:
                raise ValueError(f"rows.{number}: bytes and seconds must have a mean")
        if len({row.label for row in self.rows}) < len(self.rows):
            raise ValueError("rows: two rows have one label")
        return self


class TrialFile(_Model):
    """trials/*.json of a sweep."""

    settings: dict[str, Any]
    val: Metrics | None
    rounds: Count | None
    best_round: Count | None
    bytes: Count | None
    seconds: Amount | None
    failed: str | None

    @model_validator(mode="after")
    def check_ended(self) -> "TrialFile":
        if self.failed is None and (self.val is None or self.seconds is None or self.rounds is None):
            raise ValueError("a trial that did not fail must have val, rounds and seconds")
        return self


class _Trial(_Model):
    trial: Positive
    settings: dict[str, Any]
    val: dict[str, _Statistic]
    seconds: _Statistic
    failed: str | None


class _ChosenTrial(_Model):
    trial: Positive
    settings: dict[str, Any]
    val: dict[str, _Statistic]
    test: dict[str, _Statistic]
    folders: list[str | None]


class SweepFile(_Model):
    """sweep.json."""

    method: str
    dataset: str
    clients: Positive
    partition: str
    seeds: Annotated[list[Integer], Field(min_length=1)]
    metric: str
    trials: Annotated[list[_Trial], Field(min_length=1)]
    chosen: _ChosenTrial
    edges: list[str]
    task: str = CLASSIFICATION

    @model_validator(mode="after")
    def check_trials(self) -> "SweepFile":
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}")
        keys = self.trials[0].settings.keys()
        for number, trial in enumerate(self.trials):
            if trial.settings.keys() != keys:
                raise ValueError(f"trials.{number}.settings and trials.0.settings have different keys")
            if trial.failed is None and self.metric not in trial.val:
                raise ValueError(f"trials.{number}.val has no {self.metric!r}")
        if self.metric not in self.chosen.test:
            raise ValueError(f"chosen.test has no {self.metric!r}")
        return self


class _Item(_Model):
    item: str


class ReproductionFile(_Model):
    """reproduce.json: the items that were made again."""

    items: list[_Item] = []


class WorkloadsFile(_Model):
    """workloads.json of a row of a reproduction."""

    asked: dict[str, Any]


class _Accuracies(_Model):
    best: Real
    final: Real


class _FinalEpisode(_Model):
    value: Real = Field(alias="return")
    accuracy: _Accuracies
    modelled_seconds: Real


class _Arm(_Model):
    share: Real
    chance: Real


class _PolicyDetails(_Model):
    best: _Arm | None = None
    kept_episode: Count | None = None


class _PolicySeconds(_Model):
    rounds: Real
    evaluation: Real
    learning: Real


class PolicyResult(_Model):
    """result.json of a learned policy."""

    kind: Literal["bandit", "ddpg"]
    dataset: str
    clients: Positive
    partition: str
    seed: Integer
    rounds: Positive
    reward: dict[str, Any]
    policy_saw_test: bool
    returns: Annotated[list[Real], Field(min_length=1)]
    final: _FinalEpisode
    details: _PolicyDetails
    seconds: _PolicySeconds
    peak_rss_mb: Real
    hashes: dict[str, str]
    versions: dict[str, str]

    @model_validator(mode="after")
    def check_details(self) -> "PolicyResult":
        needed = "best" if self.kind == "bandit" else "kept_episode"
        if getattr(self.details, needed) is None:
            raise ValueError(f"details has no {needed!r}")
        return self


class EpisodeLine(_Model):
    """A line of episodes.jsonl of a policy."""

    episode: Positive
    value: float = Field(alias="return")


# ---- what the coordinator of a deployment gets from the server ---------------------------------------------


class DeployedResult(_Model):
    """result.json that the server's place of a deployed run keeps."""

    rounds: Count
    best_round: Count | None
    val: Metrics
    test: Metrics
    test_confusion: list[list[Amount]] | None
    seconds: _Seconds
    bytes: _Bytes
    privacy: dict[str, Any]
    details: _Details
    wire: Any


class SiteManifest(_Model):
    """manifest.json that a place of a deployed run keeps."""

    joined: dict[str, Any] = {}
    asked: dict[str, Any] = {}
