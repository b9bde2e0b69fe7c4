"""Program: what an ONNX model says, as typed primitive steps that keep the ONNX names.

Every ONNX node becomes one ``Node``: either *lowered* to primitive steps over positional shapes, or
a *barrier* with the reason why it is not understood. Tensors are named as in the model, so a region
of nodes maps straight back to the graph it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.band import Band
from mirage_onnx.ir.dtype import DType

#: Names of tensors that hold 0, 1, 2, ...; no model's tensor has one by chance.
PLACES = "mirage.places."
#: A dimension: a number, or the name of a symbol that is only known at run time.
Dim = int | str


def is_places(name: str) -> bool:
  """Whether this is the name of a constant that says where each element is."""
  return bool(places_in(name))


def places_in(name: str) -> int:
  """How many places such a constant holds; 0 for another name.

  Behind the number stands the name of a dimension where a run says how many of them there are.
  """
  count = name.removeprefix(PLACES).partition("/")[0] if name.startswith(PLACES) else ""
  return int(count) if count.isdigit() else 0


def has_more_places(name: str, shape: Sequence[Dim]) -> bool:
  """Whether a constant of this name holds more places than a tensor of this shape has."""
  return is_places(name) and tuple(shape) != (places_in(name),)


@dataclass(frozen=True, slots=True)
class Tensor:
  """A named tensor. ``shape`` is None where the model does not tell the rank."""

  name: str
  dtype: DType | None
  shape: tuple[Dim, ...] | None

  @property
  def is_static(self) -> bool:
    return self.shape is not None and all(isinstance(d, int) for d in self.shape)


@dataclass(frozen=True, slots=True)
class Constant:
  """An exact scalar operand: a rational, optionally raised to a power, or a named irrational.

  ``1/sqrt(2)`` is ``Constant(Fraction(1, 2), Fraction(1, 2))``, i.e. (1/2) ** (1/2). ``source``
  is the tensor it was read from; ``text`` says what the model wrote where that differs.
  """

  base: Fraction | str
  exponent: Fraction = Fraction(1)
  source: str = ""


Operand = str | Constant
StepAttr = tuple[int, ...] | DType | None


@dataclass(frozen=True, slots=True)
class Step:
  """One primitive operation on positional tensors; ``inputs`` are tensor names or constants.

  op                      attr                 meaning (numpy broadcasting where elementwise)
  an ``ir.functions`` name    None                 elementwise
  ``pow``                 -                    inputs (x, Constant exponent)
  ``cast``                target DType         rounding, the identity of the algebra
  ``matmul``              None                 numpy matmul
  ``sum``/``rmax``/``mean``  axes (keepdims)   reduction that keeps the reduced dims as 1
  ``transpose``           permutation          numpy transpose
  ``reshape``             new shape            both shapes have common factors (``factors.py``)
  ``expand``              new shape            numpy broadcast_to
  ``slice``               axis, start, stop    elements of one dimension, static
  ``concat``              axis                 inputs beside each other, of static extents
  ``gather``              None                 inputs (table, rows): the rows of a table that a run
                                               names, dimension 0 of the result in place of its own
  ``stored``             fulls, repeats       what memory holds of a weight as its bytes or once for
                                           several neighbours (``View``), a box from its beginning

  No step of a region is one of the last four (``match/sinking.py``).
  """

  op: str
  inputs: tuple[Operand, ...]
  output: Tensor
  attr: StepAttr = None


@dataclass(frozen=True, slots=True)
class Node:
  """An ONNX node: its names, and its lowering or the reason why it has none.

  ``part_of``: the operator that it was a part of as the model was given; ``with_reader``: no region has it
  without the part that reads it.
  """

  name: str
  op_type: str
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  steps: tuple[Step, ...] = ()
  barrier: Rejection | None = None
  part_of: str = ""
  with_reader: bool = False

  @property
  def operands(self) -> tuple[str, ...]:
    """The inputs that it computes with: not the axes or the shape that it is told."""
    read = {i for s in self.steps for i in s.inputs if isinstance(i, str)}
    return tuple(dict.fromkeys(i for i in self.inputs if i in read))


@dataclass(frozen=True, slots=True)
class Program:
  """A whole model. ``nodes`` are in topological order; ``tensors`` covers every ONNX name.

  ``weights``: initializers that are not graph inputs (their values never change);
  ``constants``: the scalar ones among them, and Constant nodes, by exact value.
  ``symbols``: the number that stands for a name of a dimension in the shapes of steps, a prime of
  its own (``primes``) or a product of those. ``repeats``: how often nodes in the body of a Loop or a
  Scan are run, where that is known and more than once. ``bands``: of weights that hide all but a band, whose
  axes are the numbers of two dimensions.
  """

  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  nodes: tuple[Node, ...]
  tensors: Mapping[str, Tensor]
  weights: frozenset[str]
  constants: Mapping[str, Constant]
  symbols: Mapping[str, int] = field(default_factory=dict)
  primes: Mapping[int, str] = field(default_factory=dict)
  repeats: Mapping[str, int] = field(default_factory=dict)
  bands: Mapping[str, Band] = field(default_factory=dict)

  def numbers(self, name: str) -> tuple[int, ...] | None:
    """The shape of a tensor as steps have it; None where it is not known."""
    tensor = self.tensors.get(name)
    return self.shape(tensor) if tensor else None

  def shape(self, tensor: Tensor) -> tuple[int, ...] | None:
    """As ``numbers``, of a tensor with names of this program."""
    if tensor.shape is None:
      return None
    found = tuple(self.symbols.get(d, -1) if isinstance(d, str) else d for d in tensor.shape)
    return None if -1 in found else found

  def is_symbolic(self, number: int) -> bool:
    """Whether a dimension with this number is known only at run time."""
    return bool(self.primes) and bool(symbols_of(number, self.primes)[1])

  def size(self, number: int, sizes: Mapping[str, int]) -> int:
    """What a number of ``numbers`` stands for where the names of ``primes`` have ``sizes``."""
    if not self.primes:
      return number
    rest, found = symbols_of(number, self.primes)
    return rest * prod(sizes[self.primes[p]] for p in found)

  def sized(self, sizes: Mapping[str, int]) -> Program:
    """The program of fixed shapes that has these sizes in place of names."""
    if not self.primes:
      return self
    known = dict[int, int]()

    def size(number: int) -> int:
      if number not in known:
        known[number] = self.size(number, sizes)
      return known[number]

    tensors = dict(self.tensors)
    for name, t in tensors.items():
      if not t.is_static and (numbers := self.numbers(name)) is not None:
        tensors[name] = Tensor(name, t.dtype, tuple(map(size, numbers)))
    nodes = tuple(_resized_node(n, size) for n in self.nodes)
    return replace(self, tensors=tensors, nodes=nodes, symbols={}, primes={})

  def part(self, names: Collection[str]) -> Program:
    """The nodes of these names alone, with the tensors that they read and make."""
    nodes = tuple(n for n in self.nodes if n.name in names)
    held = {x for n in nodes for x in (*n.inputs, *n.outputs)}
    return replace(self, nodes=nodes, tensors={x: t for x, t in self.tensors.items() if x in held})

  def names_of_sizes(self) -> tuple[str, ...]:
    """The names that shapes of its tensors are made of."""
    numbers = {n for t in self.tensors.values() if not t.is_static for n in self.shape(t) or ()}
    used = {p for n in numbers for p in symbols_of(n, self.primes)[1]}
    return tuple(name for p, name in self.primes.items() if p in used)

  def consumers(self) -> dict[str, tuple[str, ...]]:
    """Tensor name -> names of the nodes that read it."""
    found: dict[str, list[str]] = {}
    for node in self.nodes:
      for name in dict.fromkeys(node.inputs):
        found.setdefault(name, []).append(node.name)
    return {k: tuple(v) for k, v in found.items()}


def resized(step: Step, size: Callable[[int], int]) -> Step:
  """``step`` with ``size`` of every dimension in its shapes; itself where that changes nothing."""
  shape = tuple(size(int(n)) for n in step.output.shape or ())
  attr = step.attr
  if step.op in ("reshape", "expand") and isinstance(attr, tuple):
    attr = tuple(map(size, attr))
  if shape == step.output.shape and attr == step.attr:
    return step
  return replace(step, output=replace(step.output, shape=shape), attr=attr)


def _resized_node(node: Node, size: Callable[[int], int]) -> Node:
  steps = tuple(resized(s, size) for s in node.steps)
  same = all(a is b for a, b in zip(steps, node.steps, strict=True))
  return node if same else replace(node, steps=steps)


def symbols_of(number: int, primes: Collection[int]) -> tuple[int, tuple[int, ...]]:
  """``number`` as a factor and the ``primes`` (ascending), as often as each divides it."""
  if number in primes:
    return 1, (number,)
  found = []
  for p in primes:
    if number < p:
      break
    while number % p == 0:
      number //= p
      found.append(p)
  return number, tuple(found)
