"""The engine: rounds of a federation, without a trainer and without callbacks.

What a round changes is a :class:`~lightning_fl.engine.federation.Federation`; clients' turns are taken by a
:class:`~lightning_fl.engine.turn.loop.LocalLoop`, made of settings, state, processes, hooks and a learner. Internal:
the public surface is the trainer's.
"""
