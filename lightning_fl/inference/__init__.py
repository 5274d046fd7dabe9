"""Use of a finished run's models: prediction, uncertainty, explanation, personalisation and export."""
