"""The text of a kernel, what its launch needs, and the writer that lays the text out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

from mirage_onnx.ir.tensor_map import TensorMap


@dataclass(frozen=True, slots=True)
class KernelSource:
  """CUDA C++ text of one kernel and its launch.

  ``grid`` counts blocks: x already holds the ``cluster`` ranks (rank = x mod cluster). ``args``:
  tensor names, one pointer each, in parameter order. ``smem_bytes`` is dynamic shared memory.
  ``pdl``: the kernel waits for its predecessor itself, so it may be launched before that ends.

  ``sizes``: axes whose sizes only a launch knows, an int parameter each, after the pointers.
  ``tiles``: (axis, elements of a block) of them; x of the grid is ``grid[0]`` times their blocks.
  ``maps``: tensors as the copy engine is told of them, a parameter each, last.
  """

  name: str
  text: str
  grid: tuple[int, int, int]
  block: int
  cluster: int
  smem_bytes: int
  args: tuple[str, ...]
  pdl: bool
  sizes: tuple[str, ...] = ()
  tiles: tuple[tuple[str, int], ...] = ()
  maps: tuple[TensorMap, ...] = ()

  def grid_at(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """The grid of a launch with these sizes of the axes in ``sizes``."""
    x, y, z = self.grid
    return x * prod(-(-sizes[axis] // tile) for axis, tile in self.tiles), y, z


def conditional(conditions: Sequence[str], text: str) -> str:
  """A statement under conditions, if there are any."""
  return f"if ({' && '.join(conditions)}) {text}" if conditions else text


def chosen(conditions: Sequence[str], value: str, otherwise: str) -> str:
  """An expression under conditions, if there are any."""
  return f"{' && '.join(conditions)} ? {value} : {otherwise}" if conditions else value


class Writer:
  """Collects indented lines; ``block`` opens a brace, ``loop`` an unrolled counted loop."""

  def __init__(self) -> None:
    self._lines: list[str] = []
    self._depth = 0
    self._trigger_waits = False

  @property
  def text(self) -> str:
    return "\n".join(self._lines) + "\n"

  def line(self, text: str = "", op: int | None = None) -> None:
    """A line; ``op``: it belongs to value ``%op`` of the block graph, as errors will say."""
    mark = "" if op is None else f"  // %{op}"
    self._lines.append("  " * self._depth + text + mark if text else "")

  def comment(self, text: str) -> None:
    for part in text.splitlines():
      self.line(f"// {part}".rstrip())

  @contextmanager
  def block(self, head: str = "") -> Iterator[None]:
    self.line(f"{head} {{" if head else "{")
    self._depth += 1
    yield
    self._depth -= 1
    self.line("}")

  @contextmanager
  def kernel(
    self, name: str, threads: int, cluster: int, parameters: Sequence[str], *, alone: bool = False
  ) -> Iterator[None]:
    """The signature, a parameter a line, and the body; ``alone``: a block takes all registers."""
    macro = f"PTX_{'LONE_' * alone}KERNEL({threads})"
    macro = f"PTX_CLUSTER_KERNEL({threads}, {cluster})" if cluster > 1 else macro
    self.line(f"{macro} {name}(")
    self._lines += [f"    {p}," for p in parameters[:-1]]
    with self.block(f"    {parameters[-1]})"):
      yield

  def trigger(self, *, behind_wait: bool) -> None:
    """Let the next kernel start: at once, or when this one has waited (read_ahead.py)."""
    self._trigger_waits = behind_wait
    if not behind_wait:
      self.line("ptx::grid_trigger();")

  def wait(self) -> None:
    """Wait until the kernels before have ended.

    No kernel may write, or read what the one in front of it writes, before; and none may end
    without it, or who waits for that one would not wait for all.
    """
    self.line("ptx::grid_wait();")
    if self._trigger_waits:
      self.line("ptx::grid_trigger();")

  @contextmanager
  def scope(self, wanted: bool, head: str = "") -> Iterator[None]:
    """A block if ``wanted``, else nothing."""
    with self.block(head) if wanted else nullcontext():
      yield

  def where(self, conditions: Sequence[str]) -> AbstractContextManager[None]:
    """A block under conditions, if there are any."""
    return self.scope(bool(conditions), conditional(conditions, "").rstrip())

  @contextmanager
  def loop(self, variable: str, count: int) -> Iterator[str]:
    """Yields the index: the variable, or the literal 0 (and no loop) for one iteration."""
    if count == 1:
      yield "0"
      return
    self.line("#pragma unroll")
    with self.block(f"for (int {variable} = 0; {variable} < {count}; ++{variable})"):
      yield variable

  @contextmanager
  def counted(self, variable: str, count: int) -> Iterator[str]:
    """A counted loop that is not unrolled."""
    with self.block(f"for (int {variable} = 0; {variable} < {count}; ++{variable})"):
      yield variable

  @contextmanager
  def loops(self, ranges: tuple[tuple[str, int], ...]) -> Iterator[tuple[str, ...]]:
    """Nested ``loop``s, outermost first; yields their indices."""
    if not ranges:
      yield ()
      return
    (variable, count), *rest = ranges
    with self.loop(variable, count) as index, self.loops(tuple(rest)) as indices:
      yield (index, *indices)
