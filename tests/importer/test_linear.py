"""Matrix products against ONNX Runtime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protos import typed

few = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 5)


def normal(seed, *shapes):
  rng = np.random.default_rng(seed)
  return [np.asarray(rng.standard_normal(s), np.float32) for s in shapes]


@st.composite
def products(draw):
  m, k, n = (draw(SIDES) for _ in range(3))
  batch = draw(st.lists(st.integers(1, 3), max_size=2))
  thinned = [draw(st.sampled_from([d, 1])) for d in batch][draw(st.integers(0, len(batch))) :]
  if draw(st.booleans()):
    batch, thinned = thinned, batch
  a = draw(st.sampled_from([(*batch, m, k), (k,)]))
  b = draw(st.sampled_from([(*thinned, k, n), (k,)]))
  return a, b


@few
@given(shapes=products(), weight=st.booleans(), seed=SEEDS, opset=st.sampled_from([13, 20, 26]))
def test_matmul(bench, shapes, weight, seed, opset):
  arrays = normal(seed, *shapes)
  bench.agrees(*bench.one("MatMul", arrays, weights=(1,) if weight else (), opset=opset))


@few
@given(
  sides=st.tuples(SIDES, SIDES, SIDES),
  trans=st.tuples(st.integers(0, 1), st.integers(0, 1)),
  alpha=st.sampled_from([None, 1.0, 0.25, -1.7, 0.0]),
  beta=st.sampled_from([None, 1.0, 0.5, 0.0]),
  addend=st.sampled_from([None, "mn", "n", "1n", "m1", "", "1", "11"]),
  weights=st.sampled_from([(), (1,), (1, 2)]),
  opset=st.sampled_from([13, 20]),
  seed=SEEDS,
)
def test_gemm(bench, sides, trans, alpha, beta, addend, weights, opset, seed):
  m, k, n = sides
  a = (k, m) if trans[0] else (m, k)
  b = (n, k) if trans[1] else (k, n)
  shapes = [a, b]
  if addend is not None:
    shapes.append(tuple({"m": m, "n": n, "1": 1}[c] for c in addend))
  attributes = {"transA": trans[0], "transB": trans[1]}
  attributes |= {} if alpha is None else {"alpha": alpha}
  attributes |= {} if beta is None else {"beta": beta}
  held = [w for w in weights if w < len(shapes)]
  arrays = normal(seed, *shapes)
  bench.agrees(*bench.one("Gemm", arrays, weights=held, opset=opset, **attributes), atol=1e-4)


def test_gemm_with_beta_0_does_not_read_the_addend(bench):
  program = bench.program(bench.one("Gemm", normal(0, (2, 3), (3, 4), (4,)), beta=0.0)[0])
  assert all("x2" not in s.inputs for s in program.nodes[0].steps)


def test_gemm_of_half_rounds_once(bench):
  arrays = [a.astype(np.float16) for a in normal(0, (4, 32), (8, 32), (8,))]
  program = bench.program(bench.one("Gemm", arrays, weights=(1, 2), transB=1)[0])
  steps = [(s.op, s.output.dtype.value) for s in program.nodes[0].steps]
  assert steps == [
    ("transpose", "f16"), ("matmul", "f32"), ("cast", "f32"), ("add", "f32"), ("cast", "f16"),
  ]  # fmt: skip
  bench.agrees(*bench.one("Gemm", arrays, transB=1), rtol=2e-3, atol=2e-2)


def test_gemm_without_addend_is_one_product(bench):
  arrays = [a.astype(np.float16) for a in normal(0, (4, 32), (32, 8))]
  program = bench.program(bench.one("Gemm", arrays, weights=(1,))[0])
  assert [(s.op, s.output.dtype.value) for s in program.nodes[0].steps] == [("matmul", "f16")]


@few
@given(
  sides=st.tuples(SIDES, SIDES, SIDES),
  trans=st.tuples(st.integers(0, 1), st.integers(0, 1)),
  batch=st.lists(st.integers(1, 3), max_size=1),
  alpha=st.sampled_from([1.0, 0.125, -1.5]),
  seed=SEEDS,
)
def test_fused_matmul(bench, sides, trans, batch, alpha, seed):
  m, k, n = sides
  a = (*batch, k, m) if trans[0] else (*batch, m, k)
  b = (*batch, n, k) if trans[1] else (*batch, k, n)
  model, feeds = bench.one(
    "FusedMatMul", normal(seed, a, b), domain="com.microsoft",
    transA=trans[0], transB=trans[1], alpha=alpha,
  )  # fmt: skip
  bench.agrees(model, feeds)


def test_fused_matmul_with_moved_batch_is_refused(bench):
  model, _ = bench.one("FusedMatMul", normal(0, (2, 3, 4), (3, 4, 2)), domain="com.microsoft", transBatchA=1)
  model.graph.output[0].CopyFrom(typed("y0", 1, [3, 2, 2]))
  assert bench.barrier(model).startswith("OP_FORM: FusedMatMul: transBatchA and transBatchB")


def test_integers_are_refused(bench):
  arrays = [np.ones((2, 2), np.int32)] * 2
  assert bench.barrier(bench.one("MatMul", arrays)[0]) == "DTYPE: MatMul: 'x0' is i32"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_strange_alpha_is_refused(bench, value):
  model, _ = bench.one("Gemm", normal(0, (2, 2), (2, 2)), alpha=value)
  assert bench.barrier(model) == f"OP_FORM: Gemm: the attribute alpha is {value}"
