"""A run repeated in this process, with all clients in one cohort.

An attack repeats a run for values that messages do not have: what a party holds, and the data as its method
received it. With features=scaled a method sends only values that it computed from scaled features, so attacks
compare their results with these.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.federation.transfer import Options
from graphfed.methods.base import Method, State, Task
from graphfed.methods.parts import is_simulated, sum_protection
from graphfed.methods.settings import changed
from graphfed.runs.train import agree_before_setup
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig


@dataclass(frozen=True, eq=False)
class Exchange:
    """The rows of an exchange between clients, in the order of the senders and of the receivers."""

    sent: Tensor
    received: Tensor


class _Federation(Federation):
    """A federation with all clients in one cohort that keeps exchanges while a caller wants them."""

    #: Where exchanges are kept, and the name of the kept ones (None: all); None to keep none.
    keep: tuple[list[Exchange], str | None] | None = None

    def exchange(self, x: Located, route: ExchangeRoute, **options: Unpack[Options]) -> Located:
        arrived = super().exchange(x, route, **options)
        if self.keep is not None and self.keep[1] in (None, options["name"]):
            # All clients are one cohort, so each value has one part.
            self.keep[0].append(Exchange(x.parts[0].detach(), arrived.parts[0].detach()))
        return arrived


def place_data(fed: Federation, config: RunConfig, inputs: Inputs) -> Any:
    """Place the run's data at the clients of a federation in this process."""
    parts = inputs.parts(config, fed.workers)
    return get_task(config.task).data.located(fed, parts, [inputs.part_of_server(config)])


@dataclass(frozen=True, eq=False)
class Rerun:
    """A repeated run, before set-up.

    `data` is that of the clients after they agreed on the scale of features and the weights of classes;
    `training` has the settings of the method.
    """

    fed: _Federation
    method: Method
    data: Any
    task: Task
    training: Any

    @property
    def cohort(self) -> Cohort:
        """The data of all clients. No party has it; an audit compares its results with it."""
        cohort: Cohort = self.data.parts[0]
        return cohort

    def setup(self) -> State:
        with self.fed.phase("setup", round_number=0):
            return self.method.setup(self.fed, self.data, self.task, self.training)

    def round(self, state: State, number: int) -> State:
        """Run a round, counted from 1."""
        with self.fed.phase("train", round_number=number):
            return self.method.round(self.fed, state, self.training, number)

    def predict(self, state: State, target: str) -> Located:
        """Predict the nodes of a part, as an evaluation does."""
        with self.fed.phase("eval"):
            return self.method.predict(self.fed, state, self.training, target)

    @contextmanager
    def exchanges(self, name: str | None = None) -> Iterator[list[Exchange]]:
        """Keep the exchanges of a name (None: all) inside this context."""
        kept: list[Exchange] = []
        self.fed.keep = kept, name
        try:
            yield kept
        finally:
            self.fed.keep = None


def rerun(
    config: RunConfig, inputs: Inputs, *, plaintext: bool = False, simulated: bool | None = None
) -> Rerun:
    """Place a run's data at its clients and let them agree, in plaintext, on what is common to all methods.

    `plaintext` replaces secure sums by plaintext ones, and `simulated` secure protocols by simulated ones
    (None: as in the run); both give the same values.
    """
    # The same seeds as in the run, so all draws except those of the operating system's entropy are equal.
    training = config.settings
    if simulated is None:
        simulated = is_simulated(training)
    fed = _Federation(
        [tuple(range(inputs.clients_of(config.method)))], device=config.device, simulated=simulated
    )
    task = inputs.task(config.task)
    # Agreement is not attacked, so it never needs the cost of a secure sum.
    in_plaintext = training
    if sum_protection(training) != PLAINTEXT:
        in_plaintext = changed(training, aggregation=PLAINTEXT)
    placed = place_data(fed, config, inputs)
    data, _ = agree_before_setup(fed, placed, config.method, task, in_plaintext)
    # Set-up itself keeps the run's protections unless the attack asks for plaintext.
    return Rerun(fed, config.method, data, task, in_plaintext if plaintext else training)
