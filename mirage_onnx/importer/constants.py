"""Exact scalar constants of a model, and the few that stand for an irrational number.

A stored float is a dyadic rational and is taken as exactly that. One that can only have come from
rounding sqrt(2), 1/sqrt(2) or d**(1/2), d**(-1/2), d**(-1), d**(1/4), d**(-1/4), where d is a
dimension of the graph (the fourth roots are how exporters split an attention scale over Q and K),
is an *atom* and becomes that number. Each atom is reported.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from onnx import TensorProto

from mirage_onnx.importer.constant_nodes import constant_nodes
from mirage_onnx.importer.load import LoadedModel
from mirage_onnx.importer.shapes import DTYPES, SMALL
from mirage_onnx.ir import Constant, DType

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
#: Distance from the number that an atom may have, in units of its last place. 16-bit values are
#: so coarse that only the correctly rounded one counts.
_REACH = {DType.F16: 0.5, DType.BF16: 0.5, DType.F32: 1.0, DType.F64: 1.0}
_FRACTION_BITS = {DType.F16: 10, DType.BF16: 7, DType.F32: 23, DType.F64: 52}
#: A value with fewer significant bits than this was written on purpose.
_SHORT_BITS = 6


@dataclass(frozen=True, slots=True)
class Atom:
  """The tensor ``name`` holds ``stored``, which is taken as ``constant``."""

  name: str
  dtype: DType
  stored: Fraction
  constant: Constant

  def __str__(self) -> str:
    base, exponent = self.constant.base, self.constant.exponent
    value = str(base) if exponent == 1 else f"({base})^({exponent})"
    return f"{self.name!r} = {float(self.stored):.9g} ({self.dtype}) is taken as {value}"


@dataclass(frozen=True, slots=True)
class ConstantTable:
  """Values no run can change: scalars as stored, scalars with atoms, integer lists, booleans.

  ``read``: any of them by name, as an array; ``names``: of all of them.
  """

  exact: Mapping[str, Fraction]
  scalars: Mapping[str, Constant]
  lists: Mapping[str, tuple[int, ...]]
  flags: Mapping[str, bool]
  read: Callable[[str], np.ndarray | None]
  names: frozenset[str] = frozenset()


def constant_values(loaded: LoadedModel) -> dict[str, TensorProto]:
  """Initializers that are not graph inputs, and the values of Constant nodes."""
  return loaded.initializers | constant_nodes(loaded.proto.graph.node)


def known_values(loaded: LoadedModel) -> dict[str, TensorProto]:
  """What no run can change: constants as stored, and what was folded when loading."""
  return constant_values(loaded) | dict(loaded.folded)


def read_constants(loaded: LoadedModel) -> ConstantTable:
  """Every scalar exactly and every short integer list, whether stored or folded."""
  dims = {
    d
    for t in loaded.tensors.values()
    if t.dtype is not None and t.dtype.is_float
    for d in t.shape or ()
    if isinstance(d, int) and d > 1
  }  # fmt: skip
  known = numbers(dims)
  exact: dict[str, Fraction] = {}
  scalars: dict[str, Constant] = {}
  lists: dict[str, tuple[int, ...]] = {}
  flags: dict[str, bool] = {}
  values = known_values(loaded)
  for name, tensor in values.items():
    dtype = DTYPES.get(tensor.data_type)
    count = math.prod(tensor.dims)
    if dtype in (DType.I32, DType.I64) and len(tensor.dims) <= 1 and count <= SMALL:
      lists[name] = tuple(int(v) for v in loaded.read(tensor).reshape(-1))
    if count != 1 or dtype is None:
      continue
    number = loaded.read(tensor).reshape(())[()]
    if dtype is DType.BOOL:
      flags[name] = bool(number)
      continue
    if not np.isfinite(number):
      continue
    value = Fraction(float(number)) if dtype.is_float else Fraction(int(number))
    exact[name] = value
    atom = find_atom(value, dtype, known) if dtype.is_float else None
    scalars[name] = replace(atom or Constant(value), source=name)

  def read(name: str) -> np.ndarray | None:
    return loaded.read(values[name]) if name in values else None

  return ConstantTable(exact, scalars, lists, flags, read, frozenset(values))


def numbers(dims: Iterable[int]) -> tuple[tuple[float, Constant], ...]:
  """The numbers that constants of a graph with these dimensions may stand for, rational first."""
  found: dict[Constant, float] = {}
  for d in (2, *sorted(dims)):
    for base, exponent in (
      (Fraction(1, d), Fraction(1)),
      (Fraction(d), HALF),
      (Fraction(1, d), HALF),
      (Fraction(d), QUARTER),
      (Fraction(1, d), QUARTER),
    ):
      root = _rational_root(base, exponent)
      constant = Constant(base, exponent) if root is None else Constant(root)
      found[constant] = float(base) ** float(exponent)
  ordered = sorted(found.items(), key=lambda i: (i[0].exponent != 1, i[1]))
  return tuple((value, constant) for constant, value in ordered)


def _rational_root(base: Fraction, exponent: Fraction) -> Fraction | None:
  parts = []
  for v in (base.numerator, base.denominator):
    root = round(v ** float(exponent))
    if root**exponent.denominator != v**exponent.numerator:
      return None
    parts.append(root)
  return Fraction(*parts)


def find_atom(value: Fraction, dtype: DType, known: Iterable[tuple[float, Constant]]) -> Constant | None:
  """The nearest of ``known`` within reach of a stored value, or None if it stands for itself."""
  odd = value.numerator
  while odd and odd % 2 == 0:
    odd //= 2
  if value <= 0 or value.denominator == 1 or odd.bit_length() < _SHORT_BITS:
    return None
  number = float(value)
  ulp = math.ldexp(1.0, math.frexp(number)[1] - 1 - _FRACTION_BITS[dtype])
  distance, constant = min(
    ((abs(number - v), c) for v, c in known), key=lambda i: i[0], default=(math.inf, None)
  )
  if constant is None or distance > _REACH[dtype] * ulp or constant.base == value:
    return None
  return constant


def atoms(loaded: LoadedModel, constants: Mapping[str, Constant]) -> tuple[Atom, ...]:
  """The constants of a program that are taken as something else than what the file holds."""
  found = []
  values = known_values(loaded)
  for name, constant in sorted(constants.items()):
    tensor = values[name]
    dtype = DTYPES[tensor.data_type]
    if not dtype.is_float:
      continue
    stored = Fraction(float(loaded.read(tensor).reshape(())[()]))
    if constant.exponent != 1 or constant.base != stored:
      found.append(Atom(name, dtype, stored, constant))
  return tuple(found)
