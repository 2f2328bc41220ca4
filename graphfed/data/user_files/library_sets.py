"""Data sets of PyG and OGB by their names in these libraries, as in "pyg:Amazon/Photo" and "ogb:ogbn-arxiv".

The libraries' own loaders read the files, which lie in a folder named after the class (`Amazon/Photo/raw`),
or in `ogb`. Only loaders that read no pickle are used, and torch reads tensors only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfed.data.datasets import search_folders
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.planetoid import may_download
from graphfed.data.messages import brief
from graphfed.data.user_files.pyg_files import MASKS, from_pyg, tensors_only
from graphfed.errors import InputError, did_you_mean, shown

#: The data sets of PyG with one graph and no pickle, by the name of the class: whether it takes a name.
PYG = {
    "Actor": False,
    "Airports": True,
    "Amazon": True,
    "CitationFull": True,
    "Coauthor": True,
    "DeezerEurope": False,
    "FacebookPagePage": False,
    "Flickr": False,
    "GitHub": False,
    "HeterophilousGraphDataset": True,
    "KarateClub": False,
    "LastFMAsia": False,
    "Reddit": False,
    "Reddit2": False,
    "Twitch": True,
    "WebKB": True,
    "WikiCS": False,
    "WikipediaNetwork": True,
}
#: What begins the name of a data set of a library.
LIBRARIES = ("pyg:", "ogb:")


@dataclass(frozen=True)
class LibrarySet:
    """A data set of a library; `given` is its name with the library before it."""

    given: str

    @property
    def name(self) -> str:
        return self.given.partition(":")[2].replace("/", "-")


def library_set(given: str) -> LibrarySet:
    """Check the name of a data set of a library; nothing is loaded."""
    library, _, name = given.partition(":")
    if library == "ogb":
        if not name.startswith("ogbn-"):
            raise InputError(
                f"data {shown(given)} is no data set for nodes; give one of OGB's node property prediction, "
                "as in ogb:ogbn-arxiv"
            )
        return LibrarySet(given)
    kind, _, which = name.partition("/")
    if kind == "Planetoid":
        raise InputError(
            f"data {shown(given)}: the files of Planetoid are pickles, which can run code; use the data set "
            "cora, citeseer or pubmed, which graphfed reads without running any"
        )
    if kind not in PYG:
        raise InputError(f"data {shown(given)} is no data set of PyG that is read; {did_you_mean(kind, PYG)}")
    if bool(which) != PYG[kind]:
        fix = f"name one of its sets, as in pyg:{kind}/NAME" if PYG[kind] else f"use pyg:{kind}"
        raise InputError(f"data {shown(given)} does not fit PyG's class {kind}; {fix}")
    return LibrarySet(given)


def load_library_set(wanted: LibrarySet, data_dir: str | Path | None = None) -> Graph:
    """Load a data set with its library's loader, from the folders of data files or by a download."""
    library, _, name = wanted.given.partition(":")
    build = _pyg_loader(name) if library == "pyg" else _ogb_loader(name)
    kind = name.partition("/")[0] if library == "pyg" else "ogb"
    folders = [folder / kind for folder in search_folders(data_dir)]
    root = next((folder for folder in folders if folder.is_dir()), folders[-1])
    try:
        with tensors_only():
            data = build(str(root))
    except InputError:
        raise
    except Exception as error:  # loaders fail in their own ways, of files and of the network
        raise InputError(
            f"data {shown(wanted.given)} could not be loaded from {root} ({brief(error)}); put the files "
            "that the library's loader expects there, or name the folder above with data_dir"
        ) from None
    return from_pyg(data, wanted.name)


def _pyg_loader(name: str) -> Callable[[str], Any]:
    """Return a function of the root folder that loads a data set of PyG."""
    import torch_geometric.datasets as pyg

    kind, _, which = name.partition("/")
    found = getattr(pyg, kind)
    if kind == "KarateClub":  # it has no files
        return lambda root: found()[0]
    given = (which,) if which else ()
    return lambda root: _without_surprise(found)(root, *given)[0]


def _ogb_loader(name: str) -> Callable[[str], Any]:
    """Return a function of the root folder that loads a data set of OGB, with its split as masks."""
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ImportError:
        raise InputError(
            f"data 'ogb:{name}' needs OGB, which is not installed; type: pip install ogb"
        ) from None

    def load(root: str) -> Any:
        import torch

        found = _without_surprise(PygNodePropPredDataset)(name=name, root=root)
        data, parts = found[0], found.get_idx_split()
        for mask, part in zip(MASKS, ("train", "valid", "test"), strict=True):
            chosen = torch.zeros(data.num_nodes, dtype=torch.bool)
            chosen[torch.as_tensor(parts[part])] = True
            setattr(data, mask, chosen)
        return data

    return load


def _without_surprise(loader: Any) -> Any:
    """Return a class that loads as `loader` does, and downloads only where a download is allowed."""

    class Loader(loader):  # type: ignore[misc]
        def download(self) -> None:
            if not may_download():
                raise InputError(
                    f"the files of {loader.__name__} are not in {self.root}, and nothing is downloaded for a "
                    "run that is opened again; name their folder with data_dir"
                )
            super().download()

    return Loader
