"""What the rewriter is asked to do: one ``Replacement`` for each region instance."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirage_onnx.errors import MirageError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.runtime_extent import Monomial

if TYPE_CHECKING:
  from mirage_onnx.rewrite.body import Body

#: The library registers MuGraph_0 .. MuGraph_127 (a session's start grows with their number).
NAME_POOL = 128
#: The initializer that holds the kernels of the whole model.
BUNDLE_NAME = "mirage.bundle"


def internal(detail: str) -> MirageError:
  """An inconsistent request of the caller: a bug in mirage-onnx, never the user's fault."""
  return MirageError("INTERNAL", f"rewrite: {detail}")


@dataclass(frozen=True, slots=True)
class WeightUse:
  """A constant tensor that the kernel reads as ``numpy.transpose(tensor, perm)``.

  The custom node gets a new initializer in that order; the function body undoes it. ``four``: the type
  of one of 4-bit integers, whose bytes it gets (ONNX Runtime hands custom operators no such tensor), and
  ``shape`` what it has in the model.
  """

  tensor: str
  perm: tuple[int, ...]
  four: DType | None = None
  shape: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    if sorted(self.perm) != list(range(len(self.perm))):
      raise internal(f"{self.perm} is no permutation (weight {self.tensor!r})")

  @property
  def is_identity(self) -> bool:
    """Whether the node reads what the model has."""
    return self.is_in_order and self.four is None

  @property
  def is_in_order(self) -> bool:
    return self.perm == tuple(range(len(self.perm)))

  @property
  def inverse(self) -> tuple[int, ...]:
    return tuple(self.perm.index(i) for i in range(len(self.perm)))


@dataclass(frozen=True, slots=True)
class Replacement:
  """One instance of a region, to become one node of op ``MuGraph_<plan>``.

  ``nodes``: the ONNX nodes it replaces, as ``LoadedModel.node_names`` calls them. ``inputs`` and
  ``outputs``: ONNX tensors in the order of the plan. ``weights``: the inputs that are stored in
  another order of dims. ``workspace``: the plan has one more output, a uint8 scratch tensor,
  after ``outputs``. ``shapes``: of values whose shape is computed elsewhere in the model, over
  the shapes of ``inputs``, where only a run knows it. ``suffix``: of the target, "" the model's only one.
  ``inner``: the same instance for another target; the function body calls it. ``body``: of its own nodes,
  if somebody has made it.
  """

  nodes: tuple[str, ...]
  inputs: tuple[str, ...]
  weights: tuple[WeightUse, ...]
  outputs: tuple[str, ...]
  workspace: bool
  plan: int
  shapes: Mapping[str, tuple[Monomial, ...]] = field(default_factory=dict)
  suffix: str = ""
  inner: "Replacement | None" = None
  body: "Body | None" = None

  def __post_init__(self) -> None:
    for what, names in (
      ("nodes", self.nodes),
      ("inputs", self.inputs),
      ("outputs", self.outputs),
      ("weights", tuple(w.tensor for w in self.weights)),
    ):
      if len(set(names)) != len(names) or "" in names:
        raise internal(f"{what} of {self.op_type} are empty or repeated: {names}")
    if not self.nodes or not self.outputs:
      raise internal(f"{self.op_type} has no nodes or no outputs")
    for weight in self.weights:
      if weight.tensor not in self.inputs:
        raise internal(f"weight {weight.tensor!r} is not an input of {self.op_type}")

  @property
  def op_type(self) -> str:
    return f"MuGraph_{self.plan}"

  def weight(self, tensor: str) -> WeightUse | None:
    """How the input ``tensor`` is stored, or None where it stays as it is."""
    for use in self.weights:
      if use.tensor == tensor and not use.is_identity:
        return use
    return None
