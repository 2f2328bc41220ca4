"""Holders of one key give a node one name; who lacks the key cannot tell whose it is."""

import numpy as np
import pytest

from graphfed.crypto.keyed_ids import KEY, clients_key, keyed_names, simulated_key
from graphfed.errors import InputError

GOOD = "5f" * 32


def names(key: bytes, purpose: str = "node", count: int = 1000) -> np.ndarray:
    return keyed_names(key, purpose, (str(i).encode() for i in range(count)))


def test_equal_items_have_equal_names_under_one_key_and_one_purpose() -> None:
    key = bytes.fromhex(GOOD)
    assert np.array_equal(names(key), names(key))
    again = keyed_names(key, "node", [b"7", b"3"])
    assert again.tolist() == names(key)[[7, 3]].tolist()


def test_another_key_or_purpose_gives_names_that_have_nothing_in_common() -> None:
    key, other = bytes.fromhex(GOOD), bytes.fromhex("5e" * 32)
    known = names(key)
    assert len(np.unique(known)) == len(known)
    assert not np.isin(names(other), known).any()
    assert not np.isin(names(key, "features"), known).any()


def test_names_look_uniform() -> None:
    """Every bit of 20 000 names is set in half of them: standard deviation 0.0035; 7 of them, 64 bits: false
    alarm below 1e-9."""
    drawn = names(simulated_key(0), count=20_000)
    bits = np.unpackbits(drawn.view(np.uint8).reshape(-1, 8), axis=1).mean(0)
    assert (abs(bits - 0.5) < 7 * 0.0036).all()


def test_the_clients_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, f" {GOOD}\n")
    assert clients_key() == bytes.fromhex(GOOD)


def test_the_old_name_of_the_variable_is_refused_with_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, GOOD)
    monkeypatch.setenv("GRAPHFED_HOLDERS_KEY", GOOD)
    with pytest.raises(InputError, match=f"GRAPHFED_HOLDERS_KEY is now {KEY}; rename it"):
        clients_key()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, f"needs the clients' key, and {KEY} is not set; set"),
        ("", f"needs the clients' key, and {KEY} is not set"),
        (
            "my dog",
            rf"{KEY} has 6 characters and is not a key.*the same 64 hexadecimal digits.*token_hex\(32\)",
        ),
        ("5f" * 16, r"has 32 characters and is not a key"),
        ("5f" * 33, r"has 66 characters and is not a key"),
    ],
)
def test_a_missing_or_short_key_is_reported_with_the_way_to_make_one_and_is_not_shown(
    text: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    if text is not None:
        monkeypatch.setenv(KEY, text)
    with pytest.raises(InputError, match=message) as caught:
        clients_key()
    assert not text or text not in str(caught.value)


def test_the_simulated_key_follows_from_the_seed() -> None:
    assert simulated_key(3) == simulated_key(3) != simulated_key(4)
