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
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.custom_op.library import LIBRARY_NAME, get_library_path
from mirage_onnx.custom_op.model_nodes import ModelFile
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
#: No config is larger.
MOST_BYTES = 1 << 24


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
      config = json.loads(read_bounded(path / CONFIG, MOST_BYTES).decode("utf-8"))
      _text(config)  # it can be written again
      model = config.get("model") if isinstance(config, dict) else None
      parts = tuple(_parts(model, ("model",))) if isinstance(model, dict) else ()
    except FileNotFoundError:
      raise _invalid(path, f"it has no {CONFIG}, so it is no folder of onnxruntime-genai") from None
    except (OSError, ValueError, RecursionError) as error:
      raise _invalid(path, f"{CONFIG} cannot be read ({_line(error)})") from None
    if not parts:
      raise _invalid(path, f"{CONFIG} names no model")
    for part in parts:
      if part.file != Path(part.file).name or not os.path.isfile(path / part.file):  # of any text
        raise _invalid(path, f"{CONFIG} names {part.file[:200]!r}, which is no file of the folder")
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
    models = [ModelFile.read(self.path / m).proto for m in self.models]
    own = {(self.path / m).resolve() for m in (*self.models, CONFIG)}
    own |= {Path(f).resolve() for m in models for f in data_files(m, self.path)}
    folders, files = self._beside({*own, output.resolve()})
    try:
      output.mkdir(parents=True, exist_ok=True)
      size, free = sum((self.path / f).stat().st_size for f in files), shutil.disk_usage(output).free
      if size > free:
        raise MirageError(
          "OUTPUT_UNWRITABLE", f"{output}: {free} bytes are free, and {size} are to be copied"
        )
      for folder in folders:
        (output / folder).mkdir(exist_ok=True)
      for file in files:
        shutil.copy2(self.path / file, output / file)
    except (OSError, shutil.Error) as error:
      raise MirageError("OUTPUT_UNWRITABLE", f"{output}: {_line(error)}") from error

  def _beside(self, left: Set[Path]) -> tuple[list[Path], list[Path]]:
    """Folders and files, from the top, without those ``left`` (resolved).

    A link to a file is a file, as in the folders of a hub; one to a folder may lead anywhere.

    Raises:
        MirageError: FOLDER_INVALID.
    """
    folders, files, todo = list[Path](), list[Path](), [Path()]
    while todo:
      try:
        items = sorted((self.path / (at := todo.pop())).iterdir())
      except OSError as error:
        raise _invalid(self.path, f"{str(at)!r} cannot be read ({_line(error)})") from None
      for item in items:
        name = at / item.name
        if item.resolve() in left:
          continue
        if item.is_dir() and not item.is_symlink():
          folders.append(name)
          todo.append(name)
        elif item.is_file():
          files.append(name)
        else:
          what = "a link to a folder" if item.is_dir() else "no file that can be copied"
          raise _invalid(self.path, f"{str(name)!r} is {what}")
    return folders, files

  def finish(self, output: Path) -> tuple[str, ...]:
    """Write the config, last: a folder without it is not done. Returns models that have custom nodes.

    Raises:
        MirageError: OUTPUT_UNWRITABLE, OPS_LIBRARY_MISSING.
    """
    changed = tuple(m for m in self.models if _has_custom_nodes(output / m))
    config = json.loads(_text(self.config))
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
    write_text(output / CONFIG, _text(config) + "\n")
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


def _text(config: Any) -> str:
  """The text of a config.

  Raises:
      ValueError or RecursionError: it is nested too deeply, or has a string that is no text.
  """
  text = json.dumps(config, indent=4, ensure_ascii=False)
  text.encode()
  return text


def _section(config: Any, part: NamedFile) -> Any:
  for key in part.at:
    config = config[int(key)] if isinstance(config, list) else config[key]
  return config


def _options(section: Any) -> Mapping[str, Any]:
  options = section.get("session_options")
  return options if isinstance(options, dict) else {}


def _has_custom_nodes(path: Path) -> bool:
  return any(n.domain.startswith("ai.mirage") for n in nodes_of(ModelFile.read(path).proto.graph))


def _number(value: object) -> int | None:
  return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _line(error: BaseException) -> str:
  return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def _invalid(path: Path, why: str) -> MirageError:
  return MirageError("FOLDER_INVALID", f"{path}: {why}")
