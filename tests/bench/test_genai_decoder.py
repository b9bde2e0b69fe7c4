"""``bench/genai_decoder.py``: the graphs, and greedy tokens of a small decoder with kernels in its steps."""

from dataclasses import replace

import genai_runs
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from genai_graphs import CONFIGS, write

import mirage_onnx
from mirage_onnx.cli import main


@pytest.mark.parametrize("bits", [16, 4])
def test_greedy_tokens_of_a_folder(tmp_path, bits, monkeypatch):
  """A prompt by onnxruntime, tokens by kernels, in the emulator; batch 2, the cache one buffer."""
  monkeypatch.setattr(genai_decoder, "TOKENS", 6)
  c = replace(CONFIGS["small"], layers=1, bits=bits)
  source, out = tmp_path / "llm", tmp_path / "fast"
  write(source, c)
  margin = "0.2" if bits == 16 else "0"
  options = ["--target", "h200", "--budget", "60", "--margin", margin]
  assert main(["optimize", str(source), "-o", str(out), *options]) in (0, 4)
  made = onnx.load(out / "model.onnx", load_external_data=False)
  original = onnx.load(source / "model.onnx", load_external_data=False)
  share, step, _ = genai_runs.replaced_share(original, made)
  sessions = [(source, ort.InferenceSession), (out, ort.InferenceSession)]
  if share:
    sessions.append((out, lambda *a, **k: mirage_onnx.InferenceSession(*a, emulate=True, **k)))
  prompt = np.array([[1, 2, 3], [7, 5, 6]])
  found = []
  for folder, make in sessions:
    d = genai_runs.Decoder(folder / "model.onnx", c, 2, 24, make=make)
    found.append(d.greedy(prompt, lambda: None)[0])
  assert all(f == found[0] for f in found)
  if bits == 16:
    assert share > 0.5
    launches = mirage_onnx.launches(d.session)
    assert launches and all(n == 5 for n in launches.values())
