"""What a policy would earn and cost, estimated from a log alone: off-policy evaluation, and how sure it can be."""

from ringfence.evaluation.ope.choose import Choice, choose
from ringfence.evaluation.ope.judge import Judge, judge
from ringfence.evaluation.ope.judgement import Judgement

__all__ = ["Choice", "Judge", "Judgement", "choose", "judge"]
