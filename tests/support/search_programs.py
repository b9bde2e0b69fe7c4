"""The programs that the search must solve by itself, and what it is to discover in each.

Every one is a graph of primitive operators at the sizes of a real model; the files of the families
say what it is.
"""

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
