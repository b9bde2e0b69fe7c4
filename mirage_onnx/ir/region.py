"""Region: a set of ONNX nodes to be replaced by one custom node, with its canonical algebra.

``steps`` is the typed program as ONNX wrote it (what the numeric checks run, op by op);
``outputs`` are the same values as terms over named axes (what the search and the proof use). Inputs
and axes carry canonical names (``i0, i1, ...``, ``a0, a1, ...``), so equal programs under other
names have equal ``structure`` text; sizes and element types join it in ``key``.

An axis may be counted by what only a run knows (batch, sequence): its extent is then what the
search assumes, and ``runtime`` says how a run finds it.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from mirage_onnx.ir.band import Band
from mirage_onnx.ir.dtype import DType, unpacked
from mirage_onnx.ir.program import Constant, Step, Tensor, is_places
from mirage_onnx.ir.runtime_extent import Monomial
from mirage_onnx.ir.term import Term, walk
from mirage_onnx.ir.view import View, Window


@dataclass(frozen=True, slots=True)
class RegionTensor:
  """An input or output: canonical name, element type, axes in memory order.

  ``axes`` leave out dims of extent 1. ``tensor`` is the ONNX tensor of this instance,
  or with ``view`` a box of one, named after it.
  ``is_weight``: an initializer that no run can change. ``dims`` has one entry per dimension of
  ``tensor``: the axes of which it holds all or a part, slowest first. A dimension that a reshape
  splits holds several; adjacent dimensions that always go together are one axis, which all of
  them hold. An array of this tensor over other extents has all of an axis in the last of them.
  ``picks``: which of ``Region.picks`` says what rows of a view's source it has. ``band``: outside of which
  a weight hides everything.
  """

  name: str
  dtype: DType
  axes: tuple[str, ...]
  tensor: Tensor
  is_weight: bool = False
  dims: tuple[tuple[str, ...], ...] = ()
  view: View | None = None
  picks: str = ""
  band: Band | None = None

  @property
  def source(self) -> Tensor:
    """The tensor of the model that holds this one's elements."""
    return self.view.source if self.view else self.tensor

  @property
  def windows(self) -> tuple[Window, ...]:
    """The dimensions of memory, slowest first; none where the tensor is all that lies there."""
    if self.view is None:
      return ()
    found: list[Window] = []
    parts = zip(self.tensor.shape or (), self.view.starts, self.view.fulls, strict=True)
    for d, (own, (n, start, full)) in enumerate(zip(self.dims, parts, strict=True)):
      if (often := self.view.repeat(d)) > 1:
        assert isinstance(full, int)
        found.append(Window(own, start, full if n != full * often else None, "", often))
      elif self.picks and d == 0:
        assert isinstance(full, int)
        found.append(Window(own, start, full, self.picks))
      elif n != full and isinstance(full, int):
        found.append(Window(own, start, full))
      elif own and (not found or found[-1] != Window(own)):  # many dimensions may be one axis
        found.append(Window(own))
    return tuple(found) if any(w.full is not None or w.repeat > 1 for w in found) else ()

  @property
  def repeat(self) -> int:
    """How many of its elements are one in memory."""
    return prod(self.view.repeats) if self.view else 1

  @property
  def splits_dims(self) -> bool:
    """Whether an axis begins or ends inside a dimension: no order of dims reorders the axes."""
    if self.dtype.is_packed and self.dtype.bits < 8 and not (self.source.dtype and self.source.dtype.is_four):
      return True
    regrouped = self.view is not None and len(self.view.fulls) != len(self.source.shape or ())
    return regrouped or any(len(d) > 1 for d in self.dims)


@dataclass(frozen=True)
class Region:
  """One instance of a region of a model. Its texts are made once.

  ``runtime``: the axes whose extents follow from the shapes of the inputs in a run, and how.
  ``equal_dims``: sizes that must agree in a run; ``output_dims``: those of every output's
  dimensions, where an axis is counted at run time, and ``inner_dims`` those of what a step moves
  to other dimensions (by its name in the model). ``symbols``: what the extents, and the shapes
  in ``steps``, assume of the names in the shapes of ``inputs`` and ``outputs``. ``picks``: nothing
  is computed with them; they say which rows of a table an input is.
  """

  nodes: tuple[str, ...]
  steps: tuple[Step, ...]
  constants: Mapping[str, Constant]
  inputs: tuple[RegionTensor, ...]
  outputs: tuple[RegionTensor, ...]
  terms: tuple[Term, ...]
  extents: Mapping[str, int]
  runtime: Mapping[str, Monomial] = field(default_factory=dict)
  equal_dims: tuple[tuple[Monomial, Monomial], ...] = ()
  output_dims: tuple[tuple[Monomial, ...], ...] = ()
  inner_dims: Mapping[str, tuple[Monomial, ...]] = field(default_factory=dict)
  symbols: Mapping[str, int] = field(default_factory=dict)
  picks: tuple[RegionTensor, ...] = ()

  @property
  def given(self) -> tuple[RegionTensor, ...]:
    """All that its kernels are given to read."""
    return (*self.inputs, *self.picks)

  @property
  def weights(self) -> tuple[RegionTensor, ...]:
    """The inputs that no run changes."""
    return tuple(i for i in self.inputs if i.is_weight)

  @property
  def reads(self) -> tuple[str, ...]:
    """The tensors of the program that its node reads, each once."""
    return tuple(dict.fromkeys(x.source.name for x in self.given))

  def count_of(self, picks: RegionTensor) -> int:
    """How many rows every table has of which one of ``Region.picks`` picks some."""
    return min(w.full for i in self.inputs for w in i.windows if w.picks == picks.name and w.full)

  def shape(self, tensor: Tensor) -> tuple[int, ...]:
    """The shape of an input or output that the search assumes."""
    return tuple(d if isinstance(d, int) else self.symbols[d] for d in tensor.shape or ())

  def part(self, x: RegionTensor, data: Any, rows: Any = None) -> Any:
    """What an input or output has of an array of its source, at the sizes that are assumed.

    ``rows``: the array of what picks rows of the source.
    """
    if x.view is None:
      return data
    shape, fulls = (self.shape(Tensor("", None, s)) for s in (x.tensor.shape, x.view.fulls))
    often = x.view.repeats or (1,) * len(shape)
    parts = zip(x.view.starts, shape, often, strict=True)
    box = [slice(start, start + n // r) for start, n, r in parts]
    data = (unpacked(data, x.dtype) if x.dtype.is_packed else data).reshape(fulls)
    if x.view.picks:
      data, box[0] = data[rows.reshape(-1)], slice(None)
    data = data[tuple(box)]
    for d, r in enumerate(often):
      data = data.repeat(r, axis=d) if r > 1 else data
    return data

  @cached_property
  def structure(self) -> str:
    """Canonical text without sizes: one line per input, value and output."""
    sources = tuple(dict.fromkeys(x.source.name for x in (*self.inputs, *self.outputs) if x.view))

    def place(x: RegionTensor) -> str:
      of = f" of s{sources.index(x.source.name)}" if x.source.name in sources else ""
      return f"{_notes(x)}{of}{_windows(x)}"

    lines = [f"in {i.name} {i.dtype}[{','.join(i.axes)}]{place(i)}" for i in self.given]
    names: dict[Term, str] = {}
    values = itertools.count()
    for t in walk(self.terms):
      if t.op == "input" or t.op == "const":
        names[t] = str(t.attr)
      elif t.op == "extent":
        names[t] = f"|{','.join(t.attr)}|"  # type: ignore[arg-type]
      else:
        names[t] = f"%{next(values)}"
        attr = "" if t.attr is None else f"[{_attr(t.attr)}]"
        args = ", ".join(names[a] for a in t.args)
        lines.append(f"{names[t]} = {t.op}{attr}({args}) : [{','.join(t.axes)}]")
    lines += [
      f"out {o.name} {o.dtype}[{','.join(o.axes)}]{place(o)} = {names[t]}"
      for o, t in zip(self.outputs, self.terms, strict=True)
    ]
    if self.runtime:
      lines.append(f"runtime {','.join(sorted(self.runtime))}")
    return "\n".join(lines) + "\n"

  @cached_property
  def text(self) -> str:
    """``structure`` with the extents of the axes: the input of every cache key."""
    sizes = " ".join(f"{a}={n}" for a, n in sorted(self.extents.items()))
    windows = "".join(
      f"{x.name} {' '.join(f'{w.start}/{w.full}' for w in x.windows if w.full)}\n"
      for x in (*self.inputs, *self.outputs)
      if any(w.full for w in x.windows)
    )
    return f"region\naxes {sizes}\n{self.structure}{windows}"

  @cached_property
  def key(self) -> str:
    return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def _notes(i: RegionTensor) -> str:
  """What two inputs over equal axes may still differ in, as words."""
  split = " split" if i.is_weight and i.splits_dims else ""
  # Of places a kernel reads nothing: numbers that look like them are others.
  held = " numbers" if i.is_weight and i.dtype is DType.I32 and not is_places(i.source.name) else ""
  return f"{' weight' if i.is_weight else ''}{split}{held}{f' seen {i.band.text}' if i.band else ''}"


def _windows(x: RegionTensor) -> str:
  """The dimensions of a view; a dot is behind those of which it is a part, then what picks or repeats."""
  dims = (
    f"{','.join(w.axes)}{'.' if w.full is not None else ''}{w.picks}{f'*{w.repeat}' if w.repeat > 1 else ''}"
    for w in x.windows
  )
  return f"({' '.join(dims)})" if x.windows else ""


def _attr(attr: object) -> str:
  return ",".join(attr) if isinstance(attr, tuple) else str(attr)
