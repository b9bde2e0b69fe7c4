"""Wrong launch plans: grids, arguments, offsets, sizes, orders, views of what is stored.

What makes plans is wrong where ``verify`` makes them again, too: so lines are not compared, and each
fault has to show in something else.
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations

from mirage_onnx.custom_op.arguments import InputPtr, Int32, OutputPtr, WorkspacePtr
from mirage_onnx.custom_op.expr import const
from mutants.harness import Fault
from mutants.hooks import changed, patched
from mutants.survey import PLANS, survey


def faults(bench, subject):
  """Every wrong plan of a subject."""
  for k, planned in enumerate(survey(bench, subject).plans):
    text = planned.plan.to_text()
    for name, change in _changes(planned):
      yield Fault("plan", subject, f"{k} {name}", partial(_planted, text, change))


@contextmanager
def _planted(text, change):
  with (
    patched(lambda plan, made: iter(()), "mirage_onnx.custom_op.plan_check:_lines"),
    changed(partial(_is, text), partial(_changed, change), *PLANS),
  ):
    yield


def _is(text, planned):
  return planned.plan.to_text() == text


def _changed(change, planned):
  return change(planned)


def _changes(planned):
  plan = planned.plan
  (variant,) = plan.variants
  for i, launch in enumerate(variant.launches):
    for name, new in _launches(launch):
      yield f"launch {i}: {name}", partial(_with_launch, i, new)
  count = len(variant.launches)
  if count > 1:
    yield "the launches in the other order", _reversed
    for i in range(count):
      yield f"without launch {i}", partial(_without, i)
  if plan.workspace is not None:
    yield "no room in the workspace", partial(_with, workspace=const(0))
    half = const(max(1, (plan.workspace.constant or 2) // 8))
    yield "an eighth of the workspace", partial(_with, workspace=half)
  for k, out in enumerate(plan.outputs):
    for d in range(len(out.dims)):
      dims = (*out.dims[:d], out.dims[d] + 1, *out.dims[d + 1 :])
      outputs = (*plan.outputs[:k], replace(out, dims=dims), *plan.outputs[k + 1 :])
      yield f"output {k}: dimension {d} is one more", partial(_with, outputs=outputs)
    dtype = "f32" if out.dtype != "f32" else "f16"
    outputs = (*plan.outputs[:k], replace(out, dtype=dtype), *plan.outputs[k + 1 :])
    yield f"output {k} of another type", partial(_with, outputs=outputs)
  for k, spec in enumerate(plan.inputs):
    if spec.dims and spec.dims[0] is not None:
      dims = (spec.dims[0] + 1, *spec.dims[1:])
      inputs = (*plan.inputs[:k], replace(spec, dims=dims), *plan.inputs[k + 1 :])
      yield f"input {k}: one row more", partial(_with, inputs=inputs)
  for i, j in combinations(range(len(planned.inputs)), 2):
    yield f"inputs {i} and {j} of the node change places", partial(_swapped, "inputs", i, j)
  for i, j in combinations(range(len(planned.outputs)), 2):
    yield f"outputs {i} and {j} of the node change places", partial(_swapped, "outputs", i, j)
  for i, order in enumerate(planned.permutations):
    if len(order) > 1:
      turned = (*planned.permutations[:i], order[::-1], *planned.permutations[i + 1 :])
      yield f"input {i} stored in the other order", partial(_stored, turned)


def _launches(launch):
  x, y, z = launch.grid
  for axis, size in enumerate((x, y, z)):
    smaller = const(size.constant - 1) if size.constant is not None else size - 1
    if smaller.constant != 0:
      yield f"grid {'xyz'[axis]} is one less", replace(launch, grid=_at(launch.grid, axis, smaller))
  if x != y:
    yield "grid x and y change places", replace(launch, grid=(y, x, z))
  for block in (launch.block - 32, launch.block + 32):
    if block > 0:
      yield f"{block} threads", replace(launch, block=block)
  yield "clusters of two", replace(launch, cluster=2)
  if launch.smem_bytes:
    yield "half of the shared memory", replace(launch, smem_bytes=launch.smem_bytes // 2)
  places = [i for i, a in enumerate(launch.args) if not isinstance(a, Int32)]
  for i, j in combinations(places, 2):
    args = list(launch.args)
    args[i], args[j] = args[j], args[i]
    yield f"arguments {i} and {j} change places", replace(launch, args=tuple(args))
  for i, arg in enumerate(launch.args):
    for name, new in _arguments(arg):
      yield f"argument {i} {name}", replace(launch, args=_at(launch.args, i, new))
  yield "the last argument is missing", replace(launch, args=launch.args[:-1])


def _arguments(arg):
  if isinstance(arg, Int32):
    yield "is one less", Int32(arg.value - 1)
    yield "is one more", Int32(arg.value + 1)
    yield "is twice as large", Int32(arg.value * 2)
  elif isinstance(arg, WorkspacePtr):
    yield "is 4 bytes further", replace(arg, offset=arg.offset + 4)
    yield "is 256 bytes further", replace(arg, offset=arg.offset + 256)
  elif isinstance(arg, InputPtr):
    yield "is the next input", replace(arg, index=arg.index + 1)
    yield "is an output", OutputPtr(0, arg.bytes)
  elif arg.index:
    yield "is the first output", replace(arg, index=0)


def _at(items, i, new):
  return (*items[:i], new, *items[i + 1 :])


def _with(planned, **fields):
  return replace(planned, plan=replace(planned.plan, **fields))


def _with_launch(i, launch, planned):
  (variant,) = planned.plan.variants
  return _with(planned, variants=(replace(variant, launches=_at(variant.launches, i, launch)),))


def _reversed(planned):
  (variant,) = planned.plan.variants
  return _with(planned, variants=(replace(variant, launches=variant.launches[::-1]),))


def _without(i, planned):
  (variant,) = planned.plan.variants
  left = (*variant.launches[:i], *variant.launches[i + 1 :])
  return _with(planned, variants=(replace(variant, launches=left),))


def _swapped(side, i, j, planned):
  names = list(getattr(planned, side))
  names[i], names[j] = names[j], names[i]
  return replace(planned, **{side: tuple(names)})


def _stored(permutations, planned):
  return replace(planned, permutations=permutations)
