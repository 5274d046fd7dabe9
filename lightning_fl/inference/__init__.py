"""Predictions of a finished run's models for new samples.

:mod:`models` chooses and loads the models, :mod:`forward` takes them through chunks of samples, :mod:`columns` names
what comes out, :mod:`predict` puts these together for ``lightning-fl predict RUN FILE`` and for Python.
"""
