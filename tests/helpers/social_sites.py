"""Sites of a federation on this machine, with a part of the graph `social` each."""

from pathlib import Path

from graphfed.data.datasets import load
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.federation.cohort import make_cohort, save_cohort
from graphfed.runtime.nvflare.project import Project


def write_parts(folder: Path, project: Project, num_nodes: int) -> dict[str, Path]:
    """Write the part of each site, one client a site, and return the files by site."""
    graph = load("social", None, num_nodes=num_nodes)
    split = make_split(graph, "random:0.5,0.25,0.25", 0)
    partitioned = partition(graph, "random", len(project.sites), 0)
    files = {site.name: folder / f"{site.name}.safetensors" for site in project.sites}
    for k, path in enumerate(files.values()):
        save_cohort(make_cohort(graph, split, partitioned, [k]), path)
    return files
