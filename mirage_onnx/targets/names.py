"""What ``--target`` takes: the name of a row in any spelling, an architecture, or a part or kin of one.

    rtx4090  RTX 4090  NVIDIA GeForce RTX 4090      a row, by its name or the driver's (4090, too)
    a100  h100-sxm  rtxpro6000                      other names of rows
    sm_86  compute_86  8.6                          the slowest row of an architecture
    sm_86x46                                        a GPU of that architecture with 46 multiprocessors

The last is the name of every GPU without a row (``of_size``). It says all that a kernel's text depends on,
so what was generated for such a GPU can be generated again from its name.
"""

import re
from dataclasses import replace
from difflib import get_close_matches

from mirage_onnx.errors import MirageError
from mirage_onnx.targets.architectures import ARCHITECTURES, TOO_OLD, Architecture
from mirage_onnx.targets.profile import Rated, Target
from mirage_onnx.targets.rows import TARGETS

#: Other names, as ``_plain`` writes them.
_ALSO = {
  "a100": "a100-80gb", "a100sxm": "a100-80gb", "a100sxm40gb": "a100-40gb", "a100sxm80gb": "a100-80gb",
  "a100pcie": "a100-pcie-80gb", "agxorin": "orin", "jetsonagxorin": "orin", "h100sxm": "h100",
  "h100sxm5": "h100", "h10080gb": "h100", "h100sxm80gb": "h100", "h100sxm580gb": "h100", "h200sxm": "h200",
  "gracehopper": "gh200", "dgxspark": "gb10", "rtxpro6000blackwell": "rtx-pro-6000",
}  # fmt: skip
_OLD = re.compile(
  r"(t4g?|t\d{3,4}(?!\d).*|mx\d+|tesla.*|[vpkm]\d{1,3}|v100.*|p100.*|gtx.*|titan.*|quadro.*|rtx[2-8]000|rtx20(?!50|00ada)\d\d.*|sm(3|5|6|7)\d)"
)
#: GPUs without a row, by words that begin their names: kernels for the architecture run on them.
_KIN = (
  ("sm_80", r"(a30|a100|a800)(?!\d)"), ("sm_86", r"a2|a10|a16|a40|(rtx)?a([1-6]\d|4|5)00|rtx(30\d|205)\d"),
  ("sm_87", r"(jetson)?orin"), ("sm_89", r"l40|l20|l2|rtx40\d\d|(rtx)?\d{3,4}ada"),
  ("sm_90a", r"g?h100|g?h200|h800|h20"), ("sm_100a", r"b100|b200|gb200"), ("sm_103a", r"b300|gb300"),
  ("sm_120a", r"rtx50\d\d|rtxpro\d[05]00"),
)  # fmt: skip
#: A GeForce by its number.
_NUMBER = re.compile(r"([345]0[5-9]0)(?!\d)")
_DOTTED = re.compile(r"\s*(\d+)\.(\d)(a?)\s*")
_SIZED = re.compile(r"sm(\d+a?)x(\d+)")
_MOST_MULTIPROCESSORS = 1024
#: How alike an unknown name is to one that was meant (``difflib``).
LIKE = 0.75
#: What drivers call GPUs; the others are rows of no GPU.
_NAMED = frozenset(t.gpu for t in TARGETS.values() if t.name not in ARCHITECTURES)


def get_target(name: str) -> Target:
  """The profile called ``name``, however it is spelled.

  Raises:
      MirageError: TARGET_UNKNOWN, with what there is.
  """
  said = _DOTTED.fullmatch(name)
  plain = f"sm{''.join(said.groups())}" if said else re.sub("^compute", "sm", _plain(name))
  plain = _NUMBER.sub(r"rtx\1", plain, count=1) if _NUMBER.match(plain) else plain
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
  if arch := next((a for a, names in _KIN if re.match(names, plain) and "," not in name), None):
    why = f"it has no row; {arch} makes kernels that run on it ({arch}x46: for 46 multiprocessors)"
    raise MirageError("TARGET_UNKNOWN", f"no target {name!r}: {why}")
  known = ", ".join(dict.fromkeys((*TARGETS, *ARCHITECTURES)))
  near = get_close_matches(plain, [*names, *_ALSO], 1, LIKE)
  meant = f" (did you mean {(names.get(near[0]) or TARGETS[_ALSO[near[0]]]).name}?)" if near else ""
  raise MirageError(
    "TARGET_UNKNOWN",
    f"no target {name!r}{meant}; known: {known}; sm_86x46 for a GPU of an architecture with 46 "
    "multiprocessors; local for the one that is here",
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
  general, _, chip = suffix.partition("_")
  rows = [t for t in TARGETS.values() if t.suffix == general]
  if not chip or not rows:
    return next(iter(rows), None)
  architecture, size = ARCHITECTURES[rows[0].arch], re.fullmatch(r"x(\d{1,4})", chip)
  sized = [of_size(architecture, int(size[1]))] if size else []
  return next((replace(t, suffix=suffix) for t in (*rows, *sized) if chip in chip_words(t)), None)


def chip_words(target: Target) -> tuple[str, ...]:
  """What a domain of kernels for one GPU has behind its architecture: ``sm90a_h200``, ``sm86_x46``.

  Of what the driver calls the GPU, and of its size: cpp/ort_custom_ops/decide.cc has the same rule.
  """
  return _plain(target.gpu), f"x{target.multiprocessors}"


def suffixes_that_run(target: Target) -> tuple[str, ...]:
  """The last parts of the domains whose kernels run on a GPU, those of itself only first."""
  general = target.suffix.partition("_")[0]
  return (*(f"{general}_{word}" for word in chip_words(target)), general)


def for_itself(target: Target) -> Target:
  """``target`` whose kernels run on no other GPU of its architecture.

  Raises:
      MirageError: OPTION_INVALID, it is no GPU but an architecture.
  """
  sized = _SIZED.fullmatch(_plain(target.name))
  if sized is None and target.gpu not in _NAMED:
    said = f"{target.name} is an architecture, not a GPU: give it before GPUs of it"
    raise MirageError("OPTION_INVALID", said)
  return replace(target, suffix=f"{target.suffix}_{chip_words(target)[1 if sized else 0]}")


def _architecture(arch: str) -> Architecture | None:
  """By NVRTC's name, the ``a`` of which can be left out where there is only one."""
  return ARCHITECTURES.get(arch) or ARCHITECTURES.get(f"{arch}a")


def _plain(name: str) -> str:
  plain = re.sub(r"[^a-z0-9]", "", name.lower())
  return plain.removeprefix("nvidia").removeprefix("geforce")
