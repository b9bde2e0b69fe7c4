"""The extents of a graph's axes in a call, from the shapes of the arrays it is called with.

A µGraph is a program over named axes, and its proof holds at all extents. So a graph also runs on
arrays of other sizes than it was optimized for, as long as they are sizes of the same program: two
dimensions that the program ties together stay equal, and one of extent 1 stays 1, because it is no
axis. What is lost is that the numbers (tiles, warps) were chosen for other sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_onnx.errors import MirageError
from mirage_onnx.ir import Program, Region, RegionTensor, Step

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
  """``extents`` of the region's axes; ``shapes`` of the program's inputs and outputs by name."""

  extents: Mapping[str, int]
  shapes: Mapping[str, Shape]


def sizes_of_call(program: Program, region: Region, shapes: Sequence[Shape]) -> Sizes:
  """The sizes of a call with inputs of these shapes, in the order of ``program.inputs``.

  Raises:
      MirageError: GRAPH_OPERAND, one line that names the input which does not fit.
  """
  if len(shapes) != len(program.inputs):
    raise _refuse(f"{len(shapes)} arrays for the {len(program.inputs)} inputs of the graph")
  given = dict(zip(program.inputs, shapes, strict=True))
  for name, shape in given.items():
    wanted = _recorded(program, name)
    if len(shape) != len(wanted) or any(
      n < 1 or (w == 1 and n != 1) for n, w in zip(shape, wanted, strict=True)
    ):
      raise _refuse(f"{name} of shape {shape}: the graph has {wanted}")
  extents = _extents(program, region, given)
  found = dict(given)
  for node in program.nodes:
    for step in node.steps:
      found[step.output.name] = _result(node.name, step, found)
  return Sizes(extents, {n: found[n] for n in (*program.inputs, *program.outputs)})


def _extents(program: Program, region: Region, given: Mapping[str, Shape]) -> dict[str, int]:
  extents: dict[str, int] = {}
  source: dict[str, str] = {}
  for x in region.inputs:
    name = x.tensor.name
    shape = given[name]
    for axis in x.axes:
      n = _extent(x, axis, shape)
      if extents.setdefault(axis, n) != n:
        other = source[axis]
        before = f"{_recorded(program, other)} and {_recorded(program, name)}"
        raise _refuse(
          f"{other} of shape {given[other]} and {name} of shape {shape} do not fit "
          f"together as {before} do in the graph"
        )
      source.setdefault(axis, name)
  return extents


def _extent(x: RegionTensor, axis: str, shape: Shape) -> int:
  """Dimensions that the program never tells apart are one axis, so several may hold it."""
  if x.splits_dims:
    raise AssertionError("a kernel graph has no reshape")
  return prod(n for n, held in zip(shape, x.dims, strict=True) if axis in held)


def _result(node: str, step: Step, shapes: Mapping[str, Shape]) -> Shape:
  """The shape of a step's output by numpy's rules, which are those of kernel graphs."""
  operands = [shapes[i] for i in step.inputs if isinstance(i, str)]
  if step.op == "matmul":
    a, b = operands
    if a[:-2] != b[:-2] or a[-1] != b[-2]:
      raise _refuse(f"{node}: a matmul of {a} and {b}")
    return (*a[:-1], b[-1])
  if step.op in ("sum", "mean", "rmax"):
    assert isinstance(step.attr, tuple)
    return tuple(1 if i in step.attr else n for i, n in enumerate(operands[0]))
  result = operands[0]
  for other in operands[1:]:
    if any(m != n and 1 not in (m, n) for m, n in zip(result, other, strict=True)):
      raise _refuse(f"{node}: {step.op} of {result} and {other}")
    result = tuple(map(max, result, other))
  return result


def _recorded(program: Program, name: str) -> Shape:
  return tuple(int(d) for d in program.tensors[name].shape or ())


def _refuse(text: str) -> MirageError:
  return MirageError("GRAPH_OPERAND", text)
