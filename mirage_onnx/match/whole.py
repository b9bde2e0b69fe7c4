"""A whole program as one region."""

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Program, Region
from mirage_onnx.match.canonical import make_region


def whole_region(program: Program) -> Region:
  """The region of all nodes of ``program``, of what they read and its outputs.

  Raises:
      RejectionError: a node is a barrier, or as ``make_region``.
  """
  for node in program.nodes:
    if node.barrier is not None:
      raise RejectionError(node.barrier.code, node.barrier.reason, (node.name,))
  nodes = tuple(n.name for n in program.nodes)
  made = {o for n in program.nodes for o in n.outputs}
  inputs = tuple(dict.fromkeys(i for n in program.nodes for i in n.operands if i not in made))
  return make_region(program, nodes, inputs, program.outputs)
