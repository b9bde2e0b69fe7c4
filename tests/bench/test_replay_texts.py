"""Which kernels of two trees are compared, and what is built of them, without a GPU."""

from types import SimpleNamespace

import pytest
import replay_texts
from replay_record import made, read_record

from mirage_onnx.errors import RejectionError


@pytest.fixture(scope="module")
def entry():
  return next(e for e in read_record(groups=("goldens",)) if e.name == "goldens/lora_two_kernels")


def write(folder, entry, texts):
  for at, text in enumerate(texts):
    path = folder / f"{entry.name}.k{at}.cu"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return folder


def test_only_kernels_whose_texts_differ(entry, tmp_path):
  texts = [m.text for m in made(entry)]
  assert len(texts) == 2
  before = write(tmp_path / "a", entry, texts)
  behind = write(tmp_path / "b", entry, [texts[0], texts[1] + "// other"])
  refused = write(tmp_path / "c", entry, ["REFUSED: why", texts[1]])
  assert [at for _, at, _ in replay_texts.differing([before, behind], [entry])] == [1]
  assert list(replay_texts.differing([before, before], [entry])) == []
  assert list(replay_texts.differing([before, refused], [entry])) == []
  assert list(replay_texts.differing([before, tmp_path / "none"], [entry])) == []


def test_what_is_built_of_texts(entry, monkeypatch):
  texts = [m.text for m in made(entry)]
  seen = []

  def compile_cubin(text, target, name):
    if "refuse" in text:
      raise RejectionError("COMPILE_FAILED", "216 bytes of stack")
    seen.append((name, target.name))
    return SimpleNamespace(registers=40)

  monkeypatch.setattr(replay_texts, "compile_cubin", compile_cubin)
  other = texts[1].replace("replay_k1(", "other_k1(")
  name, _, _, source, images, params = replay_texts.built("h100", (entry, 1, [texts[1], other]))
  assert (name, source.name, params) == ("goldens/lora_two_kernels.k1", "k1", entry.params[1])
  assert [f for f, _ in images] == ["replay_k1", "other_k1"]
  assert seen == [("replay_k1", "h100"), ("other_k1", "h100")]
  refused = replay_texts.built("h100", (entry, 1, [texts[1], texts[1] + "// refuse"]))
  assert refused.startswith("goldens/lora_two_kernels.k1: ") and "216 bytes of stack" in refused
