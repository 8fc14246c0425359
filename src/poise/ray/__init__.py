"""Many machines: the cells of a sweep, or the trials of a phase, on the workers of a Ray cluster.

An extra (`ray`); `cluster` is the only module that imports Ray, and only when it is used. `host` is
what runs on a worker. It is sent words, paths and plain values. `staff` has the workers of a command: it starts them,
compares them with this machine, and notices when one is lost. `cells` and `trials` hand out the work, `letters` are
what a phase's trials start from. Where something ran is no part of its result: its bytes are the same.
"""

from poise.ray.executor import Executor

__all__ = ["Executor"]
