"""Everything becomes text; only what was made as markup is markup."""

import json
from html.parser import HTMLParser

import pytest
from reported import HOSTILE

from mirage_onnx.inspection.printable import printable
from mirage_onnx.report.page.html import Markup, el, markup, script_json, short, size, times, us


class Texts(HTMLParser):
  def __init__(self):
    super().__init__(convert_charrefs=True)
    self.found, self.tags, self.attributes = "", [], []

  def handle_data(self, data):
    self.found += data

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs


def parsed(text):
  parser = Texts()
  parser.feed(text)
  parser.close()
  return parser


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_text(text):
  found = parsed(el("p", text, title=text))
  assert found.found == printable(text) and found.tags == ["p"]
  assert found.attributes == [("title", printable(text))]
  inside = script_json({text: text})
  assert "<" not in inside and ">" not in inside and json.loads(inside) == {text: text}


def test_what_cannot_be_printed():
  assert printable("a\x00b\u202ec\ud800d") == "a\ufffdb\ufffdc\ufffdd"
  el("p", "\ud800").encode()


def test_children_and_attributes():
  assert el("br") == "<br>"
  assert el(
    "a", [1, None, ["b", Markup("<i>")]], class_="x", aria_label="y", open=True, id=None, hidden=False
  ) == ('<a class="x" aria-label="y" open>1b<i></a>')
  assert markup("<", Markup("<")) == "&lt;<"


def test_numbers():
  assert [us(x) for x in (None, 0.123, 12.34, 1234.5)] == ["unknown", "0.12", "12.3", "1,234"]
  assert (times(3.0, 2.0), times(None, 1.0), times(1.0, 0.0)) == ("1.50×", "–", "–")
  assert [size(x) for x in (12, 1200, 1.2e6, 3e9)] == ["12 B", "1.2 kB", "1.2 MB", "3.0 GB"]
  long = "a" * 30 + "b" * 30
  assert long in short(long) and short(long).endswith("b</code>") and short("x") == "<code>x</code>"
