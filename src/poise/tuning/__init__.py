"""How the action of a phase is chosen: one call, behind which every policy and tuner stands.

`search` is the loop of Algorithm 1 and finds a tuner by its name, `trials` tries actions on `environments`, `results`
are what came of it and the history that all tuners remember, `classifier` says which classifier counts, `bilevel` and
`offline` are the tuners that are not policies.
"""

from poise.tuning import bilevel as bilevel  # these two add their tuners to the table in `search`
from poise.tuning import offline as offline
