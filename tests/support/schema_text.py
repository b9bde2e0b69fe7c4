"""A JSON schema as lines: one per definition, and one per property of it."""

import json


def schema_text(schema):
    """All that the schema says, in its order."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in schema.items() if key != "$defs"]
    for name, definition in schema["$defs"].items():
        rest = {key: value for key, value in definition.items() if key != "properties"}
        lines.append(f"{name}: {json.dumps(rest)}")
        properties = definition.get("properties", {}).items()
        lines += [f"  {key}: {json.dumps(value)}" for key, value in properties]
    return "\n".join(lines) + "\n"
