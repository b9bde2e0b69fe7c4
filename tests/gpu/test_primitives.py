"""Every function of ``ptx.cuh`` on the GPU: bit for bit what the emulator computes.

Approximate functions (``ulps`` of their case) are compared by distance instead.

With ``PRIMITIVES_RECORD=PATH`` a record is written to PATH.txt and PATH.json.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu
from tests.support.primitives import CASES, GROUPS, matrix, record
from tests.support.primitives.case import differences
from tests.support.primitives.run import run_on_gpu

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
REPEATS = 5


@pytest.fixture(scope="module")
def emulated(tmp_path_factory, h200):
  to = tmp_path_factory.mktemp("primitives") / "emulated.npz"
  command = [sys.executable, "-m", "tests.support.primitives.run", str(to)]
  subprocess.run(command, cwd=ROOT, check=True, timeout=300)
  with np.load(to) as stored:
    return {c.name: {n: stored[f"{c.name}.{n}"] for n in c.outputs} for c in CASES.values()}


@pytest.fixture(scope="module")
def measured(emulated):
  gpu = Gpu(H200)
  found = {}
  for cases in GROUPS.values():
    found |= run_on_gpu(gpu, cases, repeats=REPEATS)
  yield found
  if to := os.environ.get("PRIMITIVES_RECORD"):
    rows = [record.row(c, found[c.name], emulated[c.name]) for c in CASES.values()]
    mma = [r for c in matrix.MMA for r in record.mma_rows(c, found[c.name][0]["d"], emulated[c.name]["d"])]
    driver = f"driver {gpu.d.cuDriverGetVersion()[1]}"
    record.write(Path(to), f"{H200.name}, {driver}, {REPEATS} runs of each case", rows, mma)


@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_the_gpu_agrees(case, measured, emulated):
  first, *others = measured[case.name]
  assert not differences(case, first, case.reference(case.inputs())), "the PTX document"
  # The host's own approximations are within a unit of the exact result, too.
  host = case if case.ulps is None else replace(case, ulps=case.ulps + 1)
  assert not differences(host, first, emulated[case.name]), "the emulator"
  for run in others:
    for name in case.outputs:
      assert run[name].tobytes() == first[name].tobytes(), "another run"
