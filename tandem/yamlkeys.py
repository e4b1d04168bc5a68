"""PyYAML's safe loader, but for a key that is there twice: it would take the last of them."""

from __future__ import annotations

from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, as YAML itself demands."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401 - not published
        """Return the mapping as it is written, before `<<` brings anything into it."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode) or name.tag == _MERGE:
                continue
            key = (name.tag, name.value)
            if key in seen:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {name.value[:64]!r} is there twice", name.start_mark
                )
            seen.add(key)
        return node
