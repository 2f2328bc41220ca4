"""How the metrics of a task are written: percentages, or errors of forecasts in the unit of the readings."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from graphfed.tasks.headline import CLIENT_ACCURACY

#: Metrics of forecasts that are percentages.
PERCENT = ("mape",)
#: Names of the metrics of forecasts in a text.
DISPLAY_NAMES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "mape": "MAPE",
    "rmse_as_read": "RMSE as read",
    "mae_as_read": "MAE as read",
}
#: Significant digits of the smallest error of a metric. All errors of the metric have the same decimals.
DIGITS = 4


@dataclass(frozen=True)
class Percentages:
    """Writes metrics between 0 and 1 in percent.

    Attributes:
        metric: The metric that ranks the rows of a comparison.
        headline: The metrics of a comparison's table; () for all except the loss.
        names: Names of metrics in a text, where they differ from the key.
    """

    metric: str
    display_name: str
    headline: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def table_metrics(self, names: Iterable[str]) -> list[str]:
        """Select the metrics that have a column in a comparison's table, in the given order."""
        shown = (*self.headline, CLIENT_ACCURACY) if self.metric == "accuracy" else self.headline
        return [name for name in names if name != "loss" and name in (shown or (name,))]

    def name(self, metric: str) -> str:
        return self.names.get(metric, metric.replace("_", " "))

    def column_head(self, name: str) -> str:
        """Return the head of the column of a test metric, with the unit."""
        return f"test {self.name(name)}, %"

    def cell(self, name: str, mean: float | None, std: float | None = None) -> str:
        """Write a fraction without its unit, for a table whose head has the unit; "-" without a value."""
        if mean is None:
            return "-"
        return f"{100 * mean:.1f}" if std is None else f"{100 * mean:.1f} ± {100 * std:.1f}"

    def with_unit(self, name: str, mean: float | None, std: float | None = None) -> str:
        """Write a fraction with its unit; "-" without a value."""
        if name == "loss" and mean is not None:
            return f"{mean:.3f}"
        return "-" if mean is None else f"{self.cell(name, mean, std)} %"

    def difference(self, name: str, amount: float) -> str:
        """Write the difference of two values of a metric."""
        return f"{100 * amount:+.1f}"


@dataclass(frozen=True)
class Errors:
    """Writes errors of forecasts.

    Attributes:
        metric: The metric that ranks the rows of a comparison.
        unit: The unit of the readings, as in "miles per hour"; "" if it is not known.
        missing: Whether readings are missing, so that errors with and without them differ.
        smallest: The smallest error of each metric, which determines the number of decimals.
    """

    metric: str
    unit: str
    missing: bool
    smallest: Mapping[str, float] = field(default_factory=dict)

    @property
    def display_name(self) -> str:
        return self.name(self.metric)

    def table_metrics(self, names: Iterable[str]) -> list[str]:
        """Select the metrics that have a column in a comparison's table, in the given order."""
        return [name for name in self.distinct_metrics(names) if name != "mae_as_read"]

    def distinct_metrics(self, names: Iterable[str]) -> list[str]:
        """Leave out the metrics that repeat others because no reading is missing."""
        return [name for name in names if self.missing or not name.endswith("_as_read")]

    def column_head(self, name: str) -> str:
        """Return the head of a test metric's column; the unit of readings is in the note below the table."""
        return self.name(name) + (", %" if name in PERCENT else "")

    def name_with_unit(self, metric: str) -> str:
        """Return the name of a metric and its unit, as in "RMSE, miles per hour"."""
        return f"{self.name(metric)}{self._unit(metric, ', ')}"

    def name(self, metric: str) -> str:
        return DISPLAY_NAMES.get(metric, metric.replace("_", " "))

    def cell(self, name: str, mean: float | None, std: float | None = None) -> str:
        """Write an error without its unit, for a table whose head has the unit; "-" without a value."""
        if mean is None:
            return "-"
        places = self._places(name)
        return f"{mean:,.{places}f}" + ("" if std is None else f" ± {std:,.{places}f}")

    def with_unit(self, name: str, mean: float | None, std: float | None = None) -> str:
        """Write an error with its unit; "-" without a value."""
        return "-" if mean is None else f"{self.cell(name, mean, std)}{self._unit(name, ' ')}"

    def difference(self, name: str, amount: float) -> str:
        """Write the difference of two errors, in the unit of the readings."""
        return f"{amount:+,.{self._places(name)}f}"

    def _unit(self, name: str, separator: str) -> str:
        unit = "%" if name in PERCENT else self.unit
        return separator + unit if unit else ""

    def _places(self, name: str) -> int:
        smallest = abs(self.smallest.get(name, 1.0))
        # From the smallest error, so that a column has equally many decimals.
        return min(6, max(0, DIGITS - 1 - math.floor(math.log10(smallest)))) if smallest else DIGITS - 1


#: How the metrics of a task are written.
Figures = Percentages | Errors


def unit_of(quantity: str) -> tuple[str, str]:
    """Split a quantity as in "speed (miles per hour)" into name and unit; "" if none is in brackets."""
    found = re.fullmatch(r"\s*(.*?)\s*\(([^()]+)\)\s*", quantity)
    return (found[1], found[2].strip()) if found and found[1] else (quantity.strip(), "")
