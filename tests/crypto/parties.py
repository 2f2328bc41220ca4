"""The parties of the tests over two processes: what each runs with its end of the connection."""

from typing import Any

import numpy as np
from tls_pair import End

from graphfed.crypto import maximum
from graphfed.crypto.compare import compare
from graphfed.crypto.ot import TwoParty
from graphfed.crypto.session import Ended, Party, run_one

Arrays = dict[str, np.ndarray]


def ran(end: End, party: Party[Any]) -> Ended[Any]:
    return run_one(party, end.send, end.receive)


def comparing(first: bool, numbers: dict[int, np.ndarray]) -> Party[dict[int, np.ndarray]]:
    """All batches, by their bits, in one session."""
    session = yield from TwoParty(first=first).set_up()
    found = {}
    for bits, x in numbers.items():
        found[bits] = yield from compare(session, x, bits)
    return found


def all_pairs(bits: int) -> tuple[np.ndarray, np.ndarray]:
    values = np.arange(2**bits, dtype=np.uint32)
    return np.repeat(values, 2**bits), np.tile(values, 2**bits)


def random_pairs(bits: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Equal ones and neighbours among them."""
    draw = np.random.default_rng(bits)
    x, y = (draw.integers(0, 2**bits, count, dtype=np.uint64).astype(np.uint32) for _ in range(2))
    y[: count // 10] = x[: count // 10]
    y[count // 10 : count // 5] = x[count // 10 : count // 5] ^ 1
    return x, y


def batches(first: bool) -> dict[int, np.ndarray]:
    party = 0 if first else 1
    exhaustive = {bits: all_pairs(bits)[party] for bits in range(1, 9)}
    return exhaustive | {bits: random_pairs(bits, 10**5)[party] for bits in (10, 16, 32)}


def compare_second(end: End) -> Arrays:
    found = ran(end, comparing(False, batches(False))).result
    return {str(bits): outcomes for bits, outcomes in found.items()}


def pooling(first: bool, group: np.ndarray, shares: np.ndarray, gradient: np.ndarray) -> Party[Arrays]:
    session = yield from maximum.open_session(first=first, simulated=False)
    plan = maximum.make_plan(group)
    found, chosen = yield from maximum.maxima(session, plan, shares)
    routed = yield from maximum.send_gradients(session, plan, chosen, gradient)
    return {"found": found, "routed": routed, "chosen": np.concatenate(chosen)}


def pool_second(end: End, seed: int, holders: int, nodes: int, width: int) -> Arrays:
    _, group, shares, gradient = pooling_inputs(seed, holders, nodes, width)
    found: Arrays = ran(end, pooling(False, group, shares[1], 0 * gradient)).result
    return found


def pooling_inputs(
    seed: int, holders: int, nodes: int, width: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray]:
    """Numbers [P * U, H] in words, whose node each row is, their two shares, and gradients [U, H] in
    words."""
    draw = np.random.default_rng(seed)
    words = draw.integers(-(2**25), 2**25, (holders * nodes, width), dtype=np.int64).astype(np.int32)
    words[draw.random(words.shape) < 0.05] = -(2**30)
    group = np.tile(np.arange(nodes), holders)
    drawn = draw.integers(0, 2**32, words.shape, dtype=np.uint64).astype(np.uint32)
    gradient = draw.integers(-(2**40), 2**40, (nodes, width), dtype=np.int64).view(np.uint64)
    return words, group, [words.view(np.uint32) - drawn, drawn], gradient


def send_second(end: End, size: int) -> Arrays:
    """A party whose last message nobody reads for a while."""
    end.send(b"ready")
    end.send(bytes(size))
    return {}


def fail_second(end: End) -> Arrays:
    """A party that takes one message and fails."""
    end.receive()
    raise ValueError("the second party cannot go on")
