"""The sampling policies of FedGraph that rows run with.

They are learned before these runs, each in policies/<name> of the reproduction's folder, as `graphfed policy`
writes it.
"""

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphfed.errors import InputError, shown
from graphfed.methods.fedgraph.policy.result import POLICY, lines_in
from graphfed.methods.fedgraph.policy.settings import EPISODES, take_settings
from graphfed.methods.settings import changed, value
from graphfed.runs.config import make_config
from graphfed.studies.plan import InputCache
from graphfed.tasks.run_config import RunConfig
from graphfed.terminal import say

__all__ = ["POLICIES", "Learning", "Policy", "without_policy"]

#: The folder of what is learned, next to those of the items.
POLICIES = "policies"
#: Rounds of the two episodes by which learning is timed.
TRIAL_ROUNDS = 5


@dataclass(frozen=True)
class Policy:
    """A policy and the arguments of `learn_policy` for it.

    Attributes:
        name: The name of its folder.
        options: Data set, clients, partition, split, rounds.
        settings: Settings of the run that it is learned on, of the reward and of the learner.
        episodes: The number of episodes.
        quick_options: Replace these in the short version.
        quick_settings: Likewise.
        quick_episodes: Likewise.
    """

    name: str
    options: Mapping[str, object]
    settings: Mapping[str, object]
    episodes: int = EPISODES
    quick_options: Mapping[str, object] = field(default_factory=dict)
    quick_settings: Mapping[str, object] = field(default_factory=dict)
    quick_episodes: int = 2

    @property
    def data(self) -> str:
        """The data set that it is learned on."""
        return str(self.options.get("data", "digits"))

    def short(self) -> "Policy":
        """Return the short version.

        Returns:
            The policy, with the options, settings and episodes of the short version.
        """
        return dataclasses.replace(
            self,
            episodes=self.quick_episodes,
            options={**self.options, **self.quick_options},
            settings={**self.settings, **self.quick_settings},
        )


@dataclass(frozen=True)
class Learning:
    """A policy to learn in a reproduction's folder; a `Job`.

    Attributes:
        seconds: The expected duration.
    """

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
        """The name for people."""
        return f"{POLICIES}: {self.policy.name}"

    @property
    def has_begun(self) -> bool:
        """Whether learning has begun and can go on."""
        return (self.folder / "manifest.json").exists()

    @property
    def has_ended(self) -> bool:
        """Whether the policy is learned."""
        return (self.folder / "result.json").exists()

    def require_same(self, command: str) -> None:
        """Check that a learned policy is the one that is asked for.

        Args:
            command: The command to name in the message.

        Raises:
            InputError: Another policy was asked for when it was learned.
        """
        if self.has_ended:
            _learn(self._asked(), self.folder, command, False)

    def settings_of_run(self) -> dict[str, object]:
        """Return the settings of a run that uses the policy."""
        return {"policy": "ddpg", "policy_file": str((self.folder / POLICY).resolve())}

    def config(self) -> RunConfig:
        """Return the run that the policy is learned on.

        Raises:
            InputError: A setting cannot be used.
        """
        rest = take_settings(self.policy.settings)[2]
        return make_config(
            "fedgraph",
            **self.policy.options,
            settings={"preset": "paper", **rest, **self.settings_of_run()},
            data_dir=self.data_dir,
        )

    def require_fitting(self, where: str, run: RunConfig) -> None:
        """Check that a run that uses the policy suits it.

        Learning takes hours, and without this check only the run would notice.

        Raises:
            InputError: The policy is learned for something else.
        """
        learned_for, needed = self._sees(self.config()), self._sees(run)
        for what, learned in learned_for.items():
            if needed[what] != learned:
                raise InputError(
                    f"{where}: the policy {shown(self.policy.name)} cannot be used: it is learned with "
                    f"{what} {learned}, and the row has {needed[what]}; learn another one for it"
                )

    def _sees(self, config: RunConfig) -> dict[str, object]:
        """Return what must be the same for learning and use."""
        sizes = {name: value(config.settings, name) for name in ("layers", "hidden")}
        return {**sizes, "clients": config.clients, "data": config.data_name}

    def digest(self) -> str:
        """Return the digest of the policy's file.

        Returns:
            The SHA-256.

        Raises:
            InputError: The file is missing.
        """
        try:
            return hashlib.sha256((self.folder / POLICY).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(
                f"{self.folder / POLICY} cannot be read ({error.strerror or error}); remove {self.folder} to "
                "learn the policy again"
            ) from None

    def do(self, label: str, cache: InputCache, command: str, progress: bool) -> None:
        """Learn the policy in this process, or go on with it.

        Args:
            cache: Not used: learning does not share the inputs of runs.
            command: The command that the manifest records.
            progress: Whether to show progress on stderr.
        """
        if progress:
            say(label)
        _learn(self._asked(), self.folder, command, progress)

    def sent(self, command: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Return how another process learns the policy.

        Args:
            command: The command that the manifest records.

        Returns:
            A function of a module, and its arguments.
        """
        return _learn, (self._asked(), self.folder, command, False)

    def timed(self) -> float:
        """Estimate the seconds of the remaining episodes, from two short ones in a temporary folder."""
        from graphfed.methods.fedgraph.policy.learning import learn_policy

        settings = {**self._asked()["settings"], "reward.target": 0.5}
        rounds = self.config().rounds
        asked = {**self._asked(), "settings": settings, "rounds": min(TRIAL_ROUNDS, rounds), "episodes": 2}
        with tempfile.TemporaryDirectory() as place:
            learned = learn_policy(**asked, out=Path(place) / "trial")
        spent = sum(learned.episodes[-1]["spent"].values()) / asked["rounds"]
        return float(spent * rounds * (self.policy.episodes - len(lines_in(self.folder))))

    def _asked(self) -> dict[str, Any]:
        """Return the arguments of `learn_policy` as plain values."""
        return {
            "threads": 1,
            **self.policy.options,
            "episodes": self.policy.episodes,
            "settings": {"preset": "paper", **self.policy.settings},
            "data_dir": None if self.data_dir is None else str(self.data_dir),
        }


def _learn(asked: Mapping[str, Any], folder: Path, command: str, progress: bool) -> None:
    """Learn a policy into its folder, go on there, or read it if learning has ended."""
    from graphfed.methods.fedgraph.policy.learning import learn_policy

    learn_policy(**asked, out=folder, progress=progress, command=command)


def without_policy(config: RunConfig) -> RunConfig:
    """Return a run with full batches in place of a policy that is not learned yet; it takes as long.

    Returns:
        The run without a policy.
    """
    if value(config.settings, "policy_file") is None:
        return config
    full = changed(config.settings, policy="full", policy_file=None)
    return dataclasses.replace(config, settings=full)
