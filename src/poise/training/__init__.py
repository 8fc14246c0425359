"""Algorithm 2: one model trained with one action.

`context` is what a training starts from and what it trains on, `trainer` trains it stage by stage, `step` is one step
of it (`capture`: as a CUDA graph), `optimiser` its length and what moves the weights, `evaluate` looks at models,
`lanes` runs several trainings side by side, `device` says where, `ranks` are processes that train together, `events`
is what happens on the way.
"""
