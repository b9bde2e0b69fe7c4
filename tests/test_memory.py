"""Weights stay on disk: a model is optimized in less memory than one copy of its weights takes."""

import os
import resource
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from small_models import Net
from written_files import data_file

#: What a process may have of its own (mapped files are none of it): BLAS, protobuf and NVRTC are 300 MB.
LIMIT_BYTES = 900 << 20
ROWS, COLUMNS = 16384, 32768

PROGRAM = """
import sys
import mirage_onnx
run = mirage_onnx.optimize(sys.argv[1], sys.argv[2], target="h200", budget_s=300, margin=-20.0)
print([r["status"] for r in run.report["regions"]])
"""


@pytest.mark.slow
def test_a_gigabyte_of_weights_in_less_memory(tmp_path):
  """A sparse file stands for the weights; the copy that the kernel reads is streamed to the output."""
  net = Net(opset=20)
  x = net.rms(net.input(4, ROWS))
  model = net.model(net.MatMul(x, "w"))
  weight = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=[ROWS, COLUMNS])
  weight.data_location = TensorProto.EXTERNAL
  weight.external_data.add(key="location", value="w.bin")
  model.graph.initializer.append(weight)
  onnx.save(model, tmp_path / "in.onnx")
  with (tmp_path / "w.bin").open("wb") as file:
    file.truncate(2 * ROWS * COLUMNS)
    file.write(np.arange(1, 65, dtype=np.float16).tobytes())
  (tmp_path / "out").mkdir()
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM, tmp_path / "in.onnx", tmp_path / "out" / "m.onnx"],
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES)),
    env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-2000:]
  assert "replaced" in done.stdout
  made = onnx.load(tmp_path / "out" / "m.onnx", load_external_data=False)
  (copy,) = (t for t in made.graph.initializer if t.name.startswith("w"))
  assert list(copy.dims) == [COLUMNS, ROWS]
  offset = next(int(e.value) for e in copy.external_data if e.key == "offset")
  written = np.memmap(data_file(tmp_path / "out" / "m.onnx"), np.float16, "r", offset, (COLUMNS, ROWS))
  np.testing.assert_array_equal(written[:64, 0], np.arange(1, 65))
  assert not written[:64, 1].any()
