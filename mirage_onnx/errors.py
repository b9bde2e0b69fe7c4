"""Errors and refusals: every way this program says no has a stable code and a sentence.

``MirageError`` ends a command; ``Rejection`` is a value that a stage returns instead of a result
(a node that cannot be imported, a candidate that cannot be compiled, a region that is not faster).
The catalogue below is the single list of codes: ``docs/errors.md`` is generated from it and a test
provokes each one.
"""

import re
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
  """Exit codes of the command line."""

  DONE = 0
  CHECK_FAILED = 1
  INPUT = 2
  INTERNAL = 3
  UNCHANGED = 4
  INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Entry:
  """What a code means, what to do, and the exit code of a command that it ends."""

  meaning: str
  advice: str
  exit: Exit = Exit.INPUT


#: Codes that end a command.
ERRORS: dict[str, Entry] = {
  "FILE_MISSING": Entry("the input file does not exist", "check the path"),
  "FILE_UNREADABLE": Entry("the input file cannot be read", "give a file that you may read"),
  "NOT_ONNX": Entry("the file is not an ONNX model, or is truncated", "export or copy the model again"),
  "FOLDER_INVALID": Entry(
    "the folder is not one that onnxruntime-genai could load, or its models have a custom-op library",
    "give the folder that holds genai_config.json, as the builder wrote it; or one .onnx file",
  ),
  "MODEL_INVALID": Entry(
    "the graph is cyclic, ill-typed or uses names it does not define",
    "run onnx.checker on the model and fix the exporter",
  ),
  "MODEL_LIMIT": Entry(
    "a small part of the model stands for more work or memory than any real model takes",
    "report it with the model if that is a real one",
  ),
  "OPSET_UNSUPPORTED": Entry(
    "the model's opset is newer or older than this version understands",
    "export with opset 7 to 26",
  ),
  "EXTERNAL_DATA_MISSING": Entry(
    "a weight file that the model refers to is not there",
    "copy the external data file beside the model",
  ),
  "OUTPUT_IS_INPUT": Entry("the output path is the input path", "choose another -o"),
  "OUTPUT_UNWRITABLE": Entry("the output cannot be written", "choose a folder you can write to"),
  "TARGET_UNKNOWN": Entry(
    "there is no device profile of this name",
    "--target takes a GPU of docs/compatibility.md, an architecture (sm_89), or local",
  ),
  "NO_GPU": Entry(
    "there is no GPU here that kernels are made for",
    "use --target NAME of the GPU that is meant: choices are predicted, kernels compiled without it",
  ),
  "DRIVER_TOO_OLD": Entry(
    "the driver loads nothing that the installed compiler makes",
    "update the NVIDIA driver, or pip install nvidia-cuda-nvrtc-cu12 for a driver of CUDA 12",
  ),
  "PROFILE_INVALID": Entry(
    "a profile file is damaged, or of another GPU",
    "mirage-onnx calibrate --profile FILE writes one on the GPU that is meant",
  ),
  "GPU_NEEDED": Entry(
    "tune measures kernels, and there is no GPU here that runs those of the model",
    "run it on the machine that will run the model; its kernels stay as they are",
  ),
  "TUNE_FAILED": Entry(
    "the model without what was measured to cost time did not pass its check; the file is as it was",
    "optimize the original again with --target local; report it with the model",
  ),
  "REGION_UNKNOWN": Entry(
    "the model has no region of this key, or none that holds this node",
    "see the keys that mirage-onnx inspect shows",
  ),
  "CONFIG_INVALID": Entry(
    "mirage.toml, or [tool.mirage-onnx] of pyproject.toml, is not what it should be",
    "correct it: a table a verb, a key an option by its long name",
  ),
  "REPORT_MISSING": Entry(
    "the model holds no record of how it was made, or not one that can be read",
    "give a model that this version of mirage-onnx optimize wrote and changed; or optimize --report FILE",
  ),
  "NOT_FAILING": Entry(
    "the command of reduce does not fail on the whole model, so there is nothing to find",
    "give the command that fails; with --match TEXT, a failure is a run that prints TEXT",
  ),
  "OPTION_INVALID": Entry("an option has a value it cannot take", "see --help"),
  "SHAPES_DIFFER": Entry("the two models have different inputs or outputs", "compare models of one origin"),
  "GRAPH_OPERAND": Entry(
    "an operation of a kernel graph got operands that do not fit",
    "give dimensions, types and attributes as the operation's docstring says",
  ),
  "NOT_SAVED_GRAPHS": Entry(
    "the file is not a JSON list of saved kernel graphs", "check the path and the format"
  ),
  "INPUTS_INVALID": Entry(
    "the file of inputs does not fit the model",
    "save one array per input: numpy.savez('inputs.npz', name=array)",
  ),
  "JOURNAL": Entry(
    "the journal of a search is damaged, in use, no journal, or cannot be opened",
    "wait for the other run, delete the file, or give another --journal",
  ),
  "LOCK_MISSING": Entry(
    "--locked was asked for, and there is no lock", "run once without --locked, which writes one"
  ),
  "LOCK_INVALID": Entry(
    "the lock is damaged, or has a program that is refused when it is proven again",
    "run once without --locked, which writes a new one",
  ),
  "LOCK_DIFFERS": Entry(
    "the output would be another than that of the lock",
    "undo what differs, or run once without --locked",
    Exit.CHECK_FAILED,
  ),
  "CHECKPOINT": Entry(
    "a checkpoint is damaged, of another version, or of a region that computes something else",
    "delete the file or give another path",
  ),
  "BUNDLE_INVALID": Entry(
    "the kernel bundle is damaged, of another version, or not the one of its nodes",
    "optimize the model again",
  ),
  "PLAN_INVALID": Entry("a launch plan is malformed", "optimize the model again"),
  "OPS_LIBRARY_MISSING": Entry("the custom-op library is not built", "run `make build` or `pip install .`"),
  "ORT_MISSING": Entry("onnxruntime is not installed", "pip install 'mirage-onnx[cpu]'"),
  "ORT_CONFLICT": Entry(
    "onnxruntime and onnxruntime-gpu are both installed and overwrite each other",
    "pip uninstall -y onnxruntime onnxruntime-gpu, then install one extra: [cpu] or [cu13]",
  ),
  "LAUNCHES_UNKNOWN": Entry(
    "the session was not made by mirage_onnx.InferenceSession",
    "make it with mirage_onnx.InferenceSession to count launches",
  ),
  "SESSION_FAILED": Entry(
    "onnxruntime could not make or run a session of the model", "see the message it gave"
  ),
  "COMPILER_MISSING": Entry("NVRTC could not be loaded", "pip install 'nvidia-cuda-nvrtc>=13,<14'"),
  "HOST_COMPILER_MISSING": Entry("the C++ compiler for emulation could not be run", "install g++ or set CXX"),
  "SOURCE_MISMATCH": Entry(
    "the CUDA text generated again from the bundle is not the one that its kernel was made of",
    "the model was changed or another version made it: optimize the original again",
    Exit.CHECK_FAILED,
  ),
  "NOT_EMULATED": Entry(
    "a custom node cannot run in the emulator",
    "optimize the original again with this version, or use --no-emulate",
  ),
  "EMULATION_FAILED": Entry(
    "the emulator stopped a kernel that does what no device defines, or cannot compile it",
    "optimize the original again; if it stays, report it with the message",
    Exit.CHECK_FAILED,
  ),
  "INTERNAL": Entry("a bug in mirage-onnx", "report it with the log file", Exit.INTERNAL),
}

#: Codes of refusals: why a node, a region or a candidate was left as it is.
REJECTIONS: dict[str, str] = {
  # importer: why a node is a barrier
  "OP_UNKNOWN": "what the operator computes is not known here",
  "OP_FORM": "an attribute or input form of the operator is not supported",
  "DTYPE": "the element type is not supported",
  "ZERO_SIZE": "a tensor of the node holds no elements",
  "DYNAMIC_DIM": "what only a run counts is split, or may not be equal",
  "RANK_UNKNOWN": "a shape is not known",
  "SUBGRAPH": "the node runs subgraphs (If, Loop, Scan): regions are found in them, and end at their borders",
  "CUSTOM_DOMAIN": "the node belongs to a domain whose operators are not known here",
  # match: why a set of nodes is no region
  "AXES_CONFLICT": "one axis would have to be two axes at once",
  "TIED": "a comparison outside finds equal numbers, and the region would compute one side again",
  "TOO_SMALL": "nothing to fuse: one operator that contracts no weight, or a pure copy",
  "NAME_POOL_FULL": "the model already has 128 distinct custom kernels",
  # any stage
  "REGION_FAILED": "an error of mirage-onnx at this region alone, with its traceback in the log file",
  # rewrite
  "CHECK_FAILED": "with this region replaced, the written model did not pass its check in onnxruntime",
  # inspection: why a node beside a region is not in it
  "GRAPH_BORDER": "the model ends here: one of its inputs or outputs",
  "LARGER_OFFERED": "a region with this node is offered too, and regions are chosen together",
  "CONE_LIMIT": "with this node, a region would hold more than one kernel can",
  "CUT_PRUNED": "regions with less traffic per node were kept instead",
  # superopt: why no candidate came out
  "NO_CANDIDATE": "the search found no program within its bound",
  "LAYOUT": "no thread layout holds these values",
  "SMEM": "the tiles do not fit into shared memory",
  # verify
  "NOT_EQUIVALENT": "a random test found a different output",
  "INCONCLUSIVE": "too few valid draws to decide",
  "RANGE": "a value could overflow its element type where the original cannot",
  "SHIFT_NOT_MAX": "an exponential is not shifted by the maximum of its row",
  "NUMERICS": "the candidate rounds worse than the original",
  "SAVED_INVALID": "a saved graph contradicts itself or the inputs and outputs of its reference",
  "SAVED_UNSUPPORTED": "a saved graph does what named axes or the µGraph's operations cannot say",
  # codegen
  "EMIT_UNSUPPORTED": "the code generator has no rule for this operation at this place",
  "EMIT_RULE": "the generated text breaks a rule that every kernel keeps (docs/emulator.md)",
  "COMPILE_FAILED": "NVRTC refused the generated kernel",
  "SPILLS": "the compiled kernel spills registers",
  "MISCOMPILED": "NVRTC's machine code does not keep what its PTX gives the tensor cores",
  "TRITON_UNSUPPORTED": "Triton cannot say what the µGraph does, or not within its limits",
  # tune
  "NOT_PREDICTED": "its sizes or types were never measured on the target, so only measuring can choose it",
  "MODEL_SLOWER": "with it the whole model was not measured faster than it was",
  "MODEL_UNTIMED": "the whole model could not be run beside the original to be timed",
  "MODEL_UNSURE": "the time ended before whole runs said with confidence that the model is faster with it",
  "NOT_FASTER": "no candidate is faster than ONNX Runtime by the required margin",
  "KERNEL_WRONG": "the compiled kernel differs from the float64 reference",
  "MEASURE_FAILED": "the region's kernels, or ONNX Runtime's, could not be run to be timed",
  "BUDGET": "the time budget ended before this region was searched, compiled or timed",
  "NOT_TIMED": "timing it was expected to bring less than the seconds that it takes are worth",
  "NOT_LOCKED": "the run wrote what its lock has, and this region is not in it",
  "INTERRUPTED": "the run was stopped before this region had a program that was verified and timed",
}


#: Of an error's text: a name in a file may be as long as the file.
MOST_CHARACTERS = 2000
#: What ends a line somewhere, and other control characters.
_LINE_ENDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class MirageError(Exception):
  """An error a user can act on; ``code`` is a key of ``ERRORS``.

  ``detail``: one line of a bounded length, whatever names of a file are quoted in it. As text it is ``line``.
  """

  def __init__(self, code: str, detail: str) -> None:
    detail = " ".join(_LINE_ENDS.split(detail))
    if len(detail) > MOST_CHARACTERS:
      detail = f"{detail[:MOST_CHARACTERS]} ..."
    super().__init__(code, detail)
    self.code = code
    self.detail = detail

  @property
  def exit(self) -> Exit:
    entry = ERRORS.get(self.code)
    return entry.exit if entry else Exit.INTERNAL

  def __str__(self) -> str:
    return self.line()

  def line(self) -> str:
    """The one line a user sees: ``CODE: what was found; what to do``."""
    entry = ERRORS.get(self.code)
    return f"{self.code}: {self.detail}" + (f"; {entry.advice}" if entry else "")


@dataclass(frozen=True, slots=True)
class Rejection:
  """A refusal with its reason: a value, not an exception.

  ``code`` is a key of ``REJECTIONS``; ``nodes`` names the ONNX nodes (or values) it is about.
  """

  code: str
  reason: str
  nodes: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    if self.code not in REJECTIONS:
      raise ValueError(f"unknown rejection code {self.code!r}")

  def __str__(self) -> str:
    where = f" ({', '.join(self.nodes)})" if self.nodes else ""
    return f"{self.code}: {self.reason}{where}"


class RejectionError(Exception):
  """Carries a Rejection out of a deep call; the stage that started the call returns the value."""

  def __init__(self, code: str, reason: str, nodes: tuple[str, ...] = ()) -> None:
    super().__init__(reason)
    self.rejection = Rejection(code, reason, nodes)
