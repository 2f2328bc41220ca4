"""The schema of overview.json: the numbers and the drawing of a graph or of sensors."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from graphfed.runs.folder_schema import Amount, Count, FileModel, Positive, Real, Share, Time


class _Class(FileModel):
    name: str
    nodes: Count
    train: Count
    val: Count
    test: Count


class _ConstantFeatures(FileModel):
    count: Count
    names: list[str]


class _Missing(FileModel):
    labels: Count
    split: Count
    features: Count
    constant_features: _ConstantFeatures


class _Components(FileModel):
    count: Count
    largest: Count
    isolated_nodes: Count


class _Degrees(FileModel):
    min: Count
    median: Amount
    mean: Amount
    percentile_99: Amount
    max: Count
    histogram: list[Annotated[list[Count], Field(min_length=3, max_length=3)]]


class _Client(FileModel):
    client: Count
    name: str
    owned: Count
    edges: Count
    cross_client_edges: Count
    train: Count
    val: Count
    test: Count
    classes: list[Count]


class _Pairs(FileModel):
    val: Count
    test: Count


class _Weights(FileModel):
    min: Real
    median: Real
    max: Real


class _Sizes(FileModel):
    smallest: Count
    largest: Count
    ratio: Amount | None


class _Shared(FileModel):
    nodes: Count
    edges: Count


class _Cut(FileModel):
    count: Count
    share: Real | None


class _Drawing(FileModel):
    nodes: list[Count]
    positions: list[Annotated[list[Real], Field(min_length=2, max_length=2)]]
    clients: list[Count]
    edges: list[Annotated[list[Count], Field(min_length=3, max_length=3)]]
    sampled: bool

    @model_validator(mode="after")
    def check_drawing(self) -> "_Drawing":
        count = len(self.nodes)
        if not count == len(self.positions) == len(self.clients):
            raise ValueError("nodes, positions and clients must have the same length")
        if any(end >= count for *ends, _ in self.edges for end in ends):
            raise ValueError(f"an edge ends at none of the {count} nodes")
        return self


class _Directed(FileModel):
    edges: Count
    directed: bool
    attributes: list[str]


class GraphOverview(FileModel):
    """The overview.json of a graph (`graphfed.data.graphs.overview`)."""

    kind: Literal["graph"] = "graph"
    name: str
    dropped: list[str] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
    nodes: Count
    edges: Count
    features: Count
    classes: list[_Class]
    pairs: _Pairs | None = None
    missing: _Missing
    edge_weights: _Weights | None
    directed: _Directed | None = None
    components: _Components
    degrees: _Degrees
    homophily: Real | None
    num_clients: Count
    clients: list[_Client]
    client_sizes: _Sizes | None = None
    shared: _Shared | None = None
    cross_client_edges: _Cut
    label_skew: Real | None
    drawing: _Drawing

    @model_validator(mode="after")
    def check_classes(self) -> "GraphOverview":
        """Check that every client has a count for each class."""
        for number, client in enumerate(self.clients):
            if len(client.classes) != len(self.classes):
                raise ValueError(f"clients.{number}.classes must have {len(self.classes)} numbers")
        return self


class _Sensors(FileModel):
    ids: Annotated[list[str], Field(min_length=1)]
    position: list[Annotated[list[Real], Field(min_length=2, max_length=2)]] | None
    geographic: bool
    missing: list[Share]
    observed: list[bool]


class _Windows(FileModel):
    lags: Positive
    horizon: Positive
    every: Positive
    train: Count
    val: Count
    test: Count


class _Gap(FileModel):
    sensor: str
    start: Time
    steps: Annotated[int, Field(ge=0, le=10**9)]


class _Summary(FileModel):
    end: Time
    missing: Share
    availability: list[Share]
    longest_gap: _Gap | None
    edges: Count
    components: Count
    largest_component: Count
    isolated: Count


class ReadingsOverview(FileModel):
    """An overview of sensors and their readings, before there is a split."""

    kind: Literal["sensors"]
    name: str
    note: str
    quantity: str
    # The bound of `step_minutes` in a description.
    step_minutes: Annotated[int, Field(ge=1, le=10**6)]
    start: Time
    steps: Annotated[int, Field(ge=1, le=10**9)]
    sensors: _Sensors
    edges: list[Annotated[list[Real], Field(min_length=3, max_length=3)]]
    summary: _Summary

    @model_validator(mode="after")
    def check_sensors(self) -> "ReadingsOverview":
        """Check that every list has an entry for each sensor, and that edges end at sensors."""
        each, count = self.sensors, len(self.sensors.ids)
        lengths = {len(each.missing), len(each.observed)}
        lengths |= {count} if each.position is None else {len(each.position)}
        if lengths != {count}:
            raise ValueError(f"sensors: every list must have {count} entries, one for each id")
        if any(not (0 <= end < count and end == int(end)) for *ends, _ in self.edges for end in ends):
            raise ValueError(f"an edge ends at none of the {count} sensors")
        return self


class SensorOverview(ReadingsOverview):
    """The overview.json of sensors (`graphfed.data.sensors.overview`)."""

    windows: _Windows
