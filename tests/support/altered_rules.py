"""What altered models may do: what the library takes, and what ``verify`` passes.

``OPEN``: fields of a plan that SECURITY.md lists as not authenticated when a session is made, each with the
words that stand there.
"""

OPEN = {
  "grid": "grid,",
  "order of launches": "order,",
  "number of launches": "number and",
  "arguments": "arguments of launches",
  "offsets": "offsets in the workspace",
  "workspace": "and its size",
  "guards": "guards",
  "variants": "number of variants",
  "sizes that must agree": "sizes that must agree",
  "output dims": "output dims that the graph leaves open",
  "input dims": "input dims that the plan leaves open",
  "shared memory": "the size of dynamic shared memory",
  "pdl": "`pdl`",
  "bytes": "the bytes that a plan says a kernel touches",
}


def faults(row):
  """What is wrong with what the library and ``verify`` said of a case."""
  kind, library, verify = row["kind"], row["library"], row["verify"]
  launches = kind in ("plan", "both", "image", "swap")
  if verify == "TRACEBACK":
    yield f"verify ended with {row['verify_why']}"
  if launches and verify == "PASSED":
    yield "verify passed"
  if launches and library != "accepted" and "mirage-onnx:" not in row["library_why"]:
    yield f"the library's reason is none of ours: {row['library_why']}"
  if kind in ("plan", "both") and library == "accepted" and (more := set(row["fields"]) - OPEN.keys()):
    yield f"the library took another {', '.join(sorted(more))}"
