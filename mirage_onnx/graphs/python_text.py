"""A kernel graph and one of its µGraphs as a Python program that stands by itself.

The program builds the graph operation by operation, reads the µGraph from its text and so has it
verified again: nothing in the file has to be believed.
"""

from collections.abc import Iterator
from math import isfinite

from mirage_onnx.ir import Candidate, Node, Program, print_ugraph

_HEAD = '''\
"""A µGraph of mirage-onnx: ``optimized_graph(inputs)`` runs it, as a program it prints it."""

import mirage_onnx as mi

graph = mi.new_kernel_graph()
'''


def python_text(program: Program, candidate: Candidate) -> str:
  """The program; its ``optimized_graph`` is the µGraph of ``candidate`` with its numbers."""
  lines = [_HEAD.rstrip()]
  for name in program.inputs:
    tensor = program.tensors[name]
    assert tensor.dtype is not None
    dtype = tensor.dtype.numpy.name
    lines.append(f'{name} = graph.new_input(dims={tensor.shape}, dtype="{dtype}")')
  for node in program.nodes:
    arguments = ", ".join([*node.inputs, *_attributes(program, node)])
    lines.append(f"{node.outputs[0]} = graph.{node.op_type}({arguments})")
  lines += [f"graph.mark_output({name})" for name in program.outputs]
  us = candidate.predicted_us
  predicted = f", predicted_us={us!r}" if isfinite(us) else ""
  numbers = "".join(f'    "{p.to_text()}",\n' for p in candidate.params)
  return (
    "\n".join(lines)
    + f'\n\nUGRAPH = """\\\n{print_ugraph(candidate.ugraph)}"""\n'
    + f"NUMBERS = [\n{numbers}]\n\n"
    + f"optimized_graph = graph.read_ugraph(UGRAPH, NUMBERS{predicted})\n\n"
    + 'if __name__ == "__main__":\n    print(optimized_graph)\n'
  )


def _attributes(program: Program, node: Node) -> Iterator[str]:
  """What the operation takes besides tensors: it is what its first reduction reduces over."""
  reduced = next((s.attr for s in node.steps if isinstance(s.attr, tuple)), None)
  if reduced is None:
    return
  if node.op_type == "rms_norm":
    dims = program.tensors[node.inputs[0]].shape or ()
    yield f"normalized_shape={dims[-len(reduced) :]}"
  else:
    yield f"dim={reduced[0]}"
