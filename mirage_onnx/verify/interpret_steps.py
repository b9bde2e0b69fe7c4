"""The value of a region's steps: what ONNX says, by position and numpy broadcasting.

A region also runs at other extents than its own: then recorded shapes only say which dimensions of
a reshape are 1; what is regrouped or repeated gets the sizes of its axes (``step_axes``).
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from mirage_onnx import deadline
from mirage_onnx.ir import Constant, Dim, DType, Operand, Region, RegionTensor, Step, round_to
from mirage_onnx.ir.functions import ELEMENTWISE, IRRATIONAL
from mirage_onnx.verify.domain import real_function, real_power
from mirage_onnx.verify.step_axes import step_axes


def interpret_steps(
  region: Region,
  inputs: Mapping[str, np.ndarray],
  *,
  rounded: bool,
  xp: Any = np,
  extents: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
  """ONNX tensor name -> float64 array, for the inputs (by ONNX name) and every step.

  ``rounded``: every result is rounded to its recorded element type, op by op. Otherwise casts
  change nothing, as in the algebra. ``xp``: the array module of the inputs, numpy or cupy.
  ``extents``: of the axes, where ``inputs`` are ``positional``; without, inputs have their
  recorded shapes wherever a step regroups or repeats their dimensions.

  Raises:
      ValueError: a step cannot be run on these shapes.
  """
  env = dict(inputs)
  shapes = _resized(region, extents)
  recorded: dict[str, tuple[Dim, ...] | None]
  recorded = {i.tensor.name: region.shape(i.tensor) for i in region.inputs}

  def operand(x: Operand) -> np.ndarray:
    if not isinstance(x, Constant) and x in env:
      return env[x]
    constant = x if isinstance(x, Constant) else region.constants[x]
    result: np.ndarray = xp.asarray(constant_value(constant))
    return result

  for step in region.steps:
    deadline.check()
    if (shape := shapes.get(step.output.name)) is not None:
      x = operand(step.inputs[0])
      result = x.reshape(shape) if step.op == "reshape" else xp.broadcast_to(x, shape)
    elif step.op == "reshape":
      name = step.inputs[0]
      assert isinstance(name, str)
      result = _move_ones(operand(name), recorded.get(name), step.output.shape)
    else:
      with np.errstate(all="ignore"):
        result = _run(step, operand, xp)
    dtype = step.attr if step.op == "cast" else step.output.dtype
    if rounded and isinstance(dtype, DType):
      result = round_to(result, dtype)
    env[step.output.name] = result
    recorded[step.output.name] = step.output.shape
  return env


def _resized(region: Region, extents: Mapping[str, int] | None) -> dict[str, tuple[int, ...]]:
  """The shapes at these extents of what steps regroup or repeat."""
  recorded: dict[str, tuple[Dim, ...] | None]
  recorded = {i.tensor.name: region.shape(i.tensor) for i in region.inputs}
  recorded |= {s.output.name: s.output.shape for s in region.steps}
  wanted = []
  for step in region.steps:
    before = recorded.get(str(step.inputs[0])) or ()
    sides = [[d for d in side if d != 1] for side in (before, step.output.shape or ())]
    if step.op in ("reshape", "expand") and sides[0] != sides[1]:
      wanted.append(step.output.name)
  if extents is None or not wanted:
    return {name: tuple(int(d) for d in recorded[name] or ()) for name in wanted}
  axes = step_axes(region)
  sizes = axes.extents_at(extents)
  return {name: axes.shape(name, sizes) for name in wanted}


def _run(step: Step, operand: Callable[[Operand], np.ndarray], xp: Any) -> np.ndarray:
  if step.op == "pow":
    exponent = step.inputs[1]
    if not isinstance(exponent, Constant) or exponent.exponent != 1:
      raise ValueError(f"pow takes an exact rational exponent, not {exponent}")
    assert not isinstance(exponent.base, str)
    return real_power(operand(step.inputs[0]), exponent.base)
  args = [operand(x) for x in step.inputs]
  result: np.ndarray
  match step.op, step.attr:
    case "cast", _:
      result = args[0]
    case "matmul", _:
      result = args[0] @ args[1]
    case "sum", tuple(axes):
      result = args[0].sum(axis=axes, keepdims=True)
    case "mean", tuple(axes):
      result = args[0].mean(axis=axes, keepdims=True)
    case "rmax", tuple(axes):
      result = args[0].max(axis=axes, keepdims=True)
    case "transpose", tuple(order):
      result = args[0].transpose(order)
    case "slice", (axis, start, stop):
      result = args[0][(slice(None),) * axis + (slice(start, stop),)]
    case "concat", (axis,):
      result = xp.concatenate(args, axis)
    case "gather", _:
      result = args[0][args[1].astype(int).reshape(-1)]
    case op, _ if op in ELEMENTWISE:
      result = real_function(op, xp)(*args)
    case _:
      raise ValueError(f"no meaning for the step {step.op} with attribute {step.attr}")
  return result


def constant_value(c: Constant) -> float:
  base = IRRATIONAL[c.base] if isinstance(c.base, str) else float(c.base)
  return float(base ** float(c.exponent))


def _move_ones(x: np.ndarray, before: tuple[Dim, ...] | None, after: tuple[Dim, ...] | None) -> np.ndarray:
  """Reshape x where ``before`` and ``after`` differ by dimensions of extent 1 only.

  Other dimensions keep their order and the size that they have in x, whatever was recorded.
  """
  if before is None or after is None:
    raise ValueError("a reshape of unknown shape")
  shape = (1,) * (len(before) - x.ndim) + x.shape
  sizes = [n for n, d in zip(shape, before, strict=True) if d != 1]
  if len(sizes) != sum(d != 1 for d in after):
    raise ValueError(f"a reshape from {before} to {after} moves more than ones")
  rest = iter(sizes)
  return x.reshape([1 if d == 1 else next(rest) for d in after])


def positional(tensor: RegionTensor, data: np.ndarray) -> np.ndarray:
  """An array over ``tensor.axes`` by the dimensions of the ONNX tensor (at any extents)."""
  recorded = tensor.tensor.shape or ()
  dims = tensor.dims
  if not dims:
    rest = iter(tensor.axes)
    dims = tuple((next(rest, ""),) if d != 1 else () for d in recorded)
  # All of an axis is in the last dimension that holds some of it.
  last = {a: i for i, held in enumerate(dims) for a in held}
  if tuple(last) != tensor.axes or data.ndim != len(last):
    raise ValueError(f"{tensor.tensor.name} of shape {recorded} is not over {tensor.axes}")
  sizes = dict(zip(tensor.axes, data.shape, strict=True))
  shape = [prod(sizes[a] for a in held if last[a] == i) for i, held in enumerate(dims)]
  return data.reshape(shape)


def by_axes(tensor: RegionTensor, data: np.ndarray, extents: Mapping[str, int]) -> np.ndarray:
  """The inverse of ``positional``."""
  return data.reshape([extents[a] for a in tensor.axes])
