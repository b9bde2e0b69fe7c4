"""Names of a model as text that can be shown, in XML and HTML too."""

import re

#: Control characters, halves of pairs, ends of lines elsewhere, and what turns the direction of text.
_UNPRINTABLE = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
  """``text``, in which what cannot be printed is a replacement character."""
  return _UNPRINTABLE.sub("\ufffd", text)
