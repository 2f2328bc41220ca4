"""Use a finished run's model: predictions for its own graph, or for another one with the same features.

Every method predicts as in training: with only what its protocol lets it see at prediction time. Another
graph is one site's, which only a model that all clients share can serve."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject, check_regular, read_tensors, write_bytes
from graphfed.methods.registry import METHODS, get_method
from graphfed.runs.folder import check_new_file, read_predictions
from graphfed.runs.reopen import config_from_json, read_manifest, reopen
from graphfed.tasks.base import TaskDefinition
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.registry import get_task, task_or_default
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.source import data_source

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from torch import Tensor

    from graphfed.federation import Federation
    from graphfed.methods.base import Method, State
    from graphfed.nn.backbones import Weights
    from graphfed.nn.sparse import SparseWeights

__all__ = ["TABLES", "predict", "read_nodes", "with_weights", "write_table"]

#: Endings of files that predictions can be written to.
TABLES = (".csv", ".parquet")


def predict(
    folder: str | Path,
    *,
    data: object = None,
    nodes: Iterable[object] | None = None,
    absent: Sequence[object] = (),
    data_dir: str | Path | None = None,
) -> "pa.Table":
    """What the model of the run in `folder` predicts, as a pyarrow table with the columns of
    predictions.parquet (`predictions_table`).

    data: another graph (all that `run` takes), with the features the model was trained on, in the same order,
    or other sensors, split as the run's were; None: the run's own. nodes: ids of the nodes or sensors to
    predict (numbers where the graph has no ids), in the order they are wanted; None: all. absent: ids of
    sensors that send nothing; the others forecast without them. data_dir: where data files are now.

    A method whose set-up releases noised values must not release them twice (`Method.restore`): of its runs
    the predictions are those that the run wrote, of its own graph.

    Raises InputError for a run that has not ended, a graph that does not fit the model, an id that is not in
    the graph, absent nodes, absent sensors that leave none, and another graph where every client has a
    model of its own or noised values were released."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    task = task_or_default(str(manifest.get("config", {}).get("task")))
    if task.only_own and not (data is None and nodes is None):
        raise InputError(f"the run in {folder} {task.only_own}; leave data and nodes out")
    if not (folder / "result.json").exists():
        raise InputError(
            f"{folder} holds no finished run; name the folder of one, or go on with it: graphfed resume "
            f"{folder}"
        )
    if len(absent) and not task.clients_may_be_absent:
        raise InputError(
            f"the run in {folder} forecasts no sensors, of which some may be absent; leave absent out"
        )
    name = str(manifest.get("config", {}).get("method", ""))
    method = METHODS.get(name)
    if method is not None and method.restore is not None and "deployment" not in manifest:
        return _written(folder, manifest, name, data, nodes)
    if data is None:
        config, inputs = reopen(folder, data_dir=data_dir)
    else:
        config, inputs = _other(folder, manifest, task, data, data_dir)
    weights, known = _weights_in(folder), manifest["data"]
    table = _predict(config, inputs, weights, known, absent, elsewhere=data is not None)
    if data is not None:
        # Another graph is one client's, has no split, and numbers its classes in its own way.
        table = table.drop_columns([*task.drop_elsewhere])
    return table if nodes is None else _chosen(table, inputs.name, nodes)


def _written(
    folder: Path, manifest: JsonObject, method: str, data: object, nodes: Iterable[object] | None
) -> "pa.Table":
    """The rows of predictions.parquet: nothing is set up, and so nothing is released."""
    if data is not None:
        raise InputError(
            f"{method} would release noised values of another graph's clients, and its model is of use with "
            "theirs only; leave data out (the run's own predictions), or train on that graph"
        )
    table = read_predictions(folder)
    return table if nodes is None else _chosen(table, str(manifest["data"]["name"]), nodes)


def _other(
    folder: Path, manifest: JsonObject, task: TaskDefinition, data: object, data_dir: str | Path | None
) -> tuple[RunConfig, Inputs]:
    """The run's config on other data, checked against what the model was trained on."""
    asked = manifest["config"]
    method, name = get_method(str(asked.get("method"))), data_source(data).name
    _check_shared(method, name)
    if not method.state.model:
        raise InputError(
            f"{method.name} learns nothing, so that its run says nothing of {name!r}; run it on that data"
        )
    assert task.other_inputs is not None, "what predicts its own data alone was refused"
    config = config_from_json({**asked, **task.own_data}, folder, data=data, data_dir=data_dir)
    return config, task.other_inputs(config, manifest["data"])


def _check_shared(method: "Method", name: str) -> None:
    """InputError where a model that was trained on one data set can say nothing of another one's clients."""
    if method.personal:
        raise InputError(
            f"{method.name} has a model for every client, and {name!r} is of none of them; use a run of a "
            "method whose model is shared"
        )


def _check_not_own(method: "Method", fresh: "State", name: str) -> None:
    """`_check_shared`, where settings decide whether clients have weights of their own."""
    from graphfed.federation import CLIENTS

    if any(
        fresh.values[key].place == CLIENTS and key not in method.state.replicated
        for key in method.state.model
    ):
        raise InputError(
            f"with these settings {method.name} has a model for every client, and {name!r} is of none of "
            "them; use a run whose model is shared"
        )


def _weights_in(folder: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError

    path = folder / "model.safetensors"
    try:
        check_regular(path)
        path.open("rb").close()  # the reader calls every file that it may not open a missing one
        return read_tensors(path)[0]
    except PermissionError:
        raise InputError(f"{path} may not be read by you; change its permissions") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({str(error)[:200]}); the run must be made again") from None


def _predict(
    config: RunConfig,
    inputs: Inputs,
    arrays: Mapping[str, np.ndarray],
    known: JsonObject,
    absent: Sequence[object],
    *,
    elsewhere: bool,
) -> "pa.Table":
    """Set up as training does, put the weights in, and predict, all clients stacked. known: of the data that
    the model was trained on; absent: sensors that take no part in predicting; elsewhere: whether this is
    other data."""
    import pyarrow as pa

    from graphfed.federation import CLIENTS
    from graphfed.federation.series import Series
    from graphfed.methods.common.feature_scaling import apply_scaling, scale_features, scaling_from
    from graphfed.runs.train import taking_part
    from graphfed.tasks.inputs import local_federation

    method, evaluation = config.method, get_task(config.task).evaluation
    fed = local_federation(config, inputs)
    parts = inputs.parts(config, fed.workers)
    data = get_task(config.task).data.located(fed, parts, [inputs.part_of_server(config)])
    task = inputs.task(config.task)
    if "classes" in known:  # another graph may lack some
        task = replace(task, num_classes=known["classes"])
    enrolled = evaluation.enrolled(fed, data)
    scaling = scaling_from(arrays, fed.device) if elsewhere else None
    with fed.phase("setup", round_number=0), taking_part(fed, enrolled):
        if scaling is None:
            data, _ = scale_features(fed, data, method, config.training, task)
        else:  # of the data that the model was trained on
            data = fed.clients.run(apply_scaling, data, fed.locate(CLIENTS, "scaling", [scaling]))
        fresh = method.setup(fed, data, task, config.training)
    if elsewhere and not method.pooled:
        _check_not_own(method, fresh, inputs.name)
    present = inputs.present(absent)
    with fed.phase("predict"), taking_part(fed, present):
        outputs = method.predict(fed, with_weights(fed, fresh, arrays, method), config.training, "all")
        kept = fed.clients.run(evaluation.keep, evaluation.at_clients(data), outputs)
        if present is not None:
            # Only sensors can be absent.
            pairs = zip(parts, fed.present().parts, strict=True)
            parts = [part.of(here) for part, here in pairs if isinstance(part, Series)]
    names = tuple(known.get("class_names") or ())
    return pa.concat_tables(inputs.tables(config, list(zip(parts, kept.parts, strict=True)), names))


def with_weights(
    fed: "Federation", fresh: "State", arrays: Mapping[str, np.ndarray], method: "Method"
) -> "State":
    """The state with the weights of a run's model.safetensors (layout: `weight_arrays`; a pooled method's
    have no client dimension, of several values the names begin with the value's) in the place of its own."""
    values = dict(fresh.values)
    for name in method.state.model:
        prefix = f"{name}." if len(method.state.model) > 1 else ""
        mine = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        if not values[name].parts:
            continue  # of another place
        (own,) = fed.local_parts(values[name])
        loaded = _loaded(own, mine, prefix, fed.device, method.pooled)
        values[name] = replace(values[name], parts=(loaded,))
    return replace(fresh, values=values)


def _loaded(
    own: "Weights",
    arrays: Mapping[str, np.ndarray],
    prefix: str,
    device: "torch.device",
    pooled: bool,
) -> "Weights":
    """The weights in `arrays` in the form of `own`; prefix: of their names in the file."""
    import torch

    from graphfed.nn.sparse import SparseWeights

    loaded: Weights = {}
    for name, weight in own.items():
        try:
            if isinstance(weight, SparseWeights) and name not in arrays:
                stored = {k: torch.from_numpy(arrays[f"{name}.{k}"]) for k in _SPARSE}
                loaded[name] = SparseWeights(**stored, num_clients=weight.num_clients)
            else:
                full = torch.from_numpy(arrays[name]).to(device)
                if pooled:
                    full = full[None]  # the only client's
                # In full, [K, F, H]: from clients one at a time.
                loaded[name] = _stored_rows(weight, full) if isinstance(weight, SparseWeights) else full
        except KeyError as error:
            raise InputError(
                f"model.safetensors lacks {prefix}{error.args[0]}; the run must be made again"
            ) from None
        given, like = (w.values if isinstance(w, SparseWeights) else w for w in (loaded[name], weight))
        if given.shape != like.shape:
            raise InputError(
                f"model.safetensors has {prefix}{name} of shape {tuple(given.shape)} where this model has "
                f"{tuple(like.shape)}; the run must be made again"
            )
    return loaded


#: The arrays of first-layer weights that are stored by pair.
_SPARSE = ("values", "pair_client", "pair_feature")


def _stored_rows(like: "SparseWeights", full: "Tensor") -> "SparseWeights":
    """Weights [K, F, H] as they are stored in `like`. A feature that occurs nowhere at a client needs no row
    of its own to predict."""
    import torch

    rows = full[like.pair_client, like.pair_feature]
    return like.with_values(torch.cat([rows, full[0]]))


def _chosen(table: "pa.Table", graph: str, nodes: Iterable[object]) -> "pa.Table":
    """The rows of some nodes of the graph of that name, or of some sensors, in the order they are asked
    for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    forecast = "sensor" in table.column_names
    names = table["sensor" if forecast else "id" if "id" in table.column_names else "node"].cast(pa.string())
    here = set(names.to_pylist())
    texts = [str(node) for node in nodes]
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


def read_nodes(path: Path) -> list[str]:
    """The ids in the first column of a CSV or Parquet file; InputError when it cannot be read."""
    from graphfed.data.user_files.table_files import TableFile

    file = TableFile(path)
    column = file.columns[0]
    values: list[str] = file.read([column])[0][column].to_pylist()
    return values


def write_table(path: Path, table: "pa.Table") -> None:
    """Write a table as CSV or Parquet, by the ending, atomically.

    A spreadsheet takes a text in CSV that begins with a sign such as = for a formula. Such a text gets an
    apostrophe before it (`guarded`); Parquet has every text as it is.

    InputError for another ending and a file that is there; GraphfedError when the disk refuses."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    check_new_file(path, TABLES)
    sink = pa.BufferOutputStream()
    if path.suffix == ".csv":
        csv.write_csv(pa.table({name: _plain(table[name]) for name in table.column_names}), sink)
    else:
        pq.write_table(table, sink)
    try:
        write_bytes(path, sink.getvalue().to_pybytes())
    except OSError as error:
        raise GraphfedError(f"{path} could not be written: {error.strerror or error}") from error


def _plain(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """A column that CSV can hold, and that a spreadsheet takes for text."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
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
    and such a sign gets one more, so that `unguarded` gives every text back."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    """The text that `guarded` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
