"""The two examples of the original's README, in both versions of it: as written, but the import.

The text is that of mirage-project/mirage (Apache License 2.0). Its tensors are torch's and on a
GPU; here a stand-in of ``torch`` makes numpy arrays, which the interpreter runs
(``tests/gpu/test_graphs.py`` has torch).
"""

import os
import sys
import types

import numpy as np
import pytest
from golden_texts import texts_of

from mirage_onnx.errors import MirageError
from mirage_onnx.graphs.kernel_check import keeps_to
from mirage_onnx.graphs.restriction import read_restriction

#: The first version's attention; attention and a norm of the second; a softmax without a dimension
#: from an article about it.
ATTENTION_2024, ATTENTION, NORM_MATMUL, ARTICLE = (
  texts_of("readme")[n] for n in ("attention_2024", "attention", "norm_matmul", "article")
)


def run(text, monkeypatch):
  rng = np.random.default_rng(0)
  torch = types.ModuleType("torch")

  def randn(*dims, dtype, device):
    # Of a tenth: with the README's own values exp overflows 16 bits, in the original too.
    return (rng.standard_normal(dims) / 10).astype(dtype)

  torch.randn, torch.float16, torch.Tensor = randn, "float16", type("Tensor", (), {})
  monkeypatch.setitem(sys.modules, "torch", torch)
  assert text.count("import mirage as mi") == 1
  scope = {}
  exec(text.replace("import mirage as mi", "import mirage_onnx as mi"), scope)
  return scope


def attention(q, k, v):
  e = np.exp(q.astype(float) @ k.astype(float))
  return e / e.sum(axis=2, keepdims=True) @ v.astype(float)


def drawn(rng, *shapes):
  return [(rng.standard_normal(s) / 3).astype(np.float16) for s in shapes]


def error(got, want):
  return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.slow
def test_attention_of_2024(monkeypatch, tmp_path, rng):
  monkeypatch.chdir(tmp_path)
  found = run(ATTENTION_2024, monkeypatch)["new_graphs"]
  assert found
  names = sorted(os.listdir(tmp_path))
  assert names == sorted(f"generated_program_{i}.py" for i in range(len(found)))
  data = drawn(rng, (2, 256, 64), (2, 64, 4096), (2, 4096, 64))
  want = attention(*data)
  restriction = read_restriction(griddims=[(2, 16, 1), (2, 16, 4)])
  for optimized in found:
    assert keeps_to(restriction, optimized.region, optimized.candidate)
    assert error(optimized(data)[0], want) < 3e-3


@pytest.mark.slow
def test_attention(monkeypatch):
  """Declared with 2 heads of 256 rows, called with 64 of one row."""
  scope = run(ATTENTION, monkeypatch)
  (output,) = scope["output"]
  want = attention(*scope["input_tensors"])
  assert output.shape == want.shape == (64, 1, 128)
  assert error(output, want) < 3e-3


def test_norm_and_matmul_with_an_ill_shaped_weight(monkeypatch):
  with pytest.raises(MirageError) as e:
    run(NORM_MATMUL, monkeypatch)
  assert e.value.line().startswith("GRAPH_OPERAND: matmul of (16, 4096) and (406, 4096): needs")
  assert "\n" not in e.value.line()


@pytest.mark.slow
def test_norm_and_matmul(monkeypatch):
  scope = run(NORM_MATMUL.replace("(406, 4096)", "(4096, 4096)"), monkeypatch)
  x, w = (t.astype(float) for t in scope["input_tensors"])
  (output,) = scope["optimized_graph"](scope["input_tensors"])
  assert error(output, x / np.sqrt((x * x).mean(axis=1, keepdims=True)) @ w) < 3e-3


@pytest.mark.slow
def test_softmax_without_a_dimension(monkeypatch, rng):
  optimized = run(ARTICLE, monkeypatch)["optimized_graph"]
  data = drawn(rng, (64, 1, 128), (64, 128, 4096), (64, 4096, 128))
  assert error(optimized(data)[0], attention(*data)) < 3e-3
