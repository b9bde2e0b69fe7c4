"""Decoders of onnxruntime-genai's builder: what records of its runs show, and its graphs at real size.

``bench/genai_graphs.zip`` has these graphs (a layer and the head, Gemma-3 two layers) and configs without
weights, made by ``bench/genai_models.py`` with the widths of published models; data files here are holes.
"""

import json
import re
import zipfile
from pathlib import Path

import genai_coverage
import onnx
import pytest

from mirage_onnx.errors import REJECTIONS
from mirage_onnx.target import get_target

BENCH = Path(__file__).resolve().parents[2] / "bench"
KINDS = ("llama3", "qwen3", "phi3", "phi4", "gemma3", "mistral")
EVERY = {f"{kind}_{precision}" for kind in KINDS for precision in ("fp16", "int4")}
GRAPHS = zipfile.ZipFile(BENCH / "genai_graphs.zip")
FOLDERS = sorted({Path(n).parts[0] for n in GRAPHS.namelist()})
#: What of the bytes of a step verified programs are to read at least.
SHARE = 0.97


def record(name):
  return json.loads((BENCH / "results" / name).read_text())


def test_greedy_tokens_are_those_of_the_original():
  """64 of them behind two prompts in one batch, with the library and without; some by kernels, emulated."""
  rows = {r["model"]: r for r in record("genai_tokens.json")["rows"]}
  assert rows.keys() >= EVERY and not [r for r in rows.values() if "error" in r]
  for name in EVERY:
    row = rows[name]
    whole = {"equal": 64, "of": 64}
    assert row["with_library"] == row["without_library"] == whole, name
    assert row["custom"] >= 2 and row["different_tokens"] >= 16, name
    made = row["emulated"]  # two of the original's logits may be one number
    assert made["equal"] == made["of"] or (made["equal"] >= 6 and made["apart"] == 0), name
    assert made["of"] >= 6 and row["launches"] >= row["custom"], name


def test_coverage_of_real_graphs():
  rows = {r["folder"]: r for r in record("genai_coverage.json")["rows"]}
  assert rows.keys() >= {f"real_{n}" for n in FOLDERS}
  assert [n for n, r in rows.items() if n.startswith("real_") and r["share"] < SHARE] == []


def test_graphs_of_every_kind_are_here():
  assert {*FOLDERS} >= EVERY


def with_holes(folder):
  """The data file of a model: as large as it says, and empty."""
  ends = {}
  for t in onnx.load(folder / "model.onnx", load_external_data=False).graph.initializer:
    at = {e.key: e.value for e in t.external_data}
    if at:
      ends[at["location"]] = max(ends.get(at["location"], 0), int(at.get("offset", 0)) + int(at["length"]))
  for name, end in ends.items():
    with (folder / name).open("wb") as file:
      file.truncate(end)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_programs_read_the_bytes_of_a_step(name, tmp_path):
  """All but a share have a proven program; of the rest the reason has a code."""
  GRAPHS.extractall(tmp_path, [n for n in GRAPHS.namelist() if n.startswith(f"{name}/")])
  with_holes(tmp_path / name)
  row = genai_coverage.covered(tmp_path / name, get_target("h100"), 300.0)
  assert row["share"] >= SHARE, row
  for left in row["left"].values():
    code = re.match(r"([A-Z_]+): .", left["why"])
    assert code and code[1] in REJECTIONS, left
