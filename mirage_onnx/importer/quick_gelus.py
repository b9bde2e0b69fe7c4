"""x * sigmoid(x) as one operator, as ONNX Runtime makes it of a model, but not of its subgraphs."""

from collections import Counter

from onnx import GraphProto, NodeProto, helper


def with_gelus(graph: GraphProto) -> list[NodeProto]:
  """The nodes of a graph, x * sigmoid(x) one operator: onnxruntime makes that of it, but in no subgraph."""
  readers = Counter(i for n in graph.node for i in n.input)
  readers.update(o.name for o in graph.output)
  sigmoids = {n.output[0]: n for n in graph.node if n.op_type == "Sigmoid" and readers[n.output[0]] == 1}
  found, gone = list[NodeProto](), set[str]()
  for n in graph.node:
    gate = next((sigmoids[i] for i in n.input if i in sigmoids), None) if n.op_type == "Mul" else None
    if gate is not None and gate.input[0] in n.input:
      gone.add(gate.output[0])
      n = helper.make_node(
        "QuickGelu", [gate.input[0]], list(n.output), name=n.name, domain="com.microsoft", alpha=1.0
      )
    found.append(n)
  return [n for n in found if not (n.op_type == "Sigmoid" and n.output[0] in gone)]
