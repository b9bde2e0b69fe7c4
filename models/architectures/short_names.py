"""Names of a graph's values by where they stand: left out of the stored forms, put in on loading.

An exporter counts values (``view_7``), so graphs of one family share few names. A value is stored
as its word and the step from the last number of that word (``view`` for the next one, ``view~3``),
an operand as how many values back it is made or, of a weight, the step from the last one (``w1``).
"""

import re


def leave_out(graph):
  """Shorten the names, in place."""
  _rename(graph, _shortened, short=True)


def put_in(graph):
  """Give the values of a graph that ``leave_out`` shortened their names again, in place."""
  _rename(graph, _lengthened, short=False)


def _shortened(name, numbers):
  word, number = re.fullmatch(r"(.*?)(?:_([1-9]\d*))?", name).groups("0")
  step = int(number) - numbers.get(word, -1)
  numbers[word] = int(number)
  return word if step == 1 else f"{word}~{step}"


def _lengthened(text, numbers):
  word, _, step = text.partition("~")
  numbers[word] = number = numbers.get(word, -1) + int(step or 1)
  return f"{word}_{number}" if number else word


def _rename(graph, renamed, *, short):
  """Rename values as they are made; weights and their parameters when they are first used."""
  weights = [*graph.input, *graph.initializer]
  names = [w.name for w in weights]  # as the graph to be read has them; a weight's once it is met
  left = dict(enumerate(graph.initializer, len(graph.input)))
  numbers, last = {}, len(graph.input) - 1

  def meet(place):
    tensor = left.pop(place, None)
    if tensor is not None:
      old, tensor.name = tensor.name, renamed(tensor.name, numbers)
      word, other = (old, "=") if short else ("=", tensor.name)
      if tensor.doc_string.startswith(word):
        tensor.doc_string = other + tensor.doc_string.removeprefix(word)

  def used(text):
    nonlocal last
    if not text:
      return text
    if short:
      place = names.index(text)
    elif text[0] == "w":
      place = last + int(text[1:])
    else:
      place = len(names) - int(text)
    step, last = place - last, place if place < len(weights) else last
    meet(place)
    if short:
      return f"w{step}" if place < len(weights) else str(len(names) - place)
    return weights[place].name if place < len(weights) else names[place]

  for node in graph.node:
    node.input[:] = [used(text) for text in node.input]
    new = [renamed(text, numbers) for text in node.output]
    names += node.output if short else new
    node.output[:] = new
  for value in graph.output:
    value.name = used(value.name)
  for place in range(len(weights)):
    meet(place)
