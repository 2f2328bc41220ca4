"""The form of texts that identify nodes, clients, labels and parts of a split, the same for every reader.

The text of a value does not depend on the type or the program that wrote it: 1000 and 1000.0 are "1000", True
and true are "true", and é has one form in Unicode. A missing value is "", in each of its usual spellings
(`MISSING`). Leading zeros are kept, because codes have them: 007 is not 7. A whole number that a float cannot
hold exactly is refused, because its last digits are those of another number.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from graphfed.errors import shown

if TYPE_CHECKING:
    import pyarrow as pa

    Texts: TypeAlias = pa.Array | pa.ChunkedArray
    #: A function (row, value, what is wrong, fix) that raises InputError.
    Refuse: TypeAlias = Callable[[int, object, str, str], NoReturn]

#: The spellings of a missing value, those that pandas reads as missing by default.
MISSING = (
    "", "NaN", "nan", "-NaN", "-nan", "NA", "<NA>", "#NA", "N/A", "n/a", "#N/A", "#N/A N/A", "NULL", "null",
    "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
)  # fmt: skip
#: Names of classes, in lower case, that often mean that the label is not known.
_DOUBTFUL = {text.lower() for text in MISSING if text} | {
    "unknown", "unlabeled", "unlabelled", "undefined", "missing", "not available", "not labeled",
    "not labelled", "?", "-", "--", ".", "-1",
}  # fmt: skip
_WHOLE = r"^(-?(?:0|[1-9][0-9]*))\.0+$"
_SCIENTIFIC = r"^-?[0-9](\.[0-9]+)?[eE]\+[0-9]+$"
_INFINITE = ("inf", "-inf", "+inf")
_BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}
#: Floats represent all whole numbers below 2^53 exactly.
_EXACT = 2**53


def canonical_texts(values: "Texts", refuse: "Refuse | None", missing: Sequence[str] = MISSING) -> "Texts":
    """Convert texts, numbers, booleans or times to their canonical texts, "" for those that mean a missing
    value.

    `refuse` raises for a value that has no exact text; None keeps such a value. An ArrowException means that
    the type has no text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _float_texts(values, refuse) if pa.types.is_floating(values.type) else values.cast(pa.string())
    # Missing values are texts from here on, because comparisons with null give null.
    texts = pc.utf8_trim_whitespace(pc.fill_null(texts, ""))
    if not pc.all(pc.string_is_ascii(texts)).as_py():
        texts = pc.utf8_normalize(texts, form="NFC")
    # Nearly all columns have none of these texts, and a search for a character is faster than a pattern.
    if pc.any(pc.is_in(texts, pa.array([*_INFINITE, *_BOOLEANS]))).as_py():
        _refuse_first(pc.is_in(texts, pa.array(_INFINITE)), texts, refuse, "is no finite value", "correct it")
        for word, text in _BOOLEANS.items():
            texts = pc.if_else(pc.equal(texts, word), text, texts)
    if pc.any(pc.match_substring(texts, "+")).as_py():
        _refuse_first(
            pc.match_substring_regex(texts, _SCIENTIFIC), texts, refuse,
            "is a rounded number, which has lost its last digits", "write all digits, as text",
        )  # fmt: skip
    if pc.any(pc.match_substring(texts, ".0")).as_py():
        texts = _without_zeros(texts, refuse)
    if missing:
        texts = pc.if_else(pc.is_in(texts, pa.array(canonical_names(missing), pa.string())), "", texts)
    return texts


def _without_zeros(texts: "Texts", refuse: "Refuse | None") -> "Texts":
    """Write whole numbers without a decimal point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pc.match_substring_regex(texts, _WHOLE)
    digits = pc.if_else(whole, pc.replace_substring_regex(texts, _WHOLE, r"\1"), texts)
    size = np.abs(np.asarray(pc.if_else(whole, digits, "0").cast(pa.float64())))
    _refuse_first(
        pa.array(size >= _EXACT), texts, refuse,
        "is a number above 2^53 that was written as a float, so its last digits may be wrong",
        "write it as a whole number or as text",
    )  # fmt: skip
    return pc.if_else(pc.equal(digits, "-0"), "0", digits)


def canonical_names(names: Iterable[str]) -> tuple[str, ...]:
    """Convert names that a user states, such as classes and columns, to their canonical texts.

    A name that has no exact text keeps its form.
    """
    import pyarrow as pa

    return tuple(canonical_texts(pa.array(list(names), pa.string()), None, ()).to_pylist())


def python_texts(values: Iterable[object], refuse: "Refuse", missing: Sequence[str] = MISSING) -> "pa.Array":
    """Convert Python's values, such as attributes of a networkx graph; None is missing."""
    import pyarrow as pa

    texts = pa.array(["" if value is None else str(value) for value in values], pa.string())
    return canonical_texts(texts, refuse, missing)


def natural_order(name: str) -> tuple[int, float, str]:
    """Return a sort key that puts numbers by value before texts."""
    try:
        value = float(name)
    except ValueError:
        return 1, 0.0, name
    return (1, 0.0, name) if math.isnan(value) else (0, value, name)


def class_remarks(names: Sequence[str], y: np.ndarray) -> tuple[str, ...]:
    """Describe the classes (named `names`, y [N]) whose name often means that the label is not known."""
    doubtful = [c for c, name in enumerate(names) if name.lower() in _DOUBTFUL]
    if set(names) <= {"-1", "0", "1"}:
        return ()
    labelled = int((y >= 0).sum())
    return tuple(
        f"the class {shown(names[c])} has {int((y == c).sum()):,} of {labelled:,} labelled nodes; if it "
        f"means that the label is not known, write 'unknown: [\"{names[c]}\"]' in the description"
        for c in doubtful
    )


def _float_texts(values: "Texts", refuse: "Refuse | None") -> "Texts":
    """Write floats as texts: whole numbers without a decimal point, NaN as null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    exact = 2 ** {16: 11, 32: 24, 64: 53}[values.type.bit_width]
    floats = values.cast(pa.float64())
    floats = pc.if_else(pc.is_nan(floats), None, floats)
    whole = pc.fill_null(pc.and_(pc.is_finite(floats), pc.equal(pc.floor(floats), floats)), False)
    lost = pc.and_(whole, pc.greater_equal(pc.abs(floats), exact))
    _refuse_first(
        pc.fill_null(lost, False), values, refuse,
        f"is a whole number above 2^{exact.bit_length() - 1} that is stored as a float, so its last digits "
        "may be wrong",
        "store the column as whole numbers or as text",
    )  # fmt: skip
    numbers = pc.if_else(whole, floats, 0).cast(pa.int64()).cast(pa.string())
    texts = pc.if_else(whole, numbers, values.cast(pa.string()))
    return pc.if_else(pc.is_null(floats), None, texts)


def _refuse_first(wrong: "Texts", values: "Texts", refuse: "Refuse | None", what: str, fix: str) -> None:
    import pyarrow.compute as pc

    row = pc.index(wrong, True).as_py()
    if row >= 0 and refuse is not None:
        refuse(row, values[row].as_py(), what, fix)
