"""What ``save_model`` leaves in a folder."""

import re


def data_files_of(out):
  """The data files that have the name of an output, in order."""
  pattern = re.compile(re.escape(out.name) + r"\.[0-9a-f]{16}\.data")
  return sorted(p for p in out.parent.iterdir() if pattern.fullmatch(p.name))


def data_file(out):
  """The one data file of an output."""
  (found,) = data_files_of(out)
  return found
