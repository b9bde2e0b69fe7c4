"""The axioms that golden µGraphs need to be derived, and that the best programs of searches need.

    python bench/axioms.py [--searches [PROGRAM ...]]

Prints the tables of tests/superopt/test_axioms_needed.py: every golden is derived with all axioms
but one, and so is, with --searches, every program of tests/support/search_programs.py searched.
Last come the axioms that nothing needs: each is a row to take out, or a program to add.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from axiom_needs import needed as needed_to_find
from axiom_needs import searched
from golden_derivations import is_derived, needed
from goldens import GOLDENS
from search_programs import PROGRAMS

from mirage_onnx.superopt.axioms import AXIOMS


def line(name, found, start):
    """A line of a table, as ruff formats it."""
    inner = ", ".join(f'"{axiom}"' for axiom in found) + ("," if len(found) == 1 else "")
    return f'    "{name}": ({inner}),  # {time.monotonic() - start:.1f} s'


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searches", nargs="*", metavar="PROGRAM", help="of all without any")
    names = parser.parse_args().searches
    if unknown := sorted(set(names or ()) - set(PROGRAMS)):
        parser.error(f"no program is called {', '.join(unknown)}")
    used = set()
    print("NEEDS")
    for golden in GOLDENS:
        start = time.monotonic()
        if not is_derived(golden):
            print(f"    # {golden.name} is not derived", flush=True)
            continue
        found = needed(golden)
        used |= set(found)
        print(line(golden.name, found, start), flush=True)
    if names is not None:
        print("FOUND_NEEDS")
        for name in names or PROGRAMS:
            start = time.monotonic()
            if not searched(name).candidates:
                print(f"    # {name}: the search finds no program", flush=True)
                continue
            found = needed_to_find(name)
            used |= set(found)
            print(line(name, found, start), flush=True)
    print("needed by none:", ", ".join(a.name for a in AXIOMS if a.name not in used) or "-")
    return 0


if __name__ == "__main__":
    sys.exit(main())
