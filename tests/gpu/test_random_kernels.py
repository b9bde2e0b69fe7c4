"""Random block graphs on the GPU: right against float64, and the same bits in every run."""

import os
from collections import Counter

import pytest
from random_kernel_boxes import windowed
from random_kernel_run import emitted, judged, tensors
from random_kernels import random_kernel

from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu

pytestmark = pytest.mark.gpu

SEEDS, RUNS = range(500), 2
#: Random numbers are not the solver's: of these 500, 3 take too many registers by the code
#: generator's count, and 14 spill however they are compiled (NVRTC 13.0 on a CPU).
MOST_REFUSED = 0.05


def launched(gpu, subject, images):
  with gpu.scope():
    given = tensors(subject.case)
    at = {name: gpu.put(x) for name, x in given.items()}
    for image, source in zip(images, subject.sources, strict=True):
      function = gpu.load(image, source.name, source.smem_bytes)
      gpu.launch_source(function, source, at)
    return {n: gpu.get(at[n], x.shape, x.dtype) for n, x in given.items()}


@pytest.mark.parametrize("placed", [lambda case: case, windowed], ids=["whole", "boxes"])
def test_random_kernels(placed, h200):
  subjects = [emitted(placed(random_kernel(seed))) for seed in SEEDS]
  sources = [s for subject in subjects for s in subject.sources]
  compiled = iter(compile_many(sources, H200, os.cpu_count() or 1))
  gpu = Gpu(H200)
  for subject in subjects:
    images = [next(compiled) for _ in subject.sources]
    refused = [i for i in images if isinstance(i, Rejection)]
    if refused:
      subject.ends("refused", refused[0].code, refused[0].reason)
    if subject.outcome is not None:
      continue
    cubins = [i for i in images if isinstance(i, Cubin)]
    try:
      first, *others = (launched(gpu, subject, cubins) for _ in range(RUNS))
    except MirageError as error:  # no later kernel would run
      pytest.fail(f"{subject.case.text}\n{error}")
    if found := judged(subject.case, first):
      subject.ends("wrong", "", found)
    elif any(x.tobytes() != o[n].tobytes() for o in others for n, x in first.items()):
      subject.ends("wrong", "", "two runs give different bits")
    else:
      subject.ends("ok")
  outcomes = [s.outcome for s in subjects if s.outcome is not None]
  print(Counter((o.kind, o.code) for o in outcomes))
  assert len(outcomes) == len(SEEDS)
  assert not [str(o) for o in outcomes if o.is_bad]
  refusals = [str(o) for o in outcomes if o.kind == "refused"]
  assert len(refusals) <= MOST_REFUSED * len(outcomes), "\n".join(refusals)
