"""One kernel of a µGraph as a function of Triton.

A block value is a block of Triton, one dimension an axis, in the order of the value's axes. What the µGraph
says of threads, stages and layouts, Triton decides by itself. Sums, maxima and products are of fp32, and
every value is rounded to its type, as in the µGraph.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.graphs.triton_functions import FUNCTIONS, literal, power
from mirage_onnx.graphs.triton_tiles import LEAST_DOT, MOST_ELEMENTS, Tiles
from mirage_onnx.ir import BlockOp, DType, Kernel, KTensor, Phase, Save
from mirage_onnx.ir.ugraph import part_axis

TYPES = {DType.F16: "float16", DType.BF16: "bfloat16", DType.F32: "float32"}
_ACCUMULATORS = ("acc_sum", "acc_max", "acc_scaled")
#: The lowest finite fp32 number.
_LOWEST = "-3.4028234663852886e+38"


def kernel_text(kernel: Kernel, tiles: Tiles, tensors: Mapping[str, KTensor], shared_bytes: int) -> str:
  """The function; its parameters are ``kernel.touched``, pointers. ``shared_bytes``: memory of a block.

  Raises:
      RejectionError: TRITON_UNSUPPORTED.
  """
  return _Writer(kernel, tiles, tensors, shared_bytes).text()


class _Writer:
  def __init__(self, kernel: Kernel, tiles: Tiles, tensors: Mapping[str, KTensor], shared_bytes: int) -> None:
    self.kernel, self.tiles, self.tensors, self.shared_bytes = kernel, tiles, tensors, shared_bytes
    self.lines: list[str] = []
    self.indent = "  "

  def line(self, text: str) -> None:
    self.lines.append(self.indent + text)

  def text(self) -> str:
    kernel, tiles = self.kernel, self.tiles
    for op in kernel.ops:
      if op.dtype not in TYPES:
        raise RejectionError("TRITON_UNSUPPORTED", f"values of {op.dtype.value}")
    self.lines = ["@triton.jit", f"def {kernel.name}({', '.join(kernel.touched)}):"]
    for dim in range(len(kernel.grid)):
      self.line(f"g{dim} = tl.program_id({dim})")
    for piece in tiles.pieces:
      for text in () if piece.looped else piece.lines:
        self.line(text)
    self._loop()
    for index, op in enumerate(kernel.ops):
      if op.phase is Phase.POST and op.op not in _ACCUMULATORS:
        self._assign(index, op)
    for save in kernel.saves:
      self._save(save)
    return "\n".join(self.lines) + "\n"

  def _loop(self) -> None:
    ops = [(i, o) for i, o in enumerate(self.kernel.ops) if o.phase is Phase.LOOP or o.op in _ACCUMULATORS]
    carried = [(i, o) for i, o in ops if o.op in (*_ACCUMULATORS, "run_max")]
    for index, op in carried:
      start = {"acc_max": '-float("inf")', "run_max": _LOWEST}.get(op.op, "0.0")
      self.line(f"v{index} = tl.full({self.tiles.shape(index)}, {start}, tl.float32)")
    if (head := self.tiles.loop_lines()) is not None:
      for text in head:
        self.line(text)
      self.indent += "  "
    for piece in self.tiles.pieces:
      for text in piece.lines if piece.looped else ():
        self.line(text)
    for index, op in carried:
      if op.op == "run_max":
        self.line(f"p{index} = v{index}")
    for index, op in ops:
      self._assign(index, op)
    self.indent = "  "

  def _assign(self, index: int, op: BlockOp) -> None:
    self.line(f"v{index} = {self._rounded(op, self._value(index, op))}")

  def _rounded(self, op: BlockOp, text: str) -> str:
    return text if op.op == "load" or op.dtype is DType.F32 else f"({text}).to(tl.{TYPES[op.dtype]})"

  def _value(self, index: int, op: BlockOp) -> str:
    match op.op:
      case "load":
        return self._load(index, op)
      case "const":
        assert op.value is not None
        return f"tl.full((), {literal(op.value)}, tl.float32)"
      case "extent":
        return f"tl.full((), {float(prod(self.tiles.extents[a] for a in op.reduced))}, tl.float32)"
      case "matmul":
        return self._matmul(op)
      case "sum" | "rmax":
        return self._reduced(op)
      case "cast" | "red_sum" | "red_max":  # a cluster has one rank
        return self._wide(op, 0)
      case "powr":
        assert isinstance(op.value, Fraction)
        return power(self._wide(op, 0), op.value)
      case "acc_sum":
        return f"v{index} + {self._wide(op, 0)}"
      case "acc_max":
        return FUNCTIONS["max"].format(f"v{index}", self._wide(op, 0))
      case "acc_scaled":
        return f"v{index} * {self._wide(op, 1)} + {self._wide(op, 0)}"
      case "run_max":
        return FUNCTIONS["max"].format(f"p{index}", self._wide(op, 0))
      case "prev":
        return f"p{op.args[0]}"
    if op.op not in FUNCTIONS:
      raise RejectionError("TRITON_UNSUPPORTED", f"the operation {op.op}")
    return FUNCTIONS[op.op].format(*(self._wide(op, at) for at in range(len(op.args))))

  def _wide(self, op: BlockOp, position: int) -> str:
    """An argument in fp32, its axes where the result has them."""
    arg = op.args[position]
    text = _aligned(f"v{arg}", self.kernel.ops[arg].axes, op.axes)
    return text if self.kernel.ops[arg].dtype is DType.F32 else f"{text}.to(tl.float32)"

  def _masked(self, arg: int, axes: Sequence[str], neutral: str) -> str:
    """An argument of a reduction in its own order, with ``neutral`` where nothing is."""
    own = self.kernel.ops[arg].axes
    masks = [(p.mask, a) for a in axes if (p := self.tiles.piece(arg, a)).mask]
    if not masks:
      return f"v{arg}"
    every = " & ".join(_aligned(mask, (axis,), own) for mask, axis in masks)
    return f"tl.where({every}, v{arg}, {neutral})"

  def _reduced(self, op: BlockOp) -> str:
    arg = op.args[0]
    own = list(self.kernel.ops[arg].axes)
    is_sum = op.op == "sum"
    text = self._masked(arg, op.reduced, "0.0" if is_sum else '-float("inf")')
    if self.kernel.ops[arg].dtype is not DType.F32:
      text = f"({text}).to(tl.float32)"
    for axis in op.reduced:
      text = f"tl.{'sum' if is_sum else 'max'}({text}, {own.index(axis)})"
      own.remove(axis)
    return _aligned(text, own, op.axes)

  def _matmul(self, op: BlockOp) -> str:
    """``tl.dot`` where all three sizes allow it; else, as for a vector, a sum of products."""
    x, y = op.args
    depth = op.reduced[0]
    left, right = self.kernel.ops[x], self.kernel.ops[y]
    sizes = {a: self.tiles.piece(v, a).size for v in (x, y) for a in self.kernel.ops[v].axes}
    both = [a for a in op.axes if a in left.axes and a in right.axes]
    rows = [a for a in op.axes if a in left.axes and a not in both]
    columns = [a for a in op.axes if a in right.axes and a not in both]
    batch, m, n, k = (prod(sizes[a] for a in axes) for axes in (both, rows, columns, [depth]))
    a, b = (self._masked(arg, op.reduced, "0.0") for arg in (x, y))
    half = left.dtype == right.dtype and left.dtype.is_half
    if not half:
      a, b = (f"({text}).to(tl.float32)" for text in (a, b))
    if min(m, n, k) >= LEAST_DOT:
      operands = batch * (m * k + k * n) * (left.dtype.size_bytes if half else 4)
      if operands > self.shared_bytes:  # where tl.dot has both; on an H100 Triton asked for just so much
        reason = f"a product of {m}x{k} and {k}x{n} takes {operands} bytes of shared memory"
        raise RejectionError("TRITON_UNSUPPORTED", f"{reason}, a block has {self.shared_bytes}")
      lead = (batch,) if batch > 1 else ()
      a = f"tl.reshape({_permuted(a, left.axes, (*both, *rows, depth))}, {(*lead, m, k)})"
      b = f"tl.reshape({_permuted(b, right.axes, (*both, depth, *columns))}, {(*lead, k, n)})"
      precision = "" if half else ', input_precision="ieee"'
      made = (*both, *rows, *columns)
      text = f"tl.reshape(tl.dot({a}, {b}{precision}), {tuple(sizes[axis] for axis in made)})"
      return _permuted(text, made, op.axes)
    if batch * m * n * k > MOST_ELEMENTS:
      raise RejectionError("TRITON_UNSUPPORTED", f"a product of {m}x{k} and {k}x{n} in a block")
    every = (*op.axes, depth)
    a, b = (f"{_aligned(text, o.axes, every)}.to(tl.float32)" for text, o in ((a, left), (b, right)))
    return f"tl.sum({a} * {b}, {len(op.axes)})"

  def _load(self, index: int, op: BlockOp) -> str:
    tensor = self.tensors[op.tensor]
    return f"tl.load({self._memory(index, op.axes, tensor, {a: a for a in op.axes})})"

  def _save(self, save: Save) -> None:
    kernel, tensor, value = self.kernel, self.tensors[save.tensor], self.kernel.ops[save.arg]
    parts = {part_axis(a, kernel.name): f"g{dim}" for dim, a in enumerate(kernel.grid)}
    named = {a: parts.get(a, a) for a in tensor.axes}
    if set(value.axes) != {a for a in tensor.axes if a not in parts}:
      raise RejectionError("TRITON_UNSUPPORTED", f"%{save.arg} is over other axes than {save.tensor}")
    where, *mask = self._memory(save.arg, value.axes, tensor, named).split(", mask=")
    rest = f", mask={mask[0].removesuffix(', other=0.0')}" if mask else ""
    self.line(f"tl.store({where}, v{save.arg}.to(tl.{TYPES[tensor.dtype]}){rest})")

  def _memory(self, index: int, axes: Sequence[str], tensor: KTensor, named: Mapping[str, str]) -> str:
    """Addresses and mask of the elements of a value in a tensor; other axes of it are as ``named`` says."""
    if tensor.windows or tensor.dtype not in TYPES:
      raise RejectionError("TRITON_UNSUPPORTED", f"{tensor.name} is a view, or of {tensor.dtype.value}")
    extents = self.tiles.extents
    terms, masks = [], []
    for at, axis in enumerate(tensor.axes):
      stride = prod(extents[a] for a in tensor.axes[at + 1 :])
      if axis in axes:
        piece = self.tiles.piece(index, axis)
        text = _aligned(piece.name, (axis,), axes)
        masks += [_aligned(piece.mask, (axis,), axes)] if piece.mask else []
      else:
        text = named[axis]
      if tensor.elements(extents) >= 1 << 31:
        text = f"{text}.to(tl.int64)"
      terms.append(text if stride == 1 else f"{text} * {stride}")
    address = " + ".join([tensor.name, *terms])
    return f"{address}, mask={' & '.join(masks)}, other=0.0" if masks else address


def _aligned(text: str, own: Sequence[str], wanted: Sequence[str]) -> str:
  """A block over the axes ``own`` with dimensions of 1 where ``wanted`` has more; a scalar stays one."""
  if not own or list(own) == list(wanted):
    return text
  text = _permuted(text, own, [a for a in wanted if a in own])
  return f"{_bracketed(text)}[{', '.join(':' if a in own else 'None' for a in wanted)}]"


def _permuted(text: str, own: Sequence[str], wanted: Sequence[str]) -> str:
  order = tuple(list(own).index(a) for a in wanted)
  return text if order == tuple(range(len(order))) else f"tl.permute({text}, {order})"


def _bracketed(text: str) -> str:
  return text if text.isidentifier() or text.startswith("tl.") else f"({text})"
