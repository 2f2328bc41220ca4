"""Paired differences of two rows over the same seeds: their mean with an interval, and tests.

Rows of a comparison share data, split, partition and seed, so the difference of two rows on one seed does
not contain what the seed changes in both. Few seeds decide more with paired differences than with two
separate means.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: The smallest spread of differences that is more than rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of paired values.

    Attributes:
        mean: The mean of the differences, in the unit of the values.
        low, high: The 95 % interval of the mean, of Student's t distribution. Both are the mean if the
            differences do not spread, and None if there is one pair.
        t_test: The p value of the two-sided paired t-test; None if the differences do not spread, or there
            is one pair.
        wilcoxon: The p value of the two-sided Wilcoxon signed-rank test, which does not assume a normal
            distribution. It is at least 2^(1 - count), so five pairs cannot reach 0.05. None if the
            differences do not spread, or there is one pair.
    """

    count: int
    mean: float
    low: float | None = None
    high: float | None = None
    t_test: float | None = None
    wilcoxon: float | None = None


def paired_difference(
    values: Sequence[float | None], reference: Sequence[float | None]
) -> PairedDifference | None:
    """Compute the difference `values` - `reference` of two rows, each with one value per seed in the same
    order.

    The result is None if the rows have different numbers of seeds, or a value is missing.
    """
    pairs = [(a, b) for a, b in zip(values, reference, strict=False) if a is not None and b is not None]
    if not pairs or not len(pairs) == len(values) == len(reference):
        return None
    differences = [a - b for a, b in pairs]
    count, mean = len(pairs), sum(differences) / len(pairs)
    if count < 2:
        return PairedDifference(count, mean)
    # A t-test has no spread to divide by.
    if max(differences) - min(differences) < ROUNDING:
        return PairedDifference(count, mean, mean, mean)
    from scipy.stats import ttest_1samp, wilcoxon

    test = ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(0.95)
    signed_rank = float(wilcoxon(differences).pvalue)
    return PairedDifference(count, mean, float(low), float(high), float(test.pvalue), signed_rank)


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for the number of tests by Holm's method.

    With m tests the k-th smallest p value is multiplied by m - k + 1, and no corrected value is below that of
    a smaller p value. The probability that any true hypothesis is rejected stays below the level.

    Reference:
        Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
        1979.
    """
    # From the smallest p value to the largest, and never below the value before.
    corrected, largest = [0.0] * len(p_values), 0.0
    for k, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - k) * p_values[place]))
        corrected[place] = largest
    return corrected
