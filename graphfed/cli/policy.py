"""`graphfed policy`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import OUTPUT_PANEL, TRAINING_PANEL, SharedOptions, whole_number, with_options
from graphfed.cli.output import command_line, interruption_logged, print_outcome
from graphfed.cli.values import POLICIES, choices, policy_setting_keys

__all__ = ["policy"]


@with_options(
    "data", "clients", "partition", "split", "episodes", "rounds", "seed", "settings", "device", "threads",
    "data_dir", "plugin", "out", "as_json", "progress",
)  # fmt: skip
def policy(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            autocompletion=choices(POLICIES),
            help="What learns: ddpg, as in the paper, or bandit, the best constant policy of a grid.",
        ),
    ],
    *,
    shared: SharedOptions,
    episodes: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            rich_help_panel=TRAINING_PANEL,
            help="Trainings to learn from, each from fresh weights (default: 300; of bandit as many as its "
            "search takes).",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="R",
            rich_help_panel=TRAINING_PANEL,
            help="Communication rounds of an episode (default: 300).",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=policy_setting_keys,
            rich_help_panel=TRAINING_PANEL,
            help="A setting, as often as needed: of fedgraph, of partition and data as for 'graphfed run', "
            "of the reward (reward.target, ...) and of what learns (ddpg.lr, bandit.chances, ...); all of "
            "them: docs/policies.md.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=OUTPUT_PANEL,
            help="Folder to write (default: runs/policy-KIND-DATA-TIME); where it holds this very question, "
            "learning goes on.",
        ),
    ] = None,
) -> None:
    """Learn how much every site of fedgraph is to sample, and write the policy into a file for runs.

    A policy is rewarded for accuracy on the validation nodes, and pays for the modelled time of a round:
    what clients on machines of their own would need. Where one machine does the work of all, sampling saves
    much less wall time, or none. ddpg sees every site's weights after each round; bandit sees nothing. It
    ends with the settings by which runs use the policy. Needs the extra 'rl'.

    Examples:
        graphfed policy ddpg --data cora --clients 20 --partition overlapping
        graphfed policy bandit --rounds 30 --set bandit.chances=0.25,0.5,1
        graphfed policy ddpg --episodes 3 --rounds 5 --set ddpg.batch=4
    Files:
        policy.safetensors   the policy, for policy_file of fedgraph
        manifest.json        what was asked, the reward, seeds, hashes, versions
        episodes.jsonl       a line an episode: return, modelled seconds, ...
        returns.svg          the return of every episode, drawn
        result.json          what came out, with an episode without noise
    See also:
        graphfed run, resume, methods; docs/policies.md
    """
    from graphfed.runs.settings import parse_settings
    from graphfed.studies.policy_learning import learn_policy

    with interruption_logged():
        learned = learn_policy(
            kind,
            **shared.run_options(episodes=episodes, rounds=rounds, out=out),
            settings=parse_settings(settings or ()),
            progress=shared.progress,
            command=command_line(),
        )
    print_outcome(learned, shared.as_json, learned.summary())
