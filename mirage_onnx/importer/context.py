"""What a lowering rule sees of a node, and the steps that it writes.

A rule reads operands, attributes and parameters from its ``Context`` and emits steps on it; every
step's shape follows from its inputs. A form that has no lowering raises ``RejectionError``.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from onnx import NodeProto, helper

from mirage_onnx.errors import RejectionError
from mirage_onnx.importer.constants import ConstantTable
from mirage_onnx.importer.symbols import Symbols
from mirage_onnx.ir import Constant, DType, Step, StepAttr, Tensor
from mirage_onnx.ir.factors import have_common_factors
from mirage_onnx.ir.functions import ELEMENTWISE

Value = Tensor | Constant


def const(value: Fraction | int, exponent: Fraction | int = 1) -> Constant:
  """A constant that the ONNX text writes, not the model."""
  return Constant(Fraction(value), Fraction(exponent))


class Context:
  """One node: operands in, steps out. ``tensors`` is the table of all values of the graph.

  Shapes have numbers for names (``symbols.py``); only outputs may have names that are new here.
  """

  def __init__(
    self,
    node: NodeProto,
    name: str,
    opset: int,
    tensors: dict[str, Tensor],
    constants: ConstantTable,
    used: frozenset[str],
    symbols: Symbols,
    casts: Mapping[str, str] = MappingProxyType({}),
  ) -> None:
    """``casts``: results of casts of the graph -> what was cast."""
    self.node = node
    self.name = name
    self.opset = opset
    self.steps: list[Step] = []
    #: Constants of the steps that the model does not name (``causal.py``).
    self.beyond: dict[str, Tensor] = {}
    self._tensors = tensors
    self._constants = constants
    self._used = used
    self._casts = casts
    self.symbols = symbols
    self._attributes = {a.name: a for a in node.attribute}

  # -- reading the node

  def has(self, position: int) -> bool:
    return position < len(self.node.input) and bool(self.node.input[position])

  def tensor(self, position: int) -> Tensor:
    """An operand as a tensor, even where its value is known."""
    return self._tensors[self.node.input[position]]

  def named(self, name: str) -> Tensor:
    """A tensor of the graph that is no operand of the node."""
    return self._tensors[name]

  def operand(self, position: int) -> Value:
    """An operand: an exact constant where it is one, else a tensor."""
    name = self.node.input[position]
    return self._constants.scalars.get(name) or self._tensors[name]

  def as_stored(self, position: int) -> Value:
    """``operand`` of what is no factor: a constant is the number in the file, whatever it may stand for."""
    name = self.node.input[position]
    number = self._constants.exact.get(name)
    return self._tensors[name] if number is None else Constant(number, source=name)

  def types(self, position: int) -> list[DType | None]:
    """The type of an operand; where it is a result of casts, that of what was cast, and so on."""
    chain = [self.node.input[position]]
    while chain[-1] in self._casts:
      chain.append(self._casts[chain[-1]])
    return [self._tensors[name].dtype for name in chain]

  def number(self, position: int, what: str) -> Fraction:
    """The exact stored value of a scalar operand."""
    name = self.node.input[position]
    if name not in self._constants.exact:
      raise self.reject(f"{what} {name!r} is not a finite constant scalar")
    return self._constants.exact[name]

  def integers(self, position: int, what: str) -> tuple[int, ...]:
    """The values of an operand that lists axes or sizes."""
    name = self.node.input[position]
    if name not in self._constants.lists:
      raise self.reject(f"{what} {name!r} are not constant")
    return self._constants.lists[name]

  def array(self, position: int, what: str) -> np.ndarray:
    """The values of a constant operand."""
    name = self.node.input[position]
    value = self._constants.read(name)
    if value is None:
      raise self.reject(f"{what} {name!r} are not constant")
    return value

  def known(self, position: int) -> np.ndarray | None:
    """The values of an operand, None where it is not constant."""
    return self._constants.read(self.node.input[position])

  def is_known(self, position: int) -> bool:
    """Whether no run changes an operand."""
    return self.node.input[position] in self._constants.names

  def implied(self, x: Tensor) -> Tensor:
    """A constant that the node implies."""
    if x.name in self._used:
      raise self.reject(f"the model has a {x.name!r} of its own")
    return self.beyond.setdefault(x.name, x)

  def flag(self, position: int) -> bool | None:
    """The value of a constant boolean operand, None where it is not constant."""
    return self._constants.flags.get(self.node.input[position])

  def attribute(self, name: str, default: Any = None) -> Any:
    a = self._attributes.get(name)
    value = default if a is None else helper.get_attribute_value(a)
    return value.decode(errors="replace") if isinstance(value, bytes) else value

  def switch(self, name: str) -> bool:
    """An attribute that is 0, or 1: what others mean, ONNX Runtime's operators do not agree on."""
    value = self.attribute(name, 0)
    if value not in (0, 1):
      raise self.reject(f"{name} is {value!r}, neither 0 nor 1")
    return bool(value)

  def fraction(self, name: str, default: float) -> Fraction:
    """A float attribute exactly, its default as the 32-bit float that the schema means."""
    value = self.attribute(name, float(np.float32(default)))
    if not np.isfinite(value):
      raise self.reject(f"the attribute {name} is {value}")
    return Fraction(value)

  def output(self, position: int = 0) -> Tensor:
    return self._tensors[self.node.output[position]]

  def has_shape(self, position: int, shape: tuple[int, ...]) -> None:
    """Say what new names in the shape of an output stand for that nothing makes."""
    if position < len(self.node.output) and self.node.output[position]:
      self._bound(self.output(position), shape)

  def uses(self, position: int) -> bool:
    """Whether anything reads this output."""
    outputs = self.node.output
    return position < len(outputs) and outputs[position] in self._used

  def reject(self, reason: str, code: str = "OP_FORM") -> RejectionError:
    return RejectionError(code, f"{self.node.op_type}: {reason}", (self.name,))

  # -- writing steps

  def elementwise(self, op: str, *args: Value, dtype: DType | None = None) -> Tensor:
    """One function of ``ir.functions``; constants have no shape of their own."""
    assert ELEMENTWISE[op].arity == len(args)
    tensors = [a for a in args if isinstance(a, Tensor)]
    shape = self.broadcast(*(shape_of(t) for t in tensors))
    return self._emit(op, args, shape, dtype or _dtype(tensors[0]))

  def power(self, x: Tensor, exponent: Constant) -> Tensor:
    return self._emit("pow", (x, exponent), shape_of(x), _dtype(x))

  def reduce(self, op: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """``sum``, ``mean`` or ``rmax`` over non-negative axes, which stay with extent 1."""
    shape = tuple(1 if k in axes else d for k, d in enumerate(shape_of(x)))
    return self._emit(op, (x,), shape, _dtype(x), tuple(axes))

  def matmul(self, a: Tensor, b: Tensor, dtype: DType | None = None) -> Tensor:
    sa, sb = shape_of(a), shape_of(b)
    depth = sa[-1], sb[-2] if len(sb) > 1 else sb[0]
    if depth[0] != depth[1] and any(map(self.symbols.is_symbolic, depth)):
      self._disagree(depth[:1], depth[1:])
    batch = self.broadcast(sa[:-2], sb[:-2])
    shape = (*batch, *sa[-2:-1], *(sb[-1:] if len(sb) > 1 else ()))
    return self._emit("matmul", (a, b), shape, dtype or _dtype(a))

  def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
    shape = tuple(shape_of(x)[p] for p in permutation)
    return self._emit("transpose", (x,), shape, _dtype(x), tuple(permutation))

  def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in other dimensions; both shapes must have common factors."""
    have = shape_of(x)
    if not have_common_factors(have, shape):
      show, symbolic = self.symbols.show, self.symbols.is_symbolic
      code = "DYNAMIC_DIM" if any(map(symbolic, (*have, *shape))) else "OP_FORM"
      raise self.reject(f"regroups dimensions: {show(have)} to {show(shape)}", code)
    return self._emit("reshape", (x,), shape, _dtype(x), shape)

  def expand(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Elements repeated along new dimensions and those of extent 1."""
    return self._emit("expand", (x,), shape, _dtype(x), shape)

  def slice(self, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """The elements ``start <= i < stop`` of a static dimension."""
    shape = _with(shape_of(x), axis, stop - start)
    return self._emit("slice", (x,), shape, _dtype(x), (axis, start, stop))

  def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors that differ in one static dimension, beside each other."""
    shapes = [shape_of(p) for p in parts]
    shape = _with(shapes[0], axis, sum(s[axis] for s in shapes))
    for s in shapes:
      if _with(s, axis, shape[axis]) != shape:
        self._disagree(shapes[0], s)
    return self._emit("concat", parts, shape, _dtype(parts[0]), (axis,))

  def gather(self, x: Tensor, rows: Tensor) -> Tensor:
    """The rows of ``x`` that a run names: as many as ``rows`` has elements, in one dimension."""
    count = prod(shape_of(rows))
    y = self._emit("gather", (x, rows), (count, *shape_of(x)[1:]), _dtype(x))
    self.symbols.named(y, y)  # a product of names is one, too: views have names
    return y

  def stored(
    self, x: Tensor, shape: tuple[int, ...], fulls: tuple[int, ...], repeats: tuple[int, ...], dtype: DType
  ) -> Tensor:
    """A weight that memory holds packed, or once for ``repeats`` neighbours along each dimension.

    ``fulls``: the dimensions of memory, of which the result begins with the first.
    """
    return self._emit("stored", (x,), shape, dtype, (*fulls, *repeats))

  def cast(self, x: Tensor, dtype: DType) -> Tensor:
    """Round to ``dtype``; nothing to do where x has it already."""
    return x if x.dtype is dtype else self._emit("cast", (x,), shape_of(x), dtype, dtype)

  def widen(self, x: Tensor) -> Tensor:
    """What kernels of composite operators compute on: fp32 for 16-bit values."""
    return self.cast(x, DType.F32) if _dtype(x).is_half else x

  def widened(self, position: int) -> Value:
    """An operand, as ``widen`` gives it."""
    value = self.operand(position)
    return self.widen(value) if isinstance(value, Tensor) else value

  def finish(self, x: Tensor, position: int = 0) -> Tensor:
    """Make ``x`` an output of the node, with the type and rank that ONNX gives it.

    An output that is no new value (Identity) is a ``cast`` to the type it has.
    """
    target = self.output(position)
    if target.dtype is not None:
      x = self.cast(x, target.dtype)
    target = self._bound(target, shape_of(x))
    if target.is_static and target.shape != x.shape:
      # Only to another rank: what a rule computes has the elements of the output.
      if [d for d in shape_of(x) if d != 1] != [d for d in shape_of(target) if d != 1]:
        self._disagree(shape_of(x), shape_of(target))
      x = self.reshape(x, shape_of(target))
    if not self.steps or self.steps[-1].output is not x or x.name in self.node.output:
      x = self._emit("cast", (x,), shape_of(x), _dtype(x), _dtype(x))
    last, out = self.steps[-1], Tensor(target.name, x.dtype, x.shape)
    self.steps[-1] = Step(last.op, last.inputs, out, last.attr)
    return out

  def broadcast(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an elementwise result.

    Raises:
        RejectionError: DYNAMIC_DIM.
        ValueError: numbers that do not fit.
    """
    if not any(self.symbols.is_symbolic(n) for s in shapes for n in s):
      return np.broadcast_shapes(*shapes)
    result = [1] * max(map(len, shapes))
    for shape in shapes:
      for i, n in enumerate(shape, len(result) - len(shape)):
        if n != 1 and result[i] not in (1, n):
          self._disagree((result[i],), (n,))
        result[i] = n if result[i] == 1 else result[i]
    return tuple(result)

  def _disagree(self, a: tuple[int, ...], b: tuple[int, ...]) -> NoReturn:
    both = self.symbols.show(a), self.symbols.show(b)
    if any(map(self.symbols.is_symbolic, (*a, *b))):
      raise self.reject(f"whether {both[0]} is {both[1]} shows only a run", "DYNAMIC_DIM")
    raise self.reject(f"{both[0]} is not {both[1]}")

  def _bound(self, target: Tensor, computed: tuple[int, ...]) -> Tensor:
    """``target`` without new names: they stand for what is computed."""
    shape = target.shape or ()
    if len(shape) == len(computed):
      for d, n in zip(shape, computed, strict=True):
        if isinstance(d, str):
          self.symbols.bind(d, n)
    return self.symbols.known(target)

  def _emit(
    self,
    op: str,
    args: Sequence[Value],
    shape: tuple[int, ...],
    dtype: DType,
    attr: StepAttr = None,
  ) -> Tensor:
    out = Tensor(f"{self.node.output[0]}/{len(self.steps)}", dtype, shape)
    inputs = tuple(a.name if isinstance(a, Tensor) else a for a in args)
    self.steps.append(Step(op, inputs, out, attr))
    return out


def shape_of(x: Tensor) -> tuple[int, ...]:
  """The shape of a static tensor."""
  assert x.shape is not None
  return tuple(int(d) for d in x.shape)


def _with(shape: tuple[int, ...], axis: int, n: int) -> tuple[int, ...]:
  return (*shape[:axis], n, *shape[axis + 1 :])


def _dtype(x: Tensor) -> DType:
  assert x.dtype is not None
  return x.dtype
