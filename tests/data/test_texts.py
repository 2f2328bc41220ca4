"""The text of a value does not depend on how and by which program it was written."""

from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest

from graphfed.data.texts import MISSING, canonical_names, canonical_texts, class_remarks, python_texts
from graphfed.errors import InputError


def refuse(row: int, value: object, what: str, fix: str) -> NoReturn:
    raise InputError(f"row {row}: {value} {what}; {fix}")


def texts(values: Any, type_: pa.DataType | None = None, **more: Any) -> list[str]:
    found: list[str] = canonical_texts(pa.array(values, type_), refuse, **more).to_pylist()
    return found


@pytest.mark.parametrize(
    "type_", [pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.decimal128(9, 2)]
)
def test_a_whole_number_has_one_text_in_every_type(type_: pa.DataType) -> None:
    numbers = (
        pa.array([7.0, -3.0, None, 0.0]).cast(type_)
        if type_ != pa.string()
        else ["7.0", "-3.00", None, "-0.0"]
    )
    assert texts(numbers, type_) == texts([7, -3, None, 0]) == ["7", "-3", "", "0"]


def test_a_column_with_fractions_writes_its_whole_numbers_alike() -> None:
    values = [7.0, 0.5, float("nan"), None, 12_345_678_901.0]
    assert texts(values) == ["7", "0.5", "", "", "12345678901"]
    assert texts([str(value) for value in values[:2]]) == ["7", "0.5"]


def test_codes_keep_their_form() -> None:
    """Leading zeros, versions and hexadecimal codes are no numbers."""
    codes = ["007", "007.0", "1.10", "12e4", "1E5", "1.0.0", "250.1", "0x10", "--", "Na", "none"]
    assert texts(codes) == codes


def test_booleans_have_one_text() -> None:
    assert texts(["True", "TRUE", "true", "False", "T"]) == ["true", "true", "true", "false", "T"]
    assert texts([True, False]) == ["true", "false"]


def test_an_accent_has_one_text() -> None:
    assert texts(["caf\u00e9", "cafe\u0301", "\u00a0caf\u00e9 "]) == ["caf\u00e9"] * 3


@pytest.mark.parametrize(
    "value",
    [
        float(2**53),
        -float(2**53),
        1e20,
        np.float32(2**24),
        "9007199254740992.0",
        "1.01244E+19",
        "1e+16",
        "inf",
    ],
)
def test_a_number_whose_digits_may_be_lost_is_refused_with_its_row(value: Any) -> None:
    column = pa.array([None, value], pa.float32() if isinstance(value, np.float32) else None)
    with pytest.raises(InputError, match=r"^row 1: .*(digits|finite)"):
        canonical_texts(column, refuse)


def test_the_largest_exact_numbers_are_kept() -> None:
    assert texts([float(2**53 - 1)]) == texts([f"{2**53 - 1}.0"]) == [str(2**53 - 1)]
    assert texts([2**64 - 1], pa.uint64()) == texts([str(2**64 - 1)]) == [str(2**64 - 1)]


def test_every_spelling_of_a_missing_value_is_missing() -> None:
    assert set(texts([f" {word} " for word in MISSING])) == {""}
    assert texts(["Unknown", "-1", "NA"], missing=[*MISSING, "-1.0"]) == ["Unknown", "", ""]
    assert texts(["NA", "", None], missing=()) == ["NA", "", ""]


def test_python_values_have_the_texts_of_a_column() -> None:
    values = [1, 1.0, np.int64(1), np.float32(1), True, np.bool_(True), None, float("nan"), "é"]
    assert python_texts(values, refuse).to_pylist() == ["1", "1", "1", "1", "true", "true", "", "", "é"]


def test_a_name_that_a_user_states_has_the_same_form() -> None:
    assert canonical_names(("1.0", " True", "007", "1.5e+20")) == ("1", "true", "007", "1.5e+20")


def test_a_class_that_seems_to_mean_unknown_is_remarked() -> None:
    (remark,) = class_remarks(("1", "2", "unknown"), np.array([0, 1, 2, 2, -1]))
    assert remark.startswith("the class 'unknown' has 2 of 4 labelled nodes")
    assert class_remarks(("-1", "1"), np.array([0, 1])) == ()
    assert len(class_remarks(("-1", "1", "2"), np.array([0, 1, 2]))) == 1
