"""A checkpoint: the candidates of one region as a JSON file that a later search starts from.

{"format": "mirage-onnx checkpoint", "version": 1, "structure": ..., "region": ...,
 "candidates": [{"ugraph": ..., "params": [...], "predicted_us": ...}, ...]}

The texts are the canonical ones, so a file says what it is of: ``region`` with its sizes,
``structure`` without. At other sizes of the same structure there is nothing to start from, which
is no error. What is read here is only well-formed: whoever starts from it verifies it again, as if
the search had found it, and predicts its time for the target at hand.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage_onnx.errors import MirageError
from mirage_onnx.ir import Candidate, KernelParams, Region, parse_ugraph, print_ugraph
from mirage_onnx.superopt.atomic import replace_file

FORMAT = "mirage-onnx checkpoint"
VERSION = 1


def save_candidates(path: str | Path, region: Region, candidates: Sequence[Candidate]) -> None:
  """Write the candidates of ``region`` atomically; equal ones give equal bytes.

  Raises:
      MirageError: OUTPUT_UNWRITABLE; what was at ``path`` is there still.
  """
  content = {
    "format": FORMAT,
    "version": VERSION,
    "structure": region.structure,
    "region": region.text,
    "candidates": [
      {
        "ugraph": print_ugraph(c.ugraph),
        "params": [p.to_text() for p in c.params],
        "predicted_us": c.predicted_us if math.isfinite(c.predicted_us) else None,
      }
      for c in candidates
    ],
  }
  text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
  try:
    replace_file(Path(path), f"{text}\n".encode())
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error


def load_candidates(path: str | Path, region: Region) -> tuple[Candidate, ...]:
  """The candidates for ``region`` at its sizes; none where there is no file, or other sizes.

  Raises:
      MirageError: CHECKPOINT, where the file is damaged, of another version, or of a region of
          another structure; FILE_UNREADABLE.
  """
  content = _read(path, region)
  if content is None or content["region"] != region.text:
    return ()
  return _candidates(path, content)


def _read(path: str | Path, region: Region) -> dict[str, Any] | None:
  try:
    text = Path(path).read_bytes()
  except FileNotFoundError:
    return None
  except OSError as error:
    raise MirageError("FILE_UNREADABLE", f"{path}: {error.strerror or error}") from error
  try:
    content = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise _refusal(path, f"it is not JSON ({error})") from error
  if not isinstance(content, dict) or content.get("format") != FORMAT:
    raise _refusal(path, "it is not a checkpoint")
  version = content.get("version")
  if version != VERSION:
    raise _refusal(path, f"it is of version {version}, this program reads {VERSION}")
  if not isinstance(content.get("region"), str):
    raise _refusal(path, "it does not say what region it is of")
  if content.get("structure") != region.structure:
    raise _refusal(path, "it is of a region that computes something else")
  return content


def _candidates(path: str | Path, content: dict[str, Any]) -> tuple[Candidate, ...]:
  entries = content.get("candidates")
  if not isinstance(entries, list):
    raise _refusal(path, "it has no list of candidates")
  found = []
  for index, entry in enumerate(entries):
    try:
      found.append(_candidate(entry))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
      raise _refusal(path, f"candidate {index} is damaged: {error}") from error
  return tuple(found)


def _candidate(entry: dict[str, Any]) -> Candidate:
  graph = parse_ugraph(entry["ugraph"])
  if print_ugraph(graph) != entry["ugraph"]:
    raise ValueError("its text is not canonical")
  params = tuple(KernelParams.from_text(p) for p in entry["params"])
  if len(params) != len(graph.kernels):
    raise ValueError(f"{len(params)} sets of numbers for {len(graph.kernels)} kernels")
  predicted = entry["predicted_us"]
  if predicted is None:
    return Candidate(graph, params)
  if not isinstance(predicted, float) or not 0 <= predicted < math.inf:
    raise ValueError(f"a time of {predicted!r} us")
  return Candidate(graph, params, predicted)


def _refusal(path: str | Path, reason: str) -> MirageError:
  return MirageError("CHECKPOINT", f"{path}: {' '.join(reason.split())}")
