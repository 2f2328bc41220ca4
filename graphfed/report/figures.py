"""How a task's figures are written: shares in percent, errors of forecasts in the unit of the readings."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Errors", "Figures", "Shares", "unit_of"]

#: Metrics of forecasts that are percentages; and their names in a text.
PERCENT = ("mape",)
CALLED = {
    "rmse": "RMSE",
    "mae": "MAE",
    "mape": "MAPE",
    "rmse_as_read": "RMSE as read",
    "mae_as_read": "MAE as read",
}
#: Significant digits of an error: of the smallest in its column.
DIGITS = 4


@dataclass(frozen=True)
class Shares:
    """How metrics between 0 and 1 are written, in percent.

    Attributes:
        metric: The one that decides.
        called: Its name in a text.
        headline: Those that a comparison shows (none: all but the loss).
        names: Of metrics in a text, where they differ from the key.
    """

    metric: str
    called: str
    headline: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def shown(self, names: Iterable[str]) -> list[str]:
        """Those of the metrics that a table of a comparison has."""
        return [name for name in names if name != "loss" and name in (self.headline or (name,))]

    def name(self, metric: str) -> str:
        """A metric's name in a table."""
        return self.names.get(metric, metric.replace("_", " "))

    def head(self, name: str) -> str:
        """A column of test figures."""
        return f"test {self.name(name)}, %"

    def cell(self, name: str, mean: float | None, std: float | None = None) -> str:
        """A figure, and its standard deviation, where the unit stands above."""
        if mean is None:
            return "-"
        return f"{100 * mean:.1f}" if std is None else f"{100 * mean:.1f} ± {100 * std:.1f}"

    def told(self, name: str, mean: float | None, std: float | None = None) -> str:
        """A figure with its unit."""
        if name == "loss" and mean is not None:
            return f"{mean:.3f}"
        return "-" if mean is None else f"{self.cell(name, mean, std)} %"

    def difference(self, name: str, amount: float) -> str:
        """A difference of two figures, signed."""
        return f"{100 * amount:+.1f}"


@dataclass(frozen=True)
class Errors:
    """Of errors of forecasts. unit: of the readings, as in "miles per hour", "" where it is not known;
    missing: whether readings are missing, so that there are two of every error; smallest: of each metric,
    from which its decimals follow."""

    metric: str
    unit: str
    missing: bool
    smallest: Mapping[str, float] = field(default_factory=dict)

    @property
    def called(self) -> str:
        return CALLED.get(self.metric, self.metric)

    def shown(self, names: Iterable[str]) -> list[str]:
        return [name for name in self.known(names) if name != "mae_as_read"]

    def known(self, names: Iterable[str]) -> list[str]:
        """Those of the metrics that differ from each other."""
        return [name for name in names if self.missing or not name.endswith("_as_read")]

    def head(self, name: str) -> str:
        return self.name(name) + (", %" if name in PERCENT else "")

    def named(self, metric: str) -> str:
        """A metric's name and unit."""
        return f"{self.name(metric)}{self._unit(metric, ', ')}"

    def name(self, metric: str) -> str:
        return CALLED.get(metric, metric.replace("_", " "))

    def cell(self, name: str, mean: float | None, std: float | None = None) -> str:
        if mean is None:
            return "-"
        places = self._places(name)
        return f"{mean:,.{places}f}" + ("" if std is None else f" ± {std:,.{places}f}")

    def told(self, name: str, mean: float | None, std: float | None = None) -> str:
        return "-" if mean is None else f"{self.cell(name, mean, std)}{self._unit(name, ' ')}"

    def difference(self, name: str, amount: float) -> str:
        return f"{amount:+,.{self._places(name)}f}"

    def _unit(self, name: str, before: str) -> str:
        unit = "%" if name in PERCENT else self.unit
        return before + unit if unit else ""

    def _places(self, name: str) -> int:
        smallest = abs(self.smallest.get(name, 1.0))
        return min(6, max(0, DIGITS - 1 - math.floor(math.log10(smallest)))) if smallest else DIGITS - 1


#: How the metrics of a task are written.
Figures = Shares | Errors


def unit_of(quantity: str) -> tuple[str, str]:
    """What is read and its unit, "" where none is named: of "speed (miles per hour)", speed and miles per
    hour."""
    found = re.fullmatch(r"\s*(.*?)\s*\(([^()]+)\)\s*", quantity)
    return (found[1], found[2].strip()) if found and found[1] else (quantity.strip(), "")
