"""Predict with the model of a finished run, for its own graph or for another one with the same features.

Every method predicts as in training, with only the information that its protocol provides at prediction time.
Another graph belongs to one client, so only a model that all clients share can predict for it.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.texts import canonical_names
from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject, write_bytes
from graphfed.methods.registry import METHODS, get_method
from graphfed.runs.folder import check_new_file, read_predictions
from graphfed.runs.model_file import read_weights, with_weights
from graphfed.runs.reopen import config_from_json, read_manifest, reopen
from graphfed.tasks.base import AnyTask
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task, task_or_default
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import data_source

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.methods.base import Method, State

#: Endings of files that predictions can be written to.
TABLES = (".csv", ".parquet")


def predict(
    folder: str | Path,
    *,
    data: object = None,
    nodes: Iterable[object] | Path | None = None,
    absent: Sequence[object] = (),
    data_dir: str | Path | None = None,
    on_unknown: Callable[[str], object] = warnings.warn,
) -> "pa.Table":
    """Predict with the model of the run in a folder.

    A method whose set-up releases noised values must not release them twice (`Method.restore`). For its runs
    the predictions are those that the run wrote, for its own graph.

    Args:
        folder: The folder of a finished run.
        data: Another graph (anything that `run` takes) with the features that the model was trained on, in
            the same order, or other sensors, which are split as the run's were; None for the run's own data.
        nodes: The ids of the nodes or sensors to predict (numbers if the graph has no ids), in the order of
            the result, or the path of a CSV or Parquet file with the ids in its first column; None for all.
        absent: The ids of sensors that send nothing; the others forecast without them.
        data_dir: The folder where data files are now.
        on_unknown: Called with a line about every category that the model does not know. A node with such a
            category is predicted as if it had none.

    Returns:
        A pyarrow table with the columns of predictions.parquet.

    Raises:
        InputError: The run has not ended, the graph does not fit the model, an id is unknown, nodes are said
            to be absent, no sensor is left, or another graph is given although every client has a model of
            its own or noised values were released.
    """
    folder = Path(folder)
    nodes = _read_nodes(nodes) if isinstance(nodes, Path) else nodes
    manifest = read_manifest(folder)
    task = task_or_default(str(manifest.get("config", {}).get("task")))
    if task.only_own and not (data is None and nodes is None):
        raise InputError(f"the run in {folder} {task.only_own}; leave data and nodes out")
    if not (folder / "result.json").exists():
        raise InputError(
            f"{folder} holds no finished run; name the folder of one, or resume this one: graphfed resume "
            f"{folder}"
        )
    if len(absent) and not task.clients_may_be_absent:
        raise InputError(
            f"the run in {folder} does not forecast sensors, and only sensors may be absent; leave absent out"
        )
    name = str(manifest.get("config", {}).get("method", ""))
    method = METHODS.get(name)
    # To set up again would release noised values a second time.
    if method is not None and method.restore is not None and "deployment" not in manifest:
        return _written(folder, manifest, name, data, nodes)
    if data is None:
        # The hashes of the data are compared with those of the run.
        config, inputs = reopen(folder, data_dir=data_dir)
    else:
        config, inputs = _other(folder, manifest, task, data, data_dir)
    for line in inputs.unknown_values:
        on_unknown(line)
    weights, known = read_weights(folder), manifest["data"]
    table = _predict(config, inputs, weights, known, absent, elsewhere=data is not None)
    if data is not None:
        # Another graph belongs to one client, has no split, and numbers its classes differently.
        table = table.drop_columns([*task.drop_elsewhere])
    return table if nodes is None else _chosen(table, inputs.name, nodes)


def _written(
    folder: Path, manifest: JsonObject, method: str, data: object, nodes: Iterable[object] | None
) -> "pa.Table":
    """Return the rows of predictions.parquet; nothing is set up, so nothing is released again."""
    if data is not None:
        raise InputError(
            f"{method} would release noised values of another graph's clients, and its model works with the "
            "clients it was trained on only; leave data out to get the run's own predictions, or train on "
            "that graph"
        )
    table = read_predictions(folder)
    return table if nodes is None else _chosen(table, str(manifest["data"]["name"]), nodes)


def _other(
    folder: Path, manifest: JsonObject, task: AnyTask, data: object, data_dir: str | Path | None
) -> tuple[RunConfig, Inputs]:
    """Return the run's config on other data, checked against the data that the model was trained on."""
    asked = manifest["config"]
    method, name = get_method(str(asked.get("method"))), data_source(data).name
    _check_shared(method, name)
    if not method.state.model:
        raise InputError(
            f"{method.name} has no model, so its run cannot predict for {name!r}; run it on that data"
        )
    config = config_from_json({**asked, **task.own_data}, folder, data=data, data_dir=data_dir)
    return config, task.other_inputs(config, manifest["data"])


def _check_shared(method: "Method", name: str) -> None:
    """Raise InputError if every client has its own model, which cannot predict for another data set."""
    if method.personal:
        raise InputError(
            f"{method.name} has a model for every client, and {name!r} belongs to none of them; use a run of "
            "a method whose clients share one model"
        )


def _check_not_own(method: "Method", fresh: "State", name: str) -> None:
    """Do as `_check_shared` for methods whose settings decide whether clients have weights of their own."""
    from graphfed.federation import CLIENTS

    if any(
        fresh.values[key].place == CLIENTS and key not in method.state.replicated
        for key in method.state.model
    ):
        raise InputError(
            f"with these settings {method.name} has a model for every client, and {name!r} belongs to none "
            "of them; use a run whose clients share one model"
        )


def _predict(
    config: RunConfig,
    inputs: Inputs,
    arrays: Mapping[str, np.ndarray],
    known: JsonObject,
    absent: Sequence[object],
    *,
    elsewhere: bool,
) -> "pa.Table":
    """Set up as training does, put the weights in, and predict, all clients stacked.

    `known` are the manifest's facts on the data that the model was trained on. With `elsewhere` the data is
    another graph.
    """
    import pyarrow as pa

    from graphfed.federation import CLIENTS
    from graphfed.federation.series import Series
    from graphfed.methods.common.feature_transform import apply_transform, transform_features, transform_from
    from graphfed.runs.train import taking_part
    from graphfed.tasks.inputs import local_federation

    method, evaluation = config.method, get_task(config.task)
    fed = local_federation(config, inputs)
    parts = inputs.parts(config, fed.workers)
    data = get_task(config.task).data.located(fed, parts, [inputs.part_of_server(config)])
    task = inputs.task(config.task)
    if "classes" in known:  # another graph may not have all classes
        task = replace(task, num_classes=known["classes"])
    enrolled = evaluation.enrolled(fed, data)
    # Another graph is transformed as the training data was: the model knows no other scale.
    saved = transform_from(arrays, fed.device)
    is_saved = elsewhere and (saved.means is not None or saved.scaling is not None)
    with fed.phase("setup", round_number=0), taking_part(fed, enrolled):
        if is_saved:
            transform = fed.locate(CLIENTS, "transform", [saved])
            data = fed.clients.run(apply_transform, data, transform, config.settings)
        else:
            data, _ = transform_features(fed, data, method, config.settings, task)
        fresh = method.setup(fed, data, task, config.settings)
    if elsewhere and not method.pooled:
        _check_not_own(method, fresh, inputs.name)
    present = inputs.present(absent)
    with fed.phase("predict"), taking_part(fed, present):
        outputs = method.predict(fed, with_weights(fed, fresh, arrays, method), config.settings, "all")
        kept = fed.clients.run(evaluation.keep, evaluation.at_clients(data), outputs)
        if present is not None:
            # Only sensors can be absent.
            pairs = zip(parts, fed.present().parts, strict=True)
            parts = [part.of(here) for part, here in pairs if isinstance(part, Series)]
    names = tuple(known.get("class_names") or ())
    return pa.concat_tables(inputs.tables(config, list(zip(parts, kept.parts, strict=True)), names))


def _chosen(table: "pa.Table", graph: str, nodes: Iterable[object]) -> "pa.Table":
    """Return the rows of some nodes or sensors of the graph, in the order in which they are asked for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from graphfed.data.user_files.table_files import is_number

    forecast = "sensor" in table.column_names
    names = table["sensor" if forecast else "id" if "id" in table.column_names else "node"].cast(pa.string())
    # A set, because `in` of a column would be a search for every id.
    here = set(names.to_pylist())
    texts = list(canonical_names(str(node) for node in nodes))
    if isinstance(nodes, _FirstColumn) and texts and texts[0] not in here and not is_number(texts[0]):
        texts = texts[1:]  # the first line has the name of the column
    if not here.issuperset(texts):
        # They may be from a CSV file that graphfed wrote, with apostrophes before some.
        texts = [unguarded(text) for text in texts]
    wanted = pa.array(texts, pa.string())
    known = pc.index_in(wanted, value_set=names.combine_chunks())
    missing = np.flatnonzero(pc.is_null(known).to_numpy(zero_copy_only=False))
    if missing.size:
        raise InputError(
            f"{'sensor' if forecast else 'node'} {shown(wanted[int(missing[0])].as_py())} is not in "
            f"{graph!r} ({missing.size} of {len(wanted)} are not); give ids of its "
            f"{'sensors' if forecast else 'nodes'}"
        )
    if forecast:  # each has a row for every window
        return pa.concat_tables(table.filter(pc.equal(names, name)) for name in wanted)
    return table.take(known)


class _FirstColumn(list[str]):
    """The first column of a CSV file. Its first value may be the name of the column."""


def _read_nodes(path: Path) -> list[str]:
    """Read the ids in the first column of a CSV or Parquet file."""
    from graphfed.data.user_files.table_files import TableFile

    file = TableFile(path, header=False)
    column = file.columns[0]
    values: list[str] = file.read([column])[0][column].to_pylist()
    return values if file.is_parquet else _FirstColumn(values)


def write_table(path: Path, table: "pa.Table") -> None:
    """Write a table as CSV or Parquet, by the ending, atomically.

    A spreadsheet takes a text in CSV that begins with a sign such as = for a formula. Such a text gets an
    apostrophe before it (`guarded`); Parquet has every text as it is.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_new_file(path, TABLES)
    if path.suffix == ".csv":
        content = csv_of(table)
    else:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        content = sink.getvalue().to_pybytes()
    try:
        write_bytes(path, content)
    except OSError as error:
        raise GraphfedError(f"{path} could not be written: {error.strerror or error}") from error


def csv_of(table: "pa.Table") -> bytes:
    """Return a table as a CSV file; its texts are safe in a spreadsheet (`guarded`)."""
    import pyarrow as pa
    from pyarrow import csv

    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table({name: _plain(table[name]) for name in table.column_names}), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _plain(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return a column that CSV can hold, and that a spreadsheet takes for text."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        # CSV has no dictionaries, and their texts need guards, too.
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pa.array([None if text is None else guarded(text) for text in column.to_pylist()], column.type)


#: Texts that a spreadsheet takes for a formula (OWASP, "CSV Injection": = + - @, tab, line ends, and the wide
#: forms of the signs), and those that `guarded` has made of one.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def guarded(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would take for a formula.

    A number such as -5 stays: a spreadsheet reads that number. A text that already begins with apostrophes
    and such a sign gets one more, so that `unguarded` gives every text back.
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    """Return the text that `guarded` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
