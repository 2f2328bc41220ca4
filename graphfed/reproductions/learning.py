"""What a reproduction learns before its runs: sampling policies of FedGraph, each in policies/<name> of its
folder, as `graphfed policy` writes it; and an item of the kind `returns`, which shows how they learned."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.errors import InputError
from graphfed.methods.fedgraph.learning_config import BanditConfig
from graphfed.reproductions.policies import RecipePolicy
from graphfed.reproductions.recipe import POLICIES
from graphfed.runs import folder as files
from graphfed.runs.config import make_config
from graphfed.studies.folder_schema import PolicyResult
from graphfed.studies.plan import InputCache
from graphfed.studies.policy_settings import EPISODES, take_settings
from graphfed.tasks.run_config import RunConfig
from graphfed.terminal import say

__all__ = ["Learning", "digest", "returns_of", "settled_from"]

#: The file of a policy, in the folder of what learned it.
FILE = "policy.safetensors"
#: Episodes of a mean of returns: the first, the last, and the moving one.
WINDOW = 20
#: Rounds of the two episodes by which learning is timed.
TRIAL_ROUNDS = 5


@dataclass(frozen=True)
class Learning:
    """One policy to learn. folder: its own; seconds: what it is expected to take."""

    policy: RecipePolicy
    folder: Path
    data_dir: str | Path | None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """For people."""
        return f"{POLICIES}: {self.policy.name}"

    @property
    def ended(self) -> bool:
        """Whether it is learned."""
        return (self.folder / "result.json").exists()

    def require_same(self, command: str) -> None:
        """InputError where the policy is learned, and something else was asked."""
        if self.ended:
            _learn(self._asked(), self.folder, command, False)

    def settings_of_run(self) -> dict[str, Any]:
        """The settings of a run that uses the policy."""
        return {"policy": self.policy.kind, "policy_file": str((self.folder / FILE).resolve())}

    def config(self) -> RunConfig:
        """A run on what the policy is learned on. InputError for a setting that cannot be used."""
        rest = take_settings(self.policy.kind, self.policy.settings)[2]
        return make_config(
            "fedgraph",
            **self.policy.options,
            settings={"preset": "paper", **rest, **self.settings_of_run()},
            data_dir=self.data_dir,
        )

    def do(self, label: str, cache: InputCache, command: str, progress: bool) -> None:
        """Learn it in this process, or go on; cache: of runs, which learning does not share."""
        if progress:
            say(label)
        _learn(self._asked(), self.folder, command, progress)

    def sent(self, command: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """The same for a process of its own."""
        return _learn, (self._asked(), self.folder, command, False)

    def timed(self) -> float:
        """The seconds that the episodes take that are left, from two short ones in a folder that is thrown
        away."""
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


def digest(policies: Iterable[Learning]) -> dict[str, str]:
    """The SHA-256 of the file of each policy, by name. InputError for one that is not there."""
    found = {}
    for each in policies:
        try:
            found[each.policy.name] = hashlib.sha256((each.folder / FILE).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(
                f"{each.folder / FILE} cannot be read ({error.strerror or error}); remove {each.folder} to "
                "learn the policy again"
            ) from None
    return found


# ---- what was learned --------------------------------------------------------------------------------------


def returns_of(folder: Path) -> dict[str, Any]:
    """How the policy in a folder learned.

    kind, seed; returns: of each episode; moving_mean: at each over the last WINDOW, fewer at the beginning;
    first, last: the mean over the first WINDOW, and over the last; settled: the episode from which the moving
    mean stays within 5 % of where it ends, None of a bandit, whose episodes are of different arms; best: of a
    bandit the best arm, share and chance, else None; kept: of DDPG the episode after which the actor is the
    policy, else None; final: the return without noise; seconds: of all
    episodes. InputError for a damaged file."""
    content = files.read_json(folder / "result.json", PolicyResult)
    returns = [float(told) for told in content["returns"]]
    moving = [float(np.mean(returns[max(0, n - WINDOW) : n])) for n in range(1, len(returns) + 1)]
    bandit = content["kind"] == "bandit"
    return {
        "kind": content["kind"],
        "seed": content["seed"],
        "returns": returns,
        "moving_mean": moving,
        "first": float(np.mean(returns[:WINDOW])),
        "last": moving[-1],
        "settled": None if bandit else 1 + settled_from(moving),
        "best": content["details"]["best"] if bandit else None,
        "kept": None if bandit else content["details"]["kept_episode"],
        "final": content["final"]["return"],
        "seconds": sum(content["seconds"][part] for part in ("rounds", "evaluation", "learning")),
    }


def settled_from(values: Sequence[float], within: float = 0.05) -> int:
    """The place from which all values differ from the last one by at most a share `within` of it."""
    far = np.abs(np.array(values) - values[-1]) > within * abs(values[-1])
    return int(far.nonzero()[0][-1]) + 1 if far.any() else 0
