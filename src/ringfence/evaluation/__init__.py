"""Rollouts in environments, and what they say about a policy."""

from ringfence.evaluation.result import Evaluation
from ringfence.evaluation.rollout import Evaluator, evaluate, record_video

__all__ = ["Evaluation", "Evaluator", "evaluate", "record_video"]
