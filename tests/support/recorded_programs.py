"""µGraphs of golden programs whose kernels were timed, as the replay has them, whatever searches find now."""

import json
from functools import cache
from pathlib import Path

from mirage_onnx.ir.text import parse_ugraph

_RECORD = Path(__file__).resolve().parents[2] / "bench" / "replay" / "programs.jsonl"


@cache
def _texts():
  entries = [json.loads(line) for line in _RECORD.read_text().splitlines()]
  return {e["name"]: e["graph"] for e in entries if "graph" in e}


def recorded_graph(name):
  """The first program of this name."""
  return parse_ugraph(_texts()[f"programs/{name}.0"])
