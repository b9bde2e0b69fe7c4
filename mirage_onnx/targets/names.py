"""What ``--target`` takes: the name of a row in any spelling, an architecture, or a part or kin of one.

    rtx4090  RTX 4090  NVIDIA GeForce RTX 4090      a row, by its name or the driver's
    a100  h100-sxm  rtxpro6000                      other names of rows
    sm_86                                           the slowest row of an architecture
    sm_86x46                                        a GPU of that architecture with 46 multiprocessors

The last is the name of every GPU without a row (``of_size``). It says all that a kernel's text depends on,
so what was generated for such a GPU can be generated again from its name.
"""

import re
from dataclasses import replace

from mirage_onnx.errors import MirageError
from mirage_onnx.targets.architectures import ARCHITECTURES, TOO_OLD, Architecture
from mirage_onnx.targets.profile import Rated, Target
from mirage_onnx.targets.rows import TARGETS

#: Other names, as ``_plain`` writes them.
_ALSO = {
  "a100": "a100-80gb", "a100sxm": "a100-80gb", "a100pcie": "a100-pcie-80gb", "agxorin": "orin",
  "jetsonagxorin": "orin", "h100sxm": "h100", "h100sxm5": "h100", "gracehopper": "gh200",
  "rtxpro6000blackwell": "rtx-pro-6000",
}  # fmt: skip
_OLD = re.compile(r"(t4|tesla.*|v100.*|quadrort.*|rtx20\d\d.*|sm(3|5|6|7)\d)")
_SIZED = re.compile(r"sm(\d+a?)x(\d+)")
_MOST_MULTIPROCESSORS = 1024


def get_target(name: str) -> Target:
  """The profile called ``name``, however it is spelled.

  Raises:
      MirageError: TARGET_UNKNOWN, with what there is.
  """
  plain = _plain(name)
  names = {_plain(t.name): t for t in TARGETS.values()} | {_plain(t.gpu): t for t in TARGETS.values()}
  if found := names.get(plain) or TARGETS.get(_ALSO.get(plain, "")):
    return found
  if sized := _SIZED.fullmatch(plain):
    architecture, count = _architecture(f"sm_{sized[1]}"), int(sized[2])
    if architecture is not None and 1 <= count <= _MOST_MULTIPROCESSORS:
      return of_size(architecture, count)
  elif (architecture := _architecture(plain.replace("sm", "sm_"))) is not None:
    return slowest(architecture)
  if _OLD.fullmatch(plain):
    raise MirageError("TARGET_UNKNOWN", f"no target {name!r}: {TOO_OLD}")
  known = ", ".join((*TARGETS, *ARCHITECTURES))
  raise MirageError(
    "TARGET_UNKNOWN",
    f"no target {name!r}; known: {known}; sm_86x46 for a GPU of an architecture with 46 multiprocessors; "
    "local for the one that is here",
  )


def of_size(architecture: Architecture, multiprocessors: int) -> Target:
  """A GPU of which only the architecture and the size are known.

  Its rates are those of the slowest row of the architecture, in proportion: a guess that orders what is
  measured. It has no table and no published figures of its own, so nothing is predicted for it.
  """
  like = slowest(architecture)
  share = multiprocessors / like.multiprocessors
  return replace(
    like,
    name=f"{architecture.arch}x{multiprocessors}",
    gpu=f"a GPU of {architecture.arch}",
    multiprocessors=multiprocessors,
    l2_bytes=max(1 << 20, int(like.l2_bytes * share)),
    stream_tbps=like.stream_tbps * share,
    mma_tflops=like.mma_tflops * share,
    l2_tbps=like.l2_tbps * share,
    published_tbps=like.published_tbps * share,
    published_tflops=like.published_tflops * share,
    rated=Rated.DATASHEET,
    ranked_by=like.ranked_by or like.name,
  )


def slowest(architecture: Architecture) -> Target:
  """The row of an architecture that reads memory slowest."""
  return min((t for t in TARGETS.values() if t.arch == architecture.arch), key=lambda t: t.stream_tbps)


def target_of_domain(suffix: str) -> Target | None:
  """A profile whose kernels carry the last part of a custom-op domain: limits and features, not rates."""
  return next((t for t in TARGETS.values() if t.suffix == suffix), None)


def _architecture(arch: str) -> Architecture | None:
  """By NVRTC's name, the ``a`` of which can be left out where there is only one."""
  return ARCHITECTURES.get(arch) or ARCHITECTURES.get(f"{arch}a")


def _plain(name: str) -> str:
  plain = re.sub(r"[^a-z0-9]", "", name.lower())
  return plain.removeprefix("nvidia").removeprefix("geforce")
