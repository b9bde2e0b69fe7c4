"""Folders of onnxruntime-genai: ``optimize MODEL_DIR -o OUT_DIR``.

``genai_config.json`` names the models and says how long a cache gets. Each model is optimized as any
other; the rest (tokenizer, processors, chat template) is copied, and where a model has custom nodes, the
library is put beside it and named in its session options: genai 0.18 takes one library a session, below the
model's folder or the working folder. Without a GPU for its kernels the model runs its function bodies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from mirage_onnx.custom_op.library import LIBRARY_NAME, get_library_path
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.importer.steps_apart import is_apart
from mirage_onnx.report.text_file import write_text
from mirage_onnx.rewrite.external import data_files

CONFIG = "genai_config.json"
LIBRARY_OPTION = "custom_ops_library"
#: New tokens of a run: one of the decoder's steps, and prompts.
NEW_TOKENS = (1, 16, 256)
#: Length of a cache and of what is attended to, where the folder says nothing.
CONTEXT = 2048
#: Kernels are timed in a cache of no more.
MOST_ROOM = 8192


@dataclass(frozen=True, slots=True)
class NamedFile:
  """A model of the folder; ``at``: the keys of the config under which it is."""

  file: str
  at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GenaiFolder:
  """``config``: what genai_config.json holds."""

  path: Path
  config: Mapping[str, Any]
  parts: tuple[NamedFile, ...]

  @classmethod
  def read(cls, path: Path) -> GenaiFolder:
    """Of a folder that genai's builder, or Olive, has written.

    Raises:
        MirageError: FOLDER_INVALID.
    """
    try:
      config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
      raise _invalid(path, f"it has no {CONFIG}, so it is no folder of onnxruntime-genai") from None
    except (OSError, ValueError, RecursionError) as error:
      raise _invalid(path, f"{CONFIG} cannot be read ({_line(error)})") from None
    model = config.get("model") if isinstance(config, dict) else None
    parts = tuple(_parts(model, ("model",))) if isinstance(model, dict) else ()
    if not parts:
      raise _invalid(path, f"{CONFIG} names no model")
    for part in parts:
      if part.file != Path(part.file).name or not (path / part.file).is_file():
        raise _invalid(path, f"{CONFIG} names {part.file!r}, which is no file of the folder")
      options = _options(_section(config, part))
      if options.get(LIBRARY_OPTION):
        raise _invalid(path, f"{CONFIG} has a {LIBRARY_OPTION} already, and genai takes one")
    return cls(path, config, parts)

  @property
  def models(self) -> tuple[str, ...]:
    """The files, each once."""
    return tuple(dict.fromkeys(p.file for p in self.parts))

  def captures(self, file: str) -> bool:
    """Whether the config asks onnxruntime for CUDA graphs of this model, which may have no ``If`` then."""
    own = (_section(self.config, p) for p in self.parts if p.file == file)
    lists = (_options(s).get("provider_options") for s in own)
    asked = (o.get("cuda") for x in lists if isinstance(x, list) for o in x if isinstance(o, dict))
    return any(isinstance(a, dict) and str(a.get("enable_cuda_graph", "0")) != "0" for a in asked)

  def sizes(
    self, file: str, given: Mapping[str, Sequence[int]], *, steps: bool = False
  ) -> dict[str, tuple[int, ...]]:
    """Sizes of the dynamic dimensions of a model; those that are ``given`` count.

    Names are those of genai's builder: a cache as long as the config lets it get (``MOST_ROOM`` at most),
    half of it attended to, or a window; of a decoder whose ``steps`` have a branch, one new token.
    """
    model, search = (s if isinstance(s := self.config.get(k), dict) else {} for k in ("model", "search"))
    context = _number(model.get("context_length")) or CONTEXT
    longest = min(context, _number(search.get("max_length")) or context, MOST_ROOM)
    whole = max(2, longest // 2)
    decoder = model.get("decoder")
    head = _number(decoder.get("head_size")) if isinstance(decoder, dict) else None
    moved = decoder.get("sliding_window") if isinstance(decoder, dict) else None
    window = (_number(moved.get("window_size")) if isinstance(moved, dict) else None) or longest
    known = {
      "batch_size": (1,),
      "sequence_length": tuple(n for n in NEW_TOKENS if n < longest) or (1,),
      "past_sequence_length": (longest if search.get("past_present_share_buffer") else whole - 1,),
      "total_sequence_length": (whole,),
      **({"kv_cache_dim": (head,)} if head else {}),
      **dict.fromkeys(("past_sliding_length", "total_sliding_length"), (min(longest, window),)),
    }
    loaded = load_model(self.path / file, steps={} if steps else None)
    if loaded.nested is not None and is_apart(loaded.nested):
      known["sequence_length"] = (1,)
      known["past_sequence_length"] = (longest,)
    names = {d for t in loaded.tensors.values() for d in t.shape or () if isinstance(d, str)}
    return {n: tuple(given.get(n, s)) for n, s in (known | dict(given)).items() if n in names or n in given}

  def begin(self, output: Path) -> None:
    """Make the folder of the result, with all but models, weights and the config.

    Raises:
        MirageError: OUTPUT_IS_INPUT, OUTPUT_UNWRITABLE, or an error of reading a model.
    """
    if output.resolve() == self.path.resolve():
      raise MirageError("OUTPUT_IS_INPUT", f"{output} is the folder that is optimized")
    models = [onnx.load(self.path / m, load_external_data=False) for m in self.models]
    own = {(self.path / m).resolve() for m in (*self.models, CONFIG)}
    own |= {Path(f).resolve() for m in models for f in data_files(m, self.path)}
    try:
      output.mkdir(parents=True, exist_ok=True)
      for item in sorted(self.path.iterdir()):
        if item.resolve() in own or item.resolve() == output.resolve():
          continue
        if item.is_dir():
          shutil.copytree(item, output / item.name, dirs_exist_ok=True)
        else:
          shutil.copy2(item, output / item.name)
    except (OSError, shutil.Error) as error:
      raise MirageError("OUTPUT_UNWRITABLE", f"{output}: {_line(error)}") from error

  def finish(self, output: Path) -> tuple[str, ...]:
    """Write the config, last: a folder without it is not done. Returns models that have custom nodes.

    Raises:
        MirageError: OUTPUT_UNWRITABLE, OPS_LIBRARY_MISSING.
    """
    changed = tuple(m for m in self.models if _has_custom_nodes(output / m))
    config = json.loads(json.dumps(self.config))
    for part in self.parts:
      if part.file in changed:
        section = _section(config, part)
        section["session_options"] = {**_options(section), LIBRARY_OPTION: LIBRARY_NAME}
    if changed:
      beside = output / f".{LIBRARY_NAME}.{os.getpid()}.tmp"
      try:
        shutil.copy2(get_library_path(), beside)
        os.replace(beside, output / LIBRARY_NAME)  # one that is in use stays whole
      except OSError as error:
        raise MirageError("OUTPUT_UNWRITABLE", f"{output / LIBRARY_NAME}: {_line(error)}") from error
    write_text(output / CONFIG, json.dumps(config, indent=4, ensure_ascii=False) + "\n")
    return changed


def _parts(value: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[NamedFile]:
  """Every section with a file of ONNX: the decoder, an encoder, vision, stages of a pipeline."""
  name = value.get("filename")
  if isinstance(name, str) and name.endswith(".onnx"):
    yield NamedFile(name, at)
  for key, inner in value.items():
    for index, item in enumerate(inner if isinstance(inner, list) else [inner]):
      if isinstance(item, dict):
        yield from _parts(item, (*at, key, *([str(index)] if isinstance(inner, list) else [])))


def _section(config: Any, part: NamedFile) -> Any:
  for key in part.at:
    config = config[int(key)] if isinstance(config, list) else config[key]
  return config


def _options(section: Any) -> Mapping[str, Any]:
  options = section.get("session_options")
  return options if isinstance(options, dict) else {}


def _has_custom_nodes(path: Path) -> bool:
  graph = onnx.load(path, load_external_data=False).graph
  return any(n.domain.startswith("ai.mirage") for n in nodes_of(graph))


def _number(value: object) -> int | None:
  return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _line(error: BaseException) -> str:
  return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def _invalid(path: Path, why: str) -> MirageError:
  return MirageError("FOLDER_INVALID", f"{path}: {why}")
