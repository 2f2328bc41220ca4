"""Graphs as the data of a run: each worker has a `Cohort`, and the server has no data.

In a deployment every site reads the description of its own tables, or a cohort file that was exported for it
(`client_data`). The schemas of all sites are compared before training (`schema`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from graphfed.data.dropped import in_one_line
from graphfed.data.user_files.feature_encoding import (
    NOTHING,
    Encoding,
    feature_names,
    filled_features,
    merge,
)
from graphfed.federation import CLIENTS, Federation, Located
from graphfed.federation.cohort import Cohort, cohort_arrays, load_cohort, save_cohort
from graphfed.federation.secure.protection import needs_parts
from graphfed.files import JsonObject
from graphfed.methods.base import Method, Task
from graphfed.methods.parts import sum_protection
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.graphs.client_data import ClientData, encode_client, make_client_cohort, read_client
from graphfed.tasks.graphs.node_table import class_probabilities, named
from graphfed.tasks.graphs.schema import Schema, compare_schemas
from graphfed.tasks.kind import DataKind

if TYPE_CHECKING:
    import pyarrow as pa


class GraphKind(DataKind[ClientData, Cohort, None, None]):
    """Graphs: nodes with features and labels, and the edges between them."""

    name = "graph"
    default = "digits"

    def save(self, part: Cohort, path: Path) -> None:
        save_cohort(part, path)

    def load(self, path: Path) -> Cohort:
        return load_cohort(path)

    def located(self, fed: Federation, parts: Sequence[Cohort], servers: Sequence[None]) -> Located[Cohort]:
        return fed.locate(CLIENTS, "data", parts)

    def read(self, arguments: JsonObject, path: Path, site: str) -> ClientData:
        return read_client(
            path,
            split=arguments["split"],
            split_seed=arguments["split_seed"],
            roster=arguments["roster"],
            client=site,
        )

    def agree(self, contents: Mapping[str, JsonObject], server: None) -> JsonObject:
        schemas = {
            client: Schema.from_json(content, f"the schema that {client} sent")
            for client, content in contents.items()
        }
        compare_schemas(schemas)
        # `compare_schemas` has refused schemas that differ.
        first = next(iter(schemas.values()))
        encoding = merge(schema.encoding for schema in schemas.values())
        filled = first.filled or filled_features(first.feature_names, encoding, first.rules)
        features = feature_names(first.feature_names, encoding, first.rules)
        agreed: JsonObject = {
            "num_features": len(features),
            "num_classes": len(first.class_names),
            "owners_known": first.owners_known,
            "edge_features": len(first.edge_features),
            "directed": first.directed,
        }
        if filled or encoding != NOTHING:
            categories = {column: list(names) for column, names in encoding.categories.items()}
            agreed |= {"categories": categories, "gaps": list(encoding.gaps), "filled": list(filled)}
        return agreed

    def expected(self, schema: JsonObject, agreed: JsonObject) -> JsonObject:
        # Other sites may have more categories and gaps than this one, but none of its own may be left out.
        own = Schema.from_json(schema, "the schema of the site")
        stated: JsonObject = {key: agreed[key] for key in ("categories", "gaps") if key in agreed}
        widened = Schema.from_json(schema | stated, "what the server sent")
        together = merge([own.encoding, widened.encoding])
        return self.agree({"the site": (widened if together == widened.encoding else own).to_json()}, None)

    def with_agreed(self, own: ClientData, agreed: JsonObject) -> ClientData:
        stated: dict[str, list[str]] = agreed.get("categories", {})
        categories = {column: tuple(names) for column, names in stated.items()}
        return encode_client(own, Encoding(categories, tuple(agreed.get("gaps", ()))))

    def task(self, agreed: JsonObject) -> Task:
        return Task(
            agreed["num_features"],
            agreed["num_classes"],
            filled=tuple(agreed.get("filled", ())),
            edge_features=agreed["edge_features"],
            directed=agreed["directed"],
        )

    def facts(self, schema: JsonObject) -> JsonObject:
        return {
            "features": len(schema["feature_names"]),
            "classes": len(schema["class_names"]),
            "feature_names": [name for name in schema["feature_names"] if name],
            "class_names": [name for name in schema["class_names"] if name],
            "edge_weights": schema["weighted"],
            "edge_features": [name for name in schema["edge_features"] if name],
            "directed": schema["directed"],
        }

    def declared(self, own: ClientData, method: Method, config: object) -> dict[str, list[int]]:
        cohort, declared = own.cohort, {}
        if "training_counts" in method.sends.messages:
            declared["train"] = cohort.counts(cohort.train).tolist()
        # With a hidden sum the server learns no client's number of nodes from the scores.
        if not needs_parts(sum_protection(config)):
            declared |= {part: cohort.counts(getattr(cohort, part)).tolist() for part in ("val", "test")}
        return declared

    def arrays(self, own: ClientData) -> dict[str, np.ndarray]:
        return cohort_arrays(own.cohort)

    def part(self, own: ClientData, clients: Sequence[int], task: Task, device: torch.device) -> Cohort:
        return make_client_cohort(own, clients, task.num_classes, device=device)

    def rows(self, own: ClientData, config: object) -> int:
        return own.cohort.num_rows

    def table(self, own: ClientData, part: Cohort, predicted: Predicted) -> "pa.Table":
        """Build a table with a row for every node that a site's clients own, in their order.

        The columns are the node's id (the number of an exported node), client, part of the split, label and
        prediction as names of classes (null if there is none), and all probabilities.
        """
        import pyarrow as pa

        rows, logits = predicted
        row = rows.cpu().numpy()
        prediction, probability = class_probabilities(logits.detach().cpu().numpy())
        names = [name or str(c) for c, name in enumerate(own.schema.class_names)]
        masks = [getattr(part, which)[rows].cpu().numpy() for which in ("train", "val", "test")]
        label = part.y[rows].cpu().numpy()
        split = np.select(masks, [0, 1, 2], 3).astype(np.int8)
        columns = {
            "id": pa.array(part.id.cpu().numpy()[row]) if own.ids is None else own.ids.take(pa.array(row)),
            "client": pa.array(np.asarray(part.clients)[part.client.cpu().numpy()[row]]),
            "split": pa.DictionaryArray.from_arrays(split, ["train", "val", "test", "none"]),
            "label": named(label, names),
            "prediction": named(prediction, names),
        }
        columns |= {f"probability_{c}": pa.array(probability[:, c]) for c in range(len(names))}
        return pa.table(columns)

    def summarise(self, path: Path, roster: Sequence[str], name: str) -> str:
        # Any split will do, because the summary does not count the nodes of its parts.
        read = read_client(path, split="default", split_seed=0, roster=roster, client=name)
        cohort = read.cohort
        named = [name for name in read.schema.class_names if name]
        return (
            f"{cohort.num_rows} nodes, {cohort.edge_index.shape[1] // 2} edges, "
            f"{cohort.num_features} features, {cohort.num_classes} classes"
            + (f" ({', '.join(named[:10])}{', ...' if len(named) > 10 else ''})" if named else "")
            + "".join(f"; {line}" for line in (in_one_line(read.dropped), *read.remarks) if line)
        )


GRAPHS = GraphKind()
