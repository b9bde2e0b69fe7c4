"""``make demo``: optimize ``models/`` for an H200 and compare the results with the originals.

Exits 1 unless, in each model, the regions that ``MODELS`` expects were replaced and the optimized
model gives the original's outputs in a stock onnxruntime session, without and with the
custom-op library.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

import mirage_onnx
from mirage_onnx.report.log import EventLog
from mirage_onnx.report.schema import check_report
from mirage_onnx.report.summary import model_us, summary
from mirage_onnx.report.table import region_table

ROOT = Path(__file__).resolve().parents[1]
TARGET = "h200"
SEED = 0
#: Largest ||got - want|| / ||want|| of an output. The outputs are fp16.
MAX_RELATIVE_L2 = 5e-3


@dataclass(frozen=True)
class Expectation:
  """``instances`` times, all of ``ops`` (type -> number) lie inside one replaced region.

  A region that holds ``ops`` several times over counts as often.
  """

  what: str
  ops: Mapping[str, int]
  instances: int


@dataclass(frozen=True)
class Model:
  """A model of the demo; ``bounds``: integer input -> exclusive upper bound of its values."""

  expected: tuple[Expectation, ...]
  bounds: Mapping[str, int] = field(default_factory=dict)


_NORM = {"Pow": 1, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Reciprocal": 1, "Mul": 2}
_TOKENS = {"input_ids": 128, "position_ids": 16, "attention_mask": 2}

MODELS = {
  "llama_decode": Model(
    (
      # 2 layers of 2 norms, and the last one before lm_head
      Expectation("norm + linear(s)", {**_NORM, "MatMul": 1}, 5),
      Expectation("gated MLP", {"MatMul": 1, "Sigmoid": 1, "Mul": 2}, 2),
      Expectation("linear + residual", {"MatMul": 1, "Add": 1}, 4),
    ),
    _TOKENS,
  ),
  "lora": Model(
    (
      # q, k, v, o, gate, up, down; where rotary follows, the sum may be in its kernel
      Expectation("LoRA branch", {"MatMul": 3, "Mul": 1, "Add": 1}, 5),
      Expectation("norm + linear(s)", {**_NORM, "MatMul": 1}, 2),
    ),
    _TOKENS,
  ),
  "bert": Model(
    (
      Expectation("linear + bias + activation", {"MatMul": 1, "Add": 1, "Gelu": 1}, 2),
      Expectation("linear + bias + residual", {"MatMul": 1, "Add": 2}, 4),
      Expectation("residual + norm", {"Add": 1, "LayerNormalization": 1}, 4),
    ),
    _TOKENS,
  ),
}


def instances_of(ops, report, types):
  """How often ``ops`` lie inside replaced regions; ``types``: node name -> ONNX op type."""
  found = 0
  for region in report.regions:
    if region.status == "replaced":
      have = Counter(types[name] for name in region.ops)
      found += region.count * min(have[op] // n for op, n in ops.items())
  return found


def unmet(model, report, types):
  """A sentence for each expectation that the report does not meet."""
  sentences = []
  for e in model.expected:
    got = instances_of(e.ops, report, types)
    if got < e.instances:
      sentences.append(f"{e.what}: {got} of {e.instances} expected instances replaced")
  return sentences


def feeds(session, bounds):
  """Seeded inputs: normal where floating, below their bound where integer."""
  rng = np.random.default_rng(SEED)
  found = {}
  for value in session.get_inputs():
    if "float" in value.type:
      dtype = np.float16 if value.type == "tensor(float16)" else np.float32
      found[value.name] = rng.standard_normal(value.shape).astype(dtype)
    else:
      found[value.name] = rng.integers(bounds.get(value.name, 2), size=value.shape)
  return found


def worst_error(got, want):
  """The largest relative L2 error of an output; infinite where one is not finite."""
  worst = 0.0
  for g, w in zip(got, want, strict=True):
    difference = np.linalg.norm(g.astype(float) - w.astype(float))
    error = float(difference / max(np.linalg.norm(w.astype(float)), 1e-30))
    worst = max(worst, error if np.isfinite(error) else float("inf"))
  return worst


def compare(original, optimized, bounds):
  """Errors of the optimized model without and with the library, and which path ran."""
  providers = ["CPUExecutionProvider"]
  reference = ort.InferenceSession(original, providers=providers)
  inputs = feeds(reference, bounds)
  want = reference.run(None, inputs)
  stock = ort.InferenceSession(optimized, providers=providers)
  ours = mirage_onnx.InferenceSession(str(optimized), providers=providers)
  with_library = worst_error(ours.run(None, inputs), want)
  launched = sum(mirage_onnx.launches(ours).values())
  return {
    "without library": worst_error(stock.run(None, inputs), want),
    "with library": with_library,
    "path": f"{launched} kernel launches" if launched else "bodies",
  }


def run_model(name, model, console):
  """Optimize and compare one model: (a row of the result table, what went wrong)."""
  original, optimized = ROOT / "models" / f"{name}.onnx", ROOT / "out" / f"{name}.onnx"
  optimized.parent.mkdir(exist_ok=True)
  with EventLog(console) as log:
    result = mirage_onnx.optimize(original, optimized, target=TARGET, emit=log)
  report = check_report(result.report)
  console.print(region_table(report))
  console.print(summary(report), "\n", highlight=False)
  types = {node.name: node.op_type for node in onnx.load(original).graph.node}
  wrong = [f"{name}: {sentence}" for sentence in unmet(model, report, types)]
  errors = compare(original, optimized, model.bounds)
  wrong += [
    f"{name}: error {errors[way]:.1e} {way}, above {MAX_RELATIVE_L2:.0e}"
    for way in ("without library", "with library")
    if not float(errors[way]) <= MAX_RELATIVE_L2
  ]
  replaced = [r for r in report.regions if r.status == "replaced"]
  kept = {node.name for node in onnx.load(optimized).graph.node}
  totals = model_us(report)
  row = [
    name,
    f"{len(replaced)} of {report.found.regions if report.found else 0}",
    f"{len(types.keys() - kept)} of {len(types)}",
    f"{totals[0]:.1f} → {totals[1]:.1f}" if totals else "-",
    f"{errors['without library']:.1e}",
    f"{errors['with library']:.1e}",
    str(errors["path"]),
    "FAILED" if wrong else "ok",
  ]
  return row, wrong


def main():
  """Run every model; 0 if all is as expected."""
  ort.set_default_logger_severity(3)  # what onnxruntime cannot fold is no news here
  console = Console(highlight=False)
  if not console.is_terminal:
    console = Console(highlight=False, width=160)
  table = Table(title=f"models optimized for {TARGET}, run on this machine's CPU")
  head = ("model", "distinct regions replaced", "nodes", "predicted µs of the model, ORT → ours")
  tail = ("error without library", "error with library", "custom nodes ran", "result")
  for column in (*head, *tail):
    table.add_column(column)
  wrong = []
  for name, model in MODELS.items():
    row, found = run_model(name, model, console)
    table.add_row(*row)
    wrong += found
  console.print(table)
  console.print(f"the optimized models are in {ROOT / 'out'}")
  for sentence in wrong:
    console.print(f"[red]{sentence}[/]")
  return 1 if wrong else 0


if __name__ == "__main__":
  try:
    sys.exit(main())
  except mirage_onnx.MirageError as error:
    sys.exit(f"error: {error.line()}")
