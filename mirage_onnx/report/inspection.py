"""The JSON reports of ``inspect`` and ``explain``, as types.

Every field is always there, null where its value is unknown. Times are in microseconds of one
instance, those of ONNX Runtime and of kernels predicted.
"""

from typing import Literal

from mirage_onnx.report.struct import Struct


class TensorReport(Struct, frozen=True):
  """An input or output of a region, by its name in the model."""

  name: str
  dtype: str
  shape: list[int | str]
  weight: bool


class OfferReport(Struct, frozen=True):
  """One distinct region that the model offers.

  ``nodes`` and ``ops`` (operator types) in topological order, of one instance. ``chosen``:
  instances in the partition with the most possible gain, ``offered``: in the model. ``flops``:
  all operations, ``mma_flops`` those of contractions. ``floor_us``: a launch and the roofline;
  ``ort_us``: the nodes in ONNX Runtime; ``gain_us``: their difference, at most that is saved by
  one instance alone. ``total_gain_us``: of the chosen instances beside the rest of the partition,
  where the time of a node that several regions compute is shared out; these add up to the total.
  ``unknown_nodes``: nodes without a known time; with any, times of ONNX Runtime and gains are null.
  """

  key: str
  nodes: list[str]
  ops: list[str]
  chosen: int
  offered: int
  inputs: list[TensorReport]
  outputs: list[TensorReport]
  flops: int
  mma_flops: int
  weight_bytes: int
  activation_bytes: int
  floor_us: float
  ort_us: float | None
  gain_us: float | None
  total_gain_us: float | None
  unknown_nodes: int


class BarrierReport(Struct, frozen=True):
  """Nodes that no region can hold for one reason; ``ops``: operator type -> nodes."""

  code: str
  count: int
  ops: dict[str, int]
  reason_text: str
  nodes: list[str]


class TotalsReport(Struct, frozen=True):
  """The model, and what of it is in the partition: every node and every weight once.

  ``nodes_offered``: in any region. ``nodes_untimed``: without a known time, which are left out of
  ``ort_us`` (null if that is all) and of what can be gained; ``nodes_bounded`` count in ``ort_us`` as what
  moving their bytes takes. ``flops_unknown``: operator -> nodes that
  compute, but were not understood; ``flops`` are those of all others. ``ort_us_in_regions``: of nodes
  that nobody would need any more.
  """

  nodes: int
  nodes_in_regions: int
  nodes_offered: int
  nodes_untimed: int
  nodes_bounded: int
  flops: int
  flops_in_regions: int
  flops_unknown: dict[str, int]
  weight_bytes: int
  weight_bytes_in_regions: int
  ort_us: float | None
  ort_us_in_regions: float
  floor_us: float
  gain_us: float


class DimensionReport(Struct, frozen=True):
  """A dynamic dimension: the sizes at which a kernel has to be faster, and that of the times shown."""

  name: str
  sizes: list[int]
  typical: int


class InspectReport(Struct, frozen=True):
  """One run of ``inspect``: regions of the partition (or all), most possible gain first."""

  schema: Literal[1]
  input: str | None
  target: str
  seconds: float
  regions: list[OfferReport]
  barriers: list[BarrierReport]
  totals: TotalsReport
  dimensions: list[DimensionReport]


class AskedReport(Struct, frozen=True):
  """The node that was asked about: where it is, its tensors, its time in ONNX Runtime (null: unknown).

  ``place``: in a ``region`` that is offered, ``alone`` in none, a ``constant`` that is known before a run,
  or ``nested`` in a subgraph or function. ``reason``: why it is alone, a code of docs/errors.md.
  """

  name: str
  op: str
  place: Literal["region", "alone", "constant", "nested"]
  ort_us: float | None
  inputs: list[TensorReport]
  outputs: list[TensorReport]
  reason: str | None
  reason_text: str | None


class BorderReport(Struct, frozen=True):
  """Where a region ends: at ``tensor``, because ``node`` beyond it is left out for a reason.

  ``node`` is null at an input or output of the model. ``reason``: a code of docs/errors.md.
  """

  tensor: str
  side: Literal["input", "output"]
  node: str | None
  op: str | None
  reason: str
  reason_text: str


class CandidateReport(Struct, frozen=True):
  """A verified candidate; ``params``: the numbers of each kernel.

  ``status``: the chosen one, one that could not be compiled (with the reason), or one that is
  predicted slower than the chosen one and was not tried.
  """

  predicted_us: float
  kernels: int
  params: list[str]
  status: Literal["chosen", "refused", "slower"]
  reason: str | None
  reason_text: str | None


class RefusalReport(Struct, frozen=True):
  """``count`` programs of the search were refused for one reason."""

  reason: str
  reason_text: str
  count: int


class SearchedReport(Struct, frozen=True):
  """The search of one region. ``pruned``: rule -> states that it left out."""

  seconds: float
  states: int
  built: int
  verified: int
  stop: str
  pruned: dict[str, int]


class KernelReport(Struct, frozen=True):
  """A compiled kernel: blocks of the grid (x holds the cluster's ranks), threads of a block."""

  name: str
  grid: list[int]
  threads: int
  cluster: int
  registers: int
  smem_bytes: int


class ProofReport(Struct, frozen=True):
  """Random tests in finite fields: laws used, draws, bound of the false-accept probability.

  ``instantiation``: the extents and numbers of every test.
  """

  tier: str
  draws: int
  bound: float
  instantiation: list[str]


class NumericReport(Struct, frozen=True):
  """The worst relative L2 error of an output row, the original's there, and on which inputs."""

  candidate: float
  original: float
  case: str
  rows: int


class ChosenReport(Struct, frozen=True):
  """The µGraph (canonical text, DOT and SVG), its CUDA, and what is known of it."""

  predicted_us: float
  ugraph: str
  dot: str
  svg: str
  cuda: str
  kernels: list[KernelReport]
  proof: ProofReport
  numeric: NumericReport | None


class ExplainReport(Struct, frozen=True):
  """One run of ``explain``. ``reason``: why the region would be kept, null if a kernel wins.

  ``region`` and ``search`` are null where a node was asked about that is in none; ``reason`` is that of
  the node then. ``node``: null where a region was asked about by its key. ``remedy``: what can be done about
  ``reason``, ``link`` where it is explained.
  """

  schema: Literal[1]
  input: str | None
  target: str
  seconds: float
  region: OfferReport | None
  borders: list[BorderReport]
  search: SearchedReport | None
  candidates: list[CandidateReport]
  refused: list[RefusalReport]
  chosen: ChosenReport | None
  reason: str | None
  reason_text: str | None
  node: AskedReport | None
  remedy: str | None
  link: str | None
  dimensions: list[DimensionReport]
