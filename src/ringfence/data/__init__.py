"""A file becomes one validated `Dataset`; what is in it, and how safe it is."""

from ringfence.data.dataset import CostFunction, Dataset
from ringfence.data.episodes import EpisodeTable, episode_table
from ringfence.data.normaliser import Normaliser

__all__ = ["CostFunction", "Dataset", "EpisodeTable", "Normaliser", "episode_table"]
