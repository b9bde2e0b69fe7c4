"""Where the values of a lowered kernel are: in registers, in shared tiles, or made where they are used."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage_onnx.instructions import MMA, Instruction
from mirage_onnx.ir.band import Band
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor, Phase
from mirage_onnx.lower.assign import Assignment
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.dataflow import varying
from mirage_onnx.lower.forms import Form, Warps
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import Held
from mirage_onnx.lower.widened import Widened

#: Registers of a lane beyond which a loaded tile is read where it is used; where shared memory has the
#: ring alone.
MOST_FETCHED, MOST_FETCHED_FED = 64, 128
#: Constants with which products of f16 stay far from the end of f32.
_MODERATE = 1e6


@dataclass(slots=True)
class Lowered:
  """What is known of the values of a kernel, while it is lowered (``Lowering``) and in the end.

  ``held``: registers of a lane beyond which a computed value is made where it is used.
  ``made``: registers that there are, with the run that declares them. ``tiles``: shared tiles by
  name, ``homes`` and ``spilled``: the names of those of loads and of computed values. ``computed``: loads
  of masks that say no more than their bands do, so that nothing is loaded. ``fused``: contractions that add
  to the registers of an accumulator. ``ring``: loads that the loop moves through ``stages`` tiles.
  ``states``: what lives through the loop. ``instruction``: by which a warp contracts; ``warpgroup``:
  contractions by wgmma; ``inside``: those of the loop, by whatever. An iteration leaves ``under_way`` to the
  next, and the next begins ``late`` (``warpgroup.py``). ``widened``: loads of packed weights,
  which become registers. ``most_fetched``: registers of a lane beyond which a loaded tile is read where it
  is used.
  """

  assignment: Assignment
  forms: dict[int, Form]
  warps: Warps
  extents: Mapping[str, int]
  tensors: Mapping[str, KTensor]
  held: int
  stages: int = 1
  ranks: int = 1
  made: dict[Held, str] = field(default_factory=dict)
  tiles: dict[str, SharedTile] = field(default_factory=dict)
  homes: dict[int, str] = field(default_factory=dict)
  spilled: dict[int, str] = field(default_factory=dict)
  kernel: Kernel = field(init=False)
  ops: tuple[BlockOp, ...] = field(init=False)
  varies: list[bool] = field(init=False)
  fused: dict[int, int] = field(default_factory=dict)
  ring: list[int] = field(default_factory=list)
  states: list[int] = field(default_factory=list)
  instruction: Instruction = MMA
  warpgroup: frozenset[int] = frozenset()
  inside: frozenset[int] = frozenset()
  under_way: frozenset[int] = frozenset()
  late: int | None = None
  widened: Mapping[int, Widened] = field(default_factory=dict)
  computed: Mapping[int, Band] = field(default_factory=dict)
  most_fetched: int = MOST_FETCHED
  known: dict[tuple[int, Form], bool] = field(default_factory=dict)

  def __post_init__(self) -> None:
    self.kernel, self.ops = self.assignment.kernel, self.assignment.kernel.ops
    self.varies = varying(self.kernel)

  def own(self, index: int) -> Mapping[str, Piece]:
    """The pieces of a value by axis."""
    return self.assignment.pieces.of_value[index]

  def save_form(self, index: int) -> Form:
    """The form that a saved value is written from."""
    if index in self.forms:
      return self.forms[index]
    return self.form_of_load(index)

  def form_of_load(self, index: int) -> Form:
    """A form for a loaded value (or constant) that nothing says how to read."""
    own = self.own(index).values()
    found = [f.of(own) for f in self.assignment.frames]
    return min(found, key=self.warps.registers)

  def on_tensor_cores(self, index: int) -> bool:
    """Whether both arguments of a contraction have one 16-bit type."""
    ops = self.ops
    first, second = (ops[a].dtype for a in ops[index].args)
    return first.is_half and first is second

  def in_place(self, index: int, form: Form) -> bool:
    """Whether a value is made where it is used, from shared memory or a large tensor tile.

    What a lane would hold many elements of only to use each once or twice: operands of
    contractions, and what is reduced. It may depend on nothing that is held along the inner
    side, so that a loop over that need not be unrolled.
    """
    key = index, form
    if key not in self.known:
      self.known[key] = self._in_place(index, form)
    return self.known[key]

  def _in_place(self, index: int, form: Form) -> bool:
    op = self.ops[index]
    if op.op == "load":
      return index in self.homes or index in self.computed or self.warps.registers(form) > self.most_fetched
    if not is_elementwise(op.op) or self.forms.get(index) != form:
      return False
    if self.warps.registers(form) <= self.held:
      return False
    some = False
    for a in op.args:
      if constant(self.ops[a], self.extents) is not None:
        continue
      own = form.of(self.own(a).values())
      if self.in_place(a, own):
        some = True
      elif own.t:
        return False
    return some

  def tile_of(self, index: int, form: Form) -> str | None:
    """The shared tile that an operand in this form is read from; None if it is from none."""
    if index in self.homes or self.ops[index].op == "load":
      return self.homes.get(index)
    return None if self.forms[index] == form else self.spilled[index]

  def by_matrices(self, tile: SharedTile, form: Form, deep: Piece) -> bool:
    """Whether ldmatrix reads the fragments of an operand: rows of 16 bytes, all of them there."""
    whole = deep.length % 16 == 0 and self.warps.covers((deep,), 8)
    clean = tile.zeroed or deep.exact
    if not (whole and clean and tile.dtype.is_half):
      return False
    if tile.order[-1] == deep:
      return len(tile.order) == 1 or tile.pitch % 8 == 0
    return form.g == (tile.order[-1],) and form.g[0].length % 8 == 0

  @property
  def saves_halves(self) -> bool:
    """Whether all results have 16 bits."""
    return all(self.tensors[s.tensor].dtype.is_half for s in self.kernel.saves)

  def is_packed_only(self, index: int) -> bool:
    """Whether whoever takes a value in a kernel with wgmma rounds it to its 16-bit type once more."""
    ops = self.ops
    if not self.warpgroup or not ops[index].dtype.is_half:
      return False
    users = [u for u in self.assignment.needed if index in ops[u].args]
    saves = [s for s in self.kernel.saves if s.arg == index]
    packed = all(u in self.assignment.products and self.on_tensor_cores(u) for u in users)
    return packed and all(self.tensors[s.tensor].dtype is ops[index].dtype for s in saves)

  @property
  def moderate(self) -> bool:
    """Whether a kernel with wgmma computes with nothing in its loop that comes near the end of f32."""
    loop = [op for op in self.ops if op.phase is Phase.LOOP]
    loads = all(op.dtype in (DType.F16, DType.BOOL) for op in loop if op.op == "load")
    numbers = (op.value for op in loop if op.op == "const")
    return (
      bool(self.warpgroup)
      and loads
      and all(not isinstance(n, str) and n is not None and abs(n) <= _MODERATE for n in numbers)
    )

  @property
  def spare(self) -> int:
    """Tiles of the ring that no copy may go to: of an iteration, and of products under way."""
    return 2 if self.under_way or self.late is not None else 1
