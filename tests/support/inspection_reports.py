"""Reports of ``inspect`` and ``explain`` as one would see them, to be shown and changed."""

from mirage_onnx.report.inspection import (
  BarrierReport,
  BorderReport,
  CandidateReport,
  ChosenReport,
  DimensionReport,
  ExplainReport,
  InspectReport,
  KernelReport,
  NumericReport,
  OfferReport,
  ProofReport,
  RefusalReport,
  SearchedReport,
  TensorReport,
  TotalsReport,
)

TOTALS = TotalsReport(
  nodes=10, nodes_in_regions=4, nodes_offered=6, nodes_untimed=0, nodes_bounded=0, flops=2_000_000,
  flops_in_regions=1_500_000, flops_unknown={"MatMulNBits": 2, "CumSum": 1},
  weight_bytes=4_200_000, weight_bytes_in_regions=2_100_000,
  ort_us=30.0, ort_us_in_regions=20.0, floor_us=3.0, gain_us=17.0,
)  # fmt: skip


def region(key, *, chosen=2):
  return OfferReport(
    key=key, nodes=["node_pow", "node_mean", "node_linear"], ops=["Mul", "Mul", "MatMul"],
    chosen=chosen, offered=3,
    inputs=[
      TensorReport(name="x", dtype="f16", shape=[8, 64], weight=False),
      TensorReport(name="w", dtype="f16", shape=[64, 64], weight=True),
    ],
    outputs=[TensorReport(name="y", dtype="f16", shape=[8, 64], weight=False)],
    flops=1_234_567, mma_flops=1_000_000, weight_bytes=8192, activation_bytes=768,
    floor_us=1.5, ort_us=10.0, gain_us=8.5, total_gain_us=17.0 if chosen else 0.0,
    unknown_nodes=0,
  )  # fmt: skip


def inspected(*regions):
  barrier = BarrierReport(
    code="OP_UNKNOWN", count=3, ops={"Gather": 1, "Slice": 2},
    reason_text="Gather: has no [tabled] semantics", nodes=["a", "b", "c"],
  )  # fmt: skip
  return InspectReport(
    schema=1, input="in.onnx", target="h200", seconds=0.5, regions=list(regions),
    barriers=[barrier], totals=TOTALS,
    dimensions=[DimensionReport(name="batch", sizes=[*range(1, 9)], typical=4)],
  )  # fmt: skip


CHOSEN = ChosenReport(
  predicted_us=2.25,
  ugraph="ugraph 1\nkernel k0 grid=a0 cluster=- loop=-\n",
  dot="digraph ugraph {\n}\n",
  svg="<svg/>\n",
  cuda="PTX_KERNEL(32) k0()\n",
  kernels=[KernelReport(name="k0", grid=[4, 2, 1], threads=32, cluster=1, registers=40, smem_bytes=512)],
  proof=ProofReport(tier="free exponential", draws=3, bound=6e-25, instantiation=["a0=3", "a0=6"]),
  numeric=NumericReport(candidate=3.2e-4, original=3.9e-4, case="normal", rows=72),
)


def explained(**change):
  fields = {
    "schema": 1, "input": "in.onnx", "target": "h200", "seconds": 2.0, "region": region("k0"),
    "borders": [
      BorderReport(
        tensor="x", side="input", node=None, op=None, reason="GRAPH_BORDER",
        reason_text="x is an input of the model",
      ),
      BorderReport(
        tensor="y", side="output", node="n1", op="Slice", reason="OP_UNKNOWN",
        reason_text="Slice: no [tabled] semantics",
      ),
    ],
    "search": SearchedReport(
      seconds=0.2, states=26, built=6, verified=4, stop="EXHAUSTED", pruned={"a rule": 8}
    ),
    "candidates": [
      CandidateReport(
        predicted_us=2.0, kernels=1, params=["tile=1"], status="refused",
        reason="SPILLS", reason_text="it spills",
      ),
      CandidateReport(
        predicted_us=2.25, kernels=2, params=["tile=1", "tile=2"], status="chosen",
        reason=None, reason_text=None,
      ),
    ],
    "refused": [RefusalReport(reason="LAYOUT", reason_text="no layout", count=2)],
    "chosen": CHOSEN, "reason": None, "reason_text": None, "node": None, "remedy": None, "link": None,
    "dimensions": [],
    **change,
  }  # fmt: skip
  if fields["chosen"] is None and fields["reason"] is None:
    fields |= {"reason": "NO_CANDIDATE", "reason_text": "no verified program"}
  return ExplainReport(**fields)
