"""Results that a lane keeps and stores beside the next products: all of them, also of the last part."""

from dataclasses import replace

import numpy as np
import pytest
import tiled_kernels
from tiled_kernels import near

from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams
from mirage_onnx.target import H100
from tests.codegen.tiled.test_warpgroup import GELU, PLAIN, RESIDUAL, by_wgmma, emit

FEW = replace(H100, name="few", multiprocessors=2)
BF16 = RESIDUAL.replace("f16", "bf16")
#: More stores of a lane than steps, and fewer; rows and columns that end inside of a part.
CASES = {
  "few steps": by_wgmma(PLAIN, 256, 128, stages=3, teams=1, late=1, a0=397, a1=136, a2=520),
  "more steps": by_wgmma(GELU, 128, 128, teams=1, late=1, a0=300, a1=1000, a2=200),
  "residual": by_wgmma(BF16, 128, 192, warps=12, stages=3, teams=1, late=1, a0=397, a1=264, a2=264),
  "blocks that share": by_wgmma(
    PLAIN, 128, 128, stages=3, teams=1, late=1, sharing=2, a0=512, a1=328, a2=264
  ),
  "functions": by_wgmma(GELU, 256, 128, stages=3, teams=1, late=2, a0=397, a1=200, a2=520),
  "functions, more steps": by_wgmma(GELU, 128, 128, teams=1, late=2, a0=300, a1=1000, a2=200),
  "functions, all columns there": by_wgmma(GELU, 224, 128, stages=3, teams=1, late=2, a0=397, a1=200, a2=448),
  "functions in bf16": by_wgmma(
    GELU.replace("f16", "bf16"), 128, 192, warps=12, stages=3, teams=1, late=2, a0=397, a1=264, a2=264
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_right(monkeypatch, name):
  monkeypatch.setattr(tiled_kernels, "H200", FEW)
  near([CASES[name]], bound=2e-2)
  text = emit(CASES[name], FEW).text
  # A step's text has a store for each word that may end 16 bytes, and that of the end has one.
  assert text.count("ptx::st_v4(late_to ") == text.count("ptx::st_v4(") >= 2


def test_both_places_are_needed():
  """In the steps those of all parts but the last, at the end those of the last."""
  c = CASES["few steps"]
  source = emit(c, FEW)
  lines = source.text.splitlines(keepends=True)
  places = [n for n, line in enumerate(lines) if "ptx::st_v4(late_to " in line]
  rng = np.random.default_rng(0)
  shapes = {t.name: [c.extents[a] for a in t.axes] for t in c.graph.tensors}
  given = {n: rng.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
  missing = []
  for n in places:
    tensors = {n: x.copy() for n, x in given.items()}
    tensors["o0"][:] = np.nan
    compile_kernels([replace(source, text="".join(lines[:n] + lines[n + 1 :]))]).run(tensors)
    missing.append(np.isnan(tensors["o0"]))
  assert len(missing) >= 3 and all(m.any() for m in missing)
  assert (sum(m.astype(int) for m in missing) == 1).all()


@pytest.mark.parametrize(
  ("case", "target"),
  [
    (by_wgmma(PLAIN, 128, 128, teams=1, late=1), H100),  # a part a block
    (
      by_wgmma(PLAIN, 64, 64, warps=4, teams=2, late=1, a0=397, a2=520),
      FEW,
    ),  # teams, whose stores are beside others
    (by_wgmma(PLAIN, 128, 256, warps=16, teams=1, late=1, a0=1100, a2=520), FEW),  # no registers
    (by_wgmma(PLAIN, 128, 128, teams=1, late=1, a0=397, a1=136, a2=516), FEW),  # rows that begin anywhere
    (by_wgmma(PLAIN, 128, 128, teams=1, late=2, a0=397, a1=136, a2=520), FEW),  # no function
    (by_wgmma(RESIDUAL, 128, 128, teams=1, late=2, a0=397, a1=136, a2=520), FEW),  # of two arguments
    (
      by_wgmma(GELU.replace("erf", "exp"), 128, 128, teams=1, late=2, a0=397, a1=136, a2=520),
      FEW,
    ),  # rounded, it is off
  ],
)
def test_refused(case, target):
  with pytest.raises(RejectionError, match="nothing that is stored late"):
    emit(case, target)


def test_only_where_numbers_say_so():
  case = CASES["few steps"]
  (params,) = case.params
  assert KernelParams.from_text(params.to_text()) == params and " late=1" in params.to_text()
  assert "late" not in emit(replace(case, params=(replace(params, late=0),)), FEW).text.partition("KERNEL")[2]
