"""Naive choices are worse and not wrong, and the table says by how much."""

import shutil
from dataclasses import replace

import ablation
import kernel_records
import pytest
from ablation import ALL, ONE_STAGE, VARIANTS
from goldens import GOLDENS
from kernel_records import ablation_table
from naive_choices import NAIVE, barriers
from tiled_kernels import ATTENTION, CENTRED, NORM_LINEAR, TWO_PRODUCTS, case, errors, product, tiled_source

from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import print_ugraph
from mirage_onnx.target import H200

#: A tile of shared memory is wanted after something has been computed.
POOLED = next(print_ugraph(g.ugraph) for g in GOLDENS if g.name == "pooled_linear")
KERNELS = {
  "attention": case(ATTENTION, 8, 1, cluster=2, loop_tile=16, warps=2, stages=2,
                    a0=2, a1=64, a2=16, a3=8, a4=16),
  "norm": case(NORM_LINEAR, 16, 8, warps=4, a0=8, a1=288, a2=32),
  "registers": case(NORM_LINEAR.replace("post shared", "post A_frag"), 16, 8, warps=1,
                    a0=8, a1=544, a2=32),
  "turned": case(CENTRED.replace("i0 f32[a0,a1]", "i0 f32[a1,a0]", 1), 8, warps=2, a0=8, a1=64),
  "pooled": case(POOLED, 32, 4, loop_tile=16, a0=64, a1=128, a2=8, a3=64),
  "two": case(TWO_PRODUCTS, 16, loop_tile=16, warps=2, stages=2, a0=16, a1=64, a2=16, a3=24),
  "product": case(product(), 16, 16, loop_tile=32, warps=4, stages=3, a0=16, a1=128, a2=16),
}  # fmt: skip


def text_of(c):
  graph = c.graph
  return tiled_source(graph, graph.kernels[0], c.params[0], c.all_extents(), H200).text


@pytest.mark.slow
def test_naive_choices_are_right():
  """In the emulator, with all its checks; each changes at least one of these kernels."""
  plain = {name: text_of(c) for name, c in KERNELS.items()}
  for off, context in NAIVE.items():
    changed = []
    with context():
      for name, c in KERNELS.items():
        try:
          changed += [c] * (text_of(c) != plain[name])
        except RejectionError:
          continue
      assert changed or off == "ways: only the best is tried", off
      assert all(e < 4e-3 for e in errors(changed, 3)), off
  assert {name: text_of(c) for name, c in KERNELS.items()} == plain


def test_barriers_of_a_block():
  """One in each of four iterations, with one stage one more between two, and one where warps meet."""
  c = KERNELS["product"]
  assert barriers(c.threads()) == 4 + 1
  one = replace(c, params=(replace(c.params[0], stages=1),))
  assert barriers(one.threads()) == 4 + 3 + 1
  with NAIVE["barriers: at every shared step"]():
    assert barriers(c.threads()) > 4


def test_program(monkeypatch):
  def compiled(sources, *_):
    image = Cubin(b"", 64, 0, 0, 0, "", 0.1)
    lost = Rejection("COMPILE_FAILED", "made up")
    return [*[image] * (len(sources) - 1), lost if len(sources) > 2 else image]

  monkeypatch.setattr(ablation, "compile_many", compiled)
  result = ablation.measure("decode", H200, None)
  assert [v["variant"] for v in result["variants"]] == list(VARIANTS)
  by = {v["variant"]: v for v in result["variants"]}
  assert by["barriers: at every shared step"]["barriers"] > by[ALL]["barriers"] > 0
  assert by[ONE_STAGE]["refused"] == "COMPILE_FAILED: made up"
  record = {"programs": [result], "date": "d", "command": "c", "commit": "a", "versions": {}}
  head, _, line, *_ = ablation_table(record)
  assert "refused COMPILE_FAILED |" in line
  assert line.startswith("| decode | - us, ")
  assert head.count("|") == line.count("|") == len(VARIANTS) + 2


def test_records(monkeypatch, tmp_path, capsys):
  records = tmp_path / "h200"
  shutil.copytree(kernel_records.RECORDS, records)
  monkeypatch.setattr(kernel_records, "RECORDS", records)
  given = tmp_path / "ablation.json"
  about = '"date": "today", "command": "", "commit": "", "versions": {}'
  given.write_text(f'{{"programs": [], {about}}}')
  for files, new in (([], False), ([str(given)], True), ([], True)):
    monkeypatch.setattr("sys.argv", ["kernel_records.py", *files])
    kernel_records.main()
    told = capsys.readouterr().out
    assert ("Run of today" in told) == new and "gated_mlp/b1 a plain read | " in told
