"""Sums and products under encryption: what they are off by, what is refused, what a server can read."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphfed.crypto.ckks import (
    PARAMETERS,
    PUBLIC_BYTES,
    Evaluator,
    Grid,
    KeyOwner,
    Layout,
    members_of,
    parameters,
)
from graphfed.crypto.ckks_ideal import IdealEvaluator, IdealKeyOwner, read_plaintext
from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError

pytest.importorskip("tenseal", reason="encryption needs the extra secure")

NAMES = tuple(PARAMETERS)
SUM, PRODUCT = PARAMETERS["sum"], PARAMETERS["product"]


@pytest.fixture(scope="module")
def holders() -> dict[str, KeyOwner]:
    return {name: KeyOwner.make(name) for name in NAMES}


@pytest.fixture(scope="module")
def evaluators(holders: dict[str, KeyOwner]) -> dict[str, Evaluator]:
    return {name: Evaluator.load(name, holder.public()) for name, holder in holders.items()}


def cut(cell: np.ndarray, length: int) -> np.ndarray:
    """A padded message whose contents are cut to `length` bytes."""
    short = np.zeros_like(cell)
    short[:4] = np.frombuffer(length.to_bytes(4, "little"), dtype=np.uint8)
    short[4 : 4 + length] = cell[4 : 4 + length]
    return short


# ---- sums


def test_the_sum_of_169_terms_is_exact_on_the_grid_and_within_its_error(holders, evaluators):
    """Exact beside numpy's sum of the rounded numbers; half a step a term off that of the numbers."""
    grid, rng = Grid(169), np.random.default_rng(0)
    x = rng.uniform(-1, 1, (169, SUM.slots))
    sealed = holders["sum"].encrypt(grid.round(x))
    (total,) = grid.settle(holders["sum"].decrypt(evaluators["sum"].add(sealed, np.zeros(169, int), 1)))
    assert (total == grid.round(x).sum(0)).all()
    assert np.abs(total - x.sum(0)).max() <= grid.error
    assert grid.error < 0.011
    # Half a step for each of 10 clients.
    assert Grid(10).error < 8e-5


def test_numbers_of_float32_are_rounded_to_float64():
    """2^20 + 2^-4 is a number of float32, and the sum of two such is none."""
    x = np.full(2, 2.0**20 + 2.0**-4, dtype=np.float32)
    rounded = Grid(3).round(x)
    assert rounded.dtype == np.float64
    assert (rounded == x.astype(np.float64)).all()


@pytest.mark.parametrize("terms", [1, 30])
def test_the_noise_is_what_the_grid_takes_it_for(terms, holders, evaluators):
    """The standard deviation over 2048 * 20 slots: its own error is 0.4 %."""
    x = np.zeros((terms * 20, SUM.slots))
    sums = evaluators["sum"].add(holders["sum"].encrypt(x), np.arange(len(x)) % 20, 20)
    noise = holders["sum"].decrypt(sums).std() / np.sqrt(terms)
    assert 0.9 * Grid.NOISE < noise < 1.02 * Grid.NOISE
    assert noise * Grid.MARGIN * np.sqrt(terms) < Grid(terms).step / 4


def test_numbers_up_to_the_limit_come_back_and_larger_ones_are_refused(holders):
    grid = Grid(1)
    largest = np.full((1, SUM.slots), SUM.largest - 1)  # all of it in one coefficient
    assert (grid.settle(holders["sum"].decrypt(holders["sum"].encrypt(largest))) == largest).all()
    for bad in (SUM.largest, -SUM.largest, np.nan, np.inf):
        x = np.zeros((1, SUM.slots))
        x[0, 7] = bad
        with pytest.raises(InputError, match=r"cannot be encrypted"):
            holders["sum"].encrypt(x)
        with pytest.raises(InputError, match=r"cannot be encrypted in a sum of 1: .* below 4.1943e\+06"):
            grid.round(x)
    with pytest.raises(InputError, match=r"below 1\.04858e"):
        Grid(4).round(np.full(3, SUM.largest / 4))
    with pytest.raises(InputError, match="a sum of 1000000 ciphertexts"):
        Grid(10**6)


def test_results_do_not_depend_on_the_key_or_the_noise():
    x = np.random.default_rng(1).normal(size=(6, SUM.slots))
    grid, found = Grid(3), []
    for _ in range(2):
        holder = KeyOwner.make("sum")
        sums = Evaluator.load("sum", holder.public()).add(holder.encrypt(grid.round(x)), np.arange(6) % 2, 2)
        found.append(holder.decrypt(sums))
    assert (found[0] != found[1]).any(), "with the noise they differ"
    assert (grid.settle(found[0]) == grid.settle(found[1])).all()


def test_the_ideal_form_gives_the_same_sums_to_the_bit_and_the_same_number_of_bytes(holders, evaluators):
    grid, group = Grid(4), np.array([0, 1, 0, 2, 1, 0])
    x = grid.round(np.random.default_rng(2).normal(size=(6, SUM.slots)))
    ideal = IdealKeyOwner.make("sum")
    real_sums = evaluators["sum"].add(holders["sum"].encrypt(x), group, 3)
    ideal_sums = IdealEvaluator.load("sum", ideal.public()).add(ideal.encrypt(x), group, 3)
    assert real_sums.shape == ideal_sums.shape
    assert (grid.settle(holders["sum"].decrypt(real_sums)) == grid.settle(ideal.decrypt(ideal_sums))).all()
    for name, holder in holders.items():
        ideal = IdealKeyOwner.make(name)
        assert ideal.secret().shape == holder.secret().shape
        assert ideal.public().shape == holder.public().shape
    assert (KeyOwner.protection, IdealKeyOwner.protection) == ("encrypted", "simulated")
    assert (Evaluator.protection, IdealEvaluator.protection) == ("encrypted", "simulated")


# ---- products


def test_weighted_sums_are_within_the_stated_error_and_the_ideal_form_of_them_too(holders, evaluators):
    rng = np.random.default_rng(3)
    x = rng.normal(0, 3, (12, PRODUCT.slots))
    weights = sp.random(5, 12, 0.4, format="lil", random_state=4)
    weights[2, 3] = -7.5 / 40
    weights = weights.tocsr() * 40
    sealed = evaluators["product"].weighted(holders["product"].encrypt(x), weights)
    assert sealed.shape == (5, PRODUCT.product_bytes)
    allowed = 2e-7 * (abs(weights) @ np.abs(x)) + 1e-8 * np.diff(weights.tocsr().indptr)[:, None]
    assert (np.abs(holders["product"].decrypt(sealed) - weights @ x) <= allowed).all()
    ideal = IdealKeyOwner.make("product")
    same = IdealEvaluator.load("product", ideal.public()).weighted(ideal.encrypt(x), weights)
    assert same.shape == sealed.shape
    assert np.abs(ideal.decrypt(same) - weights @ x).max() < 1e-9


def test_products_at_the_limit_are_right(holders, evaluators):
    """Where the scale could not carry a result it would wrap and be anything."""
    x = np.full((2, PRODUCT.slots), PRODUCT.largest - 1)
    weights = sp.csr_matrix([[PRODUCT.weight / 2, PRODUCT.weight / 2]])
    (result,) = holders["product"].decrypt(
        evaluators["product"].weighted(holders["product"].encrypt(x), weights)
    )
    exact = (PRODUCT.largest - 1) * PRODUCT.weight
    assert np.abs(result - exact).max() <= 2e-7 * exact + 2e-8


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([[0.5, 0.0], [0.0, 0.0]], "row 1 of the weights is all zero"),
        ([[200.0, -57.0]], "add up to 257, and at most 256"),
        ([[np.nan, 1.0]], "a weight of size nan"),
        ([[1e-12, 1.0]], "a weight of size 1e-12 is below the noise"),
        ([[1.0, 1.0, 1.0]], "weights for 3 ciphertexts were given, and there are 2"),
    ],
)
def test_weights_that_would_give_wrong_numbers_are_refused(weights, words, holders, evaluators):
    sealed = holders["product"].encrypt(np.zeros((2, PRODUCT.slots)))
    with pytest.raises(InputError, match=words):
        evaluators["product"].weighted(sealed, sp.csr_matrix(weights))


def test_stored_zeros_among_the_weights_are_no_weights(holders, evaluators):
    """An algorithm on sparse matrices leaves them; as weights they would be refused as too small."""
    x = np.arange(2 * PRODUCT.slots, dtype=np.float64).reshape(2, -1) / PRODUCT.slots
    stored = sp.csr_matrix((np.array([0.5, 0.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    holder, evaluator = holders["product"], evaluators["product"]
    (result,) = holder.decrypt(evaluator.weighted(holder.encrypt(x), stored))
    assert np.abs(result - x[0] / 2).max() < 1e-5
    nothing = sp.csr_matrix((np.zeros(1), np.zeros(1, int), np.array([0, 1])), shape=(1, 2))
    with pytest.raises(InputError, match="row 0 of the weights is all zero"):
        evaluator.weighted(holder.encrypt(x), nothing)


@pytest.mark.parametrize("width", [PRODUCT.slots // 2, PRODUCT.slots + 1])
def test_two_weights_of_one_number_add_up_in_every_form(width, holders, evaluators):
    layout = Layout(width, PRODUCT.slots)
    x = np.random.default_rng(5).normal(size=(2, width))
    twice = sp.csr_matrix((np.array([0.5, 2.0, 0.25]), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    at = np.zeros(1, dtype=int)
    ideal = IdealKeyOwner.make("product")
    forms = (
        (ideal, IdealEvaluator.load("product", ideal.public())),
        (holders["product"], evaluators["product"]),
    )
    for owner, evaluator in forms:
        sealed = owner.encrypt(layout.repeat(x))
        rows = layout.unpack(owner.decrypt(evaluator.weighted_rows(sealed, twice, at, at, layout)), at, at)
        assert np.abs(rows - (2 * x[0] + 0.75 * x[1])).max() < 1e-5


def test_the_set_for_sums_refuses_to_multiply(holders, evaluators):
    sealed = holders["sum"].encrypt(np.zeros((1, SUM.slots)))
    with pytest.raises(InputError, match="use the set 'product'"):
        evaluators["sum"].weighted(sealed, sp.csr_matrix([[2.0]]))


def test_there_are_no_other_parameters():
    assert {(p.degree, p.primes, p.scale_bits) for p in PARAMETERS.values()} == {
        (4096, (54, 54), 30),
        (8192, (60, 40, 60), 40),
    }
    # The homomorphic encryption standard's table for 128 bits of security.
    assert all(sum(p.primes) <= {4096: 109, 8192: 218}[p.degree] for p in PARAMETERS.values())
    for make in (KeyOwner.make, IdealKeyOwner.make, parameters):
        with pytest.raises(InputError, match=r"no parameter set named 'summ'; did you mean 'sum'\?"):
            make("summ")


# ---- what the server has


@pytest.mark.parametrize("name", NAMES)
def test_a_context_that_carries_a_secret_key_is_refused_by_the_server(name, holders):
    with pytest.raises(ProtocolError, match="carries a secret key"):
        Evaluator.load(name, holders[name].secret())


@pytest.mark.parametrize("name", NAMES)
def test_the_servers_context_opens_nothing_and_is_the_same_for_every_key(name, holders, evaluators):
    with pytest.raises(ProtocolError):
        KeyOwner.from_secret(name, holders[name].public())
    assert (holders[name].public() == KeyOwner.make(name).public()).all()
    sealed = holders[name].encrypt(np.zeros((1, parameters(name).slots)))
    opened = KeyOwner(parameters(name), evaluators[name]._context)
    with pytest.raises(ValueError, match="doesn't hold a secret_key"):
        opened.decrypt(sealed)


def test_two_encryptions_of_the_same_numbers_have_nothing_in_common(holders):
    """Beyond headers: of bytes in the same place that are random and compressed, 1 of 256 is alike and a few
    more that the compression fixes."""
    one, two = holders["sum"].encrypt(np.zeros((2, SUM.slots)))
    body = slice(200, 61_000)
    assert (one[body] == two[body]).mean() < 0.05


def test_a_secret_goes_to_another_holder_and_any_other_secret_gives_an_error_not_numbers(holders):
    other = KeyOwner.from_secret("sum", holders["sum"].secret())
    x = Grid(1).round(np.random.default_rng(5).normal(size=(1, SUM.slots)))
    sealed = other.encrypt(x)
    assert (Grid(1).settle(holders["sum"].decrypt(sealed)) == x).all()
    with pytest.raises(ProtocolError, match="damaged, or was made with another key"):
        Grid(1).settle(KeyOwner.make("sum").decrypt(sealed))


@pytest.mark.parametrize("name", NAMES)
def test_every_ciphertext_context_and_secret_has_its_sets_number_of_bytes(name, holders, evaluators):
    chosen = parameters(name)
    rng = np.random.default_rng(6)
    sealed = holders[name].encrypt(
        np.stack([np.zeros(chosen.slots), rng.normal(size=chosen.slots), np.full(chosen.slots, 1000.0)])
    )
    assert sealed.shape == (3, chosen.ciphertext_bytes)
    assert evaluators[name].add(sealed, np.array([0, 0, 0]), 1).shape == (1, chosen.ciphertext_bytes)
    assert holders[name].secret().shape == (chosen.secret_bytes,)
    assert holders[name].public().shape == (PUBLIC_BYTES,)


def test_sizes_before_padding_leave_room_for_eight_times_their_spread(holders, evaluators):
    """Secrets: what they take uncompressed, a word of 8 bytes for every coefficient and prime."""
    for name, count in (("sum", 200), ("product", 100)):
        chosen = parameters(name)
        assert chosen.secret_bytes > 8 * chosen.degree * len(chosen.primes) + 400
        sealed = holders[name].encrypt(np.zeros((count, chosen.slots)))
        made = [(sealed, chosen.ciphertext_bytes)]
        if chosen.product_bytes is not None:
            made.append((evaluators[name].weighted(sealed, sp.identity(count)), chosen.product_bytes))
        for cells, size in made:
            lengths = np.array([int.from_bytes(cell[:4].tobytes(), "little") for cell in cells])
            assert lengths.max() + 8 * lengths.std() + 4 < size


# ---- damage

PARTS = st.sampled_from(["start", "anywhere", "length", "padding", "cut"])


def damaged(cell: np.ndarray, part: str, position: float, value: int) -> np.ndarray:
    length = int.from_bytes(cell[:4].tobytes(), "little")
    broken = cell.copy()
    match part:
        case "cut":
            return cut(cell, int(position * length))
        case "start":
            at = 4 + int(position * 100)
        case "length":
            at = int(position * 4)
        case "padding":
            at = 4 + length + int(position * (len(cell) - 4 - length))
        case _:
            at = 4 + int(position * length)
    broken[at] = (int(broken[at]) + value) % 256
    return broken


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=PARTS, position=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_damaged_ciphertext_ends_with_one_error_and_never_with_a_wrong_sum(
    part, position, value, holders, evaluators
):
    """One byte changed, or cut off: refused on arrival, or when what was decrypted is on no grid. Where the
    change was undone by the format (a flag that nobody reads) the numbers are right."""
    x = Grid(2).round(np.random.default_rng(7).normal(size=(2, SUM.slots)))
    sealed = holders["sum"].encrypt(x)
    sealed[0] = damaged(sealed[0], part, position, value)
    try:
        sums = evaluators["sum"].add(sealed, np.zeros(2, int), 1)
        (found,) = Grid(2).settle(holders["sum"].decrypt(sums))
    except ProtocolError:
        return
    assert (found == x.sum(0)).all()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    what=st.sampled_from(["secret", "public"]),
    part=PARTS,
    position=st.floats(0, 1, exclude_max=True),
    value=st.integers(1, 255),
)
def test_a_damaged_context_is_refused_or_has_the_same_parameters(what, part, position, value, holders):
    cell = damaged(getattr(holders["sum"], what)(), part, position, value)
    try:
        if what == "public":
            context = Evaluator.load("sum", cell)._context
        else:
            context = KeyOwner.from_secret("sum", cell)._context
    except ProtocolError:
        return
    assert context.has_secret_key() == (what == "secret")
    assert context.global_scale == 2.0**30


def test_messages_of_the_other_set_are_refused(holders, evaluators):
    with pytest.raises(ProtocolError, match="a secret key of 197500 bytes"):
        KeyOwner.from_secret("sum", holders["product"].secret())
    with pytest.raises(ProtocolError, match="other parameters than the set 'sum'"):
        Evaluator.load("sum", holders["product"].public())
    (sealed,) = holders["product"].encrypt(np.zeros((1, PRODUCT.slots)))
    with pytest.raises(ProtocolError, match="and a fresh ciphertext has"):
        evaluators["sum"].add(sealed[None], np.zeros(1, int), 1)
    with pytest.raises(ProtocolError):
        holders["sum"].decrypt(sealed[None])


def test_a_context_with_a_public_key_of_a_stranger_is_refused():
    """Other parameters in the same form: a scale of 2^20."""
    import tenseal as ts

    from graphfed.crypto.ckks import padded_cells

    stranger = ts.context(ts.SCHEME_TYPE.CKKS, 4096, -1, [54, 54], ts.ENCRYPTION_TYPE.SYMMETRIC, n_threads=1)
    stranger.global_scale = 2.0**20
    text = stranger.serialize(
        save_public_key=False, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
    )
    with pytest.raises(ProtocolError, match="other parameters"):
        Evaluator.load("sum", padded_cells(text, PUBLIC_BYTES))


def test_a_group_without_a_ciphertext_is_an_error(holders, evaluators):
    sealed = holders["sum"].encrypt(np.zeros((2, SUM.slots)))
    with pytest.raises(ProtocolError, match="each of 3 groups needs at least one"):
        evaluators["sum"].add(sealed, np.array([0, 2]), 3)
    with pytest.raises(ProtocolError, match="each of 2 groups needs at least one"):
        evaluators["sum"].add(sealed, np.array([0, 2]), 2)


def test_the_members_of_a_group_are_ascending():
    """Sums of floats, in the ideal form, are so the same in every placement."""
    group = np.random.default_rng(3).integers(0, 3, 1000)
    for number, members in enumerate(members_of(group, 3)):
        assert np.array_equal(members, np.flatnonzero(group == number))


def test_no_ciphertexts_are_no_sums(holders, evaluators):
    none = holders["sum"].encrypt(np.zeros((0, SUM.slots)))
    assert evaluators["sum"].add(none, np.zeros(0, int), 0).shape == (0, SUM.ciphertext_bytes)
    assert holders["sum"].decrypt(none).shape == (0, SUM.slots)
    ideal = IdealKeyOwner.make("sum")
    none = ideal.encrypt(np.zeros((0, SUM.slots)))
    sums = IdealEvaluator.load("sum", ideal.public()).add(none, np.zeros(0, int), 0)
    assert none.shape == sums.shape == (0, SUM.ciphertext_bytes)


def test_a_real_ciphertext_is_no_simulated_one_and_the_other_way_round(holders):
    x = np.ones((1, SUM.slots))
    with pytest.raises(ProtocolError):
        read_plaintext(SUM, holders["sum"].encrypt(x))
    with pytest.raises(ProtocolError):
        holders["sum"].decrypt(IdealKeyOwner.make("sum").encrypt(x))


def test_the_ideal_form_refuses_what_the_real_one_refuses():
    ideal = IdealKeyOwner.make("sum")
    with pytest.raises(ProtocolError, match="a secret key of 197500 bytes"):
        IdealKeyOwner.from_secret("sum", IdealKeyOwner.make("product").secret())
    with pytest.raises(ProtocolError, match=r"a server's context of .* bytes"):
        IdealEvaluator.load("sum", ideal.public()[:-1])
    with pytest.raises(InputError, match="cannot be encrypted"):
        ideal.encrypt(np.full((1, SUM.slots), SUM.largest))


# ---- packing


@given(width=st.integers(1, 5000), count=st.integers(0, 40), seed=st.integers(0, 1000))
def test_rows_come_out_of_their_places_as_they_went_in(width, count, seed):
    layout = Layout(width, SUM.slots)
    assert layout.rows == 1 or layout.pieces == 1
    assert layout.rows * width <= layout.pieces * layout.slots
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, width))
    at = np.sort(rng.permutation(2 * count * layout.rows)[:count]) if count else np.zeros(0, int)
    unit, place = at // layout.rows, at % layout.rows
    units = int(unit.max(initial=-1)) + 1
    slots = layout.pack(rows, unit, place, units)
    assert slots.shape == (units * layout.pieces, layout.slots)
    assert (layout.unpack(slots, unit, place) == rows).all()
    assert np.abs(slots).sum() == pytest.approx(np.abs(rows).sum())


@pytest.mark.parametrize("width", [900, 5000])
def test_a_place_that_a_unit_does_not_have_is_neither_written_nor_read(width):
    layout, unit = Layout(width, SUM.slots), np.zeros(1, dtype=int)
    with pytest.raises(IndexError):
        layout.pack(np.ones((1, width)), unit, unit + layout.rows, 1)
    with pytest.raises(IndexError):
        layout.unpack(np.ones((layout.pieces, layout.slots)), unit, unit + layout.rows)


def test_narrow_rows_share_a_ciphertext_and_wide_ones_take_several():
    assert Layout(65, 2048).ciphertexts(1797) == 58
    assert Layout(1434, 2048).ciphertexts(10) == 10
    assert Layout(4096, 2048).ciphertexts(10) == 20
    assert Layout(4097, 2048).ciphertexts(10) == 30


# ---- the library


@pytest.mark.slow
def test_importing_graphfed_and_running_a_simulation_do_not_load_the_library():
    code = (
        "import sys, graphfed\n"
        "settings = {'exchange': 'encrypted', 'protocols': 'simulated'}\n"
        "graphfed.run('fedgcn', rounds=1, clients=2, out=False, settings=settings)\n"
        "assert 'tenseal' not in sys.modules and 'dp_accounting' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(InputError, match=r"pip install '\.\[secure\]'"):
        KeyOwner.make("sum")
