"""The steps of a thread graph: what the threads of a block do, one step after the other.

Steps are in three runs: before the loop, in it, after it. A step names the registers and the
shared tiles that it reads and writes; ``barriers.py`` puts barriers between them.
"""

from dataclasses import dataclass, field

from mirage_onnx.lower.forms import Form, Side


@dataclass(frozen=True, slots=True)
class Held:
  """Value ``index`` in registers in a form, in fp32 or as packed pairs of its 16-bit type."""

  index: int
  form: Form
  packed: bool = False


@dataclass(frozen=True, slots=True)
class ThreadStep:
  """``reads`` and ``writes``: shared tiles; ``touched``: those that values made in place read."""

  index: int
  touched: tuple[str, ...] = field(default=(), kw_only=True)

  @property
  def reads(self) -> tuple[str, ...]:
    return self.touched

  @property
  def writes(self) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Reading(ThreadStep):
  """A step that reads all of a shared tile."""

  tile: str

  @property
  def reads(self) -> tuple[str, ...]:
    return (*self.touched, self.tile)


@dataclass(frozen=True, slots=True)
class Writing(ThreadStep):
  """A step that writes a shared tile."""

  tile: str

  @property
  def writes(self) -> tuple[str, ...]:
    return (self.tile,)


@dataclass(frozen=True, slots=True)
class Fetch(ThreadStep):
  """A tile of a tensor to registers."""

  to: Held


@dataclass(frozen=True, slots=True)
class Copy(Writing):
  """A tile of a tensor to shared memory; one that the loop moves comes through the ring."""


@dataclass(frozen=True, slots=True)
class Read(Reading):
  """Shared memory to registers."""

  to: Held


@dataclass(frozen=True, slots=True)
class Spill(Writing):
  """Registers to shared memory."""

  held: Held


@dataclass(frozen=True, slots=True)
class Stage(Writing):
  """A value to shared memory, each element by the thread that makes it."""


@dataclass(frozen=True, slots=True)
class ThreadRun(ThreadStep):
  """Elementwise ops of one form, element by element; ``index`` is the last of them."""

  ops: tuple[int, ...]
  form: Form


@dataclass(frozen=True, slots=True)
class Pack(ThreadStep):
  """fp32 registers to packed pairs."""

  to: Held


@dataclass(frozen=True, slots=True)
class Unpack(ThreadStep):
  """What the ring has of a load for this step, in fp32."""


@dataclass(frozen=True, slots=True)
class Widen(ThreadStep):
  """An operand of 16 bits of packed integers, their zero points and scales."""


@dataclass(frozen=True, slots=True)
class Weigh(ThreadStep):
  """A block's sums, of a contraction with integers, times their scales; adds to the accumulator ``index``."""

  scales: int


@dataclass(frozen=True, slots=True)
class PairProduct(ThreadStep):
  """An operand of 16 bits that is the product of two loads of its type."""

  args: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Refill(ThreadStep):
  """Registers of the ring that are used up take what comes a round later."""

  loads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contract(ThreadStep):
  """Tensor cores; adds to the registers of ``into``, new ones if that is the contraction."""

  into: int


@dataclass(frozen=True, slots=True)
class Multiply(ThreadStep):
  """A contraction of fp32 values in shared memory, by multiply-adds."""

  tiles: tuple[str, str]

  @property
  def reads(self) -> tuple[str, ...]:
    return (*self.touched, *self.tiles)


@dataclass(frozen=True, slots=True)
class Fold(ThreadStep):
  """A reduction over what a lane has itself."""

  source: Form


@dataclass(frozen=True, slots=True)
class Total(Reading):
  """A reduction over a shared tile."""


@dataclass(frozen=True, slots=True)
class Meet(ThreadStep):
  """The lanes of a warp combine their parts, by shuffles over these lane bits."""

  masks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Publish(Writing):
  """The parts of a value that warps (or ranks) have, to shared memory, a slot per thread."""


@dataclass(frozen=True, slots=True)
class Gather(Reading):
  """What the warps that have other parts of a side have published, combined."""

  side: Side


@dataclass(frozen=True, slots=True)
class GatherRanks(Reading):
  """What the ranks have published, combined; a cluster barrier stands before."""


@dataclass(frozen=True, slots=True)
class Update(ThreadStep):
  """An accumulator or running maximum takes this iteration's value."""


@dataclass(frozen=True, slots=True)
class Store(ThreadStep):
  """Save number ``index``."""


@dataclass(frozen=True, slots=True)
class ThreadBarrier(ThreadStep):
  """Of the block, or of the cluster; ``copies``: after this thread's copies have arrived."""

  cluster: bool = False
  copies: bool = False


@dataclass(frozen=True, slots=True)
class Advance(ThreadStep):
  """The tiles of this iteration are there, those of a later one are on their way."""


@dataclass(frozen=True, slots=True)
class ThreadSteps:
  """The steps of a kernel."""

  before: tuple[ThreadStep, ...]
  body: tuple[ThreadStep, ...]
  after: tuple[ThreadStep, ...]
