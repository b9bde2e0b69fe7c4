"""What ``save_model`` leaves in a folder."""

import re


def is_data_of(output, name):
  """Whether a file's name is that of a data file of an output's name."""
  return re.fullmatch(re.escape(output) + r"\.[0-9a-f]{16}\.data", name) is not None


def data_files_of(out):
  """The data files that have the name of an output, in order."""
  return sorted(p for p in out.parent.iterdir() if is_data_of(out.name, p.name))


def data_file(out):
  """The one data file of an output."""
  (found,) = data_files_of(out)
  return found
