"""One device of a run that has per-client statistics (`Method.client_statistics`): what it sent to whom, and
what it disclosed. Of many sites a page can only show sums; this is the line of one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphfed.errors import InputError
from graphfed.federation.ledger import is_simulated
from graphfed.methods.registry import METHODS
from graphfed.report.read import Run
from graphfed.runs.progress import human_bytes

__all__ = ["device_of", "device_told", "worst_told"]

#: Columns of the account that count to whom a device sends, in words.
RECEIVERS = {
    "neighbours": ("its neighbour", "its {} neighbours"),
    "kept": ("the neighbour that it keeps", "the {} neighbours that it keeps"),
    "receivers": ("the neighbour that keeps it", "the {} neighbours that keep it"),
}


def device_of(run: Run, wanted: int | None) -> int:
    """The device that is shown: the one asked for, else the one with the largest epsilon against all its
    receivers together, then with the most neighbours.

    InputError for a run without an account, and a device that it does not have."""
    accounts = run.accounts
    if accounts is None:
        raise InputError(
            f"the run in {run.folder} keeps no account of single devices (clients.parquet), and device "
            f"{wanted} cannot be shown; {run.result.method} writes none"
        )
    count = len(accounts["client"])
    if wanted is None:
        order = [accounts[name] for name in ("neighbours", "epsilon_colluding") if name in accounts]
        return int(np.lexsort([-accounts["client"], *order])[-1])
    if not 0 <= wanted < count:
        raise InputError(f"the run in {run.folder} has no device {wanted}; give one from 0 to {count - 1}")
    return wanted


def device_told(run: Run, device: int, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What one device sent and gave away: `sentences`, and `rows` of a table. lines: the transfers that leave
    the clients, with the bytes of each client (`sites`)."""
    assert run.accounts is not None
    own = {name: column[device].item() for name, column in run.accounts.items()}
    rows = []
    for line in lines:
        if len(line["sites"]) <= device or not line["sites"][device]:
            continue
        to, messages = _receivers(run, line, own)
        rows.append({**line, "bytes": human_bytes(line["sites"][device]), "to": to, "messages": messages})
    return {"device": device, "sentences": _sentences(run, own), "rows": rows}


def _receivers(run: Run, line: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, str]:
    """To whom a device sends in a transfer, and how many messages: exact where the ledger's messages are
    those of every device to all its receivers, else at most so many."""
    accounts = run.accounts
    assert accounts is not None
    times, everyone = line["times"], len(accounts["client"])
    if line["link"] == "site to server":
        return "the server", _at_most(times, line["messages"] == times * everyone)
    method = METHODS.find(run.result.method)
    column = "" if method is None else method.sends.recipients.get(line["name"], "")
    if column not in own:
        return "other devices", "-"
    one, many = RECEIVERS.get(column, ("another device", "{} others"))
    to = one if own[column] == 1 else many.format(f"{own[column]:,}")
    return to, _at_most(times * own[column], line["messages"] == times * int(accounts[column].sum()))


def _at_most(messages: int, exact: bool) -> str:
    return f"{messages:,}" if exact else f"at most {messages:,}"


def _sentences(run: Run, own: Mapping[str, Any]) -> list[str]:
    settings = run.manifest["config"]["training"]
    told = []
    if {"neighbours", "kept", "receivers"} <= set(own):
        told.append(
            f"Device {own['client']} has {_count(own['neighbours'], 'neighbour')}: it keeps {own['kept']:,} "
            f"of them, and is kept by {own['receivers']:,}."
        )
    if {"feature_bits", "receivers", "epsilon", "epsilon_colluding"} <= set(own):
        told.append(_features(own))
        if own["feature_bits"] and settings.get("noise_seed") is not None:
            told.append("The noise is seeded: simulated, and no protection, as the seed takes it off again.")
    if "comparisons" in own:
        told.append(
            f"It took part in {_count(own['comparisons'], 'comparison')} with its "
            f"{_count(own.get('neighbours', 0), 'neighbour')}. Of each both ends learned the outcome: so "
            "many outcomes it learned, and so many it revealed."
        )
        simulated = any(e["kind"] == "protocol" and is_simulated(e["protection"]) for e in run.entries)
        if own["comparisons"] and simulated:
            told.append(
                "The comparisons of this run are simulated: outcomes and bytes are those of the protocol, "
                "and nothing was hidden."
            )
    if own.get("embeddings"):
        told.append(
            f"In every round it sends and gets {_count(own['embeddings'], 'embedding')}. Those that it sends "
            "are made from its features as they are: no epsilon covers them, and from many rounds a single "
            "receiver may work the features out (graphfed audit tries it)."
        )
    return told


def _features(own: Mapping[str, Any]) -> str:
    if not own["receivers"]:
        return "No neighbour keeps it, so it sent no bit of its features."
    whom = RECEIVERS["receivers"][own["receivers"] != 1].format(f"{own['receivers']:,}")
    return (
        f"It sent {_count(own['feature_bits'], 'noised bit')} of its features to {whom}, each a part: "
        f"against each alone epsilon is {own['epsilon']:g}, against all together "
        f"{own['epsilon_colluding']:g}."
    )


def worst_told(run: Run) -> str:
    """The largest epsilons of all devices, in a sentence; empty where the account has none."""
    accounts = run.accounts
    if accounts is None or not {"epsilon", "epsilon_colluding"} <= set(accounts):
        return ""
    return (
        f"Of all {len(accounts['client']):,} devices: for the features that a device sends, epsilon is at "
        f"most {accounts['epsilon'].max():g} against one receiver, and at most "
        f"{accounts['epsilon_colluding'].max():g} against all its receivers together."
    )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")
