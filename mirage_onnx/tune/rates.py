"""The rates of a GPU's profile (``targets/rows.py``), measured on the present one.

``stream_tbps`` and ``ramp_us``: a line through the times of pure reads of 16 MB and more from a cold L2, each
in the best of several launch shapes; ``launch_us``: one more empty kernel in a CUDA graph, where it is not
hidden behind another; ``mma_tflops``: ONNX Runtime's product of two large fp16 matrices. Beside them what the
chip does otherwise (``chip_rates.py``) and what ONNX Runtime's operators take (``operator_table.py``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.tune.chip_rates import ChipRates, measure_chip
from mirage_onnx.tune.operator_table import OperatorTimes, operator_times

if TYPE_CHECKING:
  from mirage_onnx.tune.device import Gpu

#: Seconds of all of it: operators that were not asked then are unknown. (With 55 the command took 59 s on an
#: H200 beside work on all cores.) Of them for reads, which take longest
#: where memory is slow: the largest first, so many in any case.
MOST_S, READS_S, LEAST_READS = 52.0, 20.0, 3
SIZES_MB = (1, 4, 16, 33.5, 67, 134, 235, 352)
#: Reads from here on lie on the line.
LARGE_MB = 16
SAMPLES = 15
#: Launch shapes of a read that are looked at again, and the samples of each then.
AGAIN, AGAIN_SAMPLES = 6, 5
#: Launches of empty kernels in the shorter and the longer graph.
_FEW, _MANY = 1, 41
#: Rows, columns and depth of the product.
PRODUCT = 8192
#: Random values of an operand, repeated: drawing all takes longer than measuring.
_DRAWN = 1 << 20

READ = """
extern "C" __global__ void read_all(const uint4* data, unsigned long long count, unsigned* out) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned acc = 0;
    for (; i + (UNROLL - 1) * step < count; i += UNROLL * step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[u].x), "=r"(v[u].y), "=r"(v[u].z), "=r"(v[u].w)
                         : "l"(data + i + u * step));
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) acc ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    for (; i < count; i += step) {
        uint4 v = data[i];
        acc ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (acc == 0x9e3779b9u) *out = acc;  // never true in practice: keeps the reads
}
"""


class StreamRead(msgspec.Struct, frozen=True):
  """A pure read of so many MB; ``how``: the launch shape that was fastest."""

  mb: float
  us: float
  how: str


class Rates(msgspec.Struct, frozen=True, omit_defaults=True):
  """Columns of a profile, and its table; ``chip``, ``table``: not in files of older versions."""

  launch_us: float
  ramp_us: float
  stream_tbps: float
  mma_tflops: float
  reads: tuple[StreamRead, ...]
  chip: ChipRates | None = None
  table: OperatorTimes | None = None


def measure_rates(
  gpu: Gpu,
  product_us: Callable[[Gpu], float] | None = None,
  table: Callable[[Gpu, float], OperatorTimes] = operator_times,
) -> Rates:
  """In ``MOST_S``; ``product_us``: the time of a product of ``PRODUCT`` cubed; ``table``: (GPU, end).

  Raises:
      MirageError: SESSION_FAILED, onnxruntime does not run on the GPU.
  """
  begun, reads = time.monotonic(), list[StreamRead]()
  with (
    gpu.scope()
  ):  # first: an onnxruntime without CUDA, or of one that the driver does not run, ends it here
    try:
      took_us = (product_us or ort_product_us)(gpu)
    except Exception as error:
      said = f"onnxruntime does not run here on CUDA, beside which kernels are timed ({str(error)[:200]})"
      raise MirageError(
        "SESSION_FAILED", f"{' '.join(said.split())}: mirage-onnx env says what it needs"
      ) from error
  for mb in reversed(SIZES_MB):
    if len(reads) >= LEAST_READS and time.monotonic() > begun + READS_S:
      break
    with gpu.scope():
      replay, how = streaming_limit(gpu, int(mb * 1e6))
      reads.append(StreamRead(mb, round(float(np.median(gpu.time_us([replay], SAMPLES))), 2), how))
  with gpu.scope():
    launch_us = empty_us(gpu)
  slope, at_zero = fitted([(r.mb, r.us) for r in reads if r.mb >= LARGE_MB])
  return Rates(
    round(launch_us, 3), round(at_zero - launch_us, 3), round(1 / slope, 3),
    round(2 * PRODUCT**3 / took_us / 1e6, 1), tuple(reversed(reads)), measure_chip(gpu),
    table(gpu, begun + MOST_S),
  )  # fmt: skip


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
  """us per MB, and us at no MB."""
  slope, at_zero = np.polyfit([mb for mb, _ in points], [us for _, us in points], 1)
  return float(slope), float(at_zero)


def _loaded(gpu: Gpu, text: str, name: str) -> Any:
  """A kernel of CUDA text, as ``Gpu.load`` gives it."""
  from mirage_onnx.compiler.compile import compile_cubin  # here: reading rates needs no code generator

  return gpu.load(compile_cubin(text, gpu.target, name=name), name)


def empty_us(gpu: Gpu) -> float:
  """Microseconds of one more empty kernel in a graph."""
  text = 'extern "C" __global__ void nop() {}'
  kernel = _loaded(gpu, text, "nop")

  def replay(count: int) -> Callable[[], None]:
    grid = (gpu.target.multiprocessors, 1, 1)

    def work() -> None:
      for _ in range(count):
        gpu.launch(kernel, grid, 128, [])

    return gpu.capture(work)

  few, many = np.median(gpu.time_us([replay(_FEW), replay(_MANY)], SAMPLES), axis=1)
  return float(many - few) / (_MANY - _FEW)


def ort_product_us(gpu: Gpu) -> float:
  """Of ONNX Runtime's MatMul, the operands outside of its graph."""
  from onnx import TensorProto, helper

  from mirage_onnx.tune.ort_run import OrtRun

  shape = [PRODUCT, PRODUCT]
  a, b, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, shape) for n in "aby")
  graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "product", [a, b], [y])
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
  drawn = np.random.default_rng(0).standard_normal(_DRAWN).astype(np.float16)
  x = np.tile(drawn, PRODUCT * PRODUCT // _DRAWN).reshape(shape)
  run = OrtRun(gpu, model.SerializeToString(), {"a": x, "b": x[::-1]})
  return float(np.median(gpu.time_us([run.captured()], SAMPLES)))


def streaming_limit(gpu: Gpu, size: int) -> tuple[Callable[[], None], str]:
  """A replay that only reads ``size`` random bytes, in the best of several launch shapes.

  A look at each, and a longer one at the best: on a GPU of 300 GB/s what empties its L2 takes 2 ms.
  """
  rng = np.random.default_rng(0)
  data = gpu.put(rng.integers(0, 2**32, max(size // 4, 4), dtype=np.uint32))
  out = gpu.empty(4)
  arms, names = [], []
  for unroll in (2, 4, 8, 16):
    text = f"#define UNROLL {unroll}\n{READ}"
    kernel = _loaded(gpu, text, "read_all")
    for threads in (256, 512, 1024):
      for per in (1, 2, 4, 8):
        if threads * per > 2048:
          continue
        grid = (gpu.target.multiprocessors * per, 1, 1)
        arguments = [data, size // 16, out]

        def work(k: object = kernel, g: tuple[int, int, int] = grid, t: int = threads) -> None:
          gpu.launch(k, g, t, arguments)  # noqa: B023

        arms.append(gpu.capture(work))
        names.append(f"unroll {unroll}, {threads} threads, {per} blocks per multiprocessor")
  first = np.argsort(gpu.time_us(arms, 1)[:, 0])[:AGAIN]
  again = np.median(gpu.time_us([arms[i] for i in first], AGAIN_SAMPLES), axis=1)
  best = int(first[np.argmin(again)])
  return arms[best], names[best]


def kept_rates(machine: Mapping[str, str]) -> Rates | None:
  """What was measured on this machine before; None where that is not there, or cannot be read."""
  path = _path(machine)
  with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
    if path is not None:
      return msgspec.json.decode(read_bounded(path), type=Rates)
  return None


def keep_rates(machine: Mapping[str, str], rates: Rates) -> Path | None:
  """Where they are now; None where nothing is kept."""
  path = _path(machine)
  if path is None:
    return None
  with contextlib.suppress(OSError):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.tmp")
    part.write_bytes(msgspec.json.encode(rates))
    os.replace(part, path)
    return path
  return None


def _path(machine: Mapping[str, str]) -> Path | None:
  """By all that a time depends on: GPU, driver, ONNX Runtime, and how we measure."""
  folder = cache_folder("rates")
  measured_by = source_digest("tune/rates.py", "tune/chip_rates.py", "tune/operator_table.py")
  text = json.dumps([dict(sorted(machine.items())), measured_by])
  return folder and folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
