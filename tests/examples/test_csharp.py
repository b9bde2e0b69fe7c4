"""The C# sample is compiled against onnxruntime's own C# API and run on the CPU, with the wheel's library."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from small_models import run_model

import mirage_onnx
from tests.support import csharp
from tests.support.rewritten import chain

SAMPLE = Path(__file__).parents[2] / "examples/csharp/Program.cs"

pytestmark = [
  pytest.mark.slow,  # 150 MB of a package
  pytest.mark.skipif(bool(csharp.missing()), reason=f"no {', '.join(csharp.missing())}"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
  return csharp.sample(SAMPLE, csharp.api(tmp_path_factory.mktemp("csharp")))


@pytest.fixture(scope="module")
def run(program):
  (native,) = Path(ort.__file__).parent.joinpath("capi").glob("libonnxruntime.so.*")
  return lambda *arguments: csharp.run(program, *arguments, native=native)


def test_on_the_cpu(run, tmp_path):
  made = chain()
  onnx.save(made.model, tmp_path / "m.onnx")
  done = run(str(tmp_path / "m.onnx"), mirage_onnx.get_library_path())
  assert done.returncode == 0, done.stderr
  shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in made.original.graph.input}
  feeds = {n: (np.arange(np.prod(s)) % 7 - 3).reshape(s).astype(np.float16) for n, s in shapes.items()}
  expected = run_model(made.original, feeds)
  lines = done.stdout.split("\n")[:-1]
  assert len(lines) == len(expected) == len(made.original.graph.output)
  for line, output, y in zip(lines, made.original.graph.output, expected, strict=True):
    name, shape, total = line.split()
    assert (name, shape) == (output.name, "x".join(map(str, y.shape)))
    assert float(total) == pytest.approx(y.sum(dtype=np.float64), rel=1e-12)


def test_types_and_dynamic_sizes(run, tmp_path):
  """Every type that it draws goes into a session, and a dynamic dimension becomes 8."""
  kinds = {"f": "FLOAT", "h": "FLOAT16", "l": "INT64", "i": "INT32", "b": "BOOL"}
  types = {name: getattr(onnx.TensorProto, kind) for name, kind in kinds.items()}
  inputs = [onnx.helper.make_tensor_value_info(n, t, ["batch", 2]) for n, t in types.items()]
  nodes = [onnx.helper.make_node("Cast", [n], [f"{n}_out"], to=onnx.TensorProto.INT64) for n in types]
  outputs = [
    onnx.helper.make_tensor_value_info(f"{n}_out", onnx.TensorProto.INT64, ["batch", 2]) for n in types
  ]
  graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
  onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9),
            tmp_path / "m.onnx")  # fmt: skip
  done = run(str(tmp_path / "m.onnx"), mirage_onnx.get_library_path())
  assert done.returncode == 0, done.stderr
  signed = [i % 7 - 3 for i in range(16)]
  counts = [i + 3 for i in signed]
  sums = {"f": sum(signed), "h": sum(signed), "l": sum(counts), "i": sum(counts), "b": sum(map(bool, counts))}
  assert done.stdout.splitlines() == [f"{n}_out 8x2 {total}" for n, total in sums.items()]


def test_a_library_that_is_not_there(run, tmp_path):
  onnx.save(chain().original, tmp_path / "m.onnx")
  done = run(str(tmp_path / "m.onnx"), "/none/libmirage_onnx_ops.so")
  assert done.returncode != 0 and "/none/libmirage_onnx_ops.so" in done.stderr
