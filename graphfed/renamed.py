"""Names of settings, options, keys and commands that were changed, each with the name it has now.

An old name is never accepted. `graphfed.errors.did_you_mean` looks every unknown name up here, so that the
message which refuses an old name says the new one.
"""

from collections.abc import Collection, Mapping

__all__ = ["COMMANDS", "NAMES", "new_name"]

#: Old name: the names that replace it, the most likely first. Which one is meant depends on where it stands.
NAMES: Mapping[str, tuple[str, ...]] = {
    # Settings of methods, and options of partitions.
    "vertex_ids": ("node_ids",),
    "most_neighbours": ("max_neighbours",),
    "share": ("sent_embeddings",),
    "vertices": ("nodes",),
    "partition.vertices": ("partition.nodes",),
    # Options of a run. In a description, `sites` was the list of the clients.
    "sites": ("workers", "clients"),
    "kit": ("startup_kit",),
    # The option of `graphfed report`; other commands have an option `device`.
    "device": ("client",),
    # Keys of a description.
    "site": ("client",),
    "source_site": ("source_client",),
    "target_site": ("target_client",),
}
#: The same for commands, as they are typed after `graphfed`.
COMMANDS: Mapping[str, str] = {"data deal": "data export"}


def new_name(old: str, names: Collection[str]) -> str | None:
    """Return the name that replaces an old one.

    Args:
        old: A name that is not known.
        names: The names that are known where it stands.

    Returns:
        The new name; None if `old` was never a name of one of `names`.
    """
    return next((new for new in NAMES.get(old, ()) if new in names), None)
