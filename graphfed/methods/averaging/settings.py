"""The settings of every method that averages what clients have trained."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from graphfed.methods import parts
from graphfed.methods.settings import ChosenBy, settings


@settings
class AveragingSettings:
    """The settings of averaging. A network, a rule and an exchange add their own settings in their parts."""

    run: parts.Run = parts.Run()
    training: parts.Training = parts.Training()
    network: parts.Network = parts.Network()
    inputs: parts.Inputs = parts.Inputs()
    selection: parts.Selection = parts.Selection()
    loss: parts.Loss = parts.Loss()
    steps: parts.Steps = parts.Steps()
    client_optimizer: parts.ClientOptimizer = parts.ClientOptimizer()
    protocols: parts.Protocols = parts.Protocols()
    sums: parts.Sums = parts.Sums()
    clients: parts.Clients = parts.Clients()
    server: parts.ServerOptimizer = parts.ServerOptimizer()
    rule: str = Field(
        default="fedavg",
        description="how the clients' training becomes the next model; fedsgd: gradients are averaged, and "
        "optimizer, lr and weight_decay belong to the server",
    )
    #: The settings of the rule.
    of_rule: Annotated[Any, ChosenBy("rule")] = None
    #: What the exchange of a method reads.
    exchange: Any = None

    @model_validator(mode="after")
    # Only the rule fedavg reads `optimizer_at`; the other rules say themselves where steps are taken.
    def _one_gradient_a_round(self) -> Self:
        if self.rule == "fedavg":
            self.server.check(self.steps)
        return self
