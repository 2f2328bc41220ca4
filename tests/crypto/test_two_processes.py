"""The protocols between two processes that have nothing in common but a TLS connection."""

import ssl
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="secure protocols need the extra 'secure'")

from parties import all_pairs, batches, comparing, pooling, pooling_inputs, ran, random_pairs
from tls_pair import End, accept, certify, connect, listen, run_apart


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    certify(folder, "first", "second")
    return folder


@pytest.mark.slow
def test_every_pair_up_to_8_bits_and_100_000_of_10_16_and_32_have_the_right_outcome_at_both(
    certificates: Path,
) -> None:
    first, second = run_apart(
        certificates, lambda end: ran(end, comparing(True, batches(True))).result, "parties:compare_second"
    )
    for bits, outcomes in first.items():
        x, y = all_pairs(bits) if bits <= 8 else random_pairs(bits, 10**5)
        assert np.array_equal(outcomes, np.sign(x.astype(np.int64) - y))
        assert np.array_equal(second[str(bits)], outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("holders", [2, 3, 5])
def test_maxima_of_2708_by_64_numbers_and_the_way_of_their_gradients_are_right_and_stay_shared(
    certificates: Path, holders: int
) -> None:
    size = {"seed": holders, "holders": holders, "nodes": 2708, "width": 64}
    words, group, shares, gradient = pooling_inputs(**size)
    first, second = run_apart(
        certificates,
        lambda end: ran(end, pooling(True, group, shares[0], gradient)).result,
        "parties:pool_second",
        **size,
    )
    stacked = words.reshape(holders, 2708, 64)
    assert np.array_equal(first["found"].view(np.int32), stacked.max(0))
    won = np.arange(holders)[:, None, None] == stacked.argmax(0)
    routed = (first["routed"] + second["routed"]).reshape(won.shape)
    assert np.array_equal(routed, won * gradient)
    # Who won is in neither's hands: half of each one's bits are ones, whoever has the larger numbers.
    for party in (first, second):
        assert abs(party["chosen"].mean() - 0.5) < 0.01


@pytest.mark.slow
def test_the_last_message_of_a_party_that_has_ended_arrives(certificates: Path) -> None:
    """More bytes than fit in the socket of who reads, so that some wait in that of a sender that is done."""

    def read_late(end: End) -> int:
        assert end.receive() == b"ready"
        time.sleep(1)
        return len(end.receive())

    assert run_apart(certificates, read_late, "parties:send_second", size=10**6)[0] == 10**6


def test_a_party_whose_other_fails_reports_why(certificates: Path) -> None:
    def send_and_wait(end: End) -> bytes:
        end.send(b"a message")
        return end.receive()

    with pytest.raises(
        RuntimeError, match=r"ended with 1:\n(.|\n)*ValueError: the second party cannot go on"
    ):
        run_apart(certificates, send_and_wait, "parties:fail_second")


def test_a_certificate_of_another_authority_is_refused_at_once(certificates: Path, tmp_path: Path) -> None:
    certify(tmp_path, "second")
    foreign = tmp_path / "mixed"
    foreign.mkdir()
    (foreign / "authority.crt").write_bytes((certificates / "authority.crt").read_bytes())
    for ending in ("crt", "key"):
        (foreign / f"second.{ending}").write_bytes((tmp_path / f"second.{ending}").read_bytes())
    ended: list[OSError] = []

    def join(port: int) -> None:
        try:
            end = connect(port, foreign, "second")
        except OSError as error:
            ended.append(error)
            return
        try:
            end.receive()
        except OSError as error:
            ended.append(error)
        finally:
            end.close()

    with listen() as listener:
        thread = threading.Thread(target=join, args=listener.getsockname()[1:], daemon=True)
        thread.start()
        with pytest.raises(ssl.SSLError, match=r"certificate verify failed|CERTIFICATE_UNKNOWN"):
            accept(listener, certificates, "first")
    thread.join(10)
    assert not thread.is_alive()
    assert ended
