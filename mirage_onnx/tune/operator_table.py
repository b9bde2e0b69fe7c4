"""The table of ONNX Runtime's operators (``tune/baseline.py``) of the present GPU, in half a minute.

The grid and the operators are those of ``bench/baseline_table.py``. Each is a model of one node, whose run is
captured: one more in a row of runs, or, of a product whose weight no cache keeps, the run from a cold cache
(``tune/node_times.py`` times nodes of a model so, too). A point that fails is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.tune.node_times import RUNS, node_us

if TYPE_CHECKING:
  from mirage_onnx.tune.device import Gpu

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
#: Shapes of the operators, sizes of weights, and rows of the products with them.
ROWS = ((8, 64), (8, 1024), (8, 4096), (64, 4096), (512, 4096), (4096, 4096))
WEIGHTS = (
  (64, 64), (64, 128), (256, 256), (768, 768), (768, 3072), (1024, 1024), (4096, 4096), (4096, 14336),
)  # fmt: skip
BATCHES = (1, 2, 8, 16, 64, 256)
#: Operators, and how many operands of the first one's shape they have.
OPERATORS = {
  "Add": 2, "AddRow": 1, "Sub": 2, "Mul": 2, "Div": 2, "Cast": 1, "Pow": 1, "Sqrt": 1, "Reciprocal": 1,
  "Sigmoid": 1, "Exp": 1, "Erf": 1, "Tanh": 1, "Relu": 1, "Gelu": 1, "ReduceMean": 1,
  "LayerNormalization": 1, "Softmax": 1, "Neg": 1, "Concat": 2,
}  # fmt: skip
#: As in the norms of a model in half precision.
IN_F32 = frozenset({"Pow", "ReduceMean", "Sqrt", "Reciprocal"})
SAMPLES = 5
#: Runs of a session: microseconds of ``RUNS`` runs in a row, (2, samples).
Clock = Callable[[bytes, Mapping[str, np.ndarray]], np.ndarray]


class OperatorTimes(msgspec.Struct, frozen=True):
  """A table's file (``targets/tables``): (elements, us) by operator, (rows, k, n, us) of products.

  ``failed``: points that could not be had, and why.
  """

  ort: str
  ops: dict[str, tuple[tuple[int, float], ...]]
  matmul: tuple[tuple[int, int, int, float], ...]
  failed: tuple[str, ...] = ()

  @property
  def points(self) -> int:
    return len(self.matmul) + sum(map(len, self.ops.values()))

  def text(self) -> str:
    """As ``Target.table`` has it."""
    return msgspec.json.encode(self).decode()


def operator_times(gpu: Gpu, until: float) -> OperatorTimes:
  """Of the present GPU."""
  import onnxruntime

  return measure_table(gpu_clock(gpu), until, onnxruntime.__version__)


def measure_table(clock: Clock, until: float, ort: str = "") -> OperatorTimes:
  """What was not asked ``until`` then (of time.monotonic) is left out.

  Products first, the largest sizes before the others: they are most of what a region can gain.
  """
  ops, matmul = dict[str, list[tuple[int, float]]](), list[tuple[int, int, int, float]]()
  failed = list[str]()
  for k, n in reversed(WEIGHTS):
    for m in BATCHES:
      us = _asked(clock, f"MatMul {m} {k} {n}", *product(m, k, n), 2 * k * n, until, failed)
      matmul += [(m, k, n, us)] if us is not None else []
  for shape in reversed(ROWS):
    for op in OPERATORS:
      us = _asked(clock, f"{op} {shape}", *operator(op, shape), 0, until, failed)
      if us is not None:
        ops.setdefault(op, []).append((shape[0] * shape[1], us))
  by_size = {op: tuple(sorted(points)) for op, points in sorted(ops.items())}
  return OperatorTimes(ort, by_size, tuple(sorted(matmul)), tuple(failed))


def gpu_clock(gpu: Gpu) -> Clock:
  """The clock of the present GPU."""
  from mirage_onnx.tune.ort_run import OrtRun

  def clock(model: bytes, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    with gpu.scope():
      run = OrtRun(gpu, model, feeds)

      def several(count: int) -> Callable[[], object]:
        def work() -> None:
          for _ in range(count):
            run()

        return gpu.capture(work)

      return gpu.time_us([several(count) for count in RUNS], SAMPLES)

  return clock


def _asked(
  clock: Clock, what: str, model: bytes, feeds: Mapping[str, np.ndarray], weight: int, until: float,
  failed: list[str],
) -> float | None:  # fmt: skip
  if time.monotonic() > until:
    failed.append(f"{what}: no time left")
    return None
  try:
    us = node_us(clock(model, feeds), weight)
  except Exception as error:  # memory, the driver, an operator that this onnxruntime does not have
    failed.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
    return None
  return round(us, 3)


def product(m: int, k: int, n: int) -> tuple[bytes, dict[str, np.ndarray]]:
  """x[m, k] @ w[k, n]; the weight is an input as x is, no kernel of it depends on that."""
  feeds = {"x": _drawn((m, k), F16), "w": _drawn((k, n), F16)}
  return _model([helper.make_node("MatMul", ["x", "w"], ["y"])], feeds, (F16, (m, n)), {}), feeds


def operator(op: str, shape: tuple[int, int]) -> tuple[bytes, dict[str, np.ndarray]]:
  """One node over ``shape``; AddRow: an Add whose second operand is a row; Concat: 7 parts of 8 and one."""
  kind = F32 if op in IN_F32 else F16
  constants, attributes, out, out_kind = dict[str, np.ndarray](), dict[str, Any](), shape, kind
  x = _drawn(shape, kind)
  feeds = {"x": x, "y": np.ascontiguousarray(x[:, ::-1])} if OPERATORS[op] == 2 else {"x": x}
  row = _drawn(shape[-1:], kind)
  if op == "AddRow":
    constants = {"row": row}
  elif op == "Cast":
    attributes, out_kind = {"to": F32}, F32
  elif op == "Pow":
    constants = {"p": np.array(2.0, np.float32)}
  elif op == "ReduceMean":
    constants, out = {"axes": np.array([-1], np.int64)}, (shape[0], 1)
  elif op == "LayerNormalization":
    constants = {"scale": row, "bias": row}
  elif op == "Concat":
    attributes = {"axis": 0}
    feeds = {"x": feeds["x"][: shape[0] * 7 // 8], "y": feeds["y"][: shape[0] // 8]}
  name = "Add" if op == "AddRow" else op
  node = helper.make_node(name, [*feeds, *constants], ["z"], **attributes)
  return _model([node], feeds, (out_kind, out), constants), feeds


def _model(
  nodes: list[Any], feeds: Mapping[str, np.ndarray], out: tuple[int, tuple[int, ...]],
  constants: Mapping[str, np.ndarray],
) -> bytes:  # fmt: skip
  kind, shape = out
  inputs = [
    helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    for n, x in feeds.items()
  ]
  graph = helper.make_graph(
    nodes, "node", inputs, [helper.make_tensor_value_info(nodes[-1].output[0], kind, shape)],
    [numpy_helper.from_array(x, n) for n, x in constants.items()],
  )  # fmt: skip
  opset = helper.make_opsetid("", 20)
  return helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()


def _drawn(shape: tuple[int, ...], kind: int) -> np.ndarray:
  """Between 0.5 and 1.5, which every operator takes; repeated, as drawing takes longer than measuring."""
  size = int(np.prod(shape))
  some = np.random.default_rng(0).uniform(0.5, 1.5, min(size, 1 << 18))
  values = np.resize(some, size).reshape(shape)
  return values.astype(np.float16 if kind == F16 else np.float32)
