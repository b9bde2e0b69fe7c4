"""From a candidate to its launch plan: inputs, weights stored in another order, workspace."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from refused import refused
from region_data import sources_of
from small_models import Net, region_of, search_region

from mirage_onnx.custom_op.arguments import InputPtr, Int32, OutputPtr, WorkspacePtr
from mirage_onnx.custom_op.expr import ExprError, const
from mirage_onnx.custom_op.launch_plan import plan_candidate
from mirage_onnx.custom_op.plan import parse_plan
from mirage_onnx.custom_op.runtime_sizes import ALIGNMENT, RunDims, RuntimeSizes, total
from mirage_onnx.ir import DType, KTensor, Monomial, RegionTensor, Tensor, dim_permutation
from mirage_onnx.ir.band import Band
from mirage_onnx.tune.measure import stored


def source(shape, dims):
  """``dims``: the axes of each dimension as words."""
  held = tuple(tuple(d.split()) for d in dims)
  axes = tuple(dict.fromkeys(a for d in held for a in d))
  return RegionTensor("i0", DType.F16, axes, Tensor("w", DType.F16, shape), True, held)


@pytest.mark.parametrize(
  ("shape", "dims", "axes", "wanted"),
  [
    ((3, 5), ("a0", "a1"), ("a0", "a1"), (0, 1)),
    ((3, 5), ("a0", "a1"), ("a1", "a0"), (1, 0)),
    ((1, 3, 5), ("", "a0", "a1"), ("a1", "a0"), (0, 2, 1)),
    ((3, 1, 5), ("a0", "", "a1"), ("a1", "a0"), (2, 1, 0)),
    ((2, 3, 5), ("a0", "a0", "a1"), ("a1", "a0"), (2, 0, 1)),
    ((5, 2, 3), ("a1", "a0", "a0"), ("a0", "a1"), (1, 2, 0)),
    ((2, 1, 3, 5), ("a0", "", "a0", "a1"), ("a1", "a0"), (3, 1, 0, 2)),
    ((2, 3, 5), ("a0", "a1", "a2"), ("a2", "a0", "a1"), (2, 0, 1)),
    ((2, 3), ("a0", "a0"), ("a0",), (0, 1)),
    ((6, 5), ("a0 a1", "a2"), ("a0", "a1", "a2"), (0, 1)),
  ],
)
def test_order_of_dims(shape, dims, axes, wanted):
  tensor = source(shape, dims)
  assert dim_permutation(tensor, axes) == wanted
  x = np.arange(np.prod(shape)).reshape(shape)
  extents = {a: int(np.prod([n for n, d in zip(shape, dims, strict=True) if d == a])) for a in axes}
  if tensor.splits_dims:
    extents = {"a0": 2, "a1": 3, "a2": 5}
  assert np.array_equal(stored(tensor, axes, x, extents).ravel(), x.transpose(wanted).ravel())


def test_no_order_of_dims_reorders_what_one_dim_holds():
  tensor = source((6, 5), ("a0 a1", "a2"))
  with refused("INTERNAL"):
    dim_permutation(tensor, ("a1", "a0", "a2"))


def planned(model):
  region = region_of(model)
  candidate = search_region(region).candidates[0].candidate
  sources = sources_of(region, candidate, "kernel")
  assert sources
  ids = list(range(7, 7 + len(sources)))
  return region, sources, plan_candidate(region, candidate, sources).placed(ids)


def test_one_kernel(net):
  x = net.input(2, 4, 512)
  y = net.MatMul(net.rms(x, net.weight(512)), net.weight(512, 256))
  region, (source_,), got = planned(net.model(y))
  (variant,) = got.plan.variants
  (launch,) = variant.launches
  assert (launch.cubin, launch.kernel) == (7, "kernel_k0")
  assert (launch.block, launch.cluster) == (source_.block, source_.cluster)
  assert got.plan.workspace is None
  assert [i.dims for i in got.plan.inputs] == [(2, 4, 512), (512,), (256, 512)]
  assert got.permutations == ((0, 1, 2), (0,), (1, 0))
  assert len(got.plan.outputs) == 1
  pointers = dict(zip(source_.args, launch.args, strict=True))
  for k, i in enumerate(region.inputs):
    assert pointers[i.name] == InputPtr(k, const(2 * int(np.prod(i.tensor.shape))))
  assert pointers["o0"] == OutputPtr(0, const(2 * 4 * 256 * 2))


def test_the_plan_is_text_and_back(net):
  _, _, got = planned(net.model(net.Relu(net.MatMul(net.input(8, 512), net.weight(512, 256)))))
  assert parse_plan(got.plan.to_text()) == got.plan


def test_two_kernels_share_a_workspace(net):
  x = net.input(8, 256)
  a, b = (net.MatMul(x, net.weight(256, 32)) for _ in range(2))
  y = net.MatMul(net.Mul(net.Mul(a, net.Sigmoid(a)), b), net.weight(32, 256))
  _, sources, got = planned(net.model(net.Add(y, x)))
  assert len(sources) == 2
  assert got.plan.workspace is not None
  first, second = got.plan.variants[0].launches
  assert [launch.cubin for launch in (first, second)] == [7, 8]
  shared = [a for a in first.args if isinstance(a, WorkspacePtr)]
  assert len(shared) == 1
  assert shared[0] in second.args
  assert not any(isinstance(a, OutputPtr) for a in first.args)
  text = got.plan.to_text()
  assert str(8 * 32 * 2) in text
  assert (8 * 32 * 2) % ALIGNMENT == 0


def test_two_outputs(net):
  total = net.Add(net.input(8, 512), net.input(8, 512))
  region, _, got = planned(net.model(total, net.rms(total, net.weight(512))))
  assert len(got.plan.outputs) == len(region.outputs) == 2


def test_an_input_that_no_kernel_reads_is_still_an_input(net):
  x, z = net.weight(8, 64), net.input(8, 64)
  region, (source_,), got = planned(net.model(net.Exp(net.Add(z, net.Sub(x, x)))))
  assert len(got.plan.inputs) == 2
  assert len(source_.args) == 2
  assert {i.tensor.name for i in region.inputs} == {x, z}


def test_sizes_that_only_a_run_knows(net):
  x, other = (net.input("batch", "seq", 256) for _ in range(2))
  h = net.LayerNormalization(net.Add(x, other), net.weight(256), axis=-1)
  region, sources, got = planned(net.model(net.MatMul(h, net.weight(256, 512))))
  plan, (axis,), (output,) = got.plan, region.runtime, got.plan.outputs
  assert parse_plan(plan.to_text()) == plan
  assert [i.dims[:2] for i in plan.inputs if len(i.dims) == 3] == [(None, None)] * 2
  assert len(plan.equal) == 2
  assert plan.workspace
  for shape in ((1, 1), (2, 7), (5, 20), (3, 0)):
    rows = shape[0] * shape[1]
    shapes = [(*shape, *i.dims[2:]) if None in i.dims else i.dims for i in plan.inputs]
    assert tuple(d.eval(shapes) for d in output.dims) == (*shape, 512)
    assert all(e.left.eval(shapes) == e.right.eval(shapes) for e in plan.equal)
    assert plan.workspace.eval(shapes) == -(-rows * 256 * 2 // ALIGNMENT) * ALIGNMENT
    for source_, launch in zip(sources, plan.variants[0].launches, strict=True):
      assert tuple(g.eval(shapes) for g in launch.grid) == source_.grid_at({axis: rows})
      for arg in launch.args[:-1]:
        columns = 512 if isinstance(arg, OutputPtr) else 256  # of the workspace too
        whole = np.prod(shapes[arg.index]) if isinstance(arg, InputPtr) else rows * columns
        assert arg.bytes.eval(shapes) == 2 * whole
      size = launch.args[-1]
      assert isinstance(size, Int32)
      assert size.value.eval(shapes) == rows
      with pytest.raises(ExprError, match="divisor below 1"):
        size.value.eval([(2**15, 2**15, *s[2:]) for s in shapes])


def test_several_temporaries_of_unknown_sizes():
  tensor = KTensor("t0", DType.F16, ("a1", "a0"), "temp")
  sizes = RuntimeSizes({"a0": 9, "a1": 5}, {"a0": RunDims(((0,), (1, 0))).of(Monomial(3, ((1, 0),)))})
  each = sizes.aligned_bytes(tensor)
  assert each.eval([(7,), (1, 100)]) == -(-100 * 3 * 5 * 2 // ALIGNMENT) * ALIGNMENT
  fixed = sizes.aligned_bytes(replace(tensor, axes=("a1",)))
  assert fixed == total(const(0), fixed) == const(ALIGNMENT)
  assert total(fixed, fixed) == const(2 * ALIGNMENT)
  assert total(fixed, each).eval([(7,), (1, 0)]) == ALIGNMENT


def test_unused_tensors_do_not_change_the_plan(net):
  region = region_of(net.model(net.Relu(net.Exp(net.input(8, 64)))))
  candidate = search_region(region).candidates[0].candidate
  sources = sources_of(region, candidate, "kernel")
  assert sources
  again = plan_candidate(replace(region, nodes=("x", "y")), candidate, sources)
  assert again == plan_candidate(region, candidate, sources)


@pytest.mark.parametrize("told", [
  {"band": Band("a0", "a1", None, 0, Fraction(0))}, {"places": True}, {"limit": ("a0", "i1", 0)},
])  # fmt: skip
def test_kernels_know_no_more_of_tensors_than_is_so(told):
  """What a file says that kernels need not read would be proven with what is there."""
  net = Net()
  region = region_of(net.model(net.rms(net.input(8, 64), net.weight(64))))
  candidate = search_region(region).candidates[0].candidate
  plan_candidate(region, candidate, ())
  first, *others = candidate.ugraph.tensors
  graph = replace(candidate.ugraph, tensors=(replace(first, **told), *others))
  with refused("INTERNAL"):
    plan_candidate(region, replace(candidate, ugraph=graph), ())
