"""What a run keeps: checkpoints, the run's folder and curves, loggers, and the state that callbacks see."""
