"""../fourteenth/train.py with another upper bound of the slack, in this directory with ../fourteenth on the path:

    SLACK=1.6 PYTHONPATH=../../../src:../fourteenth python slack.py TASK LIMIT SEED LOGS STATES"""

import os
import runpy

import train

from ringfence.algorithms import cpq_imagined

cpq_imagined.SLACK = (0.8, float(os.environ["SLACK"]))
runpy.run_path(train.__file__, run_name="__main__")
