"""`graphfed policy`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import SharedOptions, whole_number, with_options
from graphfed.cli.output import command_line, interruption_logged, print_outcome
from graphfed.cli.values import setting_keys
from graphfed.tasks.run_options import OUTPUT_PANEL, TRAINING_PANEL


def policy_setting_keys(incomplete: str) -> list[str]:
    """Complete a key of ``--set``, followed by "=": of a run, of the reward or of DDPG."""
    from graphfed.methods.fedgraph.policy.settings import learning_setting_names

    keys = [f"{key}=" for key in learning_setting_names()]
    return [*setting_keys(incomplete), *(key for key in keys if key.startswith(incomplete))]


@with_options(
    "data", "clients", "partition", "split", "episodes", "rounds", "seed", "settings", "device", "threads",
    "data_dir", "plugin", "out", "as_json", "progress",
)  # fmt: skip
def policy(
    *,
    shared: SharedOptions,
    episodes: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            rich_help_panel=TRAINING_PANEL,
            help="Number of episodes. An episode is a training from fresh weights (default: 300).",
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
            help="A setting: of fedgraph, of the partition or the data as for 'graphfed run', of the reward "
            "(reward.target, ...) or of DDPG (ddpg.lr, ...). docs/policies.md lists all. Give the option "
            "once per setting.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=OUTPUT_PANEL,
            help="Folder to write (default: runs/policy-DATA-TIME). If it has the same learning with "
            "the same options, unfinished, learning continues.",
        ),
    ] = None,
) -> None:
    """Learn how much every client of fedgraph should sample, and save the policy for runs.

    The reward of a policy is the accuracy on the validation nodes minus a cost for the modelled time of a
    round: the time that clients on machines of their own would need. On a single machine that computes for
    all clients, sampling saves much less wall time, or none. The policy sees the weights of every client
    after each round and is learned by DDPG, as in the paper. The command ends with the settings with which a
    run uses the policy. It needs the extra 'rl'.

    Examples:

        graphfed policy --data cora --clients 20 --partition overlapping
        graphfed policy --episodes 3 --rounds 5 --set ddpg.batch=4

    Files:

        policy.safetensors   the policy, for policy_file of fedgraph
        manifest.json        options, the reward, seeds, hashes, versions
        episodes.jsonl       one line per episode: return, modelled seconds, ...
        returns.svg          a chart of the return of every episode
        result.json          the result, with an episode without noise

    See also: graphfed run, resume, methods; docs/policies.md
    """
    from graphfed.methods.fedgraph.policy.learning import learn_policy
    from graphfed.runs.settings import parse_settings

    with interruption_logged():
        learned = learn_policy(
            **shared.run_options(episodes=episodes, rounds=rounds, out=out),
            settings=parse_settings(settings or ()),
            progress=shared.progress,
            command=command_line(),
        )
    print_outcome(learned, shared.as_json, learned.summary())
