"""A round: the cohort's turns, the average, what clients received and sent."""
