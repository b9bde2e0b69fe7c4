"""Arguments of a kernel launch, as a plan has them."""

from dataclasses import dataclass

from mirage_onnx.custom_op.expr import Expr


@dataclass(frozen=True, slots=True)
class InputPtr:
  """Kernel argument: the pointer of input ``index``, of which the kernel reads ``bytes`` at most."""

  index: int
  bytes: Expr

  def word(self) -> str:
    """The argument as it stands in the text."""
    return f"i{self.index}#{self.bytes.text}"


@dataclass(frozen=True, slots=True)
class OutputPtr:
  """Kernel argument: the pointer of output ``index``, of which the kernel touches ``bytes`` at most."""

  index: int
  bytes: Expr

  def word(self) -> str:
    """The argument as it stands in the text."""
    return f"o{self.index}#{self.bytes.text}"


@dataclass(frozen=True, slots=True)
class WorkspacePtr:
  """Kernel argument: the workspace plus ``offset`` bytes; the kernel touches ``bytes`` from there."""

  offset: Expr
  bytes: Expr

  def word(self) -> str:
    """The argument as it stands in the text."""
    return f"w:{self.offset.text}#{self.bytes.text}"


@dataclass(frozen=True, slots=True)
class Int32:
  """Kernel argument: a 32-bit integer; a value beyond its range is an error of the run."""

  value: Expr

  def word(self) -> str:
    """The argument as it stands in the text."""
    return f"i32:{self.value.text}"


@dataclass(frozen=True, slots=True)
class Int64:
  """Kernel argument: a 64-bit integer."""

  value: Expr

  def word(self) -> str:
    """The argument as it stands in the text."""
    return f"i64:{self.value.text}"


Pointer = InputPtr | OutputPtr | WorkspacePtr


@dataclass(frozen=True, slots=True)
class MapOf:
  """Kernel argument: what the copy engine is told of 16-bit elements (``ir/tensor_map.py``)."""

  pointer: Pointer
  first: int
  rows: int
  columns: int
  pitch: int
  box: int

  def word(self) -> str:
    """The argument as it stands in the text."""
    return f"t:{self.first}:{self.rows}:{self.columns}:{self.pitch}:{self.box}:{self.pointer.word()}"


Arg = Pointer | Int32 | Int64 | MapOf
