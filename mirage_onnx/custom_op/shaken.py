"""Which integers and booleans of an output hang on how floats are rounded.

A maximum's place, or the side of a threshold, is another one in two right computations where two numbers
are nearly equal. Which these are the original says itself, by stochastic arithmetic (J. Vignes, 1993): what
its nodes make of floats, and what they sum up, gets relative errors of some units roundoff, drawn anew in
every run. An element may be what one of these runs makes of it, and nothing else.

A float behind such integers (activations of 8 bits) may be as far off as these runs are, the worst row with
the worst.

Numbers that are exact stay so: integers in floats, exponents, thresholds, the constants of masks. Only what
comes from the model's float inputs or from weights of more than one element is measured, and has errors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper

from mirage_onnx.custom_op.difference import NEARBY, ROUNDINGS, RTOL, OutputDifference, row_norms
from mirage_onnx.custom_op.model_run import open_plain, run_session
from mirage_onnx.custom_op.widen import is_too_wide, value_kinds, widened, widened_values
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort

RUNS = 24
#: Standard deviation of an error in units roundoff: an element that another computation, off by two of them,
#: turns is turned in 24 runs but with a chance of 10^-4.
UNITS = 4
#: The relative error by type; a unit as ``difference`` adds them up, in fp32 of the order of sums.
ERROR: dict[int, float] = {
  kind: UNITS * RTOL[name] / ROUNDINGS
  for kind, name in (
    (TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT16, "float16"), (TensorProto.FLOAT, "float32"),
  )
}  # fmt: skip
#: What makes floats of floats, and rounds none of them.
EXACT = frozenset((
  "Abs", "Ceil", "Clip", "Concat", "DepthToSpace", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
  "GatherND", "Identity", "Max", "MaxPool", "Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape",
  "Round", "Sign", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze",
  "Where",
))  # fmt: skip
#: Sums: where terms cancel the error is of the size of the terms, so these are off before they are added.
SUMS = frozenset((
  "AveragePool", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "Gemm", "GlobalAveragePool", "MatMul",
  "ReduceMean", "ReduceSum",
))  # fmt: skip
#: What sums inside, and takes the mean off what it is of.
NORMS = frozenset((
  "GroupNorm", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
  "MeanVarianceNormalization", "SkipGroupNorm", "SkipLayerNormalization",
))  # fmt: skip
#: From this opset on onnxruntime's CPU provider (1.31, 1.32) draws numbers in Dropout, and nowhere else.
SIGNS_SINCE = 22
#: What each of four signs adds to an error there: 16 errors, of the standard deviation 1.
SIGNS = (0.8, 0.46, 0.3, 0.24)
#: An input that is true, of a model with such errors: of a constant, onnxruntime draws once for all runs.
DRAWN = "is drawn"
#: At the end of a name that says whether a run has made NaN of what integers are made of.
_NAN = "/is NaN"


@dataclass(frozen=True, slots=True)
class Errors:
  """Standard deviations of errors by type, and the operators whose inputs have errors of their own."""

  of: Mapping[int, float]
  before: frozenset[str]


#: As far as another right computation may be.
WIDE = Errors(ERROR, SUMS)
#: As far as some roundings in another order are, of fp32.
NARROW = Errors({**ERROR, TensorProto.FLOAT: NEARBY}, SUMS | NORMS)


class Shaken:
  """The original, run with errors; opened when it is first asked. The same in every process."""

  def __init__(self, model: onnx.ModelProto, folder: Path | None, errors: Errors = WIDE) -> None:
    self._model, self._folder, self._errors = model, folder, errors

  def runs(self, feeds: Mapping[str, np.ndarray]) -> Iterator[Mapping[str, np.ndarray]]:
    """All outputs, floats in fp32, of up to ``RUNS`` runs; {} for one that onnxruntime fails, the last.

    A run is left out where numbers became NaN: what integers are made of it says nothing.
    """
    session = self._session
    values = widened_values(feeds)
    if session is not None and any(i.name == DRAWN for i in session.get_inputs()):
      values[DRAWN] = np.array(True)
    for _ in range(RUNS if session is not None else 0):
      assert session is not None
      try:
        made = run_session(session, values)
      except MirageError as error:
        if error.code != "SESSION_FAILED":
          raise
        yield {}
        return
      if not any(x.any() for n, x in made.items() if n.endswith(_NAN)):
        yield made

  def hangs(self, name: str) -> bool:
    """Whether a float is made of integers that are made of floats, as behind activations of 8 bits."""
    return name in self._hanging

  @cached_property
  def _hanging(self) -> frozenset[str]:
    _, kinds, measured = _measured(self._model)
    found = set[str]()
    for node in self._model.graph.node:
      off = not measured.isdisjoint(node.input)
      made = [n for n in node.output if n in kinds] if off else []
      measured |= {*made}
      if (off and not made) or not found.isdisjoint(node.input):
        found |= {o for o in node.output if o}
    return frozenset(found)

  @cached_property
  def _session(self) -> "ort.InferenceSession | None":
    if is_too_wide(self._model):
      return None
    made = shaken(self._model, self._folder, self._errors)
    return open_plain(made, str(self._folder) if self._folder else None)


def shaken(model: onnx.ModelProto, folder: Path | None = None, errors: Errors = WIDE) -> onnx.ModelProto:
  """``widened``, with a relative error of its own type on every float that is rounded, and on terms of sums.

  What lies in functions and subgraphs is as it is, and so is a value whose type is not known.
  """
  given, kinds, measured = _measured(model)
  found = widened(model, folder)
  nodes = list(found.graph.node)
  del found.graph.node[:]
  moved, watched = dict[str, str](), dict[str, None]()
  opset = max((o.version for o in found.opset_import if o.domain in ("", "ai.onnx")), default=0)
  factors = _signs if opset >= SIGNS_SINCE else _normal
  if factors is _signs:
    found.graph.input.append(helper.make_tensor_value_info(DRAWN, TensorProto.BOOL, []))

  def move(name: str, to: str, kind: int) -> None:
    factor, seed = f"{name}/factor", len(found.graph.node)
    found.graph.node.extend(factors(name, factor, errors.of[kind], seed))
    found.graph.node.append(helper.make_node("Mul", [name, factor], [to]))

  for node in nodes:
    off = [n for n in node.input if n in measured]
    made = [n for n in node.output if n in kinds] if off else []
    measured |= {*made}
    if off and not made:
      watched |= dict.fromkeys(off)
    if node.op_type in errors.before:
      for name in dict.fromkeys(n for n in off if n in given and n not in moved):
        moved[name] = f"{name}/moved"
        move(name, moved[name], kinds[name])
      node.input[:] = [moved.get(n, n) for n in node.input]
    rounds = made if node.op_type not in EXACT else []
    node.output[:] = [f"{n}/right" if n in rounds else n for n in node.output]
    found.graph.node.append(node)
    for name in rounds:
      move(f"{name}/right", name, kinds[name])
  for name in watched:
    found.graph.node.append(helper.make_node("IsNaN", [name], [f"{name}{_NAN}"]))
    found.graph.output.append(helper.make_tensor_value_info(f"{name}{_NAN}", TensorProto.BOOL, None))
  return found


def _measured(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int], set[str]]:
  """Types of inputs and weights; of all floats that have errors; which of the first are among these."""
  graph = model.graph
  stored = {t.name: t for t in graph.initializer}
  given = {i.name: i.type.tensor_type.elem_type for i in graph.input if i.name not in stored}
  given |= {n: t.data_type for n, t in stored.items() if np.prod(t.dims) > 1}
  known = value_kinds(model)
  for node in graph.node:  # weights of few bits
    if node.op_type == "DequantizeLinear" and node.input[0] in given and node.input[0] in stored:
      given |= {o: known[o] for o in node.output if o in known}
  kinds = {n: k for n, k in {**known, **given}.items() if k in ERROR}
  return given, kinds, given.keys() & kinds.keys()


def _normal(name: str, factor: str, scale: float, seed: int) -> list[onnx.NodeProto]:
  """One and an error for every element."""
  return [
    helper.make_node(
      "RandomNormalLike", [name], [factor], dtype=TensorProto.FLOAT, mean=1.0, scale=scale, seed=float(seed)
    )
  ]


def _signs(name: str, factor: str, scale: float, seed: int) -> list[onnx.NodeProto]:
  """The same of sums of signs, which are what Dropout says that it keeps: the rest onnxruntime leaves out."""

  def constant(to: str, value: float) -> onnx.NodeProto:
    return helper.make_node(
      "Constant", [], [to], value=helper.make_tensor(to, TensorProto.FLOAT, [], [value])
    )

  shape, ones, half = (f"{factor}/{x}" for x in ("shape", "ones", "half"))
  one = helper.make_tensor(ones, TensorProto.FLOAT, [1], [1.0])
  made = [
    helper.make_node("Shape", [name], [shape]),
    helper.make_node("ConstantOfShape", [shape], [ones], value=one),
    constant(half, 0.5),
  ]
  terms = [f"{factor}/least"]
  made.append(constant(terms[0], 1 - scale * sum(SIGNS)))
  for i, size in enumerate(SIGNS):
    left, kept, drawn, share, term = (f"{factor}/{x}{i}" for x in ("left", "kept", "drawn", "share", "term"))
    made += [
      helper.make_node("Dropout", [ones, half, DRAWN], [left, kept], seed=seed * len(SIGNS) + i),
      helper.make_node("Cast", [kept], [drawn], to=TensorProto.FLOAT),
      constant(share, 2 * scale * size),
      helper.make_node("Mul", [drawn, share], [term]),
    ]
    terms.append(term)
  return [*made, helper.make_node("Sum", terms, [factor])]


def undecided(
  found: OutputDifference,
  want: np.ndarray,
  got: np.ndarray,
  name: str,
  runs: Iterator[Mapping[str, np.ndarray]],
  share: float = 0.0,
) -> OutputDifference:
  """``found``, of integers or booleans that differ, passed where runs of the original find what was got.

  ``share``: so many of all may be what none of them finds.
  """
  if want.shape != got.shape or want.dtype != got.dtype:
    return found
  wrong = differs = np.asarray(want != got)
  ran = False
  for values in runs:
    if (now := values.get(name)) is None or now.shape != want.shape:
      return found
    ran, wrong = True, wrong & (now != got)
    if not wrong.any():
      break
  if not ran:
    return found
  if wrong.sum() > share * wrong.size:
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return replace(found, reason=f"{got[place]} instead of {want[place]} at {list(place)}")
  few = f"{int(differs.sum())} of {differs.size}"
  return replace(found, passed=True, reason=f"{few} hang on how the original is rounded")


def turned(
  found: OutputDifference,
  want: np.ndarray,
  got: np.ndarray,
  name: str,
  runs: Iterator[Mapping[str, np.ndarray]],
  floor: float,
) -> OutputDifference:
  """``found``, of floats that hang on integers, passed where the original, run with errors, is as far off."""
  a, b = (x.astype(np.float64) for x in (want, got))
  if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
    return found
  size = np.maximum(row_norms(a), floor)
  if not np.all(size > 0):
    return found

  def off(x: np.ndarray) -> np.ndarray:
    return np.sort(np.ravel(row_norms(x - a) / size))

  most = np.zeros(size.size)
  for values in runs:
    if (now := values.get(name)) is None or now.shape != want.shape or not np.isfinite(now).all():
      return found
    most = np.maximum(most, off(now.astype(np.float64)))
  if np.any(off(b) > found.rtol + most):
    return found
  return replace(found, passed=True, reason="hangs on how the original is rounded, which is as far off")
