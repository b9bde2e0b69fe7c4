"""From a kernel and its numbers to what its threads do; no text."""
