"""What a user can do about a refusal, by its code: for ``explain``, reports and docs/errors.md."""

from mirage_onnx.errors import REJECTIONS

#: Where refusals are explained.
PAGE = "docs/errors.md"

_MEASURE = "on the target's GPU, --target local times it instead"
_REPORT = "report it, with the model that `mirage-onnx reduce` makes of yours if that is large"

#: Code -> one sentence; every refusal has one.
REMEDIES: dict[str, str] = {
  "OP_UNKNOWN": "leave it to ONNX Runtime, or add the operator (docs/adding.md)",
  "OP_FORM": "export with another form of the operator (a newer opset, constant axes), or leave it",
  "DTYPE": "use float16, bfloat16 or float32: quantized and 64-bit arithmetic stays with ONNX Runtime",
  "ZERO_SIZE": "export with example inputs that have elements",
  "DYNAMIC_DIM": "if the size is always the same, export with it fixed",
  "RANK_UNKNOWN": "run onnx.shape_inference, or onnxruntime.tools.symbolic_shape_infer, on the model first",
  "SUBGRAPH": "nothing, its regions are offered; without control flow they could reach across its borders",
  "CUSTOM_DOMAIN": "give the model as it was before the optimizer of a runtime fused operators",
  "AXES_CONFLICT": "nothing: no single kernel computes these nodes by named axes",
  "TIED": "nothing: both sides of the comparison read one result",
  "TOO_SMALL": "nothing: ONNX Runtime's kernel of one such operator is as good as ours",
  "NAME_POOL_FULL": "nothing: the regions that save most have the names",
  "REGION_FAILED": "report it with the log file that the run names",
  "CHECK_FAILED": _REPORT,
  "GRAPH_BORDER": "nothing: the model ends there",
  "LARGER_OFFERED": "nothing: look at the larger region with explain",
  "CONE_LIMIT": "nothing: the limits are those of one kernel",
  "CUT_PRUNED": "nothing: the neighbour is in another region, or better alone",
  "NO_CANDIDATE": "give the search more time with --budget; explain shows what it refused",
  "LAYOUT": f"pad the innermost dimension to a multiple of 8 elements; else {_REPORT}",
  "SMEM": "nothing: ONNX Runtime's kernels pass the values through memory",
  "NOT_EQUIVALENT": "nothing: other programs of the region were asked too",
  "INCONCLUSIVE": "nothing: other programs of the region were asked too",
  "RANGE": "export in bfloat16 or float32, in which the values do not overflow",
  "SHIFT_NOT_MAX": "nothing: other programs of the region were asked too",
  "NUMERICS": "export in float32 where the model needs these digits, or leave it",
  "SAVED_INVALID": "save the graph again, with the reference that it was made for",
  "SAVED_UNSUPPORTED": "nothing: such a graph cannot be judged here",
  "EMIT_UNSUPPORTED": f"nothing: another program may have code; else {_REPORT}",
  "EMIT_RULE": _REPORT,
  "COMPILE_FAILED": f"try another version of nvidia-cuda-nvrtc; else {_REPORT}",
  "SPILLS": "nothing: other numbers of the kernel were tried",
  "MISCOMPILED": "a newer nvidia-cuda-nvrtc (13.1 and later); other numbers of the kernel were tried",
  "NOT_PREDICTED": _MEASURE,
  "MODEL_UNTIMED": "see that onnxruntime runs the model on this GPU; --no-model-check writes it untimed",
  "MODEL_UNSURE": "a larger --budget: whole runs of both models are timed at its end",
  "MODEL_SLOWER": "nothing: it saves nothing in the whole model; --no-model-check writes it all the same",
  "NOT_FASTER": f"{_MEASURE}; a smaller --margin takes smaller gains; --shapes says which sizes count",
  "KERNEL_WRONG": _REPORT,
  "NOT_TIMED": "a larger --budget is more patient: then smaller gains are timed too",
  "NOT_LOCKED": "run without --locked: then regions are searched again",
  "TRITON_UNSUPPORTED": "try the other µGraphs of return_all=True; generate_python_program writes any",
  "MEASURE_FAILED": "see that nothing else uses the GPU's memory, and run again",
  "BUDGET": "the same command with a larger --budget goes on where this one ended",
  "INTERRUPTED": "the same command goes on where this one ended",
  "NOT_CHOSEN": "nothing: the regions with its nodes that were replaced save more together",
}


def remedy(code: str) -> str:
  """What to do about a refusal of this code."""
  return REMEDIES.get(code, "nothing is known to help")


def link(code: str) -> str:
  """Where a code is explained."""
  return f"{PAGE}#{code.lower()}" if code in REJECTIONS else PAGE
