"""The question that `graphfed policy` answers, and the settings of learning that its `--set` takes."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.fedgraph.bandit import count_search_episodes, make_arms
from graphfed.methods.fedgraph.learning_config import KINDS, BanditConfig, LearningConfig, RewardConfig
from graphfed.runs import folder as files
from graphfed.runs.settings import explain_in, settings_in
from graphfed.tasks.run_config import RunConfig

__all__ = ["EPISODES", "Question", "count_episodes", "learning_setting_names", "take_settings"]

T = TypeVar("T")

#: Episodes of DDPG, as in the paper.
EPISODES = 300
#: What may differ when learning goes on: where files are and how fast they are read.
_ASIDE = ("data_dir", "threads", "checkpoint_every", "partition_file")


@dataclass(frozen=True)
class Question:
    """What is to be learned, and on which data.

    Attributes:
        kind: "ddpg" or "bandit".
        config: A run that uses the policy.
        reward: The settings of the reward.
        learning: The settings of the learner.
        episodes: The number of episodes.
    """

    kind: str
    config: RunConfig
    reward: RewardConfig
    learning: LearningConfig
    episodes: int

    @property
    def label(self) -> str:
        """The name of the question on a screen."""
        return f"policy {self.kind} on {self.config.data_name}"

    @property
    def rounds(self) -> int:
        """The rounds of an episode."""
        return self.config.training.rounds

    def to_json(self) -> JsonObject:
        """Return the question as plain data.

        Returns:
            What the manifest has under "policy".
        """
        asked = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        asked |= {key: dataclasses.asdict(asked[key]) for key in ("reward", "learning")}
        return files.plain_object({**asked, "config": self.config.to_json()})

    def is_same(self, there: object) -> bool:
        """Return whether a manifest asks the same, apart from where its files are and how fast they are read.

        Args:
            there: What the manifest has under "policy".

        Returns:
            True if it is the same question.
        """
        if not isinstance(there, dict) or not isinstance(there.get("config"), dict):
            return False
        here = self.to_json()
        both = [{**asked, "config": {**asked["config"], **dict.fromkeys(_ASIDE)}} for asked in (there, here)]
        return both[0] == both[1]


def count_episodes(asked: object, learning: LearningConfig, config: RunConfig) -> int:
    """Return how many episodes there will be.

    Args:
        asked: The number that was asked for; None for the default.
        learning: The settings of the learner.
        config: A run that uses the policy.

    Returns:
        The number.

    Raises:
        InputError: The number cannot be used.
    """
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 1):
        raise InputError(f"episodes={shown(asked)} cannot be used: expected a whole number of at least 1")
    if config.training.rounds < 2:
        raise InputError(
            f"rounds={config.training.rounds} cannot be used: expected at least 2, or there is nothing to "
            "decide by"
        )
    if not isinstance(learning, BanditConfig):
        episodes = EPISODES if asked is None else asked
        if episodes < 2:
            raise InputError(
                f"episodes={episodes} cannot be used with ddpg: expected at least 2; in the first one "
                "nothing is learned yet"
            )
        return int(episodes)
    arms = len(make_arms(learning))
    if asked is not None and asked < arms:
        raise InputError(
            f"episodes={asked} cannot be used: expected at least {arms}, one for every arm; or give fewer "
            "bandit.shares or bandit.chances"
        )
    return min(count_search_episodes(arms), asked or count_search_episodes(arms))


def learning_setting_names() -> list[str]:
    """Return every key of `--set` of `graphfed policy` that concerns learning.

    Returns:
        The keys, with their prefixes.
    """
    configs: dict[str, type[RewardConfig] | type[LearningConfig]] = {"reward": RewardConfig, **KINDS}
    return [f"{prefix}.{f.name}" for prefix, config in configs.items() for f in dataclasses.fields(config)]


def take_settings(
    kind: str, settings: Mapping[str, object]
) -> tuple[RewardConfig, LearningConfig, dict[str, object]]:
    """Separate the settings of the reward, those of the learner, and those of the method and the data.

    Args:
        kind: The kind of policy.
        settings: All settings.

    Returns:
        The settings of the reward, of the learner, and the others by name.

    Raises:
        InputError: A name or a value of the reward or the learner cannot be used.
    """
    prefixes: dict[str, type[RewardConfig] | type[LearningConfig]] = {
        "reward": RewardConfig,
        kind: KINDS[kind],
    }
    given: dict[str, dict[str, object]] = {prefix: {} for prefix in prefixes}
    rest = {}
    for key, value in settings.items():
        prefix, dot, name = str(key).partition(".")
        if not dot or prefix not in ("reward", *KINDS):
            rest[key] = value
            continue
        if prefix not in prefixes:
            raise InputError(
                f"{key} cannot be used: it is a setting of another policy than {kind}; leave it out"
            )
        names = [f.name for f in dataclasses.fields(prefixes[prefix])]
        if name not in names:
            raise InputError(
                f"there is no setting {shown(key)}; {did_you_mean(key, [f'{prefix}.{n}' for n in names])}"
            )
        given[prefix][name] = value
    reward = _made("reward", RewardConfig, given["reward"])
    return reward, _made(kind, KINDS[kind], given[kind]), rest


def _made(prefix: str, config: Callable[..., T], given: Mapping[str, object]) -> T:
    for name, value in given.items():
        if isinstance(value, bool):
            raise InputError(
                f"{prefix}.{name}={value} cannot be used: expected a number or a name, not a truth value"
            )
    try:
        return config(**given)
    except ValidationError as error:
        complaint = error.errors(include_url=False)[0]
        raise InputError(f"{prefix}.{explain_in(complaint, settings_in(config), prefix)}") from None
