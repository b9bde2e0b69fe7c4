"""The programs that the search must solve by itself, and what it is to discover in each."""

from functools import cache

from attention_programs import ATTENTIONS
from linear_programs import LINEARS
from norm_programs import NORMS
from program_net import region

ENTRIES = {**NORMS, **LINEARS, **ATTENTIONS}
EXPECTED = {name: e.expected for name, e in ENTRIES.items()}


def _once(e):
  return cache(lambda: region(e.build))


#: Name -> its region of all nodes, which is made once.
PROGRAMS = {name: _once(e) for name, e in ENTRIES.items()}
