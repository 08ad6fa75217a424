"""A file becomes one validated `Dataset`; what is in it, and how safe it is."""

from ringfence.data.columnmapping import ColumnMapping
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import EpisodeTable, episode_table
from ringfence.data.normaliser import Normaliser
from ringfence.data.prepare import CostFunction
from ringfence.data.readers import load_file
from ringfence.data.summary import Summary, summarise
from ringfence.data.writers import save

__all__ = [
    "ColumnMapping",
    "CostFunction",
    "Dataset",
    "EpisodeTable",
    "Normaliser",
    "Summary",
    "episode_table",
    "load_file",
    "save",
    "summarise",
]
