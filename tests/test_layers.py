"""The package's structure: imports point downwards only and in no circle, folders and modules stay small,
and `import graphfed` stays light."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import networkx as nx

import graphfed
from graphfed.memory import limited_memory, peak_memory

PACKAGE = Path(graphfed.__file__).parent
#: Top to bottom; a module may import from its own layer and from those below it.
LAYERS = (
    "__main__",
    "cli",
    "report",
    "audit",
    "reproductions",
    "studies",
    "deployment",
    "runs",
    "tasks",
    "method",
    "methods",
    "runtime",
    "federation",
    "crypto",
    "privacy",
    "nn",
    "data",
    "random",
    "drawing|files|loading|memory|plain_yaml|plugins|terminal|validation",
    "errors",
)


#: Programs that lie with the paper that alone uses them, and the layer that their imports have.
PROGRAMS = {"graphfed.methods.fedgraph.policy": "studies"}


def layer_of(module: str) -> int | None:
    """The layer of ``graphfed.<name>...``; None for the package itself."""
    parts = module.split(".")
    if len(parts) < 2:
        return None
    program = ".".join(parts[:4])
    if program in PROGRAMS:
        return LAYERS.index(PROGRAMS[program])
    return next(i for i, layer in enumerate(LAYERS) if parts[1] in layer.split("|"))


@functools.cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Inside functions, too."""
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(path: Path, package: str = "graphfed") -> list[str]:
    nodes = import_statements(path)
    found = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    found += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [name for name in found if f"{name}.".startswith(f"{package}.") and name != "graphfed"]


def test_imports_point_downwards_only():
    upwards = []
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(("graphfed", *path.relative_to(PACKAGE).with_suffix("").parts))
        here = layer_of(module.removesuffix(".__init__"))
        if here is None or module == "graphfed.__init__":
            continue
        for name in imports_of(path):
            there = layer_of(name)
            if there is not None and there < here:
                upwards.append(f"{module} imports {name}")
    assert not upwards


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a folder has the name of its package."""
    return {
        ".".join(("graphfed", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions and for types count too; those of the package itself (its version) do not."""
    known, imports = modules(), nx.DiGraph()
    for name, path in known.items():
        for node in import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                found = [alias.name for alias in node.names]
            imports.add_edges_from((name, other) for other in found if other in known and other != name)
    imports.remove_node("graphfed")
    assert imports.number_of_edges() > 500
    assert [sorted(circle) for circle in nx.strongly_connected_components(imports) if len(circle) > 1] == []


def test_a_module_lies_at_most_three_folders_deep_and_a_program_or_a_rule_four():
    for name, path in modules().items():
        is_deeper = any(name.startswith(folder) for folder in (*PROGRAMS, "graphfed.methods.averaging.rules"))
        assert len(path.relative_to(PACKAGE).parts) <= 3 + is_deeper, path


def test_only_the_package_for_deployment_imports_nvflare():
    importing = {path for path in PACKAGE.rglob("*.py") if imports_of(path, "nvflare")}
    assert importing
    assert {path.parent.relative_to(PACKAGE).as_posix() for path in importing} == {"runtime/nvflare"}


def test_only_the_package_for_drawing_imports_matplotlib():
    importing = {path for path in PACKAGE.rglob("*.py") if imports_of(path, "matplotlib")}
    assert {path.parent.relative_to(PACKAGE).as_posix() for path in importing} == {"drawing"}


#: Modules of the standard library that Windows does not have.
POSIX = {"fcntl", "grp", "pwd", "resource", "termios"}


def test_no_module_needs_a_posix_system_to_be_imported():
    needing = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if (isinstance(node, ast.Import) and POSIX & {alias.name for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module in POSIX)
    }
    assert needing == set()


def test_without_the_module_resource_the_peak_of_memory_is_not_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() == 0
    with limited_memory(None):
        pass


def test_a_module_of_every_layer_that_exists_is_known():
    """A new top-level module must be given its place in LAYERS."""
    modules = [p.stem for p in PACKAGE.glob("*.py")] + [p.parent.name for p in PACKAGE.glob("*/__init__.py")]
    known = {name for layer in LAYERS for name in layer.split("|")} | {"__init__"}
    assert set(modules) <= known


def loaded_after(code: str) -> set[str]:
    """The top-level modules loaded by a program in a process of its own."""
    program = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


HEAVY = {"torch_geometric", "sklearn", "networkx", "matplotlib", "pyarrow", "pymetis", "pandas", "nvflare"}


def test_importing_graphfed_loads_nothing_heavy():
    assert not loaded_after("import graphfed") & (HEAVY | {"torch", "scipy", "pydantic"})


def test_a_run_that_writes_nothing_needs_torch_numpy_and_scipy_only():
    code = "import graphfed\ngraphfed.run('fedavg', rounds=1, out=False)"
    assert not loaded_after(code) & HEAVY


def test_help_answers_without_torch():
    assert not loaded_after("import graphfed.cli") & (HEAVY | {"torch"})


#: The words of settings and of the ledger for how a transfer is protected.
PROTECTIONS = {"plaintext", "secure", "encrypted", "additive", "real", "simulated"}
#: What the transfers of a run are made of: nothing here may depend on how they are protected.
UNAWARE = ("methods", "tasks", "report", "audit", "cli")


def test_nothing_above_the_federation_branches_on_a_protection():
    """Only the setting of the federation itself is read: parts.is_simulated."""
    found = []
    for name, path in modules().items():
        if name.split(".")[1:2] and name.split(".")[1] in UNAWARE:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare | ast.MatchValue):
                    words = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)} & PROTECTIONS
                    found += [(name, ast.unparse(node))] * bool(words)
    assert found == [("graphfed.methods.parts", "value(config, 'protocols') == 'simulated'")]
