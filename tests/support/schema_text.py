"""A JSON schema as lines: one per definition, and one per property of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def schema_text(schema: Mapping[str, Any]) -> str:
    """All that the schema says, in its order."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in schema.items() if key != "$defs"]
    for name, definition in schema["$defs"].items():
        rest = {key: value for key, value in definition.items() if key != "properties"}
        lines.append(f"{name}: {json.dumps(rest)}")
        properties = definition.get("properties", {}).items()
        lines += [f"  {key}: {json.dumps(value)}" for key, value in properties]
    return "\n".join(lines) + "\n"
