"""Measure a graph from files, 10^6 nodes and 10^7 edges: seconds and peak memory to load and to partition
it.

A separate process generates the tables in a temporary folder. Each format is then read in a fresh process,
Parquet also with edge weights, and as the files of three clients: each lists a third of the edges, with their
ends, and a third of the nodes. The peak of resident memory is compared with the bytes of the loaded
arrays."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from measure import add_common_options, finish, load_average

#: Nodes and edges.
TINY, SMALL, FULL = (1_000, 10_000), (100_000, 1_000_000), (1_000_000, 10_000_000)
FEATURES, SITES, NUM_CLIENTS = 8, 20, 3

READ = """
import json, resource, sys, time
from pathlib import Path
from graphfed.data.user_files.graph_description import describe
from graphfed.data.user_files.graph_files import load_description
from graphfed.data.partitions.partition import partition
import pyarrow.csv, pyarrow.parquet, numpy
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
folder, ending, weight = Path(sys.argv[1]), sys.argv[2], sys.argv[3] or None
def files(end): return {"nodes": f"nodes{end}.{ending}", "edges": f"edges{end}.{ending}"}
num_clients = int(sys.argv[4])
content = {"clients": {f"s{s}": files(s) for s in range(num_clients)}} if num_clients else files("")
base, began = peak(), time.perf_counter()
graph = load_description(describe({**content, "weight": weight}, folder, "it"))
loaded, loaded_peak = time.perf_counter(), peak()
parts = partition(graph, "column", None, 0)
done = time.perf_counter()
of_clients = [graph.clients] if graph.held is None else [*vars(graph.held).values()]
arrays = [graph.x, graph.y, graph.edges, *of_clients, graph.ids]
arrays = sum(a.nbytes for a in arrays + ([] if weight is None else [graph.edge_weight]))
tables = sum(getattr(parts, key).nbytes for key in parts.tables)
print(json.dumps({"load_s": loaded - began, "deal_s": done - loaded, "imports_mb": base,
    "load_peak_mb": loaded_peak, "peak_mb": peak(), "arrays_mb": arrays / 1e6,
    "tables_mb": tables / 1e6, "nodes": graph.num_nodes,
    "edges": graph.num_edges, "sites": parts.num_clients, "cut": int(len(parts.cross_local_client) // 2)}))
"""


def generate(folder: Path, nodes: int, edges: int) -> None:
    """Write nodes and edges in both formats; three of four edges have both ends at one client."""
    rng = np.random.default_rng(0)
    ids = np.char.add("acct", rng.permutation(nodes).astype(str))
    client = rng.integers(SITES, size=nodes)
    columns: dict[str, Any] = {"id": ids, "client": np.char.add("site", client.astype(str))}
    columns["label"] = rng.integers(2, size=nodes)
    columns |= {f"f{j}": rng.normal(size=nodes).round(4) for j in range(FEATURES)}
    order = np.argsort(client, kind="stable")
    start = np.searchsorted(client[order], np.arange(SITES + 1))
    u = rng.integers(nodes, size=edges)
    same_client = order[
        start[client[u]] + (rng.random(edges) * (start[client[u] + 1] - start[client[u]])).astype(int)
    ]
    v = np.where(rng.random(edges) < 0.75, same_client, rng.integers(nodes, size=edges))
    amount = rng.lognormal(size=edges).round(3) + 0.001
    ends = {"source": ids[u], "target": ids[v], "amount": amount}
    tables = {"nodes": pa.table(columns), "edges": pa.table(ends)}
    for s in range(NUM_CLIENTS):
        listed = np.arange(s, edges, NUM_CLIENTS)
        held = np.unique(np.concatenate((u[listed], v[listed], np.arange(s, nodes, NUM_CLIENTS))))
        tables |= {f"nodes{s}": tables["nodes"].take(held), f"edges{s}": tables["edges"].take(listed)}
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
        pa_csv.write_csv(table, folder / f"{name}.csv")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "own_data")
    options = parser.parse_args()
    began, load_before = time.perf_counter(), load_average()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = FULL if options.full else TINY if options.tiny else SMALL
        # In a separate process, because a child process inherits the peak of its parent.
        code = f"import own_data, pathlib; own_data.generate(pathlib.Path({name!r}), *{size})"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
        cases = [("parquet", "", 0), ("csv", "", 0), ("parquet", "amount", 0)]
        for ending, weight, num_clients in (*cases, ("parquet", "", NUM_CLIENTS), ("csv", "", NUM_CLIENTS)):
            command = [sys.executable, "-c", READ, name, ending, weight, str(num_clients)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            parts = [
                f"{part}{s}"
                for part in ("nodes", "edges")
                for s in (range(num_clients) if num_clients else [""])
            ]
            files = sum((folder / f"{part}.{ending}").stat().st_size for part in parts)
            row = json.loads(done.stdout) | {"files_mb": files / 1e6}
            case = f"{ending}, weighted" if weight else f"{ending}, three sites" if num_clients else ending
            results[case] = {key: round(value, 2) for key, value in row.items()}
            print(case, json.dumps(results[case]), flush=True)
    for key in ("nodes", "edges"):
        assert len({row[key] for row in results.values()}) == 1, "every way gives the same graph"
    finish(options.out, began, load_before, results)


if __name__ == "__main__":
    main()
