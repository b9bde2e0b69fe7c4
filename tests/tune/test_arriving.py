"""What ends in threads comes as news, errors too, and who leaves ends the search."""

import threading
import time
from types import SimpleNamespace

import pytest
import stand_ins

from mirage_onnx.tune.arriving import Arriving, Hands, News, Searched, Timed
from mirage_onnx.tune.outcome import Outcome


def outcome(key):
  return Outcome(stand_ins.region(key), (), 0.0)


def test_what_is_found_comes_while_the_rest_is_searched():
  go_on = threading.Event()

  def search(tell, asks):
    tell(outcome("a"))
    go_on.wait(60)
    tell(outcome("b"))

  with Arriving(search) as arriving:
    (first,) = arriving.news.take(60)
    assert isinstance(first, Searched) and first.outcome.region.key == "a"
    go_on.set()
    found = []
    while len(found) < 2:
      found += arriving.news.take(60)
    assert [one.outcome and one.outcome.region.key for one in found] == ["b", None]


def test_who_tells_much_is_not_heard_for_ever():
  news, heard, told = News(), threading.Event(), []

  def tell():
    while not heard.wait(0.01) and len(told) < 6000:
      news.tell(Searched(outcome("a")))
      told.append(1)

  thread = threading.Thread(target=tell)
  thread.start()
  found = news.take(60)
  assert found and len(told) < 6000
  heard.set()
  thread.join()
  assert len(found) + len(news.take(0)) == len(told) and news.take(0) == []


def test_who_leaves_ends_the_search():
  asked, begun = [], threading.Event()

  def search(tell, asks):
    while not asks.is_left:
      begun.set()
      asked.append(time.sleep(0.01))

  with Arriving(search) as arriving:
    assert begun.wait(60) and arriving.news.take(0.05) == []
  assert asked and not arriving._thread.is_alive()


def test_a_search_that_nobody_wants_more_of_ends_while_what_was_found_is_used():
  seen, heard = [], threading.Event()

  def search(tell, asks):
    while not asks.is_left:
      seen.append(asks.preferred)
      if asks.preferred:
        heard.set()
      time.sleep(0.01)
    tell(outcome("a"))

  with Arriving(search) as arriving:
    arriving.preferred = ("b", "a")
    assert heard.wait(60)
    arriving.leave()
    found = arriving.news.take(60)
    while len(found) < 2:
      found += arriving.news.take(60)
  assert seen[-1] == ("b", "a") and found[0].outcome.region.key == "a" and found[1].outcome is None


def test_an_error_of_the_search_is_raised_by_who_takes_the_news_or_leaves():
  def search(tell, asks):
    raise OSError("disk")

  with pytest.raises(OSError, match="disk"), Arriving(search) as arriving:
    (one,) = arriving.news.take(60)
    assert isinstance(one.error, OSError) and one.outcome is None


def test_two_hands():
  both = threading.Barrier(2, timeout=60)

  def tune(o, seconds):
    both.wait()  # nobody gets past it alone
    if o.region.key == "bad":
      raise MemoryError
    return SimpleNamespace(region=o.region, us=seconds)

  news = News()
  with Hands(tune, 2, news) as hands:
    hands.begin(outcome("a"), 1.0)
    assert hands.are_free
    hands.begin(outcome("bad"), 2.0)
    assert not hands.are_free and set(hands.busy) == {"a", "bad"}
    found = []
    while len(found) < 2:
      found += news.take(60)
    ended = {one.before.region.key: one for one in found if isinstance(one, Timed)}
    assert hands.end(ended["a"]).us == 1.0
    with pytest.raises(MemoryError):
      hands.end(ended["bad"])
    assert not hands.busy
