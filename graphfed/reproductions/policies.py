"""Sampling policies of FedGraph that rows run with: learned before these runs, each in policies/<name> of the
reproduction's folder, as `graphfed policy` writes it."""

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphfed.errors import InputError, shown
from graphfed.methods.config import GraphSettings
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.learning_config import BanditConfig
from graphfed.runs.config import make_config
from graphfed.studies.plan import InputCache
from graphfed.studies.policy_settings import EPISODES, take_settings
from graphfed.tasks.run_config import RunConfig
from graphfed.terminal import say

__all__ = ["POLICIES", "Learning", "Policy", "without_policy"]

#: The folder of what is learned, next to those of the items.
POLICIES = "policies"
#: The file of a policy, in the folder of what learned it.
FILE = "policy.safetensors"
#: Rounds of the two episodes by which learning is timed.
TRIAL_ROUNDS = 5


@dataclass(frozen=True)
class Policy:
    """One policy and what `learn_policy` is asked for it.

    Attributes:
        name: Names its folder.
        kind: "ddpg" or "bandit".
        options: Data set, clients, partition, split, rounds.
        settings: Of the run that it is learned on, of the reward and of the learner.
        episodes: None for as many as the kind has.
        quick_options: What replaces these in the short version.
        quick_settings: Likewise.
        quick_episodes: Likewise; None for as many.
    """

    name: str
    kind: str
    options: Mapping[str, object]
    settings: Mapping[str, object]
    episodes: int | None = None
    quick_options: Mapping[str, object] = field(default_factory=dict)
    quick_settings: Mapping[str, object] = field(default_factory=dict)
    quick_episodes: int | None = None

    @property
    def data(self) -> str:
        """The data set that it is learned on."""
        return str(self.options.get("data", "digits"))

    def short(self) -> "Policy":
        """Return the short version."""
        return dataclasses.replace(
            self,
            episodes=self.quick_episodes or self.episodes,
            options={**self.options, **self.quick_options},
            settings={**self.settings, **self.quick_settings},
        )


@dataclass(frozen=True)
class Learning:
    """A policy to learn in a reproduction's folder; a `Job`. seconds: what it is expected to take."""

    policy: Policy
    whole: Path
    data_dir: str | Path | None
    seconds: float = 0.0

    @property
    def folder(self) -> Path:
        """The folder of the policy."""
        return self.whole / POLICIES / self.policy.name

    @property
    def name(self) -> str:
        """For people."""
        return f"{POLICIES}: {self.policy.name}"

    @property
    def has_begun(self) -> bool:
        """Whether there is something to go on with."""
        return (self.folder / "manifest.json").exists()

    @property
    def has_ended(self) -> bool:
        """Whether it is learned."""
        return (self.folder / "result.json").exists()

    def require_same(self, command: str) -> None:
        """Raise InputError where the policy is learned, and something else was asked."""
        if self.has_ended:
            _learn(self._asked(), self.folder, command, False)

    def settings_of_run(self) -> dict[str, object]:
        """The settings of a run that uses the policy."""
        return {"policy": self.policy.kind, "policy_file": str((self.folder / FILE).resolve())}

    def config(self) -> RunConfig:
        """The run that the policy is learned on. Raises InputError for a setting that cannot be used."""
        rest = take_settings(self.policy.kind, self.policy.settings)[2]
        return make_config(
            "fedgraph",
            **self.policy.options,
            settings={"preset": "paper", **rest, **self.settings_of_run()},
            data_dir=self.data_dir,
        )

    def require_fitting(self, where: str, run: RunConfig) -> None:
        """Raise InputError where a run would use the policy, and it is learned for something else: learning
        takes hours, and only the run would notice."""
        learned_for, needed = self._sees(self.config()), self._sees(run)
        for what, value in learned_for.items():
            if needed[what] != value:
                raise InputError(
                    f"{where}: the policy {shown(self.policy.name)} cannot be used: it is learned with "
                    f"{what} {value}, and the row has {needed[what]}; learn another one for it"
                )

    def _sees(self, config: RunConfig) -> dict[str, object]:
        """What must be the same for learning and use. A constant policy sees no weights of clients."""
        training = config.training
        assert isinstance(training, GraphSettings)
        seen: dict[str, Any] = {"layers": training.layers}
        if self.policy.kind == "ddpg":
            seen |= {"clients": config.clients, "data": config.data_name, "hidden": training.hidden}
        return seen

    def digest(self) -> str:
        """The SHA-256 of the policy's file. Raises InputError where it is not there."""
        try:
            return hashlib.sha256((self.folder / FILE).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(
                f"{self.folder / FILE} cannot be read ({error.strerror or error}); remove {self.folder} to "
                "learn the policy again"
            ) from None

    def do(self, label: str, cache: InputCache, command: str, progress: bool) -> None:
        """Learn it in this process, or go on; cache: of runs, which learning does not share."""
        if progress:
            say(label)
        _learn(self._asked(), self.folder, command, progress)

    def sent(self, command: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """The same for a process of its own."""
        return _learn, (self._asked(), self.folder, command, False)

    def timed(self) -> float:
        """Return the seconds that the remaining episodes take, from two short ones in a temporary folder."""
        from graphfed.studies.policy_episodes import lines_in
        from graphfed.studies.policy_learning import learn_policy

        kind = self.policy.kind
        # Of the arms the one that takes longest; updates as soon as the second episode.
        short = {"bandit.shares": "1", "bandit.chances": "1"} if kind == "bandit" else {"ddpg.batch": 2}
        settings = {**self._asked()["settings"], "reward.target": 0.5, **short}
        rounds = self.config().training.rounds
        asked = {**self._asked(), "settings": settings, "rounds": min(TRIAL_ROUNDS, rounds)}
        asked["episodes"] = None if kind == "bandit" else 2
        with tempfile.TemporaryDirectory() as place:
            learned = learn_policy(**asked, out=Path(place) / "trial")
        spent = sum(learned.episodes[-1]["spent"].values()) / asked["rounds"]
        return float(spent * rounds * (self._episodes() - len(lines_in(self.folder))))

    def _asked(self) -> dict[str, Any]:
        """What `learn_policy` is asked: plain values."""
        return {
            "threads": 1,
            **self.policy.options,
            "kind": self.policy.kind,
            "episodes": self.policy.episodes,
            "settings": {"preset": "paper", **self.policy.settings},
            "data_dir": None if self.data_dir is None else str(self.data_dir),
        }

    def _episodes(self) -> int:
        from graphfed.methods.fedgraph.bandit import arms_of, episodes_of

        settings = take_settings(self.policy.kind, self.policy.settings)[1]
        if not isinstance(settings, BanditConfig):
            return self.policy.episodes or EPISODES
        every = episodes_of(len(arms_of(settings)))
        return min(every, self.policy.episodes or every)


def _learn(asked: Mapping[str, Any], folder: Path, command: str, progress: bool) -> None:
    """Learn a policy into its folder, or go on there, or read it where that has ended."""
    from graphfed.studies.policy_learning import learn_policy

    learn_policy(**asked, out=folder, progress=progress, command=command)


def without_policy(config: RunConfig) -> RunConfig:
    """Return a run with full batches in place of a policy that is yet to be learned; it takes as long."""
    training = config.training
    if not isinstance(training, FedGraphConfig) or training.policy_file is None:
        return config
    full = dataclasses.replace(training, policy="full", policy_file=None)
    return dataclasses.replace(config, training=full)
