"""Write a first description of a user's tables, with guesses that the comments explain.

Files with the same columns are of one kind, and there must be two kinds: nodes and edges. The column of ids
is one without repetition whose values two columns of the other kind name. All other guesses are made column
by column, from the values and the names.
"""

import codecs
import gzip
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.messages import brief, listed
from graphfed.data.user_files import cell_forms
from graphfed.data.user_files.cell_forms import CellForm
from graphfed.data.user_files.table_files import CSV, TableFile, are_values, shown_in_yaml
from graphfed.errors import InputError
from graphfed.files import read_start

if TYPE_CHECKING:
    import pyarrow as pa

#: Words in the names of columns, in lower case.
_LABELS = {
    "label", "labels", "class", "target", "fraud", "fraudulent", "suspicious", "illicit", "laundering", "y",
    "outcome", "default", "churn",
}  # fmt: skip
_CLIENTS = {"client", "bank", "site", "hospital", "institution", "organisation", "organization", "silo"}
_SPLITS = {"split", "part", "fold"}
_DATES = {"date", "day", "time", "timestamp", "opened", "created", "since", "birth", "birthdate", "dob"}
#: The most different values of a column of texts that is guessed to have categories, and of labels.
_CATEGORIES, _CLASSES = 50, 20
#: The least part of the endpoints of edges that are ids, for a column to be guessed as one of endpoints.
_NAMED = 0.5
_PARTS = {"train", "val", "valid", "validation", "test", "none"}
#: The encodings that are tried, in this order.
ENCODINGS = ("utf-16", "utf-8", "cp1252")


@dataclass(frozen=True)
class _Column:
    """A column of a table: its texts, null for a missing value."""

    name: str
    texts: "pa.Array"

    @cached_property
    def different(self) -> int:
        return len(self.texts.drop_null().unique())

    @cached_property
    def gaps(self) -> int:
        return int(self.texts.null_count)

    @cached_property
    def words(self) -> set[str]:
        return {*re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.name).lower())}

    @cached_property
    def has_codes(self) -> bool:
        """Whether a value begins with a zero that a number would lose."""
        import pyarrow.compute as pc

        return bool(pc.any(cell_forms.matches(self.texts, r"^[-+]?0\d")).as_py())

    def are_numbers(self, decimal: str) -> bool:
        written = cell_forms.decimal_texts(self.texts, decimal)
        numbers = cell_forms.matches(written, r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
        return not self.has_codes and self.gaps < len(self.texts) and _all(numbers, self.texts)

    @cached_property
    def date_forms(self) -> list[str]:
        """The forms that all dates of the column may have, ISO 8601 first."""
        forms = [cell_forms.ISO, *cell_forms.DATE_FORMATS]
        fitting = [form for form in forms if cell_forms.are_dates(self.texts, form)]
        # Eight digits are a date only if the name says so.
        return fitting if self.words & _DATES else [form for form in fitting if form != "%Y%m%d"]


@dataclass(frozen=True)
class _Table:
    """A file, how it is written, and its columns. `notes` explain what of it was guessed."""

    path: Path
    form: CellForm
    has_header: bool
    columns: Mapping[str, _Column]
    notes: tuple[str, ...]

    @cached_property
    def decimal(self) -> str:
        if self.form.decimal is not None:
            return self.form.decimal
        amounts = [c.texts for c in self.columns.values() if c.are_numbers(".") or c.are_numbers(",")]
        return cell_forms.find_decimal(amounts) or "."


def first_description(files: Sequence[Path], folder: Path) -> str:
    """Describe tables in YAML. Paths are written relative to the folder.

    Raises InputError if the files are not of two kinds, no column has the ids that edges name, or there are
    not as many files of nodes as of edges.
    """
    tables = [_profile(path) for path in files]
    nodes, edges, ids, ends = _kinds(tables)
    pairs = _paired(nodes, edges, ids, ends)
    return "\n".join([*_files(pairs, folder), *_columns(nodes, edges, ids, ends)]) + "\n"


# ---- files -------------------------------------------------------------------------------------------------


def _profile(path: Path) -> _Table:
    """Read a file, and guess what it does not state about its form."""
    notes: list[str] = []
    encoding = separator = decimal = None
    is_text = path.name.lower().endswith(CSV)
    if is_text:
        read_start(path, 1)  # refuses what is no file
        encoding = next((name for name in ENCODINGS if _can_read(path, name)), "latin-1")
        encoding = None if encoding in ("utf-8", "utf-16") else encoding
        notes += [] if encoding is None else [f"{encoding} is a guess: the file is not UTF-8"]
        separator = _doubtful_separator(path, encoding)
        notes += [] if separator is None else ["the separator is a guess"]
    file = TableFile(path, form=CellForm(separator, None, encoding))
    has_header = not is_text or not are_values(file.first_line)
    file = TableFile(path, header=has_header, form=CellForm(separator, None, encoding))
    read, _ = file.read(file.columns)
    columns = {name: _Column(name, _without_gaps(read[name].combine_chunks())) for name in file.columns}
    amounts = [c.texts for c in columns.values() if c.are_numbers(".") or c.are_numbers(",")]
    if is_text and cell_forms.find_decimal(amounts) is None:
        decimal = "," if file.separator == ";" else "."
        notes.append("the decimal sign is a guess: numbers such as 1,234 have two meanings")
    return _Table(path, CellForm(separator, decimal, encoding), has_header, columns, tuple(notes))


def _can_read(path: Path, encoding: str) -> bool:
    """Decide whether a text file is in an encoding; UTF-16 needs its mark."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with opened(path, "rb") as file:
            if encoding == "utf-16" and file.read(2) not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                return False
            file.seek(0)
            while block := file.read(1 << 22):
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {brief(error)}") from None
    return True


def _doubtful_separator(path: Path, encoding: str | None) -> str | None:
    """Return the separator of a file for which several are possible, else None."""
    try:
        _ = TableFile(path, form=CellForm(None, None, encoding)).first_line
    except InputError:
        # The most values; a file with another fault is refused here, too.
        forms = {sign: CellForm(sign, None, encoding) for sign in ",;\t"}
        return max(forms, key=lambda sign: len(TableFile(path, form=forms[sign]).first_line))
    return None


def _without_gaps(texts: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), None, texts)


def _kinds(tables: Sequence[_Table]) -> tuple[list[_Table], list[_Table], str, tuple[str, str]]:
    """Find the files of nodes, those of edges, the column of ids, and the two columns of endpoints."""
    kinds: dict[tuple[str, ...], list[_Table]] = {}
    for table in tables:
        kinds.setdefault(tuple(table.columns), []).append(table)
    if len(kinds) != 2:
        found = "; ".join(f"{kind[0].path.name}: {listed(columns, 5)}" for columns, kind in kinds.items())
        raise InputError(
            f"the {len(tables)} files have {len(kinds)} different sets of columns ({found}), and two are "
            "needed: files of nodes with the same columns, and files of edges with the same columns"
        )
    one, two = kinds.values()
    share, nodes, edges, ids, ends = max(
        (_endpoints(one, two), _endpoints(two, one)), key=lambda found: found[0]
    )
    if share < _NAMED:
        raise InputError(
            f"no column of {one[0].path.name} or {two[0].path.name} has ids that two columns of the other "
            f"file name (at most {share:.0%} of them); give a file of nodes, with an id in each row, and a "
            "file of edges, with the ids of two nodes in each row"
        )
    return nodes, edges, ids, ends


def _endpoints(
    nodes: list[_Table], edges: list[_Table]
) -> tuple[float, list[_Table], list[_Table], str, tuple[str, str]]:
    """Find the ids and endpoints that fit best, and the part of the endpoints that are ids."""
    import pyarrow as pa
    import pyarrow.compute as pc

    best: tuple[float, str, tuple[str, str]] = (-1.0, "", ("", ""))
    for name in nodes[0].columns:
        each = [table.columns[name] for table in nodes]
        if any(column.gaps or column.different < len(column.texts) for column in each):
            continue
        known = pa.concat_arrays([column.texts for column in each])
        shares = {}
        for end in edges[0].columns:
            texts = pa.chunked_array([table.columns[end].texts for table in edges], pa.string())
            shares[end] = pc.sum(pc.is_in(texts, value_set=known)).as_py() / max(1, len(texts))
        # Of equal columns the first two; the order of columns is that of source and target.
        first, second = (
            sorted(sorted(shares, key=lambda end: -shares[end])[:2], key=[*shares].index)
            if len(shares) > 1
            else ("", "")
        )
        share = min(shares.get(first, -1.0), shares.get(second, -1.0))
        if share > best[0]:
            best = share, name, (first, second)
    return best[0], nodes, edges, best[1], best[2]


def _paired(
    nodes: Sequence[_Table], edges: Sequence[_Table], ids: str, ends: tuple[str, str]
) -> dict[str, tuple[_Table, _Table]]:
    """Pair each client's files by the parts of their names that differ, else by the ids of sources."""
    import pyarrow.compute as pc

    if len(nodes) != len(edges):
        raise InputError(
            f"there are {len(nodes)} files of nodes ({listed([t.path.name for t in nodes], 5)}) and "
            f"{len(edges)} of edges; give one of each for every client, or one of each for all"
        )
    if len(nodes) == 1:
        return {"": (nodes[0], edges[0])}
    own, other = (_differing([table.path for table in kind]) for kind in (nodes, edges))
    if {*own} == {*other}:
        chosen = [edges[other.index(key)] for key in own]
    else:
        shares = np.array(
            [
                [
                    pc.sum(pc.is_in(e.columns[ends[0]].texts, value_set=n.columns[ids].texts)).as_py()
                    / max(1, len(e.columns[ends[0]].texts))
                    for e in edges
                ]
                for n in nodes
            ]
        )
        if len({*shares.argmax(axis=1).tolist()}) < len(edges):
            raise InputError(
                "it is not clear which file of edges belongs to which file of nodes; give both files of a "
                "client names that differ in the same part, as in north_nodes.csv and north_edges.csv"
            )
        chosen = [edges[j] for j in shares.argmax(axis=1)]
    names = (
        own
        if all(re.search(r"[^\W\d_]", key) for key in own)
        else [table.path.name.partition(".")[0] for table in nodes]
    )
    if len({*names}) < len(names):
        names = [f"client_{number}" for number in range(1, len(nodes) + 1)]
    return {name: (n, e) for name, n, e in zip(names, nodes, chosen, strict=True)}


def _differing(paths: Sequence[Path]) -> list[str]:
    """Return the words of each path that differ, without those with which all paths begin or end."""
    words = [re.split(r"[-_./\\ ]+", str(path)) for path in paths]
    start = _common(words)
    end = _common([each[start:][::-1] for each in words])
    return ["_".join(each[start : len(each) - end]) for each in words]


def _common(lists: Sequence[Sequence[str]]) -> int:
    """Count the words with which all lists begin."""
    return sum(1 for _ in takewhile(lambda words: len({*words}) == 1, zip(*lists, strict=False)))


# ---- lines of the description ------------------------------------------------------------------------------


def _files(pairs: Mapping[str, tuple[_Table, _Table]], folder: Path) -> list[str]:
    """Write the files of each client, and how they are written if that is not found by itself."""
    lines = []
    for name, (nodes, edges) in pairs.items():
        entries = {"nodes": _relative(nodes.path, folder), "edges": _relative(edges.path, folder)}
        for key in ("separator", "decimal", "encoding"):
            stated = getattr(nodes.form, key) or getattr(edges.form, key)
            entries |= {key: stated} if stated else {}
        form = _date_format(nodes)
        entries |= {"date_format": form} if form else {}
        notes = dict.fromkeys((*nodes.notes, *edges.notes))
        if form:
            notes[f"{form} is a guess: day and month may be the other way round"] = None
        comment = f"  # {'; '.join(notes)}" if notes else ""
        if name:
            inside = ", ".join(f"{key}: {_quoted(value)}" for key, value in entries.items())
            lines.append(f"  {shown_in_yaml(name)}: {{{inside}}}{comment}")
        else:
            lines += [f"{key}: {_quoted(value)}" for key, value in entries.items()]
            lines += [f"# {note}" for note in notes]
    return ["clients:", *lines] if "" not in pairs else lines


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _quoted(text: str) -> str:
    """Write a value in a YAML mapping of one line."""
    # JSON's texts are YAML's, too.
    return text if re.fullmatch(r"[A-Za-z_][\w./-]*", text) else json.dumps(text, ensure_ascii=False)


def _date_format(table: _Table) -> str:
    """Return a form of dates that must be stated, because several forms fit all dates of a column."""
    forms = [c.date_forms for c in table.columns.values() if _is_date(c, table) and len(c.date_forms) > 1]
    return next((of[0] for of in forms if of[0] != cell_forms.ISO), "")


def _is_date(column: _Column, table: _Table) -> bool:
    return bool(column.date_forms) and (bool(column.words & _DATES) or not column.are_numbers(table.decimal))


def _columns(nodes: Sequence[_Table], edges: Sequence[_Table], ids: str, ends: tuple[str, str]) -> list[str]:
    """Write the meaning of the columns."""
    every = {name: [table.columns[name] for table in nodes] for name in nodes[0].columns}
    lines = [
        *(["no_header: nodes"] if not nodes[0].has_header and edges[0].has_header else []),
        *(["no_header: edges"] if not edges[0].has_header and nodes[0].has_header else []),
        *(["no_header: [nodes, edges]"] if not edges[0].has_header and not nodes[0].has_header else []),
        f"id: {shown_in_yaml(ids)}",
    ]
    rest = {name: columns for name, columns in every.items() if name != ids}
    named = {
        "client": _first(rest, lambda c: bool(c[0].words & _CLIENTS) and _few(c, 1000) and not _gaps(c))
        if len(nodes) == 1
        else None,
        "label": _first(rest, lambda c: bool(c[0].words & _LABELS) and 1 < _different(c) <= _CLASSES),
        "split": _first(rest, lambda c: bool(c[0].words & _SPLITS) and _values(c) <= _PARTS),
    }
    for key, name in named.items():
        if name is not None:
            lines.append(f"{key}: {shown_in_yaml(name)}  # {_summary(every[name])}")
        elif key == "label":
            lines.append("label:  # no column looks like a label; name one, as in 'label: COLUMN'")
        elif key in every:  # a column with this name has another meaning
            lines.append(f"{key}:")
    rest = {name: columns for name, columns in rest.items() if name not in named.values()}
    lines += _features(rest, nodes)
    lines += [f"{key}: {shown_in_yaml(end)}" for key, end in zip(("source", "target"), ends, strict=True)]
    return [*lines, *_edge_lines(nodes, edges, ids, ends)]


def _features(rest: Mapping[str, Sequence[_Column]], nodes: Sequence[_Table]) -> list[str]:
    dates, categories, numbers, left_out = [], [], [], []
    for name, columns in rest.items():
        if all(_is_date(c, t) for c, t in zip(columns, nodes, strict=True)):
            dates.append(name)
        elif all(c.are_numbers(t.decimal) for c, t in zip(columns, nodes, strict=True)):
            numbers.append(name)
        elif _few(columns, _CATEGORIES):
            categories.append(name)
        else:
            left_out.append(name)
    features = [name for name in rest if name not in left_out]
    if not features:
        raise InputError(
            f"{nodes[0].path} has no column that can be a feature; add one of numbers, dates or categories"
        )
    lines = [f"features: {_list(features)}"]
    lines += [f"# not used, because of their many different texts: {', '.join(left_out)}"] if left_out else []
    for key, names in (("dates", dates), ("categorical", categories)):
        if names:
            lines.append(f"{key}: {_list(names)}  # {'; '.join(f'{n}: {_summary(rest[n])}' for n in names)}")
    gaps = {name: _gaps(rest[name]) for name in features}
    with_gaps = [name for name in features if gaps[name]]
    if with_gaps:
        rule = "category" if {*with_gaps} <= {*categories} else "indicator"
        size = sum(len(column.texts) for column in rest[with_gaps[0]])
        counts = ", ".join(f"{name} {gaps[name] / size:.0%}" for name in with_gaps)
        lines.append(f"missing: {rule}  # empty cells: {counts}")
    return lines


def _edge_lines(
    nodes: Sequence[_Table], edges: Sequence[_Table], ids: str, ends: tuple[str, str]
) -> list[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.concat_arrays([table.columns[ids].texts for table in nodes])
    unknown = 0
    for table in edges:
        is_known = [pc.is_in(table.columns[end].texts, value_set=known) for end in ends]
        unknown += pc.sum(pc.invert(pc.and_(*is_known))).as_py() or 0
    lines = [f"unknown_nodes: drop  # {unknown:,} rows of edges name an unknown node"] if unknown else []
    weights = [table.columns.get("weight") for table in edges]
    if any(w is not None and not _are_positive(w, t.decimal) for w, t in zip(weights, edges, strict=True)):
        lines.append("weight:  # not all of the column's values are numbers above 0")
    others = [name for name in edges[0].columns if name not in (*ends, "weight")]
    # Clients that share nodes cannot keep directions and attributes.
    if len(known.unique()) == len(known):
        kept, used = _kept_of_edges(
            {name: [table.columns[name] for table in edges] for name in others}, edges
        )
        lines, others = lines + kept, [name for name in others if name not in used]
    lines += [f"# columns of edges that are not used: {', '.join(others)}"] if others else []
    return lines


def _kept_of_edges(
    columns: Mapping[str, Sequence[_Column]], edges: Sequence[_Table]
) -> tuple[list[str], list[str]]:
    """Write which columns are the time and the attributes of edges; returns the lines and these columns."""
    whole = {name: each for name, each in columns.items() if not _gaps(each)}
    time = _first(whole, lambda each: all(_is_date(c, t) for c, t in zip(each, edges, strict=True)))
    numbers = [
        name
        for name, each in whole.items()
        if name != time and all(c.are_numbers(t.decimal) for c, t in zip(each, edges, strict=True))
    ]
    lines = [f"edge_features: {_list(numbers)}"] if numbers else []
    lines += [f"time: {shown_in_yaml(time)}  # {_summary(whole[time])}"] if time is not None else []
    if not lines:
        return [], []
    lines.append("directed: true  # from source to target; for the networks gine and pna")
    return lines, [*numbers, *([] if time is None else [time])]


def _are_positive(column: _Column, decimal: str) -> bool:
    import pyarrow as pa

    if not column.are_numbers(decimal) or column.gaps:
        return False
    numbers = cell_forms.decimal_texts(column.texts, decimal).cast(pa.float64())
    return bool((np.asarray(numbers) > 0).all())


def _list(names: Iterable[str]) -> str:
    return f"[{', '.join(map(shown_in_yaml, names))}]"


def _summary(columns: Sequence[_Column]) -> str:
    values = sorted(_values(columns))
    return ", ".join(values[:6]) + (f" and {len(values) - 6:,} more" if len(values) > 6 else "")


def _values(columns: Sequence[_Column]) -> set[str]:
    return {value for column in columns for value in column.texts.drop_null().unique().to_pylist()}


def _different(columns: Sequence[_Column]) -> int:
    return len(_values(columns))


def _few(columns: Sequence[_Column], most: int) -> bool:
    return max(column.different for column in columns) <= most and _different(columns) <= most


def _gaps(columns: Sequence[_Column]) -> int:
    return sum(column.gaps for column in columns)


def _first(columns: Mapping[str, Sequence[_Column]], fits: Callable[[Sequence[_Column]], bool]) -> str | None:
    return next((name for name, each in columns.items() if fits(each)), None)


def _all(found: "pa.Array", texts: "pa.Array") -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.or_(found, pc.is_null(texts))).as_py())
