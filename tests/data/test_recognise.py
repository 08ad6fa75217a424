"""Episodes that are known again in another log."""

from dataclasses import replace

import numpy as np
import pytest

from ringfence.data.recognise import KnownEpisodes
from tests.logs import narrow_log

LOG = narrow_log(rows=400, episode_length=40)  # ten episodes, of which some terminate


def test_the_episodes_of_a_part_are_known_in_the_whole_whatever_their_order():
    known = KnownEpisodes.of(LOG.select_episodes([1, 4, 7]))
    assert np.flatnonzero(known.among(LOG)).tolist() == [1, 4, 7]
    assert known.among(LOG.select_episodes([4])).tolist() == [True]


@pytest.mark.parametrize("column", ["observations", "actions", "rewards", "costs"])
def test_an_episode_that_differs_in_one_number_is_another(column):
    changed = np.array(getattr(LOG, column))
    changed[45] += 0.25  # of the second episode
    known = KnownEpisodes.of(LOG).among(replace(LOG, **{column: changed}))
    assert np.flatnonzero(~known).tolist() == [1]


def test_an_episode_that_was_cut_off_is_known_when_it_goes_on_and_one_that_terminated_is_not():
    """Each log is one episode, the first 30 of 40 rows and then all of them."""
    whole = LOG.select_episodes([0])
    for terminated in (False, True):
        ends = np.arange(40) == 29
        flags = {"terminations": ends & terminated, "truncations": ends & (not terminated)}
        earlier = replace(whole, **flags).select_episodes([0])
        assert len(earlier) == 30
        assert KnownEpisodes.of(earlier).among(whole).tolist() == [not terminated]
        assert not KnownEpisodes.of(whole).among(earlier).any()


def test_what_is_known_survives_a_file_and_what_is_no_such_file_is_refused():
    known = KnownEpisodes.of(LOG)
    assert KnownEpisodes.from_json(known.to_json()) == known
    for wrong in (None, [], {}, {"digests": [1], "cut_off": []}, {"digests": [], "cut_off": ["40"]}):
        with pytest.raises(ValueError, match="digests"):
            KnownEpisodes.from_json(wrong)
