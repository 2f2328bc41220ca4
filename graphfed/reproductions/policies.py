"""The sampling policies of a recipe, which are learned before its runs use them: see `recipe`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.fedgraph.sampling_policies import LEARNED
from graphfed.reproductions.values import folder_name, mapping

__all__ = ["RecipePolicy", "policies_of"]

#: What of learning a recipe may set, beside episodes and settings; the folder is the reproduction's.
OPTIONS_OF_POLICIES = ("data", "clients", "partition", "rounds", "split", "device", "threads", "seed")


@dataclass(frozen=True)
class RecipePolicy:
    """One policy: its kind, "ddpg" or "bandit", and what `learn_policy` is to be asked. episodes: None for as
    many as the kind has. quick_...: what replaces these with --quick."""

    name: str
    kind: str
    episodes: int | None
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    quick_episodes: int | None
    quick_options: Mapping[str, Any]
    quick_settings: Mapping[str, Any]

    @property
    def data(self) -> str:
        """The data set that it is learned on."""
        return str(self.options.get("data", "digits"))

    def quick(self) -> "RecipePolicy":
        """The short version."""
        return replace(
            self,
            episodes=self.quick_episodes,
            options={**self.options, **self.quick_options},
            settings={**self.settings, **self.quick_settings},
        )


def policies_of(where: str, told: Any) -> dict[str, RecipePolicy]:
    """The policies of a recipe by name. InputError for what is no such mapping."""
    found = {}
    for name, content in mapping(f"{where}: policies", told).items():
        named = f"{where}: policies, {folder_name(where, 'the policy', name)}"
        mapping(named, content, ("kind", "quick"), ("episodes", "options", "set"))
        quick = mapping(f"{named}, quick", content["quick"], (), ("episodes", "set", *OPTIONS_OF_POLICIES))
        episodes = _episodes(named, content.get("episodes"))
        if (kind := content["kind"]) not in LEARNED:
            raise InputError(
                f"{named}: unknown kind of policy {shown(kind)}; {did_you_mean(str(kind), LEARNED)}"
            )
        found[name] = RecipePolicy(
            name=name,
            kind=kind,
            episodes=episodes,
            options=mapping(f"{named}, options", content.get("options", {}), (), OPTIONS_OF_POLICIES),
            settings=mapping(f"{named}, set", content.get("set", {})),
            quick_episodes=_episodes(f"{named}, quick", quick.get("episodes", episodes)),
            quick_options={key: value for key, value in quick.items() if key in OPTIONS_OF_POLICIES},
            quick_settings=mapping(f"{named}, quick, set", quick.get("set", {})),
        )
    return found


def _episodes(where: str, told: Any) -> int | None:
    if told is not None and (isinstance(told, bool) or not isinstance(told, int) or told < 1):
        raise InputError(f"{where}: episodes must be a whole number of at least 1 (found {shown(told)})")
    return told
