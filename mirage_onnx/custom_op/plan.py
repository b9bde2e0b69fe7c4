"""The launch plan: what the custom op of one MuGraph checks, allocates and launches.

A plan is a declarative ASCII text with one spelling: words separated by single spaces, one
statement a line, every line ended by a newline, statements in this order::

    plan 2
    input <dtype> <dim>...                 dim: an integer, or * for any size      (0 or more)
    equal <expr> <expr>                    products that must agree in every run   (0 or more)
    output <dtype> <expr>...               one expression per dim                  (1 or more)
    workspace <expr>                       bytes of the last node output, a uint8     (0 or 1)
    variant <expr>                         taken when nonzero; the last has no expression
    launch <cubin> <kernel> grid <expr> <expr> <expr> block <n> cluster <n> smem <n> pdl <0|1>
           args <arg>...                   (on one line) of the variant above      (0 or more)

An argument is ``i<n>#<expr>`` or ``o<n>#<expr>`` (pointer of an input or output), ``w:<expr>#<expr>``
(workspace plus a byte offset), ``i32:<expr>`` or ``i64:<expr>``. Behind ``#`` are the bytes that the
kernel touches there at most: a run in which one of its launches is given fewer launches nothing. An argument
``t:<first>:<rows>:<columns>:<pitch>:<box>:<pointer>`` is a tensor map of 16-bit elements there: rows
that begin ``pitch`` elements apart from element ``first`` on, copied ``box`` rows at a time
(``ir/tensor_map.py``).
Expressions are those of ``expr.py``. The first variant whose guard is nonzero runs; since the last
has none, every plan is total. Plans of version 1 had no bytes; they are refused.

``cpp/ort_custom_ops/plan.cc`` reads the same language with the same rules and messages.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.custom_op.arguments import (
  Arg,
  InputPtr,
  Int32,
  Int64,
  MapOf,
  OutputPtr,
  Pointer,
  WorkspacePtr,
)
from mirage_onnx.custom_op.expr import MAX_INPUTS, MAX_RANK, OPERATORS, Expr, ExprError, parse_int
from mirage_onnx.errors import MirageError

DTYPES = frozenset("f16 bf16 f32 f64 i8 u8 i16 u16 i32 u32 i64 u64 bool e4m3 e5m2".split())
VERSION = 2
MAX_PLAN_BYTES = 1 << 20
MAX_OUTPUTS = 32
MAX_EQUAL = 256
MAX_VARIANTS = 64
MAX_LAUNCHES = 64
MAX_ARGS = 64
MAX_CUBIN_ID = 4095
#: The numbers of a tensor map, in order: name, least, most.
MAP_LIMITS = (
  ("first", 0, 2**31 - 1), ("rows", 1, 2**31 - 1), ("columns", 1, 2**31 - 1), ("pitch", 1, 2**31 - 1),
  ("box", 1, 256),
)  # fmt: skip
MAX_SMEM_BYTES = 232448  # 227 KiB: the most any supported GPU gives a block

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
_LAUNCH_FORM = (
  "expected 'launch <cubin> <kernel> grid <expr> <expr> <expr> block <n> cluster <n> "
  "smem <n> pdl <0|1> args <arg>...'"
)


@dataclass(frozen=True, slots=True)
class InputSpec:
  """An input tensor the plan accepts; a dim of None may have any size."""

  dtype: str
  dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class OutputSpec:
  """An output tensor and how its shape follows from the inputs."""

  dtype: str
  dims: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Equal:
  """Two products of input dims (and numbers); a run where they differ fails with its sizes."""

  left: Expr
  right: Expr


@dataclass(frozen=True, slots=True)
class Launch:
  """One kernel launch. A grid with a zero extent is skipped at run time."""

  cubin: int
  kernel: str
  grid: tuple[Expr, Expr, Expr]
  block: int
  args: tuple[Arg, ...]
  cluster: int = 1
  smem_bytes: int = 0
  pdl: bool = False

  def line(self) -> str:
    """The statement of this launch."""
    grid = " ".join(extent.text for extent in self.grid)
    head = f"launch {self.cubin} {self.kernel} grid {grid} block {self.block}"
    tail = f"cluster {self.cluster} smem {self.smem_bytes} pdl {int(self.pdl)} args"
    return " ".join((head, tail, *(arg.word() for arg in self.args)))


@dataclass(frozen=True, slots=True)
class Variant:
  """The launches for the shapes that ``guard`` accepts (None: all that are left)."""

  launches: tuple[Launch, ...]
  guard: Expr | None = None


@dataclass(frozen=True, slots=True)
class Plan:
  """A whole plan."""

  inputs: tuple[InputSpec, ...]
  outputs: tuple[OutputSpec, ...]
  variants: tuple[Variant, ...]
  workspace: Expr | None = None
  equal: tuple[Equal, ...] = ()

  def to_text(self) -> str:
    """The canonical text.

    Raises:
        MirageError: PLAN_INVALID when this object breaks a rule of the language.
    """
    text = self._text()
    if parse_plan(text) != self:
      raise MirageError("PLAN_INVALID", "the plan does not read back as it was written")
    return text

  def _text(self) -> str:
    lines = [f"plan {VERSION}"]
    for spec in self.inputs:
      dims = ("*" if d is None else str(d) for d in spec.dims)
      lines.append(" ".join(("input", spec.dtype, *dims)))
    lines += [f"equal {e.left.text} {e.right.text}" for e in self.equal]
    lines += [" ".join(("output", o.dtype, *(d.text for d in o.dims))) for o in self.outputs]
    if self.workspace is not None:
      lines.append(f"workspace {self.workspace.text}")
    for variant in self.variants:
      lines.append("variant" if variant.guard is None else f"variant {variant.guard.text}")
      lines += [launch.line() for launch in variant.launches]
    return "".join(f"{line}\n" for line in lines)

  def choose(self, shapes: Sequence[Sequence[int]]) -> Variant:
    """The variant that runs at these input shapes.

    Raises:
        ExprError: a guard cannot be evaluated.
    """
    for variant in self.variants:
      if variant.guard is None or variant.guard.eval(shapes) != 0:
        return variant
    raise MirageError("PLAN_INVALID", "the last variant must have no guard")


def parse_plan(text: str) -> Plan:
  """Reads the text of a plan; only canonical text is accepted, so writing it back is identity.

  Raises:
      MirageError: PLAN_INVALID with ``plan line N: reason``.
  """
  parser = _Parser()
  number = 1
  try:
    if len(text) > MAX_PLAN_BYTES:
      raise ExprError("the text is longer than 1 MiB")
    *lines, rest = text.split("\n")
    for line in lines:
      parser.statement(_split(line))
      number += 1
    if rest:
      raise ExprError("the last line must end with a newline")
    return parser.finish()
  except ExprError as error:
    raise MirageError("PLAN_INVALID", f"plan line {number}: {error}") from None


def _split(line: str) -> list[str]:
  words = line.split(" ")
  if not all(words) or not all(" " <= c <= "~" for c in line):
    raise ExprError("words of printable ASCII separated by single spaces are expected")
  return words


def _number(text: str, low: int, high: int, what: str) -> int:
  try:
    if low <= (value := parse_int(text)) <= high:
      return value
  except ExprError:
    pass
  raise ExprError(f"{what} must be an integer in {low}..{high}")


class _Parser:
  """Takes statements in their fixed order; every refusal is an ExprError with its reason."""

  def __init__(self) -> None:
    self._section = 0  # 0 header, 1 inputs, 2 equal, 3 outputs, 4 workspace, 5 variants
    self._inputs: list[InputSpec] = []
    self._equal: list[Equal] = []
    self._outputs: list[OutputSpec] = []
    self._workspace: Expr | None = None
    self._variants: list[tuple[Expr | None, list[Launch]]] = []

  def statement(self, words: list[str]) -> None:
    head, section = words[0], self._section
    if section == 0:
      if words != ["plan", str(VERSION)]:
        raise ExprError(f"expected 'plan {VERSION}'")
      self._section = 1
    elif head == "input" and section == 1:
      self._input(words)
    elif head == "equal" and section <= 2:
      self._same(words)
    elif head == "output" and section <= 3:
      self._output(words)
    elif head == "workspace" and section == 3:
      self._section = 4
      if len(words) != 2:
        raise ExprError("expected 'workspace <expr>'")
      self._workspace = self._extent(words[1])
    elif head == "variant" and section >= 3:
      self._variant(words)
    elif head == "launch" and section == 5:
      self._launch(words)
    else:
      raise ExprError(f"statement '{head[:32]}' is unknown or out of place")

  def finish(self) -> Plan:
    if not self._variants:
      raise ExprError("the plan has no variant")
    if self._variants[-1][0] is not None:
      raise ExprError("the last variant must have no guard")
    return Plan(
      tuple(self._inputs),
      tuple(self._outputs),
      tuple(Variant(tuple(launches), guard) for guard, launches in self._variants),
      self._workspace,
      tuple(self._equal),
    )

  def _expr(self, text: str) -> Expr:
    expr = Expr(text)
    expr.check([len(spec.dims) for spec in self._inputs])
    return expr

  def _extent(self, text: str) -> Expr:
    expr = self._expr(text)
    if expr.constant is not None and expr.constant < 0:
      raise ExprError("negative constant")
    return expr

  def _input(self, words: list[str]) -> None:
    if len(self._inputs) == MAX_INPUTS:
      raise ExprError("more than 64 inputs")
    if len(words) < 2 or words[1] not in DTYPES:
      raise ExprError("expected 'input <dtype> <dim>...'")
    if len(words) - 2 > MAX_RANK:
      raise ExprError("rank above 8")
    dims: list[int | None] = []
    for word in words[2:]:
      try:
        size = None if word == "*" else parse_int(word)
      except ExprError:
        size = -1
      if size is not None and size < 0:
        raise ExprError("a dim must be '*' or an integer >= 0")
      dims.append(size)
    self._inputs.append(InputSpec(words[1], tuple(dims)))

  def _same(self, words: list[str]) -> None:
    self._section = 2
    if len(self._equal) == MAX_EQUAL:
      raise ExprError("more than 256 equalities")
    if len(words) != 3:
      raise ExprError("expected 'equal <expr> <expr>'")
    left, right = (self._expr(w) for w in words[1:])
    if any(t in OPERATORS and t != "*" for e in (left, right) for t in e.tokens):
      raise ExprError("only products can be compared")
    self._equal.append(Equal(left, right))

  def _output(self, words: list[str]) -> None:
    self._section = 3
    if len(self._outputs) == MAX_OUTPUTS:
      raise ExprError("more than 32 outputs")
    if len(words) < 2 or words[1] not in DTYPES:
      raise ExprError("expected 'output <dtype> <expr>...'")
    if len(words) - 2 > MAX_RANK:
      raise ExprError("rank above 8")
    self._outputs.append(OutputSpec(words[1], tuple(self._extent(w) for w in words[2:])))

  def _variant(self, words: list[str]) -> None:
    self._section = 5
    if len(words) > 2:
      raise ExprError("expected 'variant' or 'variant <expr>'")
    if len(self._variants) == MAX_VARIANTS:
      raise ExprError("more than 64 variants")
    if self._variants and self._variants[-1][0] is None:
      raise ExprError("a variant without a guard must be the last")
    self._variants.append((self._expr(words[1]) if len(words) == 2 else None, []))

  def _launch(self, words: list[str]) -> None:
    fixed = 16
    keywords = (words[3:4], words[7:8], words[9:10], words[11:12], words[13:14], words[15:16])
    if keywords != (["grid"], ["block"], ["cluster"], ["smem"], ["pdl"], ["args"]):
      raise ExprError(_LAUNCH_FORM)
    launches = self._variants[-1][1]
    if len(launches) == MAX_LAUNCHES:
      raise ExprError("more than 64 launches in a variant")
    if len(words) - fixed > MAX_ARGS:
      raise ExprError("more than 64 arguments")
    cubin = _number(words[1], 0, MAX_CUBIN_ID, "cubin")
    if not _IDENTIFIER.match(words[2]):
      raise ExprError("the kernel name is not an identifier")
    x, y, z = (self._extent(word) for word in words[4:7])
    block = _number(words[8], 1, 1024, "block")
    cluster = _number(words[10], 1, 16, "cluster")
    smem_bytes = _number(words[12], 0, MAX_SMEM_BYTES, "smem")
    pdl = _number(words[14], 0, 1, "pdl") == 1
    args = tuple(self._arg(word) for word in words[fixed:])
    launches.append(Launch(cubin, words[2], (x, y, z), block, args, cluster, smem_bytes, pdl))

  def _arg(self, word: str) -> Arg:
    if word.startswith("t:"):
      return self._map(word)
    place, mark, size = word.partition("#")
    kind, colon, value = place.partition(":")
    if mark:
      return self._pointer(word, place, self._extent(size))
    if colon and kind == "i32":
      return Int32(self._expr(value))
    if colon and kind == "i64":
      return Int64(self._expr(value))
    raise ExprError(f"bad argument '{word[:32]}'")

  def _map(self, word: str) -> MapOf:
    parts = word.split(":", 6)
    if len(parts) < 7:
      raise ExprError(f"bad argument '{word[:32]}'")
    first, rows, columns, pitch, box = (
      _number(text, low, high, f"{what} of a tensor map")
      for text, (what, low, high) in zip(parts[1:6], MAP_LIMITS, strict=True)
    )
    if first % 8 or columns % 8 or pitch % 8 or pitch < columns:
      raise ExprError("rows of a tensor map are multiples of 8 elements, and lie apart")
    place, mark, size = parts[6].partition("#")
    if not mark:
      raise ExprError(f"bad argument '{word[:32]}'")
    return MapOf(self._pointer(parts[6], place, self._extent(size)), first, rows, columns, pitch, box)

  def _pointer(self, word: str, place: str, size: Expr) -> Pointer:
    if place.startswith("w:"):
      if self._workspace is None:
        raise ExprError("workspace argument, but the plan has no workspace")
      return WorkspacePtr(self._extent(place[2:]), size)
    if place[:1] in ("i", "o"):
      try:
        index = parse_int(place[1:])
      except ExprError:
        index = -1
      if index >= 0:
        if index >= len(self._inputs if place[0] == "i" else self._outputs):
          raise ExprError(f"'{place[:32]}' is not one of the plan's tensors")
        return InputPtr(index, size) if place[0] == "i" else OutputPtr(index, size)
    raise ExprError(f"bad argument '{word[:32]}'")
