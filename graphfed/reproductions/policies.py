"""The sampling policies of FedGraph that rows run with.

They are learned before these runs, each in policies/<name> of the reproduction's folder, as `graphfed policy`
writes it.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfed.errors import InputError, shown
from graphfed.methods.fedgraph.policy.learning import POLICY
from graphfed.methods.fedgraph.policy.settings import EPISODES, take_settings
from graphfed.methods.settings import changed, value
from graphfed.runs.config import make_config
from graphfed.studies.plan import InputCache
from graphfed.tasks.run_config import RunConfig
from graphfed.terminal import say

__all__ = ["POLICIES", "Learning", "Policy", "without_policy"]

#: The folder of what is learned, next to those of the items.
POLICIES = "policies"
QUICK_EPISODES = 2


@dataclass(frozen=True)
class Policy:
    """A policy and the arguments of `learn_policy` for it.

    Attributes:
        name: The name of its folder.
        options: Data set, clients, partition, split, rounds.
        settings: Settings of the run that it is learned on, of the reward and of the learner.
        episodes: The number of episodes.
    """

    name: str
    options: Mapping[str, object]
    settings: Mapping[str, object]
    episodes: int = EPISODES

    @property
    def data(self) -> str:
        """The data set that it is learned on."""
        return str(self.options.get("data", "digits"))

    def short(self, options: Mapping[str, object], settings: Mapping[str, object]) -> "Policy":
        """Return the short version.

        Args:
            options: The options that replace those of the policy, such as a small data set.
            settings: The settings that replace those of the policy.

        Returns:
            The policy, with few episodes.
        """
        return dataclasses.replace(
            self,
            episodes=QUICK_EPISODES,
            options={**self.options, **options},
            settings={**self.settings, **settings},
        )


@dataclass(frozen=True)
class Learning:
    """A policy to learn in a reproduction's folder `whole`; a `Job`."""

    policy: Policy
    whole: Path
    data_dir: str | Path | None

    @property
    def folder(self) -> Path:
        """The folder of the policy."""
        return self.whole / POLICIES / self.policy.name

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{POLICIES}: {self.policy.name}"

    @property
    def seconds(self) -> float:
        """How long it takes compared with other policies: by the rounds of its episodes."""
        return float(self.policy.episodes * self.config().rounds)

    @property
    def has_begun(self) -> bool:
        return (self.folder / "manifest.json").exists()

    @property
    def has_ended(self) -> bool:
        return (self.folder / "result.json").exists()

    def settings_of_run(self) -> dict[str, object]:
        """Return the settings of a run that uses the policy."""
        return {"policy": "ddpg", "policy_file": str((self.folder / POLICY).resolve())}

    def config(self) -> RunConfig:
        """Return the run that the policy is learned on; InputError if a setting cannot be used."""
        # Without the settings of the reward and of the learner, which a run does not have.
        rest = take_settings(self.policy.settings)[2]
        return make_config(
            "fedgraph",
            **self.policy.options,
            settings={"preset": "paper", **rest, **self.settings_of_run()},
            data_dir=self.data_dir,
        )

    def require_fitting(self, where: str, run: RunConfig) -> None:
        """Raise InputError unless the policy suits a run, before hours of learning."""
        learned_for, needed = _observed(self.config()), _observed(run)
        for what, learned in learned_for.items():
            if needed[what] != learned:
                raise InputError(
                    f"{where}: the policy {shown(self.policy.name)} cannot be used: it is learned with "
                    f"{what} {learned}, and the row has {needed[what]}; learn another one for it"
                )

    def digest(self) -> str:
        """Return the SHA-256 of the policy's file; InputError if it cannot be read."""
        try:
            return hashlib.sha256((self.folder / POLICY).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(
                f"{self.folder / POLICY} cannot be read ({error.strerror or error}); remove {self.folder} to "
                "learn the policy again"
            ) from None

    def do(self, label: str, cache: InputCache, command: str, progress: bool) -> None:
        """Learn the policy in this process, go on with it, or check that the learned one is asked for."""
        if progress:
            say(label)
        _learn(self._asked(), self.folder, command, progress)

    def sent(self, command: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Return how another process learns the policy."""
        return _learn, (self._asked(), self.folder, command, False)

    def _asked(self) -> dict[str, Any]:
        """Return the arguments of `learn_policy` as plain values."""
        return {
            "threads": 1,
            **self.policy.options,
            "episodes": self.policy.episodes,
            "settings": {"preset": "paper", **self.policy.settings},
            "data_dir": None if self.data_dir is None else str(self.data_dir),
        }


def _observed(config: RunConfig) -> dict[str, object]:
    """Return what must be the same for learning and use."""
    sizes = {name: value(config.settings, name) for name in ("layers", "hidden")}
    # A policy reads the weights of every client, so it fits only as many clients with the same network.
    return {**sizes, "clients": config.clients, "data": config.data_name}


def _learn(asked: Mapping[str, Any], folder: Path, command: str, progress: bool) -> None:
    """Learn a policy into its folder, go on there, or read it if learning has ended."""
    from graphfed.methods.fedgraph.policy.learning import learn_policy

    learn_policy(**asked, out=folder, progress=progress, command=command)


def without_policy(config: RunConfig) -> RunConfig:
    """Return a run with full batches in place of a policy that is not learned yet; it takes as long."""
    if value(config.settings, "policy_file") is None:
        return config
    # The policy's file does not exist before the policy is learned.
    full = changed(config.settings, policy="full", policy_file=None)
    return dataclasses.replace(config, settings=full)
