"""Wrong code: single mistakes in the text of a kernel, in the generator itself.

``verify`` generates the text again and finds the same, so only what the kernel computes tells.
"""

from functools import partial

from text_mutants import mutants

from mutants.harness import Fault
from mutants.hooks import changed
from mutants.survey import TEXTS, survey


def faults(bench, subject):
  """Every mutant of every kernel's text of a subject."""
  for k, source in enumerate(survey(bench, subject).sources):
    for m in mutants(source):
      plant = partial(changed, partial(_is, source.text), partial(_other, m.source), *TEXTS)
      yield Fault("text", subject, f"{k}:{m.line} {m.change}", plant)


def _is(text, source):
  return source.text == text


def _other(source, _):
  return source
