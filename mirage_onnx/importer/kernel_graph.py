"""Kernel graphs: tensor programs written in Python, operation by operation, as in Mirage's README.

    graph = mirage_onnx.new_kernel_graph()
    q = graph.new_input(dims=(2, 256, 64), dtype=mirage_onnx.float16)
    k = graph.new_input(dims=(2, 64, 4096), dtype=mirage_onnx.float16)
    scores = graph.exp(graph.matmul(q, k))
    graph.mark_output(graph.div(scores, graph.reduction(scores, 2)))

Shapes follow the original (arXiv 2405.05751): dimensions are positional, the operands of an
operation have one rank, an elementwise operation broadcasts dimensions of extent 1, a matmul is
batched over equal leading dimensions, and a reduction keeps its dimension with extent 1. What
numpy would align by adding dimensions is refused. A graph is a ``Program`` like that of a model:
one node per operation, 16-bit operands of compound operations widened to fp32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from mirage_onnx.errors import MirageError
from mirage_onnx.ir import Constant, DType, Node, Operand, Program, Step, StepAttr, Tensor

float16, bfloat16, float32, float64 = DType.F16, DType.BF16, DType.F32, DType.F64

#: What ``new_input`` takes besides a DType: one of these names, or numpy's or torch's type.
_SPELLINGS = {
  "float16": DType.F16, "bfloat16": DType.BF16, "float32": DType.F32, "float64": DType.F64,
}  # fmt: skip

HALF = Fraction(1, 2)
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphTensor:
  """A tensor of a kernel graph; ``graph`` is the identity of the graph that made it."""

  name: str
  dims: Shape
  dtype: DType
  graph: int


@dataclass(slots=True)
class _Steps:
  """The steps of one node, written one after the other."""

  node: str
  steps: list[Step] = field(default_factory=list)

  def add(
    self, op: str, *inputs: Tensor | Constant, shape: Shape, dtype: DType, attr: StepAttr = None
  ) -> Tensor:
    out = Tensor(f"{self.node}/{len(self.steps)}", dtype, shape)
    operands: tuple[Operand, ...] = tuple(i.name if isinstance(i, Tensor) else i for i in inputs)
    self.steps.append(Step(op, operands, out, attr))
    return out

  def like(self, op: str, x: Tensor, *more: Tensor | Constant) -> Tensor:
    """An elementwise function whose result has the shape and type of ``x``."""
    return self.add(op, x, *more, shape=_shape(x), dtype=_dtype(x))

  def cast(self, x: Tensor, dtype: DType) -> Tensor:
    same = x.dtype is dtype
    return x if same else self.add("cast", x, shape=_shape(x), dtype=dtype, attr=dtype)

  def widen(self, x: Tensor) -> Tensor:
    return self.cast(x, DType.F32) if _dtype(x).is_half else x

  def reduce(self, op: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    shape = tuple(1 if i in axes else n for i, n in enumerate(_shape(x)))
    return self.add(op, x, shape=shape, dtype=_dtype(x), attr=tuple(axes))


class ProgramBuilder:
  """A program under construction; every method adds one node and returns its result.

  Raises:
      MirageError: GRAPH_OPERAND, one line that names the shapes, where operands do not fit.
  """

  def __init__(self) -> None:
    self._tensors: dict[str, Tensor] = {}
    self._inputs: list[str] = []
    self._outputs: list[str] = []
    self._nodes: list[Node] = []

  # -- the interface of the graph

  def new_input(
    self, dims: Sequence[int], dtype: object, strides: Sequence[int] | None = None
  ) -> GraphTensor:
    """An input of this shape. ``strides``, in elements, may only be the dense ones."""
    shape = tuple(int(d) for d in dims)
    if not shape or min(shape) < 1:
      raise _refuse(f"an input of shape {shape}: every dimension must be at least 1")
    if strides is not None and tuple(strides) != (dense := _dense(shape)):
      given = tuple(strides)
      raise _refuse(f"an input of shape {shape} has strides {dense}, not {given}: copy it")
    name = f"x{len(self._inputs)}"
    self._inputs.append(name)
    self._tensors[name] = Tensor(name, _read_dtype(dtype), shape)
    return self._handle(self._tensors[name])

  def mark_output(self, x: GraphTensor) -> None:
    """Make ``x`` an output; the outputs are in the order of these calls."""
    name = self._operand("mark_output", x).name
    if name in self._inputs or name in self._outputs:
      what = "an input" if name in self._inputs else "marked already"
      raise _refuse(f"mark_output of {name}, which is {what}")
    self._outputs.append(name)

  def program(self) -> Program:
    """The graph as a Program. Without ``mark_output`` its only unread result is the output."""
    outputs = tuple(self._outputs)
    if not outputs:
      read = {i for n in self._nodes for i in n.inputs}
      outputs = tuple(o for n in self._nodes for o in n.outputs if o not in read)
      if len(outputs) != 1:
        raise _refuse(f"{len(outputs)} results are unread: say mark_output of the outputs")
    return Program(
      inputs=tuple(self._inputs),
      outputs=outputs,
      nodes=tuple(self._nodes),
      tensors=dict(self._tensors),
      weights=frozenset(),
      constants={},
    )

  # -- operations

  def matmul(self, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """[..., m, k] x [..., k, n] -> [..., m, n] with equal leading dimensions."""
    x, y = self._operands("matmul", a, b)
    (sa, sb), rank = (_shape(x), _shape(y)), len(_shape(x))
    if rank < 2 or len(sb) != rank or sa[:-2] != sb[:-2] or sa[-1] != sb[-2]:
      raise _refuse(
        f"matmul of {sa} and {sb}: needs (..., m, k) and (..., k, n) with equal leading dimensions"
      )
    s = self._steps("matmul")
    s.add("matmul", x, y, shape=(*sa[:-1], sb[-1]), dtype=_dtype(x))
    return self._finish("matmul", s, x, y)

  def add(self, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    return self._binary("add", a, b)

  def sub(self, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    return self._binary("sub", a, b)

  def mul(self, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    return self._binary("mul", a, b)

  def div(self, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    return self._binary("div", a, b)

  def exp(self, a: GraphTensor) -> GraphTensor:
    return self._unary("exp", a)

  def square(self, a: GraphTensor) -> GraphTensor:
    return self._unary("square", a)

  def sqrt(self, a: GraphTensor) -> GraphTensor:
    return self._unary("sqrt", a)

  def relu(self, a: GraphTensor) -> GraphTensor:
    return self._unary("relu", a)

  def silu(self, a: GraphTensor) -> GraphTensor:
    """``x sigmoid(x)``."""
    x = self._operand("silu", a)
    s = self._steps("silu")
    wide = s.widen(x)
    s.cast(s.like("mul", wide, s.like("sigmoid", wide)), a.dtype)
    return self._finish("silu", s, x)

  def gelu(self, a: GraphTensor) -> GraphTensor:
    """``x/2 (1 + erf(x / sqrt(2)))``."""
    x = self._operand("gelu", a)
    s = self._steps("gelu")
    wide = s.widen(x)
    inner = s.like("erf", s.like("mul", wide, Constant(HALF, HALF)))
    half = s.like("mul", wide, Constant(HALF))
    s.cast(s.like("mul", half, s.like("add", inner, Constant(Fraction(1)))), a.dtype)
    return self._finish("gelu", s, x)

  def reduction(self, a: GraphTensor, dim: int) -> GraphTensor:
    """The sum along ``dim``, which stays with extent 1."""
    x = self._operand("reduction", a)
    s = self._steps("reduction")
    s.reduce("sum", x, (_dimension("reduction", x, dim),))
    return self._finish("reduction", s, x)

  def rms_norm(self, a: GraphTensor, normalized_shape: Sequence[int] | None = None) -> GraphTensor:
    """``x / sqrt(mean(x^2))`` over the trailing ``normalized_shape`` (the last dimension)."""
    x = self._operand("rms_norm", a)
    over = tuple(a.dims[-1:] if normalized_shape is None else normalized_shape)
    if not over or a.dims[-len(over) :] != over:
      raise _refuse(f"rms_norm of {a.dims} over {over}: must be its last dimensions")
    s = self._steps("rms_norm")
    wide = s.widen(x)
    axes = range(len(a.dims) - len(over), len(a.dims))
    deviation = s.reduce("mean", s.like("square", wide), tuple(axes))
    s.cast(s.like("div", wide, s.like("sqrt", deviation)), a.dtype)
    return self._finish("rms_norm", s, x)

  def softmax(self, a: GraphTensor, dim: int = -1) -> GraphTensor:
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``."""
    x = self._operand("softmax", a)
    axes = (_dimension("softmax", x, dim),)
    s = self._steps("softmax")
    wide = s.widen(x)
    e = s.like("exp", s.like("sub", wide, s.reduce("rmax", wide, axes)))
    s.cast(s.like("div", e, s.reduce("sum", e, axes)), a.dtype)
    return self._finish("softmax", s, x)

  # -- helpers

  def _unary(self, op: str, a: GraphTensor) -> GraphTensor:
    x = self._operand(op, a)
    s = self._steps(op)
    s.like(op, x)
    return self._finish(op, s, x)

  def _binary(self, op: str, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    x, y = self._operands(op, a, b)
    sa, sb = _shape(x), _shape(y)
    fits = len(sa) == len(sb) and all(m == n or 1 in (m, n) for m, n in zip(sa, sb, strict=True))
    if not fits:
      raise _refuse(f"{op} of {sa} and {sb}: dimensions must be equal, or 1 in one of them")
    s = self._steps(op)
    s.add(op, x, y, shape=tuple(map(max, sa, sb)), dtype=_dtype(x))
    return self._finish(op, s, x, y)

  def _operand(self, op: str, a: GraphTensor) -> Tensor:
    if not isinstance(a, GraphTensor) or a.graph != id(self):
      raise _refuse(f"{op} takes tensors of this graph, not {a!r}")
    return self._tensors[a.name]

  def _operands(self, op: str, a: GraphTensor, b: GraphTensor) -> tuple[Tensor, Tensor]:
    x, y = self._operand(op, a), self._operand(op, b)
    if x.dtype is not y.dtype:
      both = f"{a.dims} of {x.dtype} and {b.dims} of {y.dtype}"
      raise _refuse(f"{op} of {both}: the element types must be equal")
    return x, y

  def _steps(self, op: str) -> _Steps:
    return _Steps(f"{op}{len(self._nodes)}")

  def _finish(self, op: str, s: _Steps, *operands: Tensor) -> GraphTensor:
    """Close the node: its last step yields the tensor that has the node's name."""
    last = s.steps[-1]
    out = Tensor(s.node, last.output.dtype, last.output.shape)
    s.steps[-1] = Step(last.op, last.inputs, out, last.attr)
    names = tuple(x.name for x in operands)
    self._nodes.append(Node(s.node, op, names, (s.node,), tuple(s.steps)))
    self._tensors[s.node] = out
    return self._handle(out)

  def _handle(self, x: Tensor) -> GraphTensor:
    return GraphTensor(x.name, _shape(x), _dtype(x), id(self))


def _refuse(text: str) -> MirageError:
  return MirageError("GRAPH_OPERAND", text)


def _shape(x: Tensor) -> Shape:
  assert x.shape is not None
  return tuple(int(d) for d in x.shape)


def _dtype(x: Tensor) -> DType:
  assert x.dtype is not None
  return x.dtype


def _dense(shape: Shape) -> Shape:
  return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _dimension(op: str, x: Tensor, dim: int) -> int:
  rank = len(_shape(x))
  if not -rank <= dim < rank:
    raise _refuse(f"{op} of {_shape(x)} along dimension {dim}, which it does not have")
  return dim % rank


def _read_dtype(given: object) -> DType:
  """A float type from a DType, its name, or a numpy or torch type object."""
  if isinstance(given, DType) and given.is_float:
    return given
  name = getattr(given, "__name__", str(given)).rpartition(".")[2]
  if name not in _SPELLINGS:
    raise _refuse(f"dtype {given!r} is not one of {', '.join(_SPELLINGS)}")
  return _SPELLINGS[name]
