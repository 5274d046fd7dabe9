"""Pictures of a run: callbacks that show them. The drawing functions are in the room of plots."""
