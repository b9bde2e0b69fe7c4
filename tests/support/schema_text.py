"""A JSON schema as lines: one per definition, and one per property of it."""

import json

#: What a report says of a region.
REGION = {
  "id": "r0", "ops": ["node_pow_1", "node_mean", "node_linear"], "count": 2,
  "status": "replaced", "reason": None, "choice": "predicted",
  "ugraph": "ugraph 1\nkernel k0 grid=a0 cluster=- loop=-\n", "predicted_us": 10.0,
  "measured_us": None, "baseline_us": 25.0,
  "search": {"seconds": 1.5, "states": 100, "verified": 3, "stop": "EXHAUSTED"},
  "proof": {"draws": 3, "bound": 1e-9},
}  # fmt: skip


def schema_text(schema):
  lines = [f"{key}: {json.dumps(value)}" for key, value in schema.items() if key != "$defs"]
  for name, definition in schema["$defs"].items():
    rest = {key: value for key, value in definition.items() if key != "properties"}
    lines.append(f"{name}: {json.dumps(rest)}")
    properties = definition.get("properties", {}).items()
    lines += [f"  {key}: {json.dumps(value)}" for key, value in properties]
  return "\n".join(lines) + "\n"
