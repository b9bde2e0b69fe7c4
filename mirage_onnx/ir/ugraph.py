"""UGraph: a tensor program over the kernel, cluster, thread-block and thread levels of a GPU.

Kernel level: tensors in device memory and custom kernels over them. Block level: what one thread
block of a kernel does with tiles: load, compute, accumulate over a for-loop, combine over the
cluster, compute again, save. Thread level: where each block value lives, its ``layout``. All four
levels are part of the canonical text (``ir/text.py``).

Dimensions are *named axes*. A map sends a grid dimension, the cluster or the for-loop to the axis
that it splits, or to None (the operand is replicated). Extents and tile sizes are symbolic here;
``KernelParams`` holds the numbers, chosen last. The last tile of an axis may be short: operations
see only the elements that exist.

Semantics of one kernel, for a grid index, a cluster rank and a loop iteration: an axis of extent E
that is split by the grid with tile T gives this block the range [g*T, min((g+1)*T, E)); what
remains of it is cut into ``cluster`` pieces of ceil(size / cluster) elements, and rank r takes the
r-th; that piece is walked in steps of the loop tile, as many as the piece needs: a rank whose piece
is shorter makes fewer iterations, one whose piece is empty none. A map that names an axis the
tensor does not have is ill-formed.

Part axes. ``a3/k0`` is the axis of the tiles of ``a3`` in the grid of kernel ``k0``; its extent is
the number of blocks, ceil(extent of a3 / tile of a3). A save of k0 may name it in ``omap`` in place
of ``a3``: then block g writes slot g, a partial result over its tile of a3. For later kernels it is
an axis like any other (split-KV: the second kernel reduces over ``a3/k0``). Its extent is a number
of the launch, so only ``temp`` tensors have it and no ``extent`` names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from math import prod

from mirage_onnx.ir.band import Band
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.kernel_params import KernelParams as KernelParams
from mirage_onnx.ir.view import Window

GRID_NAMES = ("x", "y", "z")


class Phase(StrEnum):
  """When a block value is computed: in every iteration of the loop, or once after it."""

  LOOP = "loop"
  POST = "post"


class Layout(StrEnum):
  """Where the elements of a block value live (thread level).

  Streaming kernels (an ``mma`` in the loop; rows = axes of the B operand, columns = axes of the A
  operand, depth = the contracted axis; g = lane / 4, t = lane % 4, k order as in
  ``codegen/device/fragment.cuh``):
    B_FRAG    rows x depth: lane holds 8 consecutive depth elements of row g of each 8-row tile
    A_FRAG    columns x depth: lane holds 8 consecutive depth elements of columns g and g + 8
    DEPTH     depth only: the 8 depth elements of the lane, the same for every row and column
    ROW       rows only, one value per 8-row tile and lane group
    COLUMN    columns only, two values (g, g + 8) per 16-column tile
    C_FRAG    columns x rows accumulator of mma.m16n8k16
  All kernels:
    SHARED    a tile in shared memory, fp32
    ELEMENT   one element per thread at a time, computed where it is used
    UNIFORM   one value for the whole block
  Row kernels (no mma): the tile's last axis is spread over the threads:
    VECTOR    lane-strided vectors of consecutive elements, in registers
  Tiled kernels (any other block graph; ``lower/lanes.py``). With an ``mma``, (A, B) being its
  arguments; an axis lies over the lane groups g or inside the quads t, further axes are repeated:
    A_FRAG    rows (free axes of A) over g, depth inside t: operand A or what it is made of
    B_FRAG    columns (free axes of B) over g, depth inside t: operand B or what it is made of
    C_FRAG    rows over g, columns inside t: the result, what is made of it, what joins it
    ROW       over g only, the same in all lanes of a quad: what a sum over t leaves
    COLUMN    inside t only, the same in all groups: what a sum over g leaves, or joins a result
    DEPTH     inside t only, beside an operand
    UNIFORM   over neither and the grid has all its axes: the same in all lanes
    SHARED    a tile in shared memory, in its own element type if it is loaded
    ELEMENT   as above
  Without: VECTOR are values over the axis that memory is contiguous along, ROW values over axes
  of the grid (the same in all threads of a row of the tile), UNIFORM scalars, SHARED all others.
  """

  B_FRAG = "B_frag"
  A_FRAG = "A_frag"
  DEPTH = "depth"
  ROW = "row"
  COLUMN = "column"
  C_FRAG = "C_frag"
  SHARED = "shared"
  ELEMENT = "element"
  UNIFORM = "uniform"
  VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class KTensor:
  """A tensor in device memory: ``axes`` in memory order, slowest first.

  ``role``: ``input`` and ``weight`` come from the model (a weight is stored in this axis order by
  the rewriter, whatever order the model has), and ``rows``, with which nothing is computed: it says
  which rows of a table another tensor has. ``output`` goes to the model, ``temp`` is workspace.
  ``windows``: the dimensions of memory, if the tensor is a box of what lies there; else it is
  contiguous. Kernels are given the address of all of it, and of what picks rows of it.
  ``limit``: an axis, a tensor, and a number: so many elements of the axis matter, and as many as the
  tensor says; the others may be taken to be zeros, which changes nothing that the kernels make.
  ``band``: what the data of a constant say of two axes; ``places``: that each element is its own index.
  """

  name: str
  dtype: DType
  axes: tuple[str, ...]
  role: str
  windows: tuple[Window, ...] = ()
  limit: tuple[str, str, int] | None = None
  band: Band | None = None
  places: bool = False

  @property
  def inner(self) -> str | None:
    """The axis whose neighbours are neighbours in memory, if there is one."""
    axes = self.windows[-1].axes if self.windows else self.axes
    return axes[-1] if axes else None

  @property
  def streamed(self) -> int:
    """2: a weight, 1: rows of a table, 0: neither. Of two operands loops walk the one with more.

    Rows are weights beside an activation (experts), and an activation beside weights (embeddings).
    """
    return 2 if self.role == "weight" else int(any(w.picks for w in self.windows))

  def elements(self, extents: Mapping[str, int]) -> int:
    """How many elements the memory has that it lies in."""
    found = 1
    for w in self.windows or (Window(self.axes),):
      found *= -(-prod(extents[a] for a in w.axes) // w.repeat) if w.full is None else w.full
    return found

  def bytes(self, extents: Mapping[str, int]) -> int:
    """Of the memory that it lies in."""
    return self.dtype.bytes_of(self.elements(extents))

  @property
  def repeat(self) -> int:
    """How many of its elements are one in memory."""
    return prod(w.repeat for w in self.windows)

  @property
  def few_bits(self) -> bool:
    """Whether memory has it packed, or once for a block: kernels widen such a thing in one place."""
    return self.dtype.is_packed or self.repeat > 1

  @property
  def counted(self) -> tuple[str, ...]:
    """The axes that ``elements`` counts: a whole of which this is a part, or rows, has its own size."""
    return tuple(a for w in self.windows or (Window(self.axes),) if w.full is None for a in w.axes)

  def renamed(self, name: str, axes: Mapping[str, str], tensors: Mapping[str, str] | None = None) -> KTensor:
    """The same tensor with this name; axes, and what picks its rows, keep theirs if they get no other."""
    windows = tuple(
      replace(w, axes=_named(w.axes, axes), picks=(tensors or {}).get(w.picks, w.picks)) for w in self.windows
    )
    if limit := self.limit:
      limit = axes.get(limit[0], limit[0]), (tensors or {}).get(limit[1], limit[1]), limit[2]
    band = self.band.renamed(axes) if self.band else None
    return KTensor(name, self.dtype, _named(self.axes, axes), self.role, windows, limit, band, self.places)


@dataclass(frozen=True, slots=True)
class BlockOp:
  """One value of a block graph; arguments are indices of earlier values.

  op         attr                 value
  load       tensor               tile of a kernel-level tensor, cut by imap, cmap and fmap
  const      value                a constant scalar
  extent     axes                 the number of elements along axes (their full extent)
  cast       -                    rounded to ``dtype``
  matmul     axes (one)           sum over the axis of the product of two tiles (one iteration)
  sum/rmax   axes                 reduction of a tile over its own elements
  acc_sum    -                    sum over the iterations of the loop: LOOP -> POST
  acc_max    -                    maximum over the iterations: LOOP -> POST
  red_sum    -                    sum over the cluster ranks, the result in every rank
  red_max    -                    maximum over the cluster ranks
  run_max    -                    running maximum of x in this rank, LOOP: m <- max(m, x), where m
                                  starts at the lowest finite fp32 number, so that exp(x - m) of a
                                  row that is still all -inf is 0 and not NaN
  prev       -                    of a run_max, LOOP: its m before this iteration's update
  acc_scaled -                    of x, f: acc <- acc * f + x in every iteration, from acc = 0:
                                  LOOP -> POST; f varies over axes of x only
  otherwise an elementwise function of ``ir.functions`` that takes its arguments' axes by name; ``powr``
  with ``value`` the exponent raises to a rational power.

  What a rank without iterations accumulates is what the empty sum or maximum is.
  ``imap`` has one entry per grid dimension.

  Online softmax of logits s and values v over the loop axis l (Milakov, Gimelshein 2018):
  m = run_max(rmax[l](s)), p = exp(s - m), f = exp(prev(m) - m),
  acc_scaled(matmul[l](p, v), f) / acc_scaled(sum[l](p), f).
  """

  op: str
  args: tuple[int, ...]
  axes: tuple[str, ...]
  dtype: DType
  phase: Phase
  layout: Layout
  tensor: str = ""
  value: Fraction | str | None = None
  reduced: tuple[str, ...] = ()
  imap: tuple[str | None, ...] = ()
  cmap: str | None = None
  fmap: str | None = None

  def laid(self, layout: Layout) -> BlockOp:
    """The same operation with this layout; ``dataclasses.replace`` takes thrice as long."""
    return BlockOp(
      self.op, self.args, self.axes, self.dtype, self.phase, layout, self.tensor, self.value,
      self.reduced, self.imap, self.cmap, self.fmap,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Save:
  """Writes block value ``arg`` (POST, all ranks agree) to ``tensor``.

  ``omap`` is as imap of a load, or has the part axis ``A/K`` of its own kernel K where the grid
  splits A and the value does not vary over A.
  """

  tensor: str
  arg: int
  omap: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
  """A custom kernel: its block graph. Kernels of a µGraph have different names, without ``/``.

  ``grid``: the axis each grid dimension splits (x first). Two grid dimensions never split one
  axis. ``cluster``: the axis that the ranks of a cluster share out, or None. ``loop``: the axis
  that the for-loop walks, or None (one iteration).
  """

  name: str
  grid: tuple[str, ...]
  cluster: str | None
  loop: str | None
  ops: tuple[BlockOp, ...]
  saves: tuple[Save, ...]

  @property
  def loads(self) -> tuple[BlockOp, ...]:
    return tuple(o for o in self.ops if o.op == "load")

  @property
  def touched(self) -> tuple[str, ...]:
    """The tensors that it loads and then those that it saves, each once."""
    return tuple(dict.fromkeys([o.tensor for o in self.loads] + [s.tensor for s in self.saves]))

  @property
  def lane_depth(self) -> int:
    """How much of the depth a lane of a streaming kernel takes at once.

    8 elements of 16 bits, which are 16 bytes; as many as those are of the narrowest packed operand.
    """
    packed = (o.dtype.bits for o in self.loads if o.dtype.is_packed and o.phase is Phase.LOOP)
    return 128 // min(packed, default=16)

  def renamed(self, name: str, axes: Mapping[str, str], tensors: Mapping[str, str]) -> Kernel:
    """The same kernel with this name; axes and tensors that are in neither mapping keep theirs."""

    def one(axis: str | None) -> str | None:
      return axis and axes.get(axis, axis)

    def op(o: BlockOp) -> BlockOp:
      own = _named(o.axes, axes)
      return replace(
        o, axes=own if o.op == "load" else tuple(sorted(own)), tensor=tensors.get(o.tensor, o.tensor),
        reduced=_named(o.reduced, axes), imap=tuple(map(one, o.imap)), cmap=one(o.cmap),
        fmap=one(o.fmap),
      )  # fmt: skip

    saves = (Save(tensors.get(s.tensor, s.tensor), s.arg, tuple(map(one, s.omap))) for s in self.saves)
    return Kernel(
      name, _named(self.grid, axes), one(self.cluster), one(self.loop), tuple(map(op, self.ops)),
      tuple(saves),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class UGraph:
  """Kernels in launch order over named device tensors."""

  tensors: tuple[KTensor, ...]
  kernels: tuple[Kernel, ...]

  @property
  def saved(self) -> frozenset[str]:
    """The tensors that its kernels make: outputs and temporaries."""
    return frozenset(s.tensor for k in self.kernels for s in k.saves)

  def tensor(self, name: str) -> KTensor:
    return next(t for t in self.tensors if t.name == name)

  def args_of(self, kernel: Kernel) -> tuple[str, ...]:
    """The tensors that the kernel is given: ``touched`` ones, what picks rows of those, and limits."""
    touched = kernel.touched
    own = [t for t in self.tensors if t.name in touched]
    picks = [w.picks for t in own for w in t.windows if w.picks]
    ends = [t.limit[1] for t in own if t.limit]
    return tuple(dict.fromkeys((*touched, *picks, *ends)))

  def tensors_of(self, kernel: Kernel) -> tuple[KTensor, ...]:
    """Those that the kernel is given, in the order of the graph."""
    touched = self.args_of(kernel)
    return tuple(t for t in self.tensors if t.name in touched)


def _named(axes: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
  return tuple(names.get(a, a) for a in axes)


def part_axis(axis: str, kernel: str) -> str:
  """The axis of the tiles of ``axis`` in the grid of the kernel of that name."""
  return f"{axis}/{kernel}"


def is_part_axis(axis: str) -> bool:
  """Whether ``part_axis`` made the name: neither axes of a region nor kernels have a slash."""
  return "/" in axis


def ugraph_extents(
  graph: UGraph, params: Sequence[KernelParams], extents: Mapping[str, int]
) -> dict[str, int]:
  """``extents`` with those of the part axes that the tensors of ``graph`` have."""
  result = dict(extents)
  used = {a for t in graph.tensors for a in t.axes if is_part_axis(a)}
  if not used:
    return result
  # In launch order: the grid of a later kernel may split a part axis of an earlier one.
  for kernel, numbers in zip(graph.kernels, params, strict=True):
    for axis, tile in zip(kernel.grid, numbers.tile, strict=True):
      part = part_axis(axis, kernel.name)
      if part in used:
        result[part] = -(-result[axis] // tile)
  return result


@dataclass(frozen=True, slots=True)
class Candidate:
  """A UGraph with numbers for every kernel: what codegen compiles and the tuner times."""

  ugraph: UGraph
  params: tuple[KernelParams, ...]
  predicted_us: float = field(compare=False, default=float("inf"))
