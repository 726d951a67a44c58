"""The cached ranking of a request class equals a fresh one after every change."""

from __future__ import annotations

from unittest import mock

from vgpu_operator.placement import ranking_cache
from vgpu_operator.placement.ranking_cache import Ranking, Rankings


def some_rankings(nodes: int = 4) -> Rankings:
    rankings = Rankings()
    rankings.version.extend([0] * nodes)
    return rankings


def up_to_date(rankings: Rankings, *, mix: int = 0) -> Ranking:
    ranking = rankings.of("class")
    assert rankings.news_for(ranking, mix=mix) is None  # a new class begins with every node
    return ranking


def test_a_class_is_told_of_each_changed_node_once():
    rankings = some_rankings()
    ranking = up_to_date(rankings)
    assert rankings.news_for(ranking, mix=0) == ()
    for node in (2, 1, 2):
        rankings.touch(node)
    assert rankings.news_for(ranking, mix=0) == {1, 2}
    assert rankings.news_for(ranking, mix=0) == ()
    assert rankings.version == [0, 1, 2, 0]


def test_a_class_that_is_asked_for_the_first_time_after_changes_begins_anew_too():
    rankings = some_rankings()
    rankings.touch(1)
    ranking = up_to_date(rankings)
    rankings.touch(3)
    assert rankings.news_for(ranking, mix=0) == {3}


def test_a_class_that_fell_behind_the_log_begins_anew_and_one_that_did_not_goes_on():
    rankings = some_rankings()
    behind, ahead = up_to_date(rankings), rankings.of("other")
    for number in range(70_000):
        rankings.touch(number % 2)
        if number == 65_000:
            rankings.news_for(ahead, mix=0)
    behind.heap.append((0.0, "void", 0, 0))
    assert rankings.news_for(ahead, mix=0) == {0, 1}
    assert rankings.news_for(behind, mix=0) is None
    assert behind.heap == []
    assert rankings.news_for(behind, mix=0) == ()


def test_a_new_mix_makes_all_that_was_computed_with_the_old_one_void():
    rankings = some_rankings()
    ranking = up_to_date(rankings, mix=1)
    ranking.heap.append((0.0, "a", 0, 0))
    assert rankings.news_for(ranking, mix=2) is None
    assert ranking.heap == []
    assert rankings.news_for(ranking, mix=2) == ()


def test_a_heap_of_mostly_void_entries_is_made_anew():
    rankings = some_rankings(nodes=1)
    ranking = up_to_date(rankings)
    ranking.heap.extend([(0.0, "a", 0, 0)] * 68)
    assert rankings.news_for(ranking, mix=0) == ()
    ranking.heap.append((0.0, "a", 0, 0))
    assert rankings.news_for(ranking, mix=0) is None
    assert ranking.heap == []


def test_a_long_heap_is_cut_to_the_best_that_are_not_void():
    known = some_rankings(nodes=3)
    ranking = up_to_date(known)
    known.version[0] = 1
    void, best, next_, worst = (
        (0.0, "a", 0, 0),
        (1.0, "b", 1, 0),
        (1.0, "c", 2, 0),
        (2.0, "a", 0, 1),
    )
    ranking.heap.extend([worst, next_, void, best])
    ranking.keep_best(known.version)
    assert (ranking.heap, ranking.beyond) == ([worst, next_, void, best], None)
    with mock.patch.multiple(ranking_cache, BEST=3, _LONG=3):
        ranking.keep_best(known.version)
    assert (ranking.heap, ranking.beyond) == ([best, next_, worst], None)
    with mock.patch.multiple(ranking_cache, BEST=2, _LONG=3):
        ranking.keep_best(known.version)
        assert ranking.beyond is None
        ranking.heap.append(void)
        ranking.keep_best(known.version)
    assert (ranking.heap, ranking.beyond) == ([best, next_], worst)


def test_a_class_whose_best_nodes_do_not_serve_is_told_of_all_and_keeps_them_for_a_while():
    known = some_rankings(nodes=1)
    ranking = up_to_date(known)
    ranking.heap.append((0.0, "a", 0, 0))
    ranking.beyond = (1.0, "b", 0, 0)
    ranking.look_beyond()
    assert known.news_for(ranking, mix=0) is None
    assert (ranking.heap, ranking.beyond) == ([], None)
    assert known.news_for(ranking, mix=0) == ()
    entries = [(float(number), "a", 0, 0) for number in range(69)]
    ranking.heap.extend(entries)
    with mock.patch.multiple(ranking_cache, BEST=1, _LONG=1):
        ranking.keep_best(known.version)
        assert ranking.heap == entries
        assert known.news_for(ranking, mix=0) is None  # by now most entries are void
        ranking.heap.extend(entries)
        ranking.keep_best(known.version)
    assert (ranking.heap, ranking.beyond) == (entries[:1], entries[1])


def test_of_too_many_classes_the_one_that_was_not_used_longest_is_forgotten():
    rankings = some_rankings()
    classes = {key: rankings.of(key) for key in range(1024)}
    assert rankings.of(0) is classes[0]
    rankings.of("one more")
    assert rankings.of(0) is classes[0]
    assert rankings.of(1) is not classes[1]
    assert rankings.of(1023) is classes[1023]
