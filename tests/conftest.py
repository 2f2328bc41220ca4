"""Fixtures every test may use."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Tests start hundreds of processes, each of which would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Before torch starts its threads: one that waits sleeps instead of spinning, which costs minutes when busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hypothesis
import pytest
import torch

# A shell starts background jobs deaf to SIGINT, and so would be every process that a test sends one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests' tensors are tiny: a second thread costs more than it brings.
torch.set_num_threads(1)

# A busy machine is no failure: how long an example takes depends on what runs beside it.
hypothesis.settings.register_profile("graphfed", deadline=None)
hypothesis.settings.load_profile("graphfed")

REAL_DATA_REASON = "real data absent: set GRAPHFED_DATA to a folder laid out as docs/data.md says"
_on_real_data: set[str] = set()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; skips the test where it is absent."""
    folder = os.environ.get("GRAPHFED_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip(REAL_DATA_REASON)
    return Path(folder)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and "real_data" in report.keywords:
        _on_real_data.add(report.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", default="1", help="the tiers to run, of 1, 2 and 3: 1,2 is make test-all")


def tiers_of(item: pytest.Item) -> set[str]:
    """1: answers in minutes, before every commit. 2: real data, deployments, kills and what else is slow; and
    again, with more examples, what looks at many; and the cases that `sampled` leaves to it. 3: what takes
    hours, on demand."""
    if "on_demand" in item.keywords:
        return {"3"}
    if {"slow", "real_data"} & {*item.keywords}:
        return {"2"}
    return {"1", "2"} if _settings_of(item) or "deeper" in item.keywords else {"1"}


def _settings_of(item: pytest.Item) -> hypothesis.settings | None:
    """How many examples a property test looks at, and how; None for another test."""
    return getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)


@pytest.fixture
def deep(request: pytest.FixtureRequest) -> bool:
    """Whether a test that is marked `deeper` looks at all its examples (the second tier) or at some."""
    return "2" in request.config.getoption("--tier").split(",")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Modules and tests live to the end. To look through them for garbage, now and after every few hundred
    new objects, is a tenth of the time that a run takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need real data carry its name as a keyword, so that they can be counted. Those of other
    tiers are left out. In the first tier alone a property has a quarter of its examples. Deployments, which
    take longest, come first, so that no worker ends with one."""
    cases: Counter[str] = Counter()
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_data)
        if (sampled := item.get_closest_marker("sampled")) is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % sampled.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
    asked = {*config.getoption("--tier").split(",")}
    config.hook.pytest_deselected(items=[item for item in items if not tiers_of(item) & asked])
    items[:] = [item for item in items if tiers_of(item) & asked]
    if asked == {"1"}:
        seen: set[Any] = set()
        for item in items:
            whole, function = _settings_of(item), getattr(item, "obj", None)
            function = getattr(function, "__func__", function)
            if whole is not None and function not in seen:
                seen.add(function)
                fewer = hypothesis.settings(whole, max_examples=max(5, whole.max_examples // 4))
                function._hypothesis_internal_use_settings = fewer
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/integration", "tests/claims")))


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    terminalreporter.write_line(f"tests that passed on real data: {len(_on_real_data)}")


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Converted data sets are cached in a folder of the test run, never in the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def float32_default() -> Iterator[None]:
    """A test may change the default dtype; the next one starts from float32."""
    yield
    torch.set_default_dtype(torch.float32)
