"""Read and write YAML files of plain values, which cannot make a program do anything."""

import re
from pathlib import Path
from typing import Any

from graphfed.errors import InputError, shown
from graphfed.files import read_start

#: Of a file, in bytes and levels: far more than one needs, and little enough to be read at once.
MAX_BYTES = 100_000
MAX_LEVELS = 12
#: A number as 1e-3, which YAML 1.1 takes for text because it has no dot, and the signs it may begin with.
SCIENTIFIC = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")


def read_yaml(path: Path, what: str) -> Any:
    """Read a small YAML file of plain values.

    The file has no aliases, tags or keys that are given twice, at most 12 levels and at most 100 kB. A date
    is read as text and 1e-3 as a number.

    Args:
        what: The name of the file in messages, as in "the config file".
    """
    import yaml

    def refusal(node: Any, reason: str) -> InputError:
        return InputError(f"{what} {path}, line {node.start_mark.line + 1}: {reason}")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        level = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            # A few aliases of aliases stand for billions of values; a tag can ask for any type.
            if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
                raise refusal(event, "anchors and aliases (& and *) are not read; write the value out")
            if event.tag is not None:
                raise refusal(event, "tags (!) are not read; leave it out")
            if self.level == MAX_LEVELS:
                raise refusal(event, f"more than {MAX_LEVELS} levels; two are enough")
            self.level += 1
            node = super().compose_node(parent, index)
            self.level -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise refusal(key, "a key must be text")
                if key.value in keys:
                    raise refusal(key, f"{shown(key.value)} is given twice; give it once")
                keys.add(key.value)
            return super().construct_mapping(node, deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except ValueError:  # Python reads no number of more than 4300 digits
                raise refusal(node, "this value cannot be read; is it a number?") from None

    # Dates and merge keys (<<) are read as text: neither is needed, and a merge is a kind of alias.
    plain = "tag:yaml.org,2002:"
    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag not in (f"{plain}timestamp", f"{plain}merge")]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(f"{plain}float", *SCIENTIFIC)
    # One byte more than allowed, to notice a longer file without reading it.
    raw = read_start(path, MAX_BYTES + 1, f"{what} ")
    if len(raw) > MAX_BYTES:
        raise InputError(f"{what} {path} has more than {MAX_BYTES} bytes; is it the right file?")
    try:
        return Loader(raw.decode("utf-8-sig")).get_single_data()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{what} {path} is not YAML in UTF-8 (byte {error.start}); save it as UTF-8 text"
        ) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{what} {path} is not YAML: {reason[:300]}") from None


def dump_yaml(content: Any) -> str:
    """Return plain values as YAML that `read_yaml` reads back; text that looks like a number is quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        pass

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", *SCIENTIFIC)
    text: str = yaml.dump(content, Dumper=Dumper, sort_keys=False, default_flow_style=None)
    return text
