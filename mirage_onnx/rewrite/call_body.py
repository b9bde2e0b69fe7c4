"""The function body of a custom node that calls the same region's node for another target.

Where the library does not know the outer operator, ONNX Runtime takes this body, finds the operator of
the other target in it, and, where it knows that neither, takes that one's body: the original nodes.
"""

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from mirage_onnx.rewrite.body import CONSTANTS_OF_ALL_TYPES, Body, empty_workspace
from mirage_onnx.rewrite.replacement import Replacement


def can_call(outer: Replacement, inner: Replacement) -> bool:
  """Whether the body of ``outer`` can be a call of ``inner``.

  Both have the same tensors; 4-bit weights, which are bytes in a kernel's order, also the same order. And a
  scratch tensor of the inner one must be one of the outer one: a model states the types of its values, not
  of those in bodies.
  """
  if (outer.inputs, outer.outputs) != (inner.inputs, inner.outputs) or inner.workspace > outer.workspace:
    return False
  uses = ((outer.weight(x), inner.weight(x)) for x in outer.inputs)
  return all(a == b or not any(u is not None and u.four for u in (a, b)) for a, b in uses)


def call_body(
  outer: Replacement, inner: Replacement, operands: Sequence[str], domain: str, opsets: Mapping[str, int]
) -> Body:
  """The body of ``outer`` that calls ``inner``, an operator of ``domain``.

  ``operands``: the constants that only the innermost body reads, as further inputs of all of them.
  """
  formals = [f"i{i}" for i in range(len(outer.inputs) + len(operands))]
  nodes, given = list[onnx.NodeProto](), ["bundle", *formals]
  for i, value in enumerate(outer.inputs):
    ours, theirs = outer.weight(value), inner.weight(value)
    if ours == theirs:
      continue
    perm = tuple(range(len((ours or theirs).perm)))  # type: ignore[union-attr]
    if ours is not None:
      perm = ours.inverse
    if theirs is not None:
      perm = tuple(perm[p] for p in theirs.perm)
    name = f"i{i}_turned"
    nodes.append(helper.make_node("Transpose", [f"i{i}"], [name], name=f"Transpose_i{i}", perm=perm))
    given[1 + i] = name
  made = [f"o{i}" for i in range(len(outer.outputs))]
  if inner.workspace:
    made.append("workspace")
  call = helper.make_node(inner.op_type, given, made, name=f"mirage/{inner.plan}", domain=domain)
  nodes.append(call)
  if outer.workspace and not inner.workspace:
    is_old = opsets.get("", CONSTANTS_OF_ALL_TYPES) < CONSTANTS_OF_ALL_TYPES
    nodes += empty_workspace(is_old)
    made.append("workspace")
  function = onnx.FunctionProto(input=["bundle", *formals], output=made, node=nodes)
  if "" in opsets:
    function.opset_import.add(domain="", version=opsets[""])
  function.opset_import.add(domain=domain, version=1)
  return Body(function, tuple(operands))
