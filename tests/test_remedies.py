"""Every refusal says what can be done, and where it is explained."""

from pathlib import Path

from mirage_onnx.errors import REJECTIONS
from mirage_onnx.remedies import PAGE, REMEDIES, link, remedy

ROOT = Path(__file__).resolve().parents[1]


def test_every_refusal_has_a_remedy_and_a_place():
  assert set(REMEDIES) == {*REJECTIONS, "NOT_CHOSEN"}
  assert all(len(text) > 10 and not text.endswith(".") for text in REMEDIES.values())
  page = (ROOT / PAGE).read_text()
  for code in REJECTIONS:
    path, _, anchor = link(code).partition("#")
    assert path == PAGE and f'<a id="{anchor}"></a>`{code}`' in page and remedy(code) in page


def test_what_is_unknown():
  assert link("NO_SUCH_CODE") == PAGE and remedy("NO_SUCH_CODE")
