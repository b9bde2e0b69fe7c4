"""``bench/genai_decoder.py``: the graphs, and greedy tokens of a small decoder with kernels in its steps."""

from dataclasses import replace
from functools import partial

import genai_runs
import numpy as np
import onnx
import pytest
from genai_graphs import CONFIGS, write

import mirage_onnx


@pytest.mark.slow
@pytest.mark.parametrize("bits", [16, 4])
def test_greedy_tokens(tmp_path, bits, monkeypatch):
  """A prompt by onnxruntime, tokens by kernels, in the emulator; batch 2, the cache one buffer."""
  monkeypatch.setattr(genai_runs, "TOKENS", 6)
  c = replace(CONFIGS["small"], layers=1, bits=bits)
  source, out = tmp_path / "llm", tmp_path / "fast"
  write(source, c)
  out.mkdir()
  sizes = {"batch_size": [2], "past_sequence_length": [64], "total_sequence_length": [32]}
  mirage_onnx.optimize(  # 4 bits are never chosen by prediction alone
    source / "model.onnx", out / "model.onnx", target="h200", budget_s=900, margin=-20.0, steps=True,
    shapes={**sizes, "sequence_length": [1]},
  )  # fmt: skip
  made, original = (onnx.load(f / "model.onnx", load_external_data=False) for f in (out, source))
  share, step, _ = genai_runs.replaced_share(original, made)
  assert share > 0.5 and sum(n for op, n in step.items() if op.startswith("MuGraph_")) >= 2
  prompt, found = np.array([[1, 2, 3], [7, 5, 6]]), []
  emulated = partial(mirage_onnx.InferenceSession, emulate=True)
  for folder, make in ((source, None), (out, None), (out, emulated)):
    d = genai_runs.Decoder(folder / "model.onnx", c, 2, 24, make=make)
    found.append(d.greedy(prompt, lambda: None)[0])
  assert found[0] == found[1] == found[2]
  launches = mirage_onnx.launches(d.session)
  assert launches and all(n >= 5 for n in launches.values())
