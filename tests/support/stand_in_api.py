"""``mirage_onnx.api`` for tests of the command line: it notes the calls, and returns what it is told."""

from types import ModuleType, SimpleNamespace

from inspection_reports import explained, inspected, region

from mirage_onnx.events import StageEnded, Warned
from mirage_onnx.report.bench_report import BenchReport, BenchRow
from mirage_onnx.report.diff_report import DiffReport

REPORT = {
  "schema": 1,
  "input": "in.onnx",
  "output": "out.onnx",
  "target": "h200",
  "seconds": 1.0,
  "regions": [],
}
OUTPUT = {
  "name": "y", "dtype": "float16", "passed": True, "identical": False, "max_abs": 0.5,
  "needed_rtol": 0.25, "rtol": 0.3, "worst": "small", "reason": "", "least_atol": 0.5,
  "least_rtol": None,
}  # fmt: skip
VERIFIED = {
  "schema": 1, "passed": True, "outputs": [OUTPUT], "regions": [{**OUTPUT, "node": "n"}],
  "nodes": [{"name": "n", "path": "emulated", "launches": 1}], "inputs": ["small"],
  "source": "1 kernel", "unverified": "", "note": "", "failures": [],
  "first_difference": "y", "first_divergence": None,
  "needed_rtol": 0.25,
}  # fmt: skip


class Api(ModuleType):
  def __init__(self):
    super().__init__("mirage_onnx.api")
    self.calls = []
    self.error = None
    self.passed = True

  def optimize(self, model, output=None, **options):
    emit, stop = options.pop("emit"), options.pop("stop")
    assert not stop()
    self.calls.append((str(model), output and str(output), options))
    if self.error:
      raise self.error
    print("a library's own print")
    emit(Warned("odd"))
    emit(StageEnded("importer", 0.5, "3 nodes"))
    return SimpleNamespace(model=None, report=REPORT)

  def verify(self, a, b, **options):
    self.calls.append((str(a), str(b), options))
    if self.error:
      raise self.error
    found = {**VERIFIED, "passed": self.passed}
    return SimpleNamespace(passed=self.passed, to_dict=lambda: found)

  def bench(self, a, b, **options):
    self.calls.append((str(a), str(b), options))
    print("a library's own print")
    slower = {"low": 0.7, "high": 0.9, "speedup": 0.8}
    faster = {"low": 1.7, "high": 1.9, "speedup": 1.8}
    row = BenchRow(
      sizes="", how="run", a_us=10.0, b_us=5.0, openings=9, **(faster if self.passed else slower)
    )
    return BenchReport(schema=1, a=str(a), b=str(b), provider="cpu", rows=[row], nodes=[], note="")

  def diff(self, a, b):
    self.calls.append((str(a), str(b)))
    print("a library's own print")
    lists = ("nodes", "changed", "gone", "added", "weights_added", "weights_gone", "interface")
    return DiffReport(schema=1, a=str(a), b=str(b), unchanged=3, **{name: [] for name in lists})

  def report_page(self, model):
    self.calls.append((str(model),))
    return "<!doctype html>"

  def inspect(self, model, **options):
    self.calls.append((str(model), options))
    print("a library's own print")
    return inspected(region("k0"))

  def explain(self, model, region, **options):
    self.calls.append((str(model), region, options))
    if self.error:
      raise self.error
    return explained() if self.passed else explained(chosen=None, candidates=[])
