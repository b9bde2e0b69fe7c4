"""The table of ONNX Runtime's operators (``tune/baseline.py``) of the present GPU, in half a minute.

``targets/tables/operators.json`` says of which: operators over tensors of several sizes, products of several
weights and rows (those of ``bench/baseline_table.py``). Each is a model of one node, whose run is captured:
one more in a row of runs, or, of a product whose weight no cache keeps, the run from a cold cache
(``tune/node_times.py`` times nodes of a model so, too). A point that fails is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from mirage_onnx.targets import table_path
from mirage_onnx.tune.node_times import node_us, times_in_a_row

if TYPE_CHECKING:
  from mirage_onnx.tune.device import Gpu

#: Elements of an operand that are drawn, and repeated: drawing all takes longer than measuring.
_DRAWN = 1 << 18
SAMPLES = 5
#: Of the models.
OPSET = 20
#: Runs of a session: microseconds of ``RUNS`` runs in a row, (2, samples).
Clock = Callable[[bytes, Mapping[str, np.ndarray]], np.ndarray]


class OperatorRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """An operator of the grid: ``op``, if its name is another; ``operands`` of the shape of the first one.

  ``constants``: what it reads behind them: a ``row``, ``two``, ``axes``. ``type``: of the operands;
  ``yields``: of the result, if it is another. ``columns``: of the result, if not those of the operands.
  ``parts``: the second operand is one of so many of the first.
  """

  op: str = ""
  operands: int = 1
  constants: tuple[str, ...] = ()
  attributes: dict[str, int] = {}
  type: str = "float16"
  yields: str = ""
  columns: int = 0
  parts: int = 0


class OperatorGrid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """``rows``: shapes of the operators; ``weights``, ``batches``: of the products."""

  rows: tuple[tuple[int, int], ...]
  weights: tuple[tuple[int, int], ...]
  batches: tuple[int, ...]
  ops: dict[str, OperatorRow]


@cache
def grid() -> OperatorGrid:
  """What is asked."""
  return msgspec.json.decode(table_path("operators").read_bytes(), type=OperatorGrid)


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
  wanted = grid()
  for k, n in reversed(wanted.weights):
    for m in wanted.batches:
      us = _asked(clock, f"MatMul {m} {k} {n}", *product(m, k, n), 2 * k * n, until, failed)
      matmul += [(m, k, n, us)] if us is not None else []
  for shape in reversed(wanted.rows):
    for op in wanted.ops:
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
      return times_in_a_row(gpu, OrtRun(gpu, model, feeds), SAMPLES)

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
  feeds = {"x": _drawn((m, k), "float16"), "w": _drawn((k, n), "float16")}
  node = helper.make_node("MatMul", ["x", "w"], ["z"])
  return nodes_model([node], feeds, {}, {"z": (TensorProto.FLOAT16, (m, n))}), feeds


def operator(name: str, shape: tuple[int, int]) -> tuple[bytes, dict[str, np.ndarray]]:
  """One node over ``shape``, as its row of the grid says."""
  row = grid().ops[name]
  x = _drawn(shape, row.type)
  feeds = {"x": x, "y": np.ascontiguousarray(x[:, ::-1])} if row.operands == 2 else {"x": x}
  if row.parts:  # all parts but one, and one: parts of unequal sizes take longer
    one = shape[0] // row.parts
    feeds = {"x": feeds["x"][:-one], "y": feeds["y"][:one]}
  made = {
    "row": _drawn(shape[-1:], row.type), "two": np.array(2.0, np.float32), "axes": np.array([-1], np.int64)
  }  # fmt: skip
  constants = {f"{kind}{i}": made[kind] for i, kind in enumerate(row.constants)}
  node = helper.make_node(row.op or name, [*feeds, *constants], ["z"])
  node.attribute.extend(helper.make_attribute(k, v) for k, v in row.attributes.items())
  yields = helper.np_dtype_to_tensor_dtype(np.dtype(row.yields or row.type))
  return nodes_model([node], feeds, constants, {"z": (yields, (shape[0], row.columns or shape[1]))}), feeds


def nodes_model(
  nodes: Sequence[NodeProto],
  feeds: Mapping[str, np.ndarray],
  constants: Mapping[str, np.ndarray],
  outputs: Mapping[str, tuple[int, Sequence[int]]],
) -> bytes:
  """A model of these nodes.

  ``feeds``: what a run gives them; ``constants``: what they read beside; ``outputs``: type and shape of what
  they yield.
  """
  infos = {n: (helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()}
  inputs = [helper.make_tensor_value_info(n, *info) for n, info in infos.items()]
  made = [helper.make_tensor_value_info(n, *info) for n, info in outputs.items()]
  stored = [numpy_helper.from_array(x, n) for n, x in constants.items()]
  graph = helper.make_graph(nodes, "nodes", inputs, made, stored)
  opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _drawn(shape: tuple[int, ...], type_: str) -> np.ndarray:
  """Between 0.5 and 1.5, which every operator takes."""
  size = prod(shape)
  some = np.random.default_rng(0).uniform(0.5, 1.5, min(size, _DRAWN))
  return np.resize(some, size).reshape(shape).astype(type_)
