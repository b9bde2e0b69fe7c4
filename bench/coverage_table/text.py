"""The coverage table as text."""

from collections.abc import Mapping

from coverage_table.record import all_reasons, codes, spreads
from coverage_table.row import LIBRARY_ROWS

NOTES = f"""\
nodes: those that run at every inference (+ those that depend on constants only, which ONNX Runtime
computes at load; they are in no share). regions: distinct candidates / distinct ones that were used
x instances. Shares are of nodes that are gone from the graph because a custom node replaced their
region. FLOPs: 2 M N K, 2 per weight and output of a convolution, 1 per element of anything else;
bytes: every operand and result of every node once, weights included, as if nothing were fused; of
a table that Gather, GatherND, GatherElements, Slice or Split picks from as many elements as they
yield, and of what ScatterND and ScatterElements change in place the changed elements.
bytes apart: the share of bytes without MatMul, Gemm and Conv of M >= {LIBRARY_ROWS} that stay with
ONNX Runtime by choice. us: predicted from the tables of the target, whole model, without the nodes
that the table of ONNX Runtime's times does not know (unpriced); time %: of us before, what is
replaced. s and MB: of optimize with its workers, as the command runs it; MB without weights that
lie in mapped files. again s: the same once more, with what the first run kept. cut off: regions
whose search the budget ended. stock: the result in onnxruntime without the library against the
original, on the CPU, bit for bit; "with a function": of the original beside a function that nothing
calls (onnxruntime inlines the functions of operators in models with any before it folds constants);
"in fp32": as fp32 models (the CPU provider has no bf16 kernels, and keeps fp16 values in fp32 at
places of its own choice).
emulated: one node of every plan against its region, at full size, as far as a minute of CPU time
per kernel goes."""

_HEAD = (
  "model", "kind", "type", "nodes", "regions", "replaced", "nodes %", "FLOPs %", "bytes %",
  "bytes apart %", "time %", "us before", "us after", "unpriced", "MB", "s", "again s", "cut off",
  "stock", "emulated",
)  # fmt: skip
#: Operators named per reason.
_OPS = 4


def table(facts, records):
  """All of it: facts, models, spreads, reasons, what is listed apart, what went wrong."""
  return "\n".join(_lines(facts, records)) + "\n"


def _lines(facts, records):
  yield from (f"{key}: {_flat(value)}" for key, value in facts.items())
  yield ""
  yield NOTES
  yield ""
  yield from columns(_HEAD, [_model(r) for r in records])
  yield from summary(records)
  yield from _reasons(records)
  yield from _library(records)
  yield from _problems(records)


def summary(records):
  """Median and range of the shares by kind, then the checks."""
  yield ""
  yield "median (least - most) of the models' shares in replaced regions"
  rows = []
  for name, share in (
    ("bytes", lambda c: c.share.bytes),
    ("bytes apart", lambda c: c.share_apart.bytes),
    ("FLOPs", lambda c: c.share.flops),
    ("nodes", lambda c: c.share.nodes),
  ):
    for s in spreads(records, share):
      spread = f"{_percent(s.median)} ({_percent(s.low)} - {_percent(s.high)})"
      rows.append((s.kind, str(s.models), name, spread))
  yield from columns(("kind", "models", "share of", "%"), rows)
  yield ""
  optimized = [r for r in records if r.coverage is not None]
  yield f"optimized: {len(optimized)} of {len(records)} models"
  for what, checks in (
    ("stock onnxruntime", [r.stock for r in optimized if r.stock]),
    ("emulated", [r.emulated for r in optimized if r.emulated]),
  ):
    counts = {c.result: sum(d.result == c.result for d in checks) for c in checks}
    if counts:
      yield f"{what}: " + ", ".join(f"{n} {result}" for result, n in sorted(counts.items()))


def _model(r):
  c = r.coverage
  if c is None:
    return (r.name, r.kind, r.dtype, *["-"] * 11, str(r.memory_mb), f"{r.seconds:.0f}", "-", "-", "-", "-")
  shares = (c.share.nodes, c.share.flops, c.share.bytes, c.share_apart.bytes)
  return (
    r.name, r.kind, r.dtype,
    f"{c.nodes}+{c.folded}" if c.folded else str(c.nodes),
    str(c.regions),
    f"{c.replaced}x{c.instances}",
    *map(_percent, shares),
    _percent(c.replaced_us / c.before_us if c.before_us else 0.0),
    f"{c.before_us:.1f}", f"{c.after_us:.1f}", str(c.unpriced),
    str(r.memory_mb), f"{r.seconds:.1f}", "-" if r.repeat_s is None else f"{r.repeat_s:.1f}", str(r.cut_off),
    _check(r.stock), _check(r.emulated),
  )  # fmt: skip


def _reasons(records):
  whole = sum(r.coverage.bytes for r in records if r.coverage) or 1
  found = all_reasons(records)
  yield ""
  yield "why the rest stays, by code; % of the bytes of all models"
  rows = [(code, str(n), _percent(size / whole)) for code, n, size in codes(found)]
  yield from columns(("code", "nodes", "bytes %"), rows)
  yield ""
  yield "why the rest stays, by sentence; most bytes first"
  details = []
  for x in found:
    ops = [f"{n} {op}" for op, n in list(x.kept.ops.items())[:_OPS]]
    ops += ["..."] if len(x.kept.ops) > _OPS else []
    share = _percent(x.kept.bytes / whole)
    why = f"{x.kept.reason.code}: {x.kept.reason.sentence} [{', '.join(ops)}]"
    details.append((share, str(x.kept.nodes), str(x.models), why))
  yield from columns(("bytes %", "nodes", "models", "reason [operators]"), details, last_left=True)


def _library(records):
  rows = [
    (r.name, f"{x.nodes} {x.op_type}", "-".join(dict.fromkeys(map(str, x.rows))),
     _percent(x.bytes / r.coverage.bytes), x.code, "yes" if x.by_choice else "no")
    for r in records if r.coverage
    for x in r.coverage.library
  ]  # fmt: skip
  yield ""
  yield f"listed apart: MatMul, Gemm and Conv with a weight and M >= {LIBRARY_ROWS} that stay"
  head = ("model", "operators", "M", "bytes %", "code", "by choice")
  yield from columns(head, rows) if rows else ["none"]


def _problems(records):
  yield ""
  yield "what was refused, failed or could not be run"
  found = []
  for r in records:
    if r.error:
      found.append(f"{r.name}: {r.error}")
    for what, check in (("stock", r.stock), ("emulated", r.emulated)):
      if check and check.result not in ("identical", "passed"):
        found.append(f"{r.name}: {what}: {check.result}: {check.note}")
  yield from found or ["nothing"]


def columns(head, rows, *, last_left=False):
  """Aligned lines: the first column to the left, the others to the right."""
  widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
  for row in (head, *rows):
    cells = [
      cell.ljust(width) if i == 0 or (last_left and i == len(head) - 1) else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    yield "  ".join(cells).rstrip()


def _percent(share):
  return f"{100 * share:.1f}"


def _check(check):
  return "-" if check is None else check.result


def _flat(value):
  if isinstance(value, Mapping):
    return ", ".join(f"{k} {v}" for k, v in value.items())
  return str(value)
