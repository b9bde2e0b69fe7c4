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
  assert [at for _, _, at, _ in replay_texts.differing([before, behind], [entry])] == [1]
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
  name, other = f"{entry.name}.k1", texts[1].replace("replay_k1(", "other_k1(")
  work = (name, entry, 1, [texts[1], other, texts[1]])
  found, _, _, source, images, params = replay_texts.built("h100", work)
  assert (found, source.name, params) == (name, "k1", entry.params[1])
  assert [f for f, _ in images] == ["replay_k1", "other_k1", "replay_k1"] and images[0] is images[2]
  assert seen == [("replay_k1", "h100"), ("other_k1", "h100")]
  *_, (image, refused), _ = replay_texts.built("h100", (name, entry, 1, [texts[1], texts[1] + "// refuse"]))
  assert image[0] == "replay_k1" and "216 bytes of stack" in refused


def test_named_kernels_come_first_then_groups():
  works = [(f"{g}/{n}.k0", SimpleNamespace(group=g), 0, []) for g in ("random", "goldens") for n in "abc"]
  names = [w[0] for w in replay_texts.in_order([*works], ["random/b.k0"], "0/1")]
  assert names[0] == "random/b.k0" and len(names) == 6
  assert {n.split("/")[0] for n in names[1:4]} == {"goldens"}
  halves = [[w[0] for w in replay_texts.in_order([*works], ["random/b.k0"], f"{n}/2")] for n in (0, 1)]
  assert halves == [names[::2], names[1::2]]
