"""What of ``bench/triton_programs.py`` needs no GPU: its subjects, their texts, the lines of its table."""

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from triton_programs import program_of, region_of, row_of, subjects, written

from mirage_onnx.target import H100


def test_every_golden_program_is_a_subject():
  found = subjects([])
  assert len(found) == len(set(found)) > 60
  assert subjects(["small mla", "attention"]) == ["attention", "small mla"]


def test_a_text_and_a_kernel_of_the_same_numbers():
  text, candidate, own, refused = written("small residual_norm", H100.name)
  assert refused == [] and own.candidate == candidate
  tree = ast.parse(text)
  functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
  assert functions == [*(k.name for k in candidate.ugraph.kernels), "optimized_graph"]


def test_a_refusal_is_recorded(monkeypatch):
  monkeypatch.setattr("mirage_onnx.graphs.triton_tiles.MOST_ELEMENTS", 1)
  text, candidate, own, refused = written("small residual_norm", H100.name)
  assert (text, candidate, own) == ("", None, None)
  assert refused[0].startswith("TRITON_UNSUPPORTED: ")
  assert row_of("a", {"refused": refused})[-1] == refused[0][:60]


def test_a_program_has_the_tensors_of_its_region():
  region = region_of("small residual_norm")
  program = program_of(region)
  assert program.inputs == tuple(t.tensor.name for t in region.inputs)
  assert set(program.tensors) == {*program.inputs, *program.outputs}


def test_lines_say_what_is_wrong():
  time = {"us": 2.0, "error": 1e-4, "allowed": 1e-3}
  right = {"triton": time, "cuda": time, "numbers": "tile=1"}
  assert row_of("a", right) == ["a", "2.0", "2.0", "right", "tile=1"]
  wrong = {"triton": time | {"error": float("inf")}, "numbers": "tile=1"}
  assert row_of("a", wrong)[3] == "WRONG inf"
  assert row_of("a", {"failed": "out of memory"})[-1] == "out of memory"


def test_what_needs_too_much_shared_memory_is_passed_over():
  """Triton would fail at the launch; numbers behind it fit, whose loads the loop has in so many stages."""
  text, candidate, _, refused = written("bias_relu", H100.name)
  assert "bytes of shared memory, a block has 232448" in refused[0]
  assert all(p.stages >= 1 for p in candidate.params)
  text, candidate, *_ = written("small norm_linear", H100.name)
  assert f"num_stages={candidate.params[0].stages})" in text
