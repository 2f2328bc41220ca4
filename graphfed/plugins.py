"""Methods, rules, data sets, partitions and audits that other packages and files add to graphfed's own.

An installed distribution names what it adds in entry points of five groups: ``graphfed.methods``,
``graphfed.rules``, ``graphfed.datasets``, ``graphfed.partitions`` and ``graphfed.audits``. A module that
belongs to no such distribution is given to `load_plugin` (on the command line ``--plugin``) and declares the
same things in variables: METHOD or METHODS, RULE or RULES, DATASETS, PARTITIONS, CHECK or CHECKS.

Reading the entry points imports no code of a plug-in. They are read when a name is asked for that graphfed
does not have, or when all names are listed; a plug-in is imported when something of it is used.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from graphfed.errors import InputError, shown
from graphfed.loading import load_object
from graphfed.terminal import say

T = TypeVar("T")

#: What the name of a plug-in's method, rule, data set, partition or audit looks like.
_NAME = re.compile(r"[a-z][a-z0-9_]*")
#: What a module declares that is given to `load_plugin`.
_DECLARED = ("METHOD", "METHODS", "RULE", "RULES", "DATASETS", "PARTITIONS", "CHECK", "CHECKS")


@dataclass(frozen=True)
class Plugin:
    """The source of something that is not part of graphfed itself.

    Attributes:
        name: Of the distribution, or of the module that `load_plugin` was given.
        version: Of the distribution; of a module the digest of its file.
        given: What `load_plugin` was given, a file by its absolute path; empty for a distribution.
    """

    name: str
    version: str
    given: str = ""

    def __str__(self) -> str:
        return f"the plug-in {self.given or f'{self.name} {self.version}'}"

    def to_json(self) -> dict[str, str]:
        """Describe the plug-in for a manifest.

        Returns:
            Its distribution, or its module if it was given by --plugin, and its version.
        """
        who = {"module": self.given} if self.given else {"distribution": self.name}
        return {**who, "version": self.version}


@dataclass(frozen=True)
class _Entry:
    """One thing of a plug-in: the module it is in, and how to get it."""

    plugin: Plugin
    module: str
    load: Callable[[], Any]


class Registry(Mapping[str, T]):
    """Things of one kind by name: graphfed's own, then those of plug-ins.

    Names are found without importing anything; a thing is imported when it is taken out.
    """

    def __init__(
        self,
        noun: str,
        group: str,
        word: str,
        own: Mapping[str, T | str],
        kind: Callable[[], type[T]],
        aliases: Collection[str] = (),
    ) -> None:
        """Make a registry.

        Args:
            noun: What a thing is called in messages, as in "method".
            group: The group of entry points that add to it.
            word: What a module given to `load_plugin` calls one of them, as in "METHOD".
            own: graphfed's own, by name: each the thing itself or ``module:object``.
            kind: Returns the class of a thing; called when one of a plug-in is taken out.
            aliases: Other names of graphfed's own, which no plug-in may use either.
        """
        self.own = own
        self._reserved = own.keys() | set(aliases)
        self._noun, self._group, self._word, self._kind = noun, group, word, kind

    def __getitem__(self, name: str) -> T:
        """Return the thing called `name`.

        Raises:
            KeyError: There is none.
        """
        # Before the name is looked up: a module that takes one of graphfed's own names is refused, not
        # ignored.
        self._check_declared()
        if name in self.own:
            thing = self.own[name]
            return load_object(thing) if isinstance(thing, str) else thing
        entry = self._entry(name)
        if entry is None:
            raise KeyError(name)
        return self._loaded(name, entry)

    def __contains__(self, name: object) -> bool:
        self._check_declared()
        return name in self.own or self._entry(name) is not None

    def __iter__(self) -> Iterator[str]:
        self._check_declared()
        declared = {name for plugin, module in _MODULES.values() for name in self._declared(plugin, module)}
        names = declared.union(installed_names(self._group))
        return iter([*self.own, *sorted(names - self._reserved)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def plugin(self, name: str) -> Plugin | None:
        """Return the plug-in that a name comes from.

        Args:
            name: The name of a method, data set, partition or audit.

        Returns:
            The plug-in; None for a name of graphfed's own, or an unknown one.
        """
        entry = self._entry(name)
        return None if entry is None else entry.plugin

    def module(self, name: str) -> str:
        """Return the module of a plug-in's name.

        Args:
            name: The name of a method, data set, partition or audit.

        Returns:
            The module; an empty text for a name of graphfed's own, or an unknown one.
        """
        entry = self._entry(name)
        return "" if entry is None else entry.module

    def find(self, name: str) -> T | None:
        """Return the thing called `name`, and warn on stderr if it cannot be loaded.

        Returns:
            The thing; None if there is none, or it cannot be loaded.
        """
        try:
            return self.get(name)
        except InputError as error:
            _warn(str(error))
            return None

    def usable(self) -> dict[str, T]:
        """Return everything that can be loaded, and warn on stderr of what cannot."""
        found, problems = self.load_all()
        for problem in problems:
            _warn(problem)
        return found

    def load_all(self) -> tuple[dict[str, T], list[str]]:
        """Load everything.

        Returns:
            What can be loaded, by name, and why each of the others cannot.
        """
        found: dict[str, T] = {}
        problems = [
            self._unusable(point.name, _distribution_of(point))
            for point in _entry_points(self._group, tuple(sys.path))
            if point.name in self._reserved or not _NAME.fullmatch(point.name)
        ]
        # One plug-in that cannot be loaded must not hide the others.
        for name in self:
            try:
                found[name] = self[name]
            except InputError as error:
                problems.append(str(error))
        return found, problems

    def folders_of_plugins(self) -> list[Path] | None:
        """Return the folders, or single files, of the packages whose entry points add to this registry.

        Nothing is imported.

        Returns:
            The paths; None if a module was given to `load_plugin`, whose imports may be anything, or if a
            package cannot be found.
        """
        if _MODULES:
            return None
        folders: list[Path] = []
        points = _entry_points(self._group, tuple(sys.path))
        for package in {_module_of(point).partition(".")[0] for point in points}:
            try:
                spec = importlib.util.find_spec(package)
            except ValueError:  # what the entry point names is no module
                spec = None
            if spec is None:
                return None
            places = spec.submodule_search_locations or [spec.origin or ""]
            folders += [Path(place) for place in places]
        return sorted(folders)

    # ---- what plug-ins have --------------------------------------------------------------------------------

    def _entry(self, name: object) -> _Entry | None:
        """Return the one thing that plug-ins have under a name; InputError if several have one."""
        if not isinstance(name, str) or name in self._reserved or not _NAME.fullmatch(name):
            return None
        found = self._entries(name)
        if len(found) > 1:
            both = " and ".join(str(entry.plugin) for entry in found)
            raise InputError(
                f"{self._noun} {name!r} is in {both}; leave one of them out (pip uninstall, or no --plugin), "
                "or rename it in one"
            )
        return found[0] if found else None

    def _entries(self, name: str) -> list[_Entry]:
        """Return what plug-ins have under a name. A module that is given and installed counts once."""
        points = [point for point in _entry_points(self._group, tuple(sys.path)) if point.name == name]
        installed = [_Entry(_distribution_of(point), _module_of(point), point.load) for point in points]
        # A module that is both installed and given by --plugin declares the same thing twice.
        modules = {entry.module for entry in installed}
        declared = []
        for plugin, module in _MODULES.values():
            things = self._declared(plugin, module)
            if name in things and module.__name__ not in modules:
                declared.append(_Entry(plugin, module.__name__, partial(things.__getitem__, name)))
        return installed + declared

    def _declared(self, plugin: Plugin, module: ModuleType) -> dict[str, Any]:
        """Return what a module that was given declares for this registry, by name."""
        several = getattr(module, f"{self._word}S", {})
        if not isinstance(several, Mapping):
            raise InputError(
                f"{self._word}S of {plugin} must map names to what is called so (found "
                f"{type(several).__name__})"
            )
        # graphfed's own table, where the module has imported it.
        things = {} if isinstance(several, Registry) else dict(several)
        one = getattr(module, self._word, None)
        return things if one is None else things | {str(getattr(one, "name", "")): one}

    def _check_declared(self) -> None:
        """Raise InputError if a module that was given declares a name of graphfed's own, or an invalid
        name.
        """
        for plugin, module in _MODULES.values():
            for name in self._declared(plugin, module):
                if name in self._reserved or not _NAME.fullmatch(name):
                    raise InputError(self._unusable(name, plugin))

    def _unusable(self, name: str, plugin: Plugin) -> str:
        """Return why a plug-in's thing cannot have this name."""
        reason = (
            "graphfed has one of that name; give it another name there"
            if name in self._reserved
            else "a name is of small letters, digits and underscores, and begins with a letter"
        )
        return f"{self._noun} {shown(name)} of {plugin} cannot be used: {reason}"

    def _loaded(self, name: str, entry: _Entry) -> T:
        """Load a plug-in's thing, which must be of the right kind and have this name."""
        what = f"{self._noun} {name!r} of {entry.plugin}"
        try:
            thing = entry.load()
        # The code is somebody else's: it may fail in any way, and may even end the process.
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{what} cannot be loaded: {_cause(error)}; install what it needs, or another version of it"
            ) from error
        kind = self._kind()
        if not isinstance(thing, kind):
            raise InputError(
                f"{what} must be a {kind.__name__} (found {type(thing).__name__}); correct it there"
            )
        if getattr(thing, "name", name) != name:
            raise InputError(
                f"{what} calls itself {getattr(thing, 'name', '')!r}; give it one name in both places"
            )
        return thing


#: The modules given to `load_plugin` in this process, by what was given.
_MODULES: dict[str, tuple[Plugin, ModuleType]] = {}
#: The warnings that were said in this process.
_WARNED: set[str] = set()


def load_plugin(module: str | os.PathLike[str]) -> None:
    """Make what a module declares known to this process: methods, rules, data sets, partitions, audits.

    The module declares ``METHOD = Method(...)``, or by name ``METHODS = {...}``, ``DATASETS = {...}``,
    ``PARTITIONS = {...}``; a rule is a ``RULE``, an audit a ``CHECK``, or several are ``RULES`` and
    ``CHECKS``.

    Args:
        module: The path of a Python file, which ends in .py, or the name of a module that Python finds. The
            folder of a file is added to the end of Python's path, so that files next to it can be imported.

    Raises:
        InputError: The module is not there, cannot be imported or declares nothing.
    """
    given = os.fspath(module)
    if given.endswith(".py"):
        # Absolute, because another process of the run may have another working folder.
        given = str(Path(given).resolve())
    if given in _MODULES:
        return
    try:
        loaded = _import_file(Path(given)) if given.endswith(".py") else importlib.import_module(given)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the plug-in {given} cannot be loaded: {_cause(error)}; give the path of a Python file, or a "
            "module that Python finds"
        ) from error
    if not any(hasattr(loaded, word) for word in _DECLARED):
        raise InputError(f"the plug-in {given} declares nothing; write one of {', '.join(_DECLARED)} in it")
    file = getattr(loaded, "__file__", None)
    # The version of a module that has none: a run's folder says by it whether the code has changed.
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else "unknown"
    _MODULES[given] = (Plugin(loaded.__name__, f"sha256:{digest}", given), loaded)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"the plug-in {path} is not there; give the path of a Python file")
    if str(path.parent) not in sys.path:
        # At the end, so that no file next to the plug-in can take the place of a library.
        sys.path.append(str(path.parent))
    loaded = importlib.import_module(path.stem)
    file = getattr(loaded, "__file__", None)
    if file is None or Path(file).resolve() != path:
        raise InputError(
            f"the plug-in {path} has the name of another module ({file or 'of Python itself'}); rename the "
            "file"
        )
    return loaded


def load_plugins(recorded: Sequence[Mapping[str, Any]]) -> None:
    """Load the modules among plug-ins that another process of the same user names, in messages of this run.

    Args:
        recorded: The plug-ins of a run (`Plugin.to_json`); installed ones are found without this.
    """
    for each in recorded:
        if "module" in each:
            load_plugin(str(each["module"]))


def check_plugins(recorded: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Check that the plug-ins a run was made with are here; another version is a warning on stderr.

    An installed plug-in is found by itself. The code of a module is not run because a folder names it, since
    a folder may come from anybody: it must have been given to `load_plugin` in this process.
    """
    for each in recorded:
        name, module, version = each.get("distribution"), each.get("module"), str(each["version"])
        if name is not None:
            here = _installed_version(str(name))
            if here is None:
                raise InputError(
                    f"the run in {folder} needs the plug-in {name} {version}, which is not installed; "
                    f"install it, as with: pip install '{name}=={version}'"
                )
            what = str(name)
        else:
            what = str(module)
            # The file may lie elsewhere now.
            same = [
                p for p, _ in _MODULES.values() if p.given == what or Path(p.given).name == Path(what).name
            ]
            if not same:
                raise InputError(
                    f"the run in {folder} was made with the plug-in {what}; graphfed does not run code that "
                    f"a folder names; if you trust it, give --plugin {what} (in Python: "
                    "graphfed.load_plugin)"
                )
            here = same[0].version
        if here != version:
            _warn(
                f"the run in {folder} was made with {what} {version}, and {here} is here; results may differ"
            )


def code_digest(module: str) -> str:
    """Digest the Python files of the package of a module, without importing it.

    Returns:
        The SHA-256 of the names and contents of the files, in hexadecimal; "" if there are none.
    """
    top = module.partition(".")[0]
    spec = sys.modules[top].__spec__ if top in sys.modules else importlib.util.find_spec(top)
    if spec is None:
        return ""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(file.relative_to(folder), file) for folder in folders for file in folder.rglob("*.py")]
    files = files or [(Path(file.name), file) for file in [Path(spec.origin or "")] if file.is_file()]
    if not files:
        return ""
    digest = hashlib.sha256()
    for name, file in sorted(files):
        content = file.read_bytes()
        # The length separates a name and its content from the next.
        digest.update(f"{name.as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


def installed_names(group: str) -> list[str]:
    """Return the names that installed distributions add to a group of entry points; no code is imported.

    Args:
        group: The group, as in "graphfed.methods".
    """
    return [point.name for point in _entry_points(group, tuple(sys.path)) if _NAME.fullmatch(point.name)]


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of a group. path: Python's search path, whose distributions they are of."""
    # Reading the metadata of every distribution takes long, so it is read once for each search path.
    return tuple(importlib.metadata.entry_points(group=group))


def _module_of(point: importlib.metadata.EntryPoint) -> str:
    """Return the module in an entry point's ``module:object``, whether or not it is well formed."""
    return point.value.partition(":")[0].strip()


def _distribution_of(point: importlib.metadata.EntryPoint) -> Plugin:
    if point.dist is None:
        return Plugin(_module_of(point), "unknown")
    return Plugin(point.dist.name, point.dist.version)


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _warn(text: str) -> None:
    """Write a warning to stderr, once in this process."""
    if text not in _WARNED:
        _WARNED.add(text)
        say(f"warning: {text}")
