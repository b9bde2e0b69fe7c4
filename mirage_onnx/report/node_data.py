"""What each node of an optimized model takes, as Model Explorer's node data.

The format is that of ``model_explorer.node_data_builder`` (ai-edge-model-explorer 0.1): results by graph and
node. A node without a name, or of which no time is known, has none.
"""

from __future__ import annotations

from typing import Any

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.report.page.kernels import nodes_of_places
from mirage_onnx.report.run_record import RunRecord

#: From the least time to the most.
_GRADIENT = ({"stop": 0, "bgColor": "#f7fbff"}, {"stop": 1, "bgColor": "#e6550d"})


def node_data(record: RunRecord, file: ModelFile) -> dict[str, Any]:
  """The microseconds that every node of the model takes, by graph: that of the main graph."""
  graph = file.proto.graph
  of_place = nodes_of_places(record, file)
  taken = {node.name: record.places[i].us for i, node in of_place.items()}
  there = {n.name for n in graph.node if n.name}
  for n in record.nodes:
    # Of one whose work a custom node does, what is left stands where others still read it.
    if n.name in there and n.name not in taken and n.us is not None and (n.left_us > 0 or not n.places):
      taken[n.name] = n.left_us
  results = {name: {"value": round(us, 3)} for name, us in taken.items()}
  return {graph.name: {"name": "µs", "results": results, "gradient": list(_GRADIENT)}}
