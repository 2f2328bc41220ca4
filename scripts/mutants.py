"""How strong the tests are: change the code in one place at a time, and count what no test notices.

    python scripts/mutants.py crypto [--mutants 300] [--seed 0] [--jobs 2] [--out FILE]

A mutant is a function in which one thing is wrong: a comparison, an operator, a number, a condition, an
argument left out, a statement or a check deleted. The mutants are a sample, drawn evenly over the lines of a
package. The tests run once with coverage; each mutant then runs in a fork of that process, so that nothing is
imported twice: the tests that reach its line, the quickest first, until one fails. One that no test notices
in `--budget` seconds of tests has survived. What is known to change nothing that can be seen has its reason
in `equivalent_mutants/PACKAGE.json`, and does not count. Text, annotations, defaults of arguments and what
runs at import are left as they are, and so is what a test starts in another process.
"""

import argparse
import ast
import copy
import functools
import gc
import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import coverage
import pytest
from _pytest.runner import runtestprotocol

from graphfed.methods.registry import METHODS

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants"


@dataclass(frozen=True)
class Package:
    """What is changed together.

    Args:
        files: that are changed, below graphfed/.
        tests: that must notice it.
        methods: whose cases of the laws over the registry (`LAWS`) must notice it too."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    methods: tuple[str, ...] = ()


#: Laws over the registry that say what a method computes, sends and refuses.
LAWS = (
    "tests/laws/test_placements.py",
    "tests/laws/test_ledger_formulas.py",
    "tests/laws/test_secure_aggregation.py",
    "tests/laws/test_seeds_and_limits.py",
    "tests/laws/test_weighted_graphs.py",
    "tests/laws/test_imbalance.py",
    "tests/laws/test_resuming.py",
)

PACKAGES: dict[str, Package] = {
    "federation": Package(
        ("federation/*.py", "federation/operations/*.py", "federation/secure/*.py"),
        (
            "tests/federation",
            "tests/laws/test_placements.py",
            "tests/laws/test_ledger_formulas.py",
            "tests/laws/test_messages.py",
            "tests/laws/test_secure_aggregation.py",
            "tests/crypto/test_maximum.py",
            "tests/deployment/test_graph_client.py",
            "tests/deployment/test_joining.py",
        ),
    ),
    "crypto": Package(
        ("crypto/*.py", "crypto/aggregation/*.py"),
        ("tests/crypto", "tests/federation/test_secure_compare.py"),
    ),
    "privacy": Package(
        ("privacy/*.py",),
        (
            "tests/privacy",
            "tests/papers/test_lumos_encoder.py",
            "tests/papers/test_lumos_released.py",
            "tests/papers/test_fedgat_ldp.py",
        ),
    ),
    "lumos": Package(
        (
            "methods/lumos/method.py",
            "methods/lumos/client_trees.py",
            "methods/lumos/feature_encoding.py",
            "methods/lumos/tree.py",
            "methods/lumos/balancing.py",
            "methods/lumos/mcmc.py",
            "methods/lumos/assignment.py",
            "methods/lumos/naive_fedgnn.py",
        ),
        (
            "tests/papers/test_lumos.py",
            "tests/papers/test_lumos_encoder.py",
            "tests/papers/test_lumos_tree_networks.py",
            "tests/papers/test_lumos_balancing.py",
            "tests/papers/test_lumos_assignment.py",
            "tests/papers/test_lumos_hidden_scores.py",
            "tests/papers/test_lumos_symmetric.py",
            "tests/laws/test_link_prediction.py",
        ),
        ("lumos",),
    ),
    "sapgnn": Package(
        (
            "methods/sapgnn/method.py",
            "methods/sapgnn/layers.py",
            "methods/sapgnn/config.py",
            "methods/sapgnn/ppgnn.py",
            "methods/common/split_learning.py",
            "methods/common/entity_alignment.py",
            "nn/maxpool.py",
        ),
        (
            "tests/papers/test_sapgnn.py",
            "tests/papers/test_sapgnn_ppgnn.py",
            "tests/papers/test_sapgnn_alignment.py",
            "tests/laws/test_link_prediction.py",
            "tests/papers/test_cnfgnn_costs.py",
            "tests/deployment/test_joining.py",
            "tests/deployment/test_graph_client.py",
        ),
        ("sapgnn", "ppgnn"),
    ),
    "cnfgnn": Package(
        (
            "methods/cnfgnn/method.py",
            "methods/cnfgnn/steps.py",
            "methods/cnfgnn/config.py",
            "methods/common/forecasting.py",
            "methods/forecasters/recurrent.py",
            "methods/forecasters/multi_task.py",
            "methods/cnfgnn/graph_network.py",
            "nn/gru.py",
            "nn/recurrence.py",
            "methods/cnfgnn/server_gnn.py",
        ),
        (
            "tests/papers/test_cnfgnn.py",
            "tests/laws/test_forecasting_methods.py",
            "tests/laws/test_plain_forecasters.py",
            "tests/papers/test_cnfgnn_graph_network.py",
            "tests/nn/test_gru.py",
            "tests/papers/test_cnfgnn_server_gnn.py",
        ),
        ("cnfgnn", "gru_fmtl"),
    ),
    "fedgat": Package(
        (
            "methods/fedgat/method.py",
            "methods/fedgat/pretraining.py",
            "methods/fedgat/config.py",
            "methods/fedgat/ldp.py",
            "methods/fedgat/client_graphs.py",
            "methods/fedgat/encrypted_moments.py",
            "methods/fedgat/moment_messages.py",
            "nn/moments.py",
            "nn/chebyshev.py",
            "methods/fedgat/polynomial_gat.py",
        ),
        (
            "tests/papers/test_fedgat.py",
            "tests/papers/test_fedgat_exchange.py",
            "tests/papers/test_fedgat_ldp.py",
            "tests/papers/test_fedgat_encrypted.py",
            "tests/papers/test_fedgat_score_range.py",
            "tests/papers/test_fedgat_dropout.py",
            "tests/papers/test_fedgat_client_graphs.py",
            "tests/nn/test_moments.py",
            "tests/nn/test_chebyshev.py",
            "tests/nn/test_layer_errors.py",
        ),
        ("fedgat", "fedgat_ldp"),
    ),
    "fedgraph": Package(
        (
            "methods/fedgraph/method.py",
            "methods/fedgraph/config.py",
            "methods/fedgraph/client_graphs.py",
            "methods/fedgraph/round_time.py",
            "methods/fedgraph/learned_policy.py",
            "methods/fedgraph/policy/ddpg.py",
        ),
        (
            "tests/papers/test_fedgraph.py",
            "tests/papers/test_fedgraph_policies.py",
            "tests/papers/test_fedgraph_sampling.py",
            "tests/papers/test_fedgraph_balance.py",
            "tests/methods/test_fedgraph_policy_ddpg.py",
            "tests/methods/test_fedgraph_policy_environment.py",
            "tests/papers/test_fedgraph_principal_components.py",
            "tests/methods/test_fedgraph_policy_learning.py",
        ),
        ("fedgraph",),
    ),
    "evaluation": Package(
        (
            "tasks/evaluation.py",
            "tasks/graphs/node_scores.py",
            "tasks/headline.py",
            "tasks/graphs/link_scores.py",
            "tasks/sensors/scores.py",
            "tasks/graphs/class_weights.py",
        ),
        (
            "tests/tasks",
            "tests/runs",
            "tests/studies",
            "tests/reproductions",
            "tests/deployment",
            "tests/laws/test_imbalance.py",
            "tests/laws/test_selection_and_scores.py",
            "tests/papers/test_lumos_hidden_scores.py",
            "tests/laws/test_link_prediction.py",
            "tests/laws/test_forecasting_methods.py",
        ),
    ),
}

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One wrong place. path: of the file, from the repository's root; line: where; function: the outermost
    one; before and after: the statement's first line; number: of the node in its file and of the change."""

    path: str
    line: int
    function: str
    before: str
    after: str
    number: tuple[int, int]

    @property
    def key(self) -> str:
        """The same after lines have moved."""
        return f"{self.path} {self.function}: {self.before}  ->  {self.after}"


# ---- changes -----------------------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.AST]:  # noqa: PLR0912 (one case a kind of node)
    """What may stand in the place of a node, each wrong in one way."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in _SWAPS:
            yield ast.Compare(left, [_SWAPS[type(op)]()], others)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SWAPS:
            # A format or a concatenation of texts is no arithmetic.
            if not any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (left, right)):
                yield ast.BinOp(left, _SWAPS[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value):
            yield ast.Pass()
            if type(op) in _SWAPS:
                yield ast.AugAssign(target, _SWAPS[type(op)](), value)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(_SWAPS[type(op)](), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(2 * value or 1.0)
        case ast.If(test=test, body=body, orelse=orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Call(func=func, args=args, keywords=keywords):
            for left_out in keywords:
                if left_out.arg not in (None, *_UNSEEN):
                    yield ast.Call(func, args, [kept for kept in keywords if kept is not left_out])


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


#: Arguments that only a GPU, or a mistake elsewhere, makes a difference of.
_UNSEEN = ("device", "strict", "non_blocking")

#: What is never changed: texts, types, and what a `raise` says.
_LEFT_ALONE = (ast.JoinedStr, ast.Assert, ast.arguments)


def places(node: ast.AST, function: str = "", statement: ast.AST | None = None) -> Iterator[Any]:
    """Every (parent, field, index or None, node, function, statement) below a node that may be changed: what
    stands in a function's body."""
    for field, value in ast.iter_fields(node):
        listed = isinstance(value, list)
        for index, child in enumerate(value if listed else [value]):
            if not isinstance(child, ast.AST) or isinstance(child, _LEFT_ALONE):
                continue
            if field in ("decorator_list", "annotation", "returns", "type_params"):
                continue
            if isinstance(child, ast.keyword) and child.arg in _UNSEEN:
                continue
            here, enclosing = function, child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = function.endswith("()")
                name = f"{function}.{child.name}".lstrip(".") if not inside else function
                here = name if inside or isinstance(child, ast.ClassDef) else f"{name}()"
            elif function.endswith("()"):
                yield node, field, index if listed else None, child, function, enclosing
                if isinstance(child, ast.Raise):
                    continue
            yield from places(child, here, enclosing)


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file."""
    tree = ast.parse(path.read_text())
    found = []
    for number, (parent, field, index, node, function, statement) in enumerate(places(tree)):
        before = _line(statement)
        for change, new in enumerate(changes(node)):
            with _changed(parent, field, index, ast.copy_location(new, node)):
                text = _line(new if node is statement else statement)
            after = "deleted" if isinstance(new, ast.Pass) else text
            where = (str(path.relative_to(ROOT)), node.lineno, function.removesuffix("()"))
            found.append(Mutant(*where, before, after, (number, change)))
    return found


class _changed:
    """A tree with one node replaced, inside the block."""

    def __init__(self, parent: ast.AST, field: str, index: int | None, new: ast.AST) -> None:
        self.parent, self.field, self.index, self.new = parent, field, index, new

    def _swap(self) -> None:
        held = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, self.new)
            self.new = held
        else:
            held[self.index], self.new = self.new, held[self.index]

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()


def _line(statement: ast.AST) -> str:
    """A statement in one line; of one with a body, its head."""
    head = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers"):
        if isinstance(getattr(head, field, None), list):
            setattr(head, field, [ast.Pass()] if field == "body" else [])
    return " ".join(ast.unparse(head).removesuffix("pass").split())


def code_of(mutant: Mutant) -> CodeType:
    """The mutant's module, compiled."""
    path = ROOT / mutant.path
    tree = ast.parse(path.read_text())
    number, change = mutant.number
    parent, field, index, node, *_ = next(p for i, p in enumerate(places(tree)) if i == number)
    new = list(changes(node))[change]
    with _changed(parent, field, index, ast.copy_location(new, node)):
        return compile(ast.fix_missing_locations(tree), str(path), "exec")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class Imported:
    """What this process has imported from some files, and what its caches hold.

    Args:
        paths: of the files."""

    def __init__(self, paths: list[str]) -> None:
        self.functions: dict[str, list[FunctionType]] = {path: [] for path in paths}
        self.caches: list[Any] = []
        gc.unfreeze()  # get_objects leaves out what a test run has frozen
        for held in gc.get_objects():
            if type(held) is FunctionType and held.__code__.co_filename in self.functions:
                self.functions[held.__code__.co_filename].append(held)
            elif type(held) is functools._lru_cache_wrapper:
                self.caches.append(held)

    def install(self, mutant: Mutant) -> None:
        """Put the mutant in the place of what is imported, and forget what was computed before. ValueError
        where a function does not need all the names any more that it has from around it."""
        path = str(ROOT / mutant.path)
        new = {(code.co_qualname, code.co_firstlineno): code for code in _codes(code_of(mutant))}
        for function in self.functions[path]:
            code = new.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is not None:
                function.__code__ = code
        for cache in self.caches:
            cache.cache_clear()

    def forget(self) -> None:
        """Empty the package's own caches, so that every test reaches what it needs."""
        for cache in self.caches:
            if str(cache.__module__).startswith("graphfed"):
                cache.cache_clear()


# ---- running -----------------------------------------------------------------------------------------------


_NO_CASE = SimpleNamespace(params={})
_NO_MUTANT = "cannot be put in its place"
#: By the exit status of the child.
_RESULTS = {0: "survived", 2: _NO_MUTANT}


class Driver:
    """A pytest plugin: runs the collected tests once with coverage, then those that reach a mutant on it."""

    def __init__(self, mutants: list[Mutant], jobs: int, budget: float, methods: tuple[str, ...]) -> None:
        self.mutants, self.jobs, self.budget, self.methods = mutants, jobs, budget, methods
        self.results: dict[Mutant, str] = {}
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """No time for the smallest example that fails: that one fails is enough."""
        import hypothesis  # after pytest, which rewrites what its plug-ins import

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutants", deadline=None, phases=phases, derandomize=True, database=None
        )
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of the laws over the registry, the cases of the package's methods; none of a test whose methods run
        in processes of their own, where nothing is changed."""
        laws, own = {ROOT / path for path in LAWS}, {*self.methods}
        kept = []
        for item in items:
            cases = {*map(str, getattr(item, "callspec", _NO_CASE).params.values())} & {*METHODS}
            if item.path in laws and own and cases and not cases & own:
                continue
            if "three_sites" not in getattr(item, "fixturenames", ()):
                kept.append(item)
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        paths = sorted({str(ROOT / mutant.path) for mutant in self.mutants})
        watch = coverage.Coverage(data_file=None, config_file=False, include=paths)
        before = Imported(paths)
        watch.start()
        passed: dict[str, pytest.Item] = {}
        for item, after in zip(session.items, [*session.items[1:], None], strict=True):
            watch.switch_context(item.nodeid)
            before.forget()
            began = time.perf_counter()
            reports = runtestprotocol(item, log=False, nextitem=after)
            self.seconds[item.nodeid] = time.perf_counter() - began
            outcomes = {report.outcome for report in reports}
            if "failed" in outcomes:
                print(f"not used, for it fails as it is: {item.nodeid}")
            elif "skipped" not in outcomes:
                passed[item.nodeid] = item
        watch.stop()
        print(f"{len(passed)} tests, {sum(self.seconds.values()):.0f} s", flush=True)
        lines = {path: watch.get_data().contexts_by_lineno(path) for path in paths}
        waiting = []
        for mutant in self.mutants:
            reach = [test for test in lines[str(ROOT / mutant.path)].get(mutant.line, []) if test in passed]
            waiting.append((mutant, self._quickest(sorted(reach, key=self.seconds.__getitem__), passed)))
        self.imported = Imported(paths)
        gc.freeze()
        self._run(waiting)
        return True

    def _quickest(self, tests: list[str], items: dict[str, pytest.Item]) -> list[pytest.Item]:
        chosen, total = [], 0.0
        for test in tests:
            total += self.seconds[test]
            if chosen and total > self.budget:
                break
            chosen.append(items[test])
        return chosen

    def _run(self, waiting: list[tuple[Mutant, list[pytest.Item]]]) -> None:
        """Every mutant in a process of its own, `jobs` at a time."""
        running: dict[int, tuple[Mutant, int, float]] = {}  # by the pipe that ends with the child
        total = len(waiting)
        waiting = waiting[::-1]
        while waiting or running:
            while waiting and len(running) < self.jobs:
                mutant, items = waiting.pop()
                if not items:
                    self._report(mutant, "no test reaches it", total)
                    continue
                limit = 30 + 5 * sum(self.seconds[item.nodeid] for item in items)
                read_end, write_end = os.pipe()
                child = os.fork()
                if not child:
                    os.close(read_end)
                    _try(self.imported, mutant, items)
                os.close(write_end)
                running[read_end] = mutant, child, time.monotonic() + limit
            ready, _, _ = select.select([*running], [], [], 1.0)
            for pipe in [*running]:
                mutant, child, until = running[pipe]
                late = time.monotonic() > until
                if pipe not in ready and not late:
                    continue
                if late:
                    os.killpg(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                os.close(pipe)
                del running[pipe]
                self._report(mutant, _RESULTS.get(os.waitstatus_to_exitcode(status), "killed"), total)

    def _report(self, mutant: Mutant, result: str, total: int) -> None:
        self.results[mutant] = result
        if result not in ("killed", _NO_MUTANT):
            print(f"[{len(self.results)}/{total}] {result}: {mutant.path}:{mutant.line} {mutant.function}")
            print(f"    {mutant.before}\n    {mutant.after}", flush=True)


def _try(imported: Imported, mutant: Mutant, items: list[pytest.Item]) -> None:
    """In a child: exit status 0 where no test fails, see `_RESULTS`."""
    os.setsid()
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    status = 1
    try:
        try:
            imported.install(mutant)
        except ValueError:
            os._exit(2)
        for item, after in zip(items, [*items[1:], None], strict=True):
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=after)):
                break
        else:
            status = 0
    finally:
        os._exit(status)


def sample(files: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """Mutants of the files, at most one of a line until every line has had one."""
    paths = sorted(path for pattern in files for path in (ROOT / "graphfed").glob(pattern))
    drawn = random.Random(seed)
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in paths:
        for mutant in mutants_of(path):
            by_line.setdefault((mutant.path, mutant.line), []).append(mutant)
    for listed in by_line.values():
        drawn.shuffle(listed)
    lines = [*by_line.values()]
    drawn.shuffle(lines)
    found: list[Mutant] = []
    while len(found) < count and any(lines):
        found += [listed.pop() for listed in lines if listed]
    return sorted(found[:count], key=lambda mutant: (mutant.path, mutant.line))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests on a mutant")
    parser.add_argument("--only", default="", help="only the mutants whose description contains this")
    parser.add_argument("--tests", help="run these only, separated by commas, in the place of the package's")
    parser.add_argument("--tier", default="1", help="tiers of the tests: 1 (default), 2, or 1,2")
    parser.add_argument("--again", type=Path, help="only the survivors that this file, an --out, names")
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    asked = parser.parse_args()
    package = PACKAGES[asked.package]
    tests = (*package.tests, *(LAWS if package.methods else ()))
    tests = tuple(asked.tests.split(",")) if asked.tests else tests
    mutants = sample(package.files, asked.mutants, asked.seed)
    reasons = EQUIVALENT / f"{asked.package}.json"
    known = json.loads(reasons.read_text()) if reasons.exists() else {}
    if asked.again and not asked.again.is_file():
        parser.error(f"--again {asked.again}: no such file; give what --out of an earlier run wrote")
    if asked.again:
        survivors = {entry["mutant"] for entry in json.loads(asked.again.read_text())["survivors"]}
        mutants = [mutant for mutant in mutants if mutant.key in survivors]
    mutants = [mutant for mutant in mutants if asked.only in mutant.key]
    counted = [mutant for mutant in mutants if mutant.key not in known]
    print(f"{len(mutants)} mutants, {len(mutants) - len(counted)} of them known to be equivalent", flush=True)
    driver = Driver(counted, asked.jobs, asked.budget, () if asked.tests else package.methods)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.monotonic()
    options = [
        "--tier",
        asked.tier,
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "--capture=no",
        "--no-header",
        "--no-summary",
    ]
    pytest.main([*options, "--rootdir", str(ROOT), *(str(ROOT / test) for test in tests)], plugins=[driver])
    results = {mutant: result for mutant, result in driver.results.items() if result != _NO_MUTANT}
    killed = sum(result == "killed" for result in results.values())
    print(f"{asked.package}: {killed} of {len(results)} killed ({100 * killed / max(1, len(results)):.1f} %)")
    if asked.out:
        survivors = [
            {"mutant": mutant.key, "line": mutant.line, "result": result}
            for mutant, result in results.items()
            if result != "killed"
        ]
        content = {
            "package": asked.package,
            "mutants": len(mutants) - len(counted) + len(results),
            "equivalent": len(mutants) - len(counted),
            "killed": killed,
            "seconds": round(time.monotonic() - began),
            "survivors": survivors,
        }
        asked.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
