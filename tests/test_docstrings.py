"""Every module has a docstring, and so has every class and function of the public API, which names arguments,
result and exceptions. Ruff's pydocstyle rules check the form of all docstrings (pyproject.toml)."""

import ast
import pkgutil
import re
from pathlib import Path

import graphfed

PACKAGE = Path(graphfed.__file__).parent
#: What users and authors of methods call: what docs/python.md documents, and the operations of a federation.
PAGE = (PACKAGE.parent / "docs/python.md").read_text()
NAMED = [
    pkgutil.resolve_name(name)
    for name in re.findall(r"^\.\. auto\w+:: (graphfed[\w.]+)$", PAGE, re.MULTILINE)
]
API = {"graphfed.federation.core", *(f"{each.__module__}.{each.__qualname__}" for each in NAMED)}
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Nothing is to be said of a result of these types.
NO_RESULT = {"None", "NoReturn", "Never"}
#: Properties are described as values are, in one sentence.
PROPERTIES = {"property", "cached_property", "setter"}
#: Raised in any function: what cannot happen, what a subclass has to write, and the end of a command.
NEVER_NAMED = {"AssertionError", "NotImplementedError", "StopIteration", "SystemExit"}


def public(tree: ast.Module) -> list[tuple[str, ast.ClassDef | Function]]:
    """The public classes and functions of a module, and the public methods of its public classes: what
    ``__all__`` names, or, without it, what has no leading underscore."""
    exported = next(
        (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ),
        None,
    )
    found: list[tuple[str, ast.ClassDef | Function]] = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        if exported is not None and node.name not in exported:
            continue
        found.append((node.name, node))
        if isinstance(node, ast.ClassDef):
            members = [m for m in node.body if isinstance(m, Function) and not m.name.startswith("_")]
            found += [(f"{node.name}.{member.name}", member) for member in members]
    return found


def raised(function: Function) -> set[str]:
    """The exceptions that leave a function by a ``raise`` of its own: not those of functions in it, and not
    those that an ``except`` in it catches."""
    found: set[str] = set()

    def visit(node: ast.AST, caught: set[str]) -> None:
        if isinstance(node, Function | ast.Lambda | ast.ClassDef) and node is not function:
            return
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = ast.unparse(called).split(".")[-1]
            if name[0].isupper() and not caught & {name, "Exception", "BaseException"}:
                found.add(name)
        if isinstance(node, ast.Try):
            kinds = {ast.unparse(part) for h in node.handlers if h.type for part in _kinds(h.type)}
            for child in node.body:
                visit(child, caught | kinds)
            for rest in (*node.handlers, *node.orelse, *node.finalbody):
                visit(rest, caught)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, caught)

    visit(function, set())
    return found - NEVER_NAMED


def _kinds(caught: ast.expr) -> list[ast.expr]:
    return list(caught.elts) if isinstance(caught, ast.Tuple) else [caught]


def in_api(dotted: str) -> bool:
    """Whether a function, or the class or module that it is in, is public API."""
    return dotted in API or ("." in dotted and in_api(dotted.rpartition(".")[0]))


def missing(function: Function) -> list[str]:
    """What a function's docstring does not say."""
    text = ast.get_docstring(function) or ""
    decorators = {ast.unparse(each).split(".")[-1] for each in function.decorator_list}
    if "overload" in decorators:
        return []
    if not text:
        return ["docstring"]
    where, _, exceptions = text.partition("Raises:")
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    collected = [each for each in (arguments.vararg, arguments.kwarg) if each]
    # `a, b: Two numbers.` describes both.
    starts = re.findall(r"^ *([\w, *]+):", where.partition("Args:")[2], re.MULTILINE)
    described = {name.strip(" *") for start in starts for name in start.split(",")} | {"self", "cls"}
    names = [each.arg for each in (*plain, *collected)]
    found = [f"Args: {name}" for name in names if name not in described and not name.startswith("_")]
    has_result = function.returns is not None and ast.unparse(function.returns) not in NO_RESULT
    if has_result and not decorators & PROPERTIES and "Returns:" not in text and "Yields:" not in text:
        found.append("Returns")
    return found + [f"Raises: {name}" for name in sorted(raised(function)) if name not in exceptions]


def test_public_functions_name_their_arguments_their_result_and_what_they_raise() -> None:
    lacking, checked = {}, set()
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        place = path.relative_to(PACKAGE.parent).as_posix()
        if tree.body and not ast.get_docstring(tree):
            lacking[place] = ["docstring"]
        for name, node in public(tree):
            dotted = f"{place.removesuffix('.py').replace('/', '.')}.{name}"
            if not in_api(dotted):
                continue
            checked.add(dotted)
            if isinstance(node, ast.ClassDef):
                found = [] if ast.get_docstring(node) else ["docstring"]
            else:
                found = missing(node)
            if found:
                lacking[dotted] = found
    assert lacking == {}
    assert checked >= API - {"graphfed.federation.core"}
    assert "graphfed.federation.core.Federation.gather" in checked


def test_an_exception_that_the_function_itself_catches_is_not_raised() -> None:
    source = """
def f() -> None:
    try:
        raise ValueError
    except ValueError as error:
        raise OSError from error
"""
    ((_, function),) = public(ast.parse(source))
    assert isinstance(function, ast.FunctionDef)
    assert raised(function) == {"OSError"}
    assert missing(ast.parse("def f(): pass").body[0]) == ["docstring"]  # type: ignore[arg-type]


def test_dir_lists_the_public_names_of_the_package() -> None:
    """They are imported at first use; completion finds them before that."""
    assert dir(graphfed) == sorted(graphfed.__all__)
