"""Words in figures are where nothing else is."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from ringfence.reports.labels import HEIGHT, Place, Room, apart, around, label_ends


def test_labels_that_would_overlap_are_moved_apart_and_keep_their_order():
    placed = apart([0.5, 0.52, 0.1, 0.51], 0.1)
    assert np.argsort(placed).tolist() == [2, 0, 3, 1]
    assert np.diff(np.sort(placed)).min() >= 0.1 - 1e-12
    assert placed[2] == pytest.approx(0.1)
    assert np.mean([placed[0], placed[1], placed[3]]) == pytest.approx(0.51)


@pytest.mark.parametrize("heights", [[0.0, 0.01, 0.02], [1.0, 1.0, 0.99, 0.98], list(np.linspace(0.4, 0.6, 30))])
def test_labels_that_are_moved_apart_stay_within_the_panel(heights):
    placed = apart(heights, 0.1)
    assert min(placed) >= 0.0
    assert max(placed) <= 1.0
    assert np.diff(np.sort(placed)).min() >= min(0.1, 1 / (len(heights) - 1)) - 1e-12


def a_panel(*lines):
    axes = Figure().subplots()
    for x, y in lines:
        axes.plot(x, y)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return axes


def test_a_note_is_written_at_the_first_place_where_nothing_is():
    axes = a_panel(([0.0, 0.3], [0.52, 0.52]))
    Room(axes).write("a note", [Place(0.1, 0.5, "left", "bottom"), Place(0.9, 0.5, "right", "bottom")])
    assert axes.texts[0].xy[0] == 0.9


def test_notes_with_the_same_places_do_not_overlap():
    room = Room(a_panel())
    for text in ("limit", "safe", "unsafe", "a fourth", "a fifth"):
        room.write(text, [*around(0.5, 0.5), Place(0.1, 0.1, "left", "bottom")])
    for i, (left, right, low, high) in enumerate(room.words):
        assert 0 <= left < right <= 1
        for other in room.words[:i]:
            assert right <= other[0] or other[1] <= left or high <= other[2] or other[3] <= low


NAMES = ("a", "a rather long name", "of middle length", "limit 30", "safe behaviour", "unsafe behaviour", "b")


@pytest.mark.parametrize("heights", [np.linspace(0.0, 0.1, 7), np.linspace(0.9, 1.0, 7), np.full(7, 0.5)])
def test_a_leader_crosses_no_name_at_the_end_of_another_line(heights):
    figure = Figure(figsize=(3.6, 2.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    label_ends(axes, [(1.0, y, text, "black") for y, text in zip(heights, NAMES, strict=True)])
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    for i, text in enumerate(axes.texts):
        start, end = text.arrow_patch.get_transform().transform(text.arrow_patch.get_path().vertices[[0, -1]])
        for share in np.linspace(0, 1, 50):
            x, y = start + share * (end - start)
            assert not any(box.contains(x, y) for j, box in enumerate(boxes) if i != j)


def test_a_word_near_the_edge_stays_inside_its_panel():
    room = Room(a_panel())
    room.write("high", [Place(0.5, 0.99, "center", "bottom"), Place(0.5, 0.99, "center", "top")])
    assert room.words[0][3] == pytest.approx(0.99)
    assert room.words[0][2] == pytest.approx(0.99 - HEIGHT)
