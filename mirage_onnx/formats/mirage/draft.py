"""A saved graph as kernels over positional dimensions made of factors.

Between the format and the µGraph: values are those of the saved operators, in a small set of
primitives, but what belongs together is not known before the whole graph has been read, so
dimensions are ``Dim``s whose factors may still be split or tied.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from mirage_onnx.errors import RejectionError
from mirage_onnx.formats.mirage.factors import AxisFactors, Dim
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import ELEMENTWISE


@dataclass(frozen=True, slots=True)
class DraftTensor:
  """A device tensor; roles as in ``KTensor``."""

  name: str
  dtype: DType
  dims: tuple[Dim, ...]
  role: str


@dataclass(frozen=True, slots=True)
class DraftValue:
  """A block value. ``dims`` are those of the tile; a scalar has none and fits any rank.

  op         over           value
  load       -              the tile of ``tensor`` of a block in an iteration
  const      -              ``number``
  extent     factors        the number of elements along them
  powr       -              to the power ``number``
  matmul     contracted     sum over the factors of the product, dims (..., m, k) and (..., k, n)
  sum        reduced        sum over the factors of one dimension
  acc        -              sum over the iterations of the loop: after it
  otherwise an elementwise function of ``ir.functions``

  ``looped``: it comes from a tile that the loop cut. ``post``: it is computed after the loop.
  """

  op: str
  args: tuple[int, ...]
  dims: tuple[Dim, ...]
  post: bool
  looped: bool
  over: Dim = ()
  tensor: str = ""
  number: Fraction | None = None


@dataclass(slots=True)
class DraftKernel:
  """A kernel: ``grid`` and ``loop`` are the dimensions of the block and iteration indices.

  ``saves``: (tensor, value).
  """

  name: str
  factors: AxisFactors
  grid: tuple[Dim, Dim, Dim] = ((), (), ())
  loop: Dim = ()
  chunk: int = 1
  values: list[DraftValue] = field(default_factory=list)
  saves: list[tuple[str, int]] = field(default_factory=list)

  # -- primitives, each yields the index of its value

  def load(self, tensor: str, dims: tuple[Dim, ...], *, post: bool, looped: bool) -> int:
    return self._push(DraftValue("load", (), dims, post, looped, tensor=tensor))

  def const(self, number: Fraction | int, like: int) -> int:
    """A constant for use with value ``like``."""
    return self._push(
      DraftValue("const", (), (), self.values[like].post, looped=False, number=Fraction(number))
    )

  def extent(self, over: Dim, like: int) -> int:
    post = self.values[like].post
    return self._push(DraftValue("extent", (), (), post, looped=False, over=over))

  def powr(self, x: int, exponent: Fraction) -> int:
    v = self.values[x]
    return self._push(DraftValue("powr", (x,), v.dims, v.post, v.looped, number=exponent))

  def fn(self, op: str, *args: int) -> int:
    """An elementwise function; dimensions of extent 1 are broadcast."""
    assert ELEMENTWISE[op].arity == len(args)
    values = [self.values[a] for a in args]
    shaped = [v for v in values if v.dims]
    dims = shaped[0].dims if shaped else ()
    for v in shaped[1:]:
      if len(v.dims) != len(dims):
        raise invalid(f"{op} of tensors of {len(dims)} and {len(v.dims)} dimensions")
      dims = tuple(self._broadcast(op, a, b) for a, b in zip(dims, v.dims, strict=True))
    looped = any(v.looped for v in values)
    return self._push(DraftValue(op, args, dims, self._post(op, args), looped))

  def matmul(self, a: int, b: int) -> int:
    x, y = self.values[a].dims, self.values[b].dims
    sizes = [tuple(map(self.factors.size, d)) for d in (x, y)]
    (m, k), fits = sizes, len(x) == len(y) >= 2
    if not fits or m[:-2] != k[:-2] or m[-1] != k[-2]:
      raise invalid(f"matmul of {m} and {k}")
    for first, second in (*zip(x[:-2], y[:-2], strict=True), (x[-1], y[-2])):
      self.factors.tie(first, second)
    looped = self.values[a].looped or self.values[b].looped
    dims = (*x[:-1], y[-1])
    post = self._post("matmul", (a, b))
    return self._push(DraftValue("matmul", (a, b), dims, post, looped, over=x[-1]))

  def sum(self, x: int, dim: int, left: int = 1) -> int:
    """The sum along a dimension, of chunks of ``left`` elements each."""
    v = self.values[x]
    if not 0 <= dim < len(v.dims):
      raise invalid(f"a reduction along dimension {dim} of {len(v.dims)}")
    size = self.factors.size(v.dims[dim])
    if size % left:
      raise invalid(f"a reduction of {size} elements to {left}")
    over, rest = self.factors.take(v.dims[dim], size // left)
    dims = (*v.dims[:dim], rest, *v.dims[dim + 1 :])
    return self._push(DraftValue("sum", (x,), dims, v.post, v.looped, over=over))

  def acc(self, x: int) -> int:
    v = self.values[x]
    if v.post:
      raise invalid("an accumulator of a value from after the loop")
    return self._push(DraftValue("acc", (x,), v.dims, post=True, looped=False))

  # -- helpers

  def _push(self, v: DraftValue) -> int:
    self.values.append(v)
    return len(self.values) - 1

  def _post(self, op: str, args: tuple[int, ...]) -> bool:
    phases = {self.values[a].post for a in args}
    if len(phases) != 1:
      raise invalid(f"{op} of a value in the loop and one from after it")
    return phases.pop()

  def _broadcast(self, op: str, a: Dim, b: Dim) -> Dim:
    m, n = self.factors.size(a), self.factors.size(b)
    if m != n and 1 not in (m, n):
      raise invalid(f"{op} of dimensions {m} and {n}")
    if m == n:
      self.factors.tie(a, b)
    return a if m > 1 else b


@dataclass(slots=True)
class Draft:
  """A whole graph; ``axes``: the dimension that an axis of the reference is."""

  factors: AxisFactors
  axes: dict[str, Dim]
  tensors: dict[str, DraftTensor] = field(default_factory=dict)
  kernels: list[DraftKernel] = field(default_factory=list)


def invalid(reason: str) -> RejectionError:
  return RejectionError("SAVED_INVALID", reason)


def unsupported(reason: str) -> RejectionError:
  return RejectionError("SAVED_UNSUPPORTED", reason)
