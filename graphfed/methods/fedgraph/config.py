"""The settings of FedGraph."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from graphfed.errors import InputError
from graphfed.methods.parts import (
    ClientOptimizer,
    Inputs,
    Loss,
    Network,
    Protocols,
    Run,
    Selection,
    ServerOptimizer,
    Steps,
    Sums,
    Training,
)
from graphfed.methods.settings import Only, Unless, settings


@settings
class Sampling:
    """How much each client samples in a round, and how."""

    policy: Literal["full", "constant", "graphsage", "fastgcn", "balanced", "ddpg"] = Field(
        default="full",
        description="how much is sampled: everything (full), one probability for every neighbour (constant), "
        "a number of neighbours (graphsage), a number of nodes of a layer (fastgcn), as many training nodes "
        "of each client as fit in the same time (balanced), or by a policy that `graphfed policy` has "
        "learned (ddpg)",
    )
    policy_file: Annotated[str | None, Only("policy", "ddpg")] = Field(
        default=None, description="the file of the learned policy, at the server"
    )
    probability: Annotated[float, Only("policy", "constant")] = Field(
        default=0.5, gt=0, le=1, description="sampling probability of a neighbour, in every layer"
    )
    batch: Annotated[
        int, Only("policy", "constant", "graphsage", "fastgcn"), Only("batch_fraction", None)
    ] = Field(default=256, ge=1, description="largest number of a client's training nodes in a step")
    batch_fraction: Annotated[float | None, Only("policy", "constant")] = Field(
        default=None,
        gt=0,
        le=1,
        description="number of a client's training nodes in a step, as a fraction of its training nodes; "
        "none: as many as batch says",
    )
    fan_out: Annotated[int, Only("policy", "graphsage")] = Field(
        default=25, ge=1, description="largest number of neighbours in the last layer"
    )
    inner_fan_out: Annotated[int, Only("policy", "graphsage")] = Field(
        default=10, ge=1, description="largest number of neighbours in the other layers"
    )
    layer_size: Annotated[int, Only("policy", "fastgcn")] = Field(
        default=256, ge=1, description="number of draws of each client and layer"
    )
    round_time: Annotated[float | None, Only("policy", "balanced")] = Field(
        default=None,
        gt=0,
        le=1,
        description="duration of a round, from 0, one training node at each client, to 1, all training "
        "nodes, with all requests answered; none: the duration and the share of requests to slow clients "
        "that promise the shortest training, by the measured seconds",
    )
    clock: Annotated[Literal["modelled", "wall"], Only("policy", "balanced")] = Field(
        default="modelled",
        description="the seconds that the policy decides by: those of the time model (modelled), or those "
        "that every client measures while it computes and sends (wall), which needs a process for each "
        "client",
    )
    estimator: Annotated[
        Literal["ratio", "horvitz_thompson"],
        Only("policy", "constant", "balanced", "ddpg"),
        Only("round_time", None),
    ] = Field(
        default="ratio",
        description="weight of a sampled neighbour: the number of neighbours over that of sampled ones, as "
        "in the paper (ratio), or 1 over the sampling probability (horvitz_thompson)",
    )

    @model_validator(mode="after")
    def _check_policy_file(self) -> Self:
        if self.policy == "ddpg" and self.policy_file is None:
            raise InputError(
                "policy=ddpg cannot be used without policy_file, the file of a learned policy; learn one "
                "with `graphfed policy`, or use policy=full"
            )
        return self

    @property
    def measures_seconds(self) -> bool:
        """Whether clients send the server the seconds that they measure."""
        return self.policy == "balanced" and self.clock == "wall"

    @property
    def limits_requests(self) -> bool:
        """Whether the server also decides how many requests each client answers."""
        return self.policy == "balanced" and self.round_time is None

    @property
    def sampler(self) -> str:
        """The sampler that uses a decision's amounts (`client_graphs.sample_neighbours`)."""
        kinds = {"graphsage": "fan_out", "fastgcn": "importance"}
        return kinds.get(self.policy, "independent" if self.estimator == "ratio" else "independent_ht")


@settings
class Sharing:
    """What clients send each other, and when."""

    sent_embeddings: Literal["hidden", "all", "none"] = Field(
        default="hidden",
        description="which embeddings a client sends to clients that have neighbours of its nodes: hidden, "
        "those of the second and later layers; all, those of the first layer too, which the paper calls "
        "allShare; none, which the paper calls nonShare",
    )
    refresh: Annotated[Literal["step", "round"], Unless("local_steps", 1)] = Field(
        default="step",
        description="when samples are drawn and embeddings are sent: in every local step, or once in a round",
    )
    first_degrees: Annotated[Literal["all", "internal"], Only("sent_embeddings", "hidden")] = Field(
        default="internal",
        description="degrees of the first layer's adjacency: of internal edges only, which the first layer "
        "sums over (internal), or of all edges, as in the paper (all), which scales nodes with many remote "
        "neighbours down",
    )

    def sends_embeddings(self, layer: int) -> bool:
        """Return whether the embeddings that enter a layer are sent, so that it sums over remote neighbours.

        Args:
            layer: The number of the layer, from 0.
        """
        return self.sent_embeddings == "all" or (self.sent_embeddings == "hidden" and layer > 0)


@settings
class ModelledTime:
    """The clients of the time model."""

    speed: float = Field(
        default=1e9,
        gt=0,
        allow_inf_nan=False,
        description="time model: median of the clients' floating-point operations per second",
    )
    bandwidth: float = Field(
        default=1.25e8,
        gt=0,
        allow_inf_nan=False,
        description="time model: median of the clients' bytes per second",
    )
    spread: float = Field(
        default=2.0,
        ge=1,
        allow_inf_nan=False,
        description="time model: the factor by which the fastest client exceeds the median speed and "
        "bandwidth, and by which the slowest falls below them",
    )


@settings
class FedGraphConfig:
    """The settings of FedGraph."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    steps: Steps = Steps()
    client_optimizer: ClientOptimizer = ClientOptimizer()
    sums: Sums = Sums()
    protocols: Protocols = Protocols()
    server: ServerOptimizer = ServerOptimizer()
    sampling: Sampling = Sampling()
    sharing: Sharing = Sharing()
    modelled_time: ModelledTime = ModelledTime()

    @model_validator(mode="after")
    def _one_gradient_a_round(self) -> Self:
        self.server.check(self.steps)
        return self

    def at_server(self) -> bool:
        """Return whether the optimiser runs at the server; a learned policy observes every client's own
        weights.
        """
        return self.sampling.policy != "ddpg" and self.server.asks_for_server(self.steps)
