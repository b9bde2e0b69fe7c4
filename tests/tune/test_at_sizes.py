"""Times of kernels at many sizes: each is worked out once."""

from dataclasses import replace

from golden_graphs import golden_graph

from mirage_onnx.ir import KernelParams
from mirage_onnx.target import H200
from mirage_onnx.tune import at_sizes


def test_a_time_is_asked_once(monkeypatch):
  graph, asked = golden_graph("lora"), []

  def us(graph, kernel, extents, params, target):
    asked.append((kernel.name, params, dict(extents)))
    return float(len(asked))

  monkeypatch.setattr(at_sizes, "lowered_us", us)
  once, (kernel,) = at_sizes.lowered_once(), graph.kernels
  params = KernelParams((16, 16), loop_tile=16)
  sizes = {"a0": 8, "a1": 64, "a2": 64, "a3": 16}
  wide = replace(params, warps=8)
  times = [once(graph, kernel, at, p, H200) for p in (params, wide) for at in (sizes, {**sizes, "a0": 16})]
  assert times == [1.0, 2.0, 3.0, 4.0]
  assert [once(graph, kernel, {**sizes}, p, H200) for p in (params, wide)] == [1.0, 3.0]
  assert len(asked) == 4
  assert (
    at_sizes.lowered_once()(graph, kernel, sizes, params, H200) == 5.0
  )  # another question, nothing is kept
